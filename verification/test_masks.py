"""What is constant behind masks stays so through every op, before a root, a logarithm or a power.

Claim: a mask, any op of the registry, then a function with an infinite slope: derivatives of orders one and two are
finite and right, by every strategy, wherever those of nested reverse mode of torch are finite; those by "forward" and
"mixed" where it has no infinite ones besides, which are multiplied by directions there.
Source: what a mask leaves out does not matter, whatever follows; torch's own masks come last, and select.
Falsifier: a kind of rule that loses what is constant, an op that is taken for one that varies everywhere, a strategy
that multiplies an infinite slope by a zero, a plan that the planner admits and that is nan.
Tolerance: relative to the largest entry, that of the row.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import count, product

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.arguments import STRATEGIES
from hofunc.graph.node import Graph
from hofunc.graph.record import record
from hofunc.rules.kinds import Linear, Multilinear, PiecewiseLinear
from hofunc.rules.lower import lower
from hofunc.rules.registry import RULES
from verification.oracles import nested_reverse, relative_error
from verification.programs.build import Builder, Step
from verification.programs.row import Row, Shape
from verification.programs.table import ROWS

aten = torch.ops.aten
Function = Callable[..., Tensor]

MASKS: dict[str, Function] = {
    "clamp": lambda x: x.clamp(min=0),
    "masked_fill": lambda x: x.masked_fill(x < 0, 0),
    "maximum": lambda x: torch.maximum(x, torch.zeros_like(x)),
    "relu": torch.relu,
    "where": lambda x: torch.where(x > 0, x, 0),
}
SINGULAR: dict[str, Function] = {
    "logarithm": torch.log,
    "power": lambda y: y**-0.5,
    "power with a tensor": lambda y: y ** torch.full_like(y, 0.7),
    "root": torch.sqrt,
}
SHAPES: dict[int, Sequence[Shape]] = {1: ((4,), (2, 3), (2, 2, 2), (1, 2, 4, 4)), 2: ((3,), (2, 3), (3, 2)), 3: ((3,),)}
USES = 3  # of a row, at most, on operands of given shapes
ONCE = ("attention", "embedding bag", "hardsigmoid")  # rows that torch cannot differentiate twice

# Linear ops that no use of a row below is recorded as; in inference mode torch takes nothing apart.
ALONE: dict[str, Function] = {
    "aten._neg_view.default": lambda x: -torch._neg_view(x),
    "aten._reshape_alias.default": lambda x: aten._reshape_alias(x, (2, 2), (2, 1)),
    "aten.contiguous.default": lambda x: x.reshape(2, 2).t().contiguous(),
    "aten.copy.default": lambda x: aten.copy(torch.zeros_like(x), x),
    "aten.diagonal_scatter.default": lambda x: torch.diagonal_scatter(torch.ones_like(x).outer(x), 2 * x),
    "aten.diagonal_backward.default": lambda x: aten.diagonal_backward(x, (4, 5), 1, 0, 1),
    "aten.fill.Tensor": lambda x: aten.fill(torch.zeros_like(x), x[0]),
    "aten.flatten.using_ints": lambda x: x.reshape(2, 2).flatten(),
    "aten.kthvalue.default": lambda x: x.kthvalue(3, 0).values,
    "aten.lift.default": aten.lift,
    "aten.lift_fresh.default": aten.lift_fresh,
    "aten.lift_fresh_copy.default": aten.lift_fresh_copy,
    "aten.masked_fill.Tensor": lambda x: x.masked_fill(x > 0.5, x.sum()),
    "aten.median.default": lambda x: x.median(),
    "aten.median.dim": lambda x: x.median(0).values,
    "aten.mode.default": lambda x: x.mode(0).values,
    "aten.nanmedian.default": lambda x: x.nanmedian(),
    "aten.nanmedian.dim": lambda x: x.nanmedian(0).values,
    "aten.numpy_T.default": lambda x: x.reshape(2, 2).T,
    "aten.positive.default": torch.positive,
    "aten.reshape.default": lambda x: x.reshape(2, 2),
    "aten.resolve_conj.default": torch.resolve_conj,
    "aten.resolve_neg.default": torch.resolve_neg,
    "aten.rsub.Tensor": lambda x: aten.rsub(-x, x),
    "aten.select_backward.default": lambda x: aten.select_backward(x, (3, 4), 0, 1),
    "aten.slice_backward.default": lambda x: aten.slice_backward(x, (9,), 0, 1, 9, 2),
    "aten.sub.Scalar": lambda x: aten.sub.Scalar(x, 0.0),
    "aten.to.dtype": lambda x: aten.to.dtype(x, torch.float64),
    "aten.unflatten.int": lambda x: x.unflatten(0, (2, 2)),
    "aten.where.ScalarOther": lambda x: aten.where.ScalarOther(x > 0.1, x, 0),
    "aten.where.ScalarSelf": lambda x: aten.where.ScalarSelf(x < 0.1, 0, x),
    "aten.unsafe_split_with_sizes.default": lambda x: torch.unsafe_split_with_sizes(x, [1, 3])[1],
}
REFERENCES: dict[str, Function] = {"aten.copy.default": torch.clone}  # where torch has no derivative
# Of complex numbers, and of what was written in place.
ELSEWHERE = ("_conj", "complex_to_complex", "restrided", "read_strided")


def test_every_linear_op_has_a_use() -> None:
    named = {str(op) for op, rule in RULES.items() if isinstance(rule, Linear | Multilinear | PiecewiseLinear)}
    met = {str(node.op) for row in ROWS for f, inputs in uses(row) for node in lowered(f, inputs).nodes}
    missing = {op for op in named - met - ALONE.keys() if not any(name in op for name in ELSEWHERE)}
    assert not missing
    assert ALONE.keys() <= named


@pytest.mark.parametrize("name", [row.name for row in ROWS])
def test_rows(name: str) -> None:
    (row,) = (row for row in ROWS if row.name == name)
    turn = count(sum(map(ord, name)))
    for op, inputs in uses(row):
        number = next(turn)
        mask, singular = (list(kinds.values())[number % len(kinds)] for kinds in (MASKS, SINGULAR))
        f = between(mask, op, singular)
        order = 1 if name in ONCE else 1 + number % 2
        compare(f, f, inputs, order, row.tolerance)


@pytest.mark.parametrize("op", ALONE)
@pytest.mark.parametrize("order", [1, 2])
def test_ops_alone(op: str, order: int) -> None:
    x = torch.tensor([-0.4, 0.3, -0.2, 0.7], dtype=torch.float64)
    with torch.inference_mode():
        f, reference = (between(torch.relu, uses[op], torch.sqrt) for uses in (ALONE, ALONE | REFERENCES))
        compare(f, reference, (x,), order, 1e-9)


def uses(row: Row) -> Iterator[tuple[Function, tuple[Tensor, ...]]]:
    """Yield functions of a row, each with inputs."""
    for shapes in product(SHAPES[row.arity], repeat=row.arity):
        for number in range(min(USES, len(row.fitting(*shapes)))):
            builder = Builder(shapes, seed=1, max_elements=64, rows=(row,))
            builder.take(Step(1, 0, number))
            if builder.statements:
                program = builder.program(1, 0)
                yield program, program.inputs


def between(mask: Function, op: Function, singular: Function) -> Function:
    """Put a mask before an op and a singular function behind it, of what it may be a function of."""

    def f(*inputs: Tensor) -> Tensor:
        y = op(*map(mask, inputs))
        weights = torch.arange(1, y.numel() + 1, dtype=y.dtype, device=y.device).reshape(y.shape)
        return (singular(y * y) * weights).sum()

    return f


def lowered(f: Function, inputs: tuple[Tensor, ...]) -> Graph:
    """Return the graph of a function once composite ops are expanded."""
    recording = record(lambda leaves, _: f(*leaves), inputs)
    return lower(recording.graph, recording.values, 1).graph


def compare(
    f: Function,
    reference: Function,
    inputs: tuple[Tensor, ...],
    order: int,
    tolerance: float,
    strategies: Sequence[str] = STRATEGIES,
) -> None:
    """Compare derivatives by strategies with those of torch, where these are finite."""
    with torch.inference_mode(False):
        expected = nested_reverse(reference, order)(*[x.clone() for x in inputs])
    finite = expected.isfinite()
    for strategy in strategies:
        if strategy in ("auto", "reverse") or finite.all():
            got = hofunc.hod(f, order, strategy=strategy)(*inputs)
            assert relative_error(got[finite], expected[finite]) < tolerance, strategy
