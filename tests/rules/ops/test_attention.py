"""Scaled dot-product attention, fused, against its formula."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import hofunc
from hofunc.graph.record import record
from hofunc.rules.kinds import Composite
from hofunc.rules.registry import RULES
from tests.cases import distinct, rand
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, use
from verification.oracles import nested_reverse, relative_error

pytestmark = ORACLE_WARNINGS
fused = F.scaled_dot_product_attention

KERNELS = [
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
]
QUERY, KEY, VALUE = (1, 1, 2, 2), (1, 1, 3, 2), (1, 1, 3, 2)


def attention(query: Tensor, key: Tensor, value: Tensor, *, bias: Tensor | float = 0, scale: float = 2**-0.5) -> Tensor:
    """Compute attention as it is written down."""
    return ((query @ key.transpose(-1, -2)) * scale + bias).softmax(-1) @ value


def composite(op: Any) -> Callable[..., Any]:
    """Return the function that stands for a kernel."""
    rule = RULES[op]
    assert isinstance(rule, Composite)
    return rule.function


def allowed(x: Tensor) -> Tensor:
    """Return a mask of which every row lets something through."""
    return torch.tensor([[True, False, True], [False, True, True]], device=x.device)


def barred(mask: Tensor) -> Tensor:
    """Return what a mask adds to the scores."""
    return torch.zeros(mask.shape, dtype=torch.float64, device=mask.device).masked_fill(~mask, -torch.inf)


CASES: list[OpCase] = [
    use("attention", fused, QUERY, KEY, VALUE, reference=attention),
    use(
        "attention over a batch of heads",
        lambda x: fused(x, x.sin(), x),
        (2, 2, 2, 1),
        reference=lambda x: attention(x, x.sin(), x, scale=1.0),
        orders=(1, 2),
    ),
    use(
        "a scale",
        lambda q, k, v: fused(q, k, v, scale=0.3),
        QUERY,
        KEY,
        VALUE,
        reference=lambda q, k, v: attention(q, k, v, scale=0.3),
        orders=(1, 2),
    ),
    use(
        "a boolean mask",
        lambda q, k, v: fused(q, k, v, attn_mask=allowed(q)),
        QUERY,
        KEY,
        VALUE,
        reference=lambda q, k, v: attention(q, k, v, bias=barred(allowed(q))),
        orders=(1, 2),
    ),
    use(
        "a mask of numbers",
        lambda q, k, v: fused(q, k, v, attn_mask=rand(q.device, 2, 3, seed=5)),
        QUERY,
        KEY,
        VALUE,
        reference=lambda q, k, v: attention(q, k, v, bias=rand(q.device, 2, 3, seed=5)),
        orders=(1, 2),
    ),
    use(
        "a mask that is differentiated by",
        lambda q, bias: fused(q, q, q, attn_mask=bias),
        QUERY,
        (2, 2),
        reference=lambda q, bias: attention(q, q, q, bias=bias),
    ),
    use(
        "a causal mask",
        lambda x: fused(x, x, x, is_causal=True),
        (1, 1, 3, 2),
        reference=lambda x: attention(x, x, x, bias=barred(torch.ones(3, 3, device=x.device).tril() > 0)),
        orders=(1, 2),
    ),
    use(
        "heads that share keys and values",
        lambda q, k, v: fused(q, k, v, enable_gqa=True, is_causal=True),
        (1, 4, 2, 2),
        (1, 2, 2, 2),
        (1, 2, 2, 1),
        reference=lambda q, k, v: attention(
            q, k[:, [0, 0, 1, 1]], v[:, [0, 0, 1, 1]], bias=barred(torch.ones(2, 2, device=q.device).tril() > 0)
        ),
        orders=(1, 2),
    ),
    use(
        "a causal mask of more keys than queries",
        lambda q, k, v: fused(q, k, v, is_causal=True),
        QUERY,
        KEY,
        VALUE,
        reference=lambda q, k, v: attention(q, k, v, bias=barred(torch.ones(2, 3, device=q.device).tril() > 0)),
        orders=(1, 2),
    ),
]


@every_row(CASES)
def test_attention(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_is_its_formula(name: str, device: torch.device) -> None:
    q, k, v = (rand(device, *shape, seed=seed) for seed, shape in enumerate((QUERY, KEY, VALUE)))
    op = getattr(torch.ops.aten, name).default
    names = {argument.name for argument in op._schema.arguments}
    bias = {key: barred(allowed(q)) for key in names & {"attn_mask", "attn_bias"}}
    (got,) = composite(op)(q, k, v, **bias, scale=0.3)
    expected = attention(q, k, v, scale=0.3, bias=barred(allowed(q)) if bias else 0)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("name", KERNELS)
def test_the_backward_of_every_kernel(name: str, device: torch.device) -> None:
    q, k, v, gradient = (rand(device, *shape, seed=seed) for seed, shape in enumerate((QUERY, KEY, VALUE, QUERY)))
    op = getattr(torch.ops.aten, f"{name}_backward").default
    names = [argument.name for argument in op._schema.arguments]
    bias = rand(device, 2, 3, seed=4)
    of_it = {"attn_mask", "attn_bias"} & {*names}
    given = {names[0]: gradient, "query": q, "key": k, "value": v, **dict.fromkeys(of_it, bias), "scale": 0.3}
    got = composite(op)(**given)  # what the forward returned is not looked at
    by = (q, k, v, bias) if of_it else (q, k, v)

    def written(*by: Tensor) -> Tensor:
        q, k, v, *rest = by
        return attention(q, k, v, scale=0.3, bias=rest[0] if rest else 0)

    torch.testing.assert_close(got[: len(by)], torch.func.vjp(written, *by)[1](gradient))


@pytest.mark.parametrize("name", KERNELS)
def test_the_backward_of_heads_that_share_keys(name: str, device: torch.device) -> None:
    q, k, v, gradient = (rand(device, 1, heads, 3, 2, seed=seed) for seed, heads in enumerate((6, 2, 2, 6)))
    op = getattr(torch.ops.aten, f"{name}_backward").default
    given = {op._schema.arguments[0].name: gradient, "query": q, "key": k, "value": v}
    groups = [0, 0, 0, 1, 1, 1]
    expected = torch.func.vjp(lambda q, k, v: attention(q, k[:, groups], v[:, groups]), q, k, v)[1](gradient)
    torch.testing.assert_close(composite(op)(**given)[:3], expected)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("way", ["plain", "mask", "causal"])
def test_gradients_of_it_inside_f(way: str, order: int, device: torch.device) -> None:
    """As forces of a model that attends; autograd itself has no second derivative of the fused kernel."""
    mask = rand(device, 3, 3, seed=5)
    ways: dict[str, tuple[dict[str, Any], Tensor | float]] = {
        "plain": ({}, 0),
        "mask": ({"attn_mask": mask}, mask),
        "causal": ({"is_causal": True}, barred(torch.ones(3, 3, device=device).tril() > 0)),
    }
    options, bias = ways[way]

    def forces(x: Tensor) -> Tensor:
        energy = fused(x.sin(), x, x, **options).square().sum()
        return torch.autograd.grad(energy, x, create_graph=True)[0]

    def energy(x: Tensor) -> Tensor:
        return attention(x.sin(), x, x, bias=bias).square().sum()

    x = rand(device, 1, 1, 3, 2)
    expected = nested_reverse(torch.func.grad(energy), order)(x)
    assert relative_error(hofunc.hod(forces, order)(x), expected) < 1e-12


@pytest.mark.parametrize("name", KERNELS)
def test_dropout_inside_a_kernel_is_refused(name: str) -> None:
    x = torch.ones(1, 1, 2, 2)
    op = getattr(torch.ops.aten, name).default
    with pytest.raises(hofunc.UnsupportedOpError, match=rf"{name}.*got dropout_p=0\.5.*Set dropout to zero") as caught:
        composite(op)(x, x, x, dropout_p=0.5)
    assert "test_attention.py:" in str(caught.value)


def test_samples_and_heads_are_kept_apart(device: torch.device) -> None:
    got = hofunc.hod(lambda x: fused(x, x, x).sum((2, 3)), 2, layout="compact")(rand(device, 2, 3, 2, 4))
    assert got.dense(keep_batch=True).shape == (2, 3, 2, 4, 2, 4)


# The fused layers of torch.nn, against the same layers while their parameters need gradients, which are not fused.


@pytest.mark.parametrize(
    ("norm_first", "masks"),
    [
        (True, ()),
        (False, ("src_mask",)),
        (True, ("src_key_padding_mask",)),
        (False, ("src_mask", "src_key_padding_mask")),
    ],
)
def test_an_encoder_layer_in_eval_mode(norm_first: bool, masks: tuple[str, ...], device: torch.device) -> None:
    activation = "gelu" if norm_first else "relu"
    layer = torch.nn.TransformerEncoderLayer(4, 2, 6, activation=activation, batch_first=True, norm_first=norm_first)
    layer = distinct(layer.double().to(device).eval())
    later = torch.ones(3, 3, dtype=torch.bool, device=device).triu(1)
    padding = torch.tensor([[False, False, True], [False] * 3], device=device)
    given = {name: {"src_mask": later, "src_key_padding_mask": padding}[name] for name in masks}

    def f(x: Tensor) -> Tensor:
        return (layer(x, **given) ** 3).sum()

    x = rand(device, 2, 3, 4)
    expected = hofunc.derivatives(f, 2)(x)
    layer.requires_grad_(False)
    assert torch.ops.aten._transformer_encoder_layer_fwd.default in recorded(f, x)
    assert relative_error(hofunc.derivatives(f, 2)(x), expected) < 1e-12


@pytest.mark.parametrize("need_weights", [False, True])
def test_multi_head_attention_in_eval_mode(need_weights: bool, device: torch.device) -> None:
    layer = distinct(torch.nn.MultiheadAttention(4, 2, batch_first=True).double().to(device).eval())

    def f(x: Tensor) -> Tensor:
        y, weights = layer(x, x, x, need_weights=need_weights)
        return (y**3).sum() + (weights**2).sum() if need_weights else (y**3).sum()

    x = rand(device, 2, 3, 4)
    expected = hofunc.derivatives(f, 2)(x)
    layer.requires_grad_(False)
    assert torch.ops.aten._native_multi_head_attention.default in recorded(f, x)
    assert relative_error(hofunc.derivatives(f, 2)(x), expected) < 1e-12


def recorded(f: Callable[[Tensor], Tensor], x: Tensor) -> set[Any]:
    """Return the ops that are recorded of a function."""
    return {node.op for node in record(lambda inputs, _: f(inputs[0]), [x]).graph.nodes}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_with_a_mask_of_padding_makes_no_nested_tensors(device: torch.device) -> None:
    """As it does in eval mode where nothing is followed; so its inputs are, as under torch.func."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, device=device, dtype=torch.float64)
    network = nn.TransformerEncoder(layer, 2).requires_grad_(False).eval()
    padding = torch.tensor([[False, False, True], [False, False, False]], device=device)

    def f(x: Tensor) -> Tensor:
        return network(x, src_key_padding_mask=padding)[~padding].pow(3).sum()

    x = rand(device, 2, 3, 4)
    with sdpa_kernel(SDPBackend.MATH):
        expected = nested_reverse(f, 2)(x)
    for hessian in (hofunc.hessian(f), hofunc.hessian(f), hofunc.hessian(f).plan(x), hofunc.jit(hofunc.hessian(f))):
        assert relative_error(hessian(x), expected) < 1e-12
