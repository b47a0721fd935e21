"""Flexible attention against the softmax that it is, written out."""

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as module
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from hofunc import hod
from tests.cases import rand
from tests.checks import assert_equal, check_hod
from verification.oracles import nested_reverse

CPU = torch.device("cpu")
B, H, L, E = 2, 2, 3, 2
Q, K, V = (rand(CPU, B, H, L, E, seed=seed) for seed in range(3))
BIAS = rand(CPU, H, L, L, seed=3)
WEIGHT = rand(CPU, B, H, L, E, seed=4)
NOT_LATER = torch.ones(L, L, dtype=torch.bool).tril()


def attention(q: Tensor, k: Tensor, v: Tensor, change: Callable[[Tensor], Tensor] = lambda s: s) -> Tensor:
    return (change(q @ k.mT / math.sqrt(E)).softmax(-1) @ v * WEIGHT).sum()


def flexible(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return (flex_attention(q, k, v, **options) * WEIGHT).sum()


def not_later(_b: Tensor, _h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return q >= kv


def biased(bias: Tensor) -> Callable[..., Tensor]:
    return lambda score, b, h, q, kv: score.tanh() + bias[h, q, kv] * bias[0, 0, kv] + (q - kv) * 0.1 + b


def by_bias(bias: Tensor) -> Callable[[Tensor], Tensor]:
    distance = torch.arange(L)[:, None] - torch.arange(L)
    return lambda s: s.tanh() + bias * bias[0, 0] + distance * 0.1 + torch.arange(B)[:, None, None, None]


def masked(score: Tensor) -> Tensor:
    return score.masked_fill(~NOT_LATER, -math.inf)


MASK = create_block_mask(not_later, B, H, L, L, device="cpu", BLOCK_SIZE=L)
CASES: dict[str, tuple[dict[str, Any], Callable[[Tensor], Tensor]]] = {
    "plain": ({}, lambda s: s),
    "scores": ({"score_mod": biased(BIAS)}, by_bias(BIAS)),
    "mask": ({"block_mask": MASK}, masked),
    "both": ({"score_mod": biased(BIAS), "block_mask": MASK}, lambda s: masked(by_bias(BIAS)(s))),
    "scale": ({"scale": 2.0}, lambda s: s * math.sqrt(E) * 2),
}


@pytest.mark.parametrize(("options", "change"), CASES.values(), ids=CASES)
def test_by_query_key_and_value(options: dict[str, Any], change: Callable[[Tensor], Tensor]) -> None:
    for order in (1, 2):
        check_hod(
            lambda q, k, v: flexible(q, k, v, **options),
            (Q, K, V),
            order,
            argnums=(0, 1, 2),
            reference=lambda q, k, v: attention(q, k, v, change),
        )


@pytest.mark.parametrize("order", [1, 2])
def test_by_what_the_scores_capture(order: int) -> None:
    def f(bias: Tensor) -> Tensor:
        return flexible(Q, K, V, score_mod=biased(bias), block_mask=MASK)

    check_hod(f, (BIAS,), order, reference=lambda bias: attention(Q, K, V, lambda s: masked(by_bias(bias)(s))))


def test_in_a_plan() -> None:
    plan = hod(lambda q: flexible(q, K, V, score_mod=biased(BIAS), block_mask=MASK), 2).plan(Q)
    other = rand(CPU, B, H, L, E, seed=5)
    assert_equal(plan(other), nested_reverse(lambda q: attention(q, K, V, CASES["both"][1]), 2)(other))


def test_under_vmap() -> None:
    biases = torch.stack([BIAS, 2 * BIAS])
    by_bias_too = torch.vmap(lambda bias: hod(lambda q: flexible(q, K, V, score_mod=biased(bias)), 2)(Q))
    expected = [nested_reverse(lambda q, b=bias: attention(q, K, V, by_bias(b)), 2)(Q) for bias in biases]
    assert_equal(by_bias_too(biases), torch.stack(expected))


def test_plans_take_other_indices() -> None:
    documents = torch.tensor([0, 2, 1])

    def f(q: Tensor, documents: Tensor) -> Tensor:
        return flexible(q, K, V, score_mod=lambda s, b, h, q, kv: s * BIAS[h, documents[q], kv])

    plan = hod(f, 2).plan(Q, documents)
    for each in (documents, documents.flip(0)):
        expected = nested_reverse(lambda q, each=each: attention(q, K, V, lambda s: s * BIAS[:, each]), 2)(Q)
        assert_equal(plan(Q, each), expected)
    assert_equal(torch.vmap(hod(f, 2), (None, 0))(Q, documents[None])[0], hod(f, 2)(Q, documents))


@pytest.mark.parametrize("is_planned", [False, True])
def test_gradients_by_what_is_captured(is_planned: bool) -> None:
    """Torch refuses queries that require gradients on the CPU, since it has no kernel for them."""
    weight, bias = rand(CPU, E, E).requires_grad_(), BIAS.clone().requires_grad_()
    hessian = hod(lambda q: flexible(q @ weight, K, V, score_mod=biased(bias)), 2)
    got = torch.autograd.grad(((hessian.plan(Q) if is_planned else hessian)(Q) ** 2).sum(), (weight, bias))
    reference = nested_reverse(lambda q: attention(q @ weight, K, V, by_bias(bias)), 2)
    assert_equal(got, torch.autograd.grad((reference(Q) ** 2).sum(), (weight, bias)))
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        flex_attention(Q @ weight, K, V)


def test_grouped_queries_and_what_else_is_returned() -> None:
    def f(q: Tensor, k: Tensor) -> Tensor:
        out, aux = flex_attention(q, k, V[:, :1], enable_gqa=True, return_aux=AuxRequest(lse=True))
        assert aux.lse is not None
        return (out * WEIGHT).sum() + (aux.lse**2).sum()

    def reference(q: Tensor, k: Tensor) -> Tensor:
        scores = q @ k.mT / math.sqrt(E)
        out = scores.softmax(-1) @ V[:, :1]
        return (out * WEIGHT).sum() + (scores.logsumexp(-1) ** 2).sum()

    check_hod(f, (Q, K[:, :1]), 2, argnums=(0, 1), reference=reference)


def test_the_output_lies_in_memory_as_the_query_does() -> None:
    """As with torch, so that heads can be merged by a view."""

    def f(x: Tensor) -> Tensor:
        heads = x.view(B, L, H, E).transpose(1, 2)
        return flex_attention(heads, K, V).transpose(1, 2).view(B, L, H * E)

    x = rand(CPU, B, L, H * E)
    expected = nested_reverse(lambda x: (x.view(B, L, H, E).transpose(1, 2) @ K.mT / math.sqrt(E)).softmax(-1) @ V, 1)(
        x
    )
    assert_equal(hod(f, 1)(x), expected.transpose(1, 2).reshape(B, L, H * E, B, L, H * E))


def test_rows_that_are_masked_whole() -> None:
    nothing = create_block_mask(lambda _b, _h, q, kv: (q > kv) & (q > 0), B, H, L, L, device="cpu", BLOCK_SIZE=L)
    hessian = hod(lambda q: flexible(q, K, V, block_mask=nothing), 2)(Q)
    assert not hessian.isnan().any()
    assert not hessian[:, :, 0].any()


def test_scores_that_branch_on_a_value_are_refused() -> None:
    f = hod(lambda q: flexible(q, K, V, score_mod=lambda s, *_: s if s > 0 else -s), 2)
    with pytest.raises(RuntimeError, match="data-dependent control flow"):
        f(Q)
    chosen = hod(lambda q: flexible(q, K, V, score_mod=lambda s, *_: torch.cond(s > 0, torch.sin, torch.cos, (s,))), 2)
    assert_equal(
        chosen(Q), nested_reverse(lambda q: attention(q, K, V, lambda s: torch.where(s > 0, s.sin(), s.cos())), 2)(Q)
    )


def test_torch_has_its_own_outside_of_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    monkeypatch.setattr(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)  # as a user who looks for a mistake does
    assert_equal(hod(flexible, 1)(Q, K, V), nested_reverse(attention, 1)(Q, K, V))
    assert_equal(flexible(Q, K, V), attention(Q, K, V))


def test_torch_compiles_what_hofunc_has_replaced() -> None:
    """As it would not compile a look at the modes, in `torch.compile(flex_attention)`."""

    def f(q: Tensor) -> Tensor:
        module._validate_device(q, K, V)
        return q.sin()

    assert_equal(torch.compile(f, fullgraph=True, backend="eager")(Q), Q.sin())


def test_autocast_rounds_as_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = Q.float(), K.float(), V.float()
    values: list[Tensor] = []

    def f(q: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            values.append(flex_attention(q, k, v).detach())
        return values[-1]

    hod(f, 1)(q)
    monkeypatch.setattr(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    f(q)
    assert values[0].dtype == torch.bfloat16
    assert torch.equal(values[0], values[1])


FRESH = """
import sys
import torch
{before}
import hofunc
print("torch.nn.attention.flex_attention" in sys.modules)

def f(q):
    from torch.nn.attention.flex_attention import flex_attention
    return (flex_attention(q, q, q) ** 2).sum()

q = torch.arange(4.0, dtype=torch.float64).view(1, 1, 2, 2).requires_grad_()
print(float(hofunc.hessian(f)(q).sum()))
"""


@pytest.mark.parametrize("before", ["", "import torch.nn.attention.flex_attention"])
def test_it_is_imported_by_nobody_but_the_function(before: str) -> None:
    command = [sys.executable, "-c", FRESH.format(before=before)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    is_there, result = found.stdout.splitlines()
    assert is_there == str(bool(before))
    q = torch.arange(4.0, dtype=torch.float64).view(2, 2)
    expected = nested_reverse(lambda q: (((q @ q.T / math.sqrt(2)).softmax(-1) @ q) ** 2).sum(), 2)(q).sum()
    torch.testing.assert_close(torch.tensor(float(result), dtype=q.dtype), expected)
