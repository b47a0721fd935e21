"""The fallback by nested torch.func: exact, announced once, and refused where torch fails."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.releases import RELEASE
from hofunc.rules.registry import RULES
from tests.cases import rand
from tests.rules.opcase import ORACLE_WARNINGS, between
from verification.oracles import central_differences, nested_reverse, relative_error

aten = torch.ops.aten
pytestmark = ORACLE_WARNINGS

WITHOUT_A_RULE = [
    aten._linalg_det.default,
    aten.convolution.default,
    aten.cumprod.default,
    aten.linalg_inv_ex.default,
    aten.linalg_qr.default,
    aten.sort.default,
    aten._cdist_forward.default,
    aten.histc.default,
    aten._embedding_bag_forward_only.default,
    aten.segment_reduce.default,
]
CONVOLUTION = (torch.nn.functional.conv1d, [(1, 1, 4), (1, 1, 2)])


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the rules of some ops away, and forget which were warned of and all plans."""
    for op in WITHOUT_A_RULE:
        monkeypatch.delitem(RULES, op, raising=False)
    monkeypatch.setattr("hofunc.rules.opaque._WARNED", set())
    monkeypatch.setattr("hofunc.run.cache._plans", OrderedDict())


@pytest.mark.parametrize(
    ("name", "f", "shapes"),
    [
        ("convolution", *CONVOLUTION),
        ("cumprod", lambda x: x.cumprod(0), [(3,)]),
        ("linalg_inv_ex", lambda x: torch.linalg.inv(x + 3 * torch.eye(2).to(x)), [(2, 2)]),
        ("linalg_qr", torch.linalg.qr, [(2, 2)]),
        ("sort", lambda x: x.sort(0).values * x, [(3,)]),
    ],
)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_fallback_is_exact_and_says_so(
    name: str, f: Callable[..., Any], shapes: list[tuple[int, ...]], order: int, device: torch.device
) -> None:
    args = [rand(device, *shape, seed=seed) for seed, shape in enumerate(shapes)]
    argnums = tuple(range(len(args)))
    with pytest.warns(hofunc.FallbackWarning, match=rf"no rule for aten\.{name}\.default") as caught:
        got = hofunc.hod(between(f), order, argnums)(*args)
    assert len(caught) == 1
    assert relative_error(got, nested_reverse(between(f), order, argnums)(*args)) < 1e-10


def test_the_slots_of_several_tensors_are_in_order(device: torch.device) -> None:
    f, (left, right) = CONVOLUTION
    x, w = rand(device, *left), rand(device, *right, seed=1)
    with pytest.warns(hofunc.FallbackWarning):
        got = hofunc.hessian(f, argnums=(1, 0))(x, w)
    assert got[0][1].shape == (1, 1, 3, *right, *left)
    assert got[1][0].shape == (1, 1, 3, *left, *right)
    assert relative_error(got, nested_reverse(f, 2, (1, 0))(x, w)) < 1e-10


def test_one_tensor_at_several_places(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.nn.functional.conv1d(x, x.sin()) * x

    x = rand(device, 1, 1, 1)
    with pytest.warns(hofunc.FallbackWarning):
        got = hofunc.hod(f, 3)(x)
    assert relative_error(got, nested_reverse(f, 3)(x)) < 1e-10


def test_under_vmap(device: torch.device) -> None:
    x = rand(device, 2, 3)
    with pytest.warns(hofunc.FallbackWarning):
        got = torch.func.vmap(hofunc.hessian(between(lambda x: x.cumprod(0))))(x)
    assert relative_error(got, torch.func.vmap(nested_reverse(between(lambda x: x.cumprod(0)), 2))(x)) < 1e-10


def test_in_inference_mode(device: torch.device) -> None:
    with torch.inference_mode():
        x = rand(device, 3)
        with pytest.warns(hofunc.FallbackWarning):
            got = hofunc.hessian(between(lambda x: x.cumprod(0)))(x)
    assert relative_error(got, nested_reverse(between(lambda x: x.cumprod(0)), 2)(x.clone())) < 1e-10


def test_what_torch_takes_for_a_constant_is_refused(device: torch.device) -> None:
    with pytest.raises(
        hofunc.UnsupportedOpError, match=r"aten\.histc\.default: got a result without a gradient"
    ) as caught:
        hofunc.jacobian(torch.histc)(rand(device, 3))
    assert str(caught.value).endswith(
        "Detach its input if it is to be a constant, or add a rule (docs/how-to/adding-an-op.md)."
    )


def test_an_op_that_draws_random_numbers_is_refused(device: torch.device) -> None:
    """Its derivative would be taken at other numbers than its value."""
    with pytest.raises(
        hofunc.UnsupportedOpError, match=r"no rule for aten._standard_gamma.default: got an op that draws random"
    ):
        hofunc.jacobian(torch._standard_gamma)(rand(device, 3) + 1)


def test_the_warning_comes_once_and_names_the_line_of_the_call(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return x.cumprod(0)

    def slope_and_curvature(x: Tensor) -> tuple[Tensor, Tensor]:
        return hofunc.jacobian(f)(x), hofunc.hessian(f)(x)

    with pytest.warns(hofunc.FallbackWarning, match=r"cumprod.*See docs/how-to/adding-an-op\.md") as caught:
        slope_and_curvature(rand(device, 3))
    (warning,) = caught
    assert warning.filename == __file__
    assert warning.lineno == slope_and_curvature.__code__.co_firstlineno + 1


def test_what_torch_cannot_differentiate_twice_is_refused(device: torch.device) -> None:
    x, lengths = rand(device, 5), torch.tensor([2, 3], device=device)

    def f(x: Tensor) -> Tensor:
        return torch.segment_reduce(x, "max", lengths=lengths)

    with pytest.warns(hofunc.FallbackWarning), pytest.raises(hofunc.UnsupportedOpError) as caught:
        hofunc.hessian(f)(x)
    message = str(caught.value)
    assert "no rule for aten.segment_reduce.default: got a failure of torch at order 2" in message
    assert "_segment_reduce_backward" in message
    assert "expected an op that torch can differentiate that often (called at test_opaque.py:" in message
    assert message.endswith("Write f with other ops, or add a rule (docs/how-to/adding-an-op.md).")
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.skipif(RELEASE >= (2, 15), reason="torch knows the third derivative of a determinant of zero")
def test_a_derivative_that_torch_leaves_undefined_is_refused(device: torch.device) -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64, device=device)
    with pytest.warns(hofunc.FallbackWarning), pytest.raises(hofunc.UnsupportedOpError) as caught:
        hofunc.hod(lambda x: torch.linalg.det(torch.stack([x, x * 0 + 1])), 3)(x)
    message = str(caught.value)
    assert "no rule for aten._linalg_det.default: got nan from torch's own derivative of order 3" in message
    assert "expected a derivative of torch that is defined at these inputs (called at test_opaque.py:" in message
    assert message.endswith("Write f with other ops, or add a rule (docs/how-to/adding-an-op.md).")


def test_what_is_not_a_number_to_begin_with_stays_so(device: torch.device) -> None:
    x = torch.tensor([1.0, float("nan"), 2.0], dtype=torch.float64, device=device)
    with pytest.warns(hofunc.FallbackWarning):
        got = hofunc.hessian(lambda x: x.cumprod(0).sum())(x)
    assert got.isnan().any()


def test_a_wrong_batching_rule_of_torch_is_noticed(device: torch.device) -> None:
    x, y = rand(device, 3, 3), rand(device, 3, 3, seed=1)

    def f(x: Tensor) -> Tensor:
        return torch.cdist(x, y)

    expected = central_differences(f, x)
    assert relative_error(torch.func.jacrev(f)(x), expected) > 0.1  # once it is right, leave the check out
    with pytest.warns(hofunc.FallbackWarning):
        got = hofunc.jacobian(f)(x)
    assert relative_error(got, expected) < 1e-9
    mapped = torch.func.vmap(hofunc.jacobian(f))(torch.stack([x, x + 1]))
    assert relative_error(mapped, torch.stack([expected, central_differences(f, x + 1)])) < 1e-9


def test_a_complex_op_that_is_not_known_is_refused(device: torch.device) -> None:
    x = rand(device, 4)
    with pytest.raises(hofunc.UnsupportedOpError) as caught:
        hofunc.jacobian(lambda x: torch.fft.rfft(x).logcumsumexp(0).abs())(x)
    message = str(caught.value)
    assert "by way of complex numbers: got aten.logcumsumexp.default with a result of torch.complex128" in message
    assert "expected real numbers, or complex ones by transforms, arithmetic and views (called at" in message
    assert message.endswith("Write the real and the imaginary part out.")


def test_complex_numbers_beside_the_way_are_let_be(device: torch.device) -> None:
    x = rand(device, 4)
    got, aux = hofunc.jacobian(lambda x: (x * torch.fft.rfft(x).detach().abs().sum(), torch.fft.rfft(x)), has_aux=True)(
        x
    )
    assert relative_error(got, torch.eye(4, dtype=x.dtype, device=device) * torch.fft.rfft(x).abs().sum()) < 1e-12
    assert torch.equal(aux, torch.fft.rfft(x))


def test_a_kernel_that_is_meant_for_constants_is_refused(device: torch.device) -> None:
    index = torch.tensor([[0, 1], [1, 1]], device=device)
    with pytest.raises(hofunc.UnsupportedOpError, match="got a result without a gradient"):
        hofunc.jacobian(lambda x: torch.nn.functional.embedding_bag(index, x.sin()))(rand(device, 2, 2))


class Unchanged(torch.autograd.Function):
    """Returns what it takes; what its backward pass does is set for each test."""

    does: Callable[[Tensor], Tensor] = staticmethod(torch.neg)

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:
        return Unchanged.does(gradient)


@pytest.mark.filterwarnings("ignore:hofunc. of Unchanged:hofunc.FallbackWarning")
@pytest.mark.parametrize(
    "does",
    [
        lambda g: g.clamp(-0.5, 0.5),
        lambda g: g / g.norm(),
        lambda g: g * g,
        lambda g: g if g.sum() > 0 else 3 * g,
        lambda g: g * torch.rand_like(g),
        lambda g: g + 1,
    ],
)
def test_a_backward_pass_that_is_not_linear_is_refused(
    does: Callable[[Tensor], Tensor], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Unchanged, "does", staticmethod(does))
    x = rand(device, 3)
    with pytest.raises(hofunc.UnsupportedOpError, match="got a backward pass that is not linear in the gradient"):
        hofunc.jacobian(lambda x: Unchanged.apply(x.exp()).sin().sum())(x)
    with hofunc.options(functions="forward"):
        got = hofunc.jacobian(lambda x: Unchanged.apply(x.exp()).sin().sum())(x)
    assert relative_error(got, x.exp().cos() * x.exp()) < 1e-12


def test_a_backward_pass_that_turns_gradients_around_is_linear(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Unchanged, "does", staticmethod(lambda g: -2 * g))
    x = rand(device, 3)
    got = hofunc.jacobian(lambda x: Unchanged.apply(x.exp()).sin().sum())(x)
    assert relative_error(got, -2 * x.exp().cos() * x.exp()) < 1e-12
