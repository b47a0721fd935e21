"""Weighted sums, reductions, masks and extremes, against nested torch.func."""

import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, use
from verification.oracles import nested_reverse, relative_error

aten = torch.ops.aten
pytestmark = ORACLE_WARNINGS


def positive(x: Tensor) -> Tensor:
    """Return where the input was positive, as a constant."""
    return x.detach() > 0


SUMS = [
    use("add", torch.add, (2, 3), (2, 3)),
    use("add with alpha", lambda x, y: torch.add(x, y, alpha=-2.5), (2, 3), (2, 3)),
    use("add broadcasts a missing axis", torch.add, (2, 3), (3,)),
    use("add broadcasts axes of size one", torch.add, (2, 1), (1, 3)),
    use("add broadcasts a scalar", lambda x, y: torch.add(x, y, alpha=3), (), (2, 2)),
    use("add to itself", lambda x: torch.add(x, x, alpha=2), (3,)),
    use("add to its own transpose", lambda x: x + x.t(), (2, 2)),
    use("add a number", lambda x: torch.add(x, 3, alpha=2), (3,)),
    use("add.Scalar", lambda x: aten.add.Scalar(x, 2.0, 3.0), (3,)),
    use("add a constant tensor", lambda x: x + torch.ones(2, 1, dtype=x.dtype, device=x.device), (2, 3)),
    use("sub", torch.sub, (2, 3), (3,)),
    use("sub with alpha", lambda x, y: torch.sub(x, y, alpha=0.5), (2, 1), (2, 3)),
    use("sub from itself", lambda x: torch.sub(x, x, alpha=3), (3,)),
    use("sub.Scalar", lambda x: aten.sub.Scalar(x, 2.0, 3.0), (3,)),
    use("rsub", lambda x: 2 - x, (3,)),
    use("rsub.Scalar", lambda x: aten.rsub.Scalar(x, 2.0, 3.0), (3,)),
    use("rsub.Tensor", lambda x, y: torch.rsub(x, y, alpha=2), (2, 3), (1, 3)),
    use("neg", torch.neg, (2, 2)),
    use("mul.Scalar", lambda x: aten.mul.Scalar(x, -1.5), (3,)),
    use("lerp.Scalar", lambda x, y: torch.lerp(x, y, 0.3), (2, 3), (3,)),
    use("lerp beyond the ends", lambda x, y: torch.lerp(x, y, -2.0), (3,), (3,)),
    use("lerp of one tensor", lambda x: torch.lerp(x, x, 0.3), (3,)),
    use("add of an empty tensor", lambda x: x + x, (0, 2), orders=(1, 2)),
]

REDUCTIONS = [
    use("sum", lambda x: x.sum(), (2, 3)),
    use("sum of a scalar", lambda x: x.sum(), ()),
    use("sum of nothing", lambda x: x.sum(), (0, 2), orders=(1,)),
    use("sum over a dim", lambda x: x.sum(1), (2, 3)),
    use("sum over a negative dim, kept", lambda x: x.sum(-2, keepdim=True), (2, 3)),
    use("sum over several dims", lambda x: x.sum((0, -1)), (2, 2, 2)),
    use("sum over several dims, kept", lambda x: x.sum((-1, 0), keepdim=True), (2, 2, 2)),
    use("sum over no dims is over all", lambda x: aten.sum.dim_IntList(x, []), (2, 2)),
    use("sum over dims None, kept", lambda x: aten.sum.dim_IntList(x, None, True), (2, 2)),
    use("sum over an empty axis", lambda x: x.sum(1) + x.sum(0).sum(), (3, 0), orders=(1, 2)),
    use("sum over an axis of size one", lambda x: x.sum(0), (1, 3)),
    use("sum of an expanded tensor", lambda x: x.expand(3, 2).sum(1), (3, 1)),
    use("sum of a tensor that was added to a larger one", lambda x: (x + torch.ones(2, 3).to(x)).sum(1), (2, 1)),
    use("sum of a transposed tensor", lambda x: x.t().sum(0), (2, 3)),
    use("sum in a wider dtype", lambda x: x.sum(0, dtype=torch.float64), (2, 2)),
    use("mean", lambda x: x.mean(), (2, 3)),
    use("mean of a scalar", lambda x: x.mean(), ()),
    use("mean over a dim, kept", lambda x: x.mean(1, keepdim=True), (2, 3)),
    use("mean over several dims", lambda x: x.mean((0, -1)), (2, 3, 2), orders=(1, 2)),
    use("trace", torch.trace, (3, 3)),
    use("trace of a wide matrix", torch.trace, (2, 3)),
    use("trace of a tall matrix", torch.trace, (3, 2)),
]

MASKS = [
    use("where", lambda x, y: torch.where(positive(x), x, y), (2, 3), (2, 3)),
    use("where broadcasts", lambda x, y: torch.where(positive(y), x, y), (2, 1), (1, 3)),
    use("where broadcasts the condition", lambda x, y: torch.where(positive(x)[:, :1], x, y), (2, 3), (3,)),
    use("where the condition is the largest", lambda x, y: torch.where(positive(x).expand(2, 3), x, y), (3,), ()),
    use("where of one tensor", lambda x: torch.where(positive(x), x, x), (3,)),
    use("where with a number on the left", lambda x: torch.where(positive(x), 2.0, x), (4,)),
    use("where with a number on the right", lambda x: torch.where(positive(x), x, 2.0), (4,)),
    use("where.ScalarSelf", lambda x: torch.where(positive(x), 2.0, x), (4,), inference=True),
    use("where.ScalarOther", lambda x: torch.where(positive(x), x, 2.0), (4,), inference=True),
    use("masked_fill", lambda x: x.masked_fill(positive(x), 3.0), (2, 3)),
    use("masked_fill broadcasts the mask", lambda x: x.masked_fill(positive(x)[:1], -1.0), (2, 3)),
    use("masked_fill with a tensor", lambda x, y: x.masked_fill(positive(x), y), (2, 3), ()),
    use("maximum", torch.maximum, (2, 3), (2, 3)),
    use("maximum broadcasts", torch.maximum, (2, 1), (3,)),
    use("maximum with itself", lambda x: torch.maximum(x, x), (3,)),
    use("maximum at ties", lambda x: torch.maximum(x, x.detach().clone()), (3,)),
    use("maximum at ties of two variables", lambda x: torch.maximum(x, x.flip(0)), (3,)),
    use("minimum", torch.minimum, (2, 3), (1, 3)),
    use("minimum at ties", lambda x: torch.minimum(x, x.detach().clone()), (3,)),
    use("tril", torch.tril, (3, 3)),
    use("tril above the diagonal", lambda x: x.tril(1), (2, 3)),
    use("tril of a batch", torch.tril, (3, 2, 3), orders=(1, 2)),  # at order 3 torch itself takes 10 GB
    use("tril of a batch of rows", torch.tril, (2, 1, 2)),
    use("triu of a batch", lambda x: x.triu(-1), (2, 2, 2)),
    use("triu of a batch of batches", torch.triu, (2, 1, 2, 2)),
    use("triu beyond the corner", lambda x: x.triu(5), (2, 2)),
]


def _tied(device: torch.device) -> list[Tensor]:
    return [torch.tensor([[1.0, 2.0, 2.0], [0.5, 0.5, -3.0]], dtype=torch.float64, device=device)]


EXTREMES = [
    use("amax", lambda x: x.amax(1), (2, 3)),
    use("amax over several dims, kept", lambda x: x.amax((0, 2), keepdim=True), (2, 2, 2)),
    use("amax over all", lambda x: x.amax(), (2, 3)),
    use("amax of a scalar", lambda x: x.amax(), ()),
    use("amax over a negative dim at ties", lambda x: x.amax(-1), inputs=_tied),
    use("amax over all at ties", lambda x: x.amax((0, 1)), inputs=_tied),
    use("amin", lambda x: x.amin(0), (3, 2)),
    use("amin at ties", lambda x: x.amin(-1, keepdim=True), inputs=_tied),
    use("max", lambda x: x.max(), (2, 3)),
    use("max at ties", lambda x: x.max(), inputs=_tied),
    use("min", lambda x: x.min(), (2, 3)),
    use("min at ties", lambda x: x.reshape(3, 2).min(), inputs=_tied),
]

CASES: list[OpCase] = [*SUMS, *REDUCTIONS, *MASKS, *EXTREMES]


@every_row(CASES)
def test_linear(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


@pytest.mark.parametrize(
    ("op", "slope"), [(torch.maximum, 0.5), (torch.minimum, 0.5), (lambda x, y: torch.stack([x, y]).amax(0), 0.5)]
)
def test_a_tie_of_two_arguments_is_shared(op, slope: float, device: torch.device) -> None:  # type: ignore[no-untyped-def]
    x = rand(device, 3)
    first, second = hofunc.jacobian(op, argnums=(0, 1))(x, x.clone())
    assert torch.equal(first, slope * torch.eye(3, dtype=x.dtype, device=device))
    assert torch.equal(second, first)


def test_a_sum_over_rows_keeps_the_batch(device: torch.device) -> None:
    derivative = hofunc.hod(lambda x: x.tanh().sum(1), 2, layout="compact")(rand(device, 3, 2))
    assert derivative.pattern == "b, b c, b c"


HIDDEN = torch.tensor([[True, False, True], [False, False, False]]).logical_not()


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize(
    "f",
    [
        lambda x, hidden: x.masked_fill(hidden, -torch.inf).softmax(1).masked_fill(hidden, 0),
        lambda x, hidden: torch.where(hidden, 0, torch.where(hidden, torch.nan, x).sin()),
        lambda x, hidden: torch.where(hidden.all(1), 0, torch.where(hidden, 0, x**3).sum(1) / (~hidden).sum(1)),
    ],
)
def test_what_a_mask_leaves_out_is_zero_whatever_it_is(f, order: int, device: torch.device) -> None:  # type: ignore[no-untyped-def]
    """Rows that are masked whole, or what is nan or divided by zero where it is masked: torch selects likewise."""
    x, hidden = rand(device, 2, 3), HIDDEN.to(device)
    expected = nested_reverse(lambda x: f(x, hidden), order)(x)
    assert not expected.isnan().any()
    for strategy in ("auto", "reverse", "forward"):
        assert relative_error(hofunc.hod(lambda x: f(x, hidden), order, strategy=strategy)(x), expected) < 1e-12


def test_a_mask_of_a_function_that_is_linear_is_its_derivative(device: torch.device) -> None:
    derivative = hofunc.hod(lambda x: torch.where(HIDDEN.to(device), 0, x), 1, layout="compact")(rand(device, 2, 3))
    assert derivative.pattern == "b c, b c"
    assert torch.equal(derivative.dense().reshape(6, 6), torch.diag((~HIDDEN.to(device)).double().flatten()))


def test_a_mask_needs_its_condition_alone(device: torch.device) -> None:
    x, hidden = rand(device, 2, 3), torch.tensor([True, False], device=device)[:, None]
    f = lambda x: torch.where(hidden, x.sin(), 0).sum()  # noqa: E731
    assert torch.equal(hofunc.hod(f, 2)(x), torch.func.hessian(f)(x))
    ops = [node.target for node in hofunc.hod(f, 1).plan(x).to_fx().graph.nodes]
    assert torch.ops.aten.sin.default not in ops
