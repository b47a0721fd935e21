"""Rearrangements of axes, against nested torch.func, and the labels that they keep."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.algebra.labels import labels_of, shape_of
from hofunc.rules.ops.reshape import common_refinement
from tests.cases import rand
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, use

aten = torch.ops.aten
pytestmark = ORACLE_WARNINGS


def _narrowed(x: Tensor) -> Tensor:
    return x.to(torch.float32).to(torch.float64)


COPIES = [
    use("alias", aten.alias.default, (2, 3)),
    use("clone", torch.clone, (2, 3)),
    use("clone of a transpose", lambda x: x.t().clone(memory_format=torch.contiguous_format), (2, 3)),
    use("contiguous", lambda x: x.t().contiguous(), (2, 3), inference=True),
    use("contiguous of a contiguous tensor", lambda x: x.contiguous(), (2, 3)),
    use("lift", aten.lift.default, (3,)),
    use("lift_fresh", aten.lift_fresh.default, (3,)),
    use("lift_fresh_copy", aten.lift_fresh_copy.default, (3,)),
    use("a copy to the same dtype", lambda x: x.to(torch.float64, copy=True), (3,)),
    use("to the same dtype", lambda x: x.to(torch.float64), (3,)),
    use("to another dtype and back", _narrowed, (3,), inference=True, tolerance=1e-6),
    use("positive", torch.positive, (3,), inference=True),
    use("resolve_conj", torch.resolve_conj, (3,), inference=True),
    use("resolve_neg", torch.resolve_neg, (3,), inference=True),
]

PERMUTATIONS = [
    use("t", torch.t, (2, 3)),
    use("t of a vector", torch.t, (3,)),
    use("t of a scalar", torch.t, ()),
    use("T", lambda x: x.T, (2, 3), inference=True),
    use("transpose", lambda x: x.transpose(0, 2), (2, 1, 3)),
    use("transpose of negative dims", lambda x: x.transpose(-1, -2), (2, 3)),
    use("transpose of a scalar", lambda x: x.transpose(0, -1), ()),
    use("permute", lambda x: x.permute(2, 0, 1), (2, 1, 3)),
    use("permute of negative dims", lambda x: x.permute(-1, 0, -2), (2, 1, 3)),
    use("permute of an expanded tensor", lambda x: x.expand(2, 2, 3).permute(2, 0, 1), (2, 3), orders=(1, 2)),
    use("permute of an empty tensor", lambda x: x.permute(1, 0), (0, 2), orders=(1,)),
    use("movedim", lambda x: x.movedim(0, -1), (2, 1, 3)),
]

UNITS = [
    use("squeeze of no dim", lambda x: aten.squeeze.dims(x, []), (1, 2)),
    use("squeeze", torch.squeeze, (1, 3, 1)),
    use("squeeze of a dim", lambda x: x.squeeze(-1), (1, 3, 1)),
    use("squeeze of a dim that is not one", lambda x: x.squeeze(1), (1, 3, 1)),
    use("squeeze of several dims", lambda x: x.squeeze((0, -1)), (1, 3, 1)),
    use("squeeze of a scalar", lambda x: x.squeeze(0), ()),
    use("unsqueeze", lambda x: x.unsqueeze(0), (3,)),
    use("unsqueeze of a negative dim", lambda x: x.unsqueeze(-1), (3,)),
    use("unsqueeze of a scalar", lambda x: x.unsqueeze(-1), ()),
    use("expand", lambda x: x.expand(2, 3), (2, 1)),
    use("expand to more axes", lambda x: x.expand(2, -1, 3), (2, 1), orders=(1, 2)),
    use("expand of a scalar", lambda x: x.expand(2, 2), ()),
    use("expand that leaves all", lambda x: x.expand(-1, 3), (2, 3)),
    use("expand to nothing", lambda x: x.expand(0, 3).sum(0), (1, 3), orders=(1,)),
    use("repeat", lambda x: x.repeat(2, 2), (1, 3), orders=(1, 2)),
    use("repeat to more axes", lambda x: x.repeat(2, 1, 2), (2, 1), orders=(1, 2)),
    use("repeat of a scalar", lambda x: x.repeat(3), ()),
    use("repeat and fold", lambda x: x.repeat(2).reshape(2, 3).sum(0), (3,)),
]

RESHAPES = [
    use("reshape that merges", lambda x: x.reshape(6), (2, 3)),
    use("reshape that splits", lambda x: x.reshape(2, 3), (6,)),
    use("reshape that splits and merges", lambda x: x.reshape(3, 2, 2), (6, 2), orders=(1, 2)),
    use("reshape whose boundaries do not nest", lambda x: x.reshape(3, 2), (2, 3)),
    use("reshape whose boundaries nest in part", lambda x: x.reshape(4, 3), (6, 2), orders=(1, 2)),
    use("reshape of a reshape", lambda x: x.reshape(3, 2).sin().reshape(2, 3), (2, 3)),
    use("sum of a reshape whose boundaries do not nest", lambda x: x.reshape(3, 2).sum(1), (2, 3)),
    use("reshape of a broadcast", lambda x: x.expand(2, 3).reshape(3, 2).sum(1), (2, 1)),
    use("reshape of a transpose", lambda x: x.t().reshape(2, 3), (2, 3)),
    use("reshape with axes of size one", lambda x: x.reshape(1, 2, 1, 3, 1), (2, 1, 3)),
    use("reshape to a scalar", lambda x: x.reshape(()), (1, 1)),
    use("reshape of a scalar", lambda x: x.reshape(1, 1), ()),
    use("reshape of an empty tensor", lambda x: x.reshape(3, 0), (0, 2), orders=(1,)),
    use("reshape, whole", lambda x: x.reshape(-1, 2), (2, 3), inference=True),
    use("reshape of a transpose, whole", lambda x: x.t().reshape(-1), (2, 3), inference=True),
    use("view", lambda x: x.view(-1), (2, 3)),
    use("view, whole", lambda x: x.view(6, 1), (2, 3), inference=True),
    use("_unsafe_view", lambda x: aten._unsafe_view.default(x, [3, 2]), (2, 3)),
    use("_reshape_alias", lambda x: aten._reshape_alias.default(x, [3, 2], [2, 1]), (6,)),
    use("flatten", lambda x: x.flatten(1), (2, 1, 3), inference=True),
    use("flatten of negative dims", lambda x: x.flatten(-3, -2), (2, 2, 1), inference=True),
    use("flatten of a scalar", lambda x: x.flatten(), (), inference=True),
    use("unflatten", lambda x: x.unflatten(-1, (2, -1)), (2, 4), orders=(1, 2), inference=True),
]

CASES: list[OpCase] = [*COPIES, *PERMUTATIONS, *UNITS, *RESHAPES]


@every_row(CASES)
def test_reshape(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


@pytest.mark.parametrize(
    ("f", "shape", "pattern"),
    [
        (lambda x: x.t().tanh().t(), (3, 2), "b c, b c, b c"),
        (lambda x: x.tanh().sum(1), (3, 2), "b, b c, b c"),
        (lambda x: x.reshape(6).tanh(), (3, 2), "(b c), b c, b c"),
        (lambda x: x.reshape(6).tanh().reshape(3, 2).sum(1), (3, 2), "b, b c, b c"),
        (lambda x: x.tanh().reshape(3, 2, 2), (6, 2), "b c d, (b c) d, (b c) d"),
        (lambda x: x.tanh().reshape(3, 1, 2).squeeze(1).unsqueeze(0), (3, 2), "i b c, b c, b c"),
        (lambda x: x.tanh().unsqueeze(1).reshape(1, 3), (1, 3), "b c, b c, b c"),
        (lambda x: (x[:, None] @ x.new_ones(3, 2)).tanh().sum((1, 2)), (1, 3), "b, b i, b j"),
        (lambda x: x.permute(1, 2, 0).tanh(), (3, 2, 4), "b c d, d b c, d b c"),
        (lambda x: x.tanh().expand(3, 2), (3, 1), "b i, b c, b c"),
        (lambda x: (x @ x.new_ones(2, 2)).tanh().repeat(2, 1), (3, 2), "(i b) j, b k, b l"),
    ],
)
def test_labels_are_kept(
    f: Callable[[Tensor], Tensor], shape: tuple[int, ...], pattern: str, device: torch.device
) -> None:
    assert hofunc.hod(f, 2, layout="compact")(rand(device, *shape)).pattern == pattern


@pytest.mark.parametrize(
    ("old", "new", "sizes"),
    [
        ((6,), (2, 3), (2, 3)),
        ((4, 6), (2, 12), (2, 2, 6)),
        ((4, 6), (8, 3), (4, 2, 3)),
        ((1, 6), (2, 3), (1, 2, 3)),
        ((2, 1, 3), (6, 1), (2, 1, 3, 1)),
    ],
)
def test_common_refinement(old: tuple[int, ...], new: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    refined = common_refinement(old, new)
    assert refined is not None
    assert (shape_of(refined[0]), shape_of(refined[1])) == (old, new)
    inner = [label for label in labels_of(refined[0]) if label.size > 1]
    assert inner == [label for label in labels_of(refined[1]) if label.size > 1]
    assert tuple(label.size for label in inner) == tuple(size for size in sizes if size > 1)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (2, 1), ()])
def test_equal_shapes_share_their_labels(shape: tuple[int, ...]) -> None:
    refined = common_refinement(shape, shape)
    assert refined is not None
    assert refined[0] == refined[1]


def test_boundaries_that_do_not_nest_have_no_common_refinement() -> None:
    assert common_refinement((2, 3), (3, 2)) is None
    assert common_refinement((4, 6), (6, 4)) is None
