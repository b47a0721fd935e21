"""Linear maps along axes, against nested torch.func, and the labels that they keep."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, ints, use

pytestmark = ORACLE_WARNINGS

RUNNING = [
    use("cumsum", lambda x: x.cumsum(0), (4,)),
    use("cumsum of a negative dim", lambda x: x.cumsum(-2), (3, 2)),
    use("cumsum of a scalar", lambda x: x.cumsum(0), ()),
    use("cumsum of a cumsum", lambda x: x.cumsum(1).sin().cumsum(0), (2, 2)),
    use("cumsum of a broadcast", lambda x: x.expand(3, 2).cumsum(0), (2,)),
    use("cumsum, summed", lambda x: x.cumsum(0).sum(0), (3, 2)),
    use("cumsum of an empty tensor", lambda x: x.cumsum(0), (0, 2), orders=(1,)),
]

REARRANGED = [
    use("flip", lambda x: x.flip(0), (3,)),
    use("flip of several dims", lambda x: x.flip(0, -1), (2, 3)),
    use("flip times itself", lambda x: x.flip(0) * x, (3,)),
    use("flip of a scalar", lambda x: x.flip(0), (), reference=lambda x: x * 1),
    use("flip of nothing", lambda x: x.flip(()), (3,)),
    use("roll", lambda x: x.roll(1), (3,)),
    use("roll of a flattened tensor", lambda x: x.roll(2), (2, 3)),
    use("roll of a negative dim, backwards", lambda x: x.roll(-1, -2), (3, 2)),
    use("roll of several dims", lambda x: x.roll((1, 2), (0, 1)), (2, 3)),
    use("roll of one dim twice", lambda x: x.roll((1, 1), (0, 0)), (4,)),
    use("roll minus itself", lambda x: x.roll(1, 0) - x, (3,)),
]

SELECTED = [
    use("index_select", lambda x: x.index_select(0, ints(x, 2, 0)), (3, 2)),
    use("index_select of repeated indices", lambda x: x.index_select(-1, ints(x, 1, 1, 0)), (2, 2)),
    use("index_select of nothing", lambda x: x.index_select(0, ints(x).long()), (3,), orders=(1,)),
    use("index_select of a scalar", lambda x: x.index_select(0, ints(x, 0)), ()),
    use("index_select in a product", lambda x: x.index_select(0, ints(x, 1, 0, 1)) * x, (3,)),
    use("index_select, summed", lambda x: x.index_select(0, ints(x, 1, 0, 1)).sum(0), (3, 2)),
    use("gather", lambda x: x.gather(1, ints(x, [0, 2], [1, 1])), (2, 3)),
    use("gather of a negative dim", lambda x: x.gather(-2, ints(x, [0, 2], [1, 1])), (3, 2)),
    use("gather of fewer rows", lambda x: x.gather(1, ints(x, [2, 0, 0])), (2, 3)),
    use("gather along the first dim, fewer columns", lambda x: x.gather(0, ints(x, [1], [1], [0])), (2, 3)),
    use("gather of a scalar", lambda x: x.gather(0, ints(x, 0)[0]), ()),
    use("gather of a scalar by a vector", lambda x: x.gather(0, ints(x, 0)), ()),
    use("gather of a vector by a scalar", lambda x: x.gather(0, ints(x, 2)[0]), (3,)),
    use("gather of nothing", lambda x: x.gather(0, torch.zeros(2, 0).to(x).long()), (3,), orders=(1,)),
    use("gather times itself", lambda x: x.gather(0, ints(x, 1, 0, 1)) * x, (3,)),
    use("take_along_dim", lambda x: x.take_along_dim(ints(x, [0], [2]), 1), (2, 3)),
]

ADDED = [
    use("index_add", lambda x, y: x.index_add(0, ints(x, 0, 2), y), (3, 2), (2, 2)),
    use("index_add at one place, with alpha", lambda x, y: x.index_add(-1, ints(x, 1, 1), y, alpha=-2), (2,), (2,)),
    use("index_add of itself", lambda x: x.index_add(0, ints(x, 1, 0), x * x), (2, 2)),
    use("index_add to a constant", lambda x: torch.zeros_like(x).index_add(0, ints(x, 1, 1), x), (2,)),
    use("index_add of a scalar", lambda x, y: x.index_add(0, ints(x, 0), y), (), ()),
]

CASES: list[OpCase] = [*RUNNING, *REARRANGED, *SELECTED, *ADDED]


@every_row(CASES)
def test_maps(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


@pytest.mark.parametrize(
    ("f", "pattern"),
    [
        (lambda x: x.index_select(1, ints(x, 1, 0, 1)).tanh().sum(1), "b, b c, b c"),
        (lambda x: x.tanh().index_select(1, ints(x, 1, 0, 1)).sum(1), "b, b c, b c"),
        (lambda x: x.tanh().flip(1).sum(1), "b, b c, b c"),
        (lambda x: x.cumsum(1).tanh().sum(1), "b, b i, b j"),
        (lambda x: x.tanh().gather(1, ints(x, [0], [1], [1])).squeeze(1), "b, b I[b], b I[b]"),
    ],
)
def test_labels_are_kept(f: Callable[[Tensor], Tensor], pattern: str, device: torch.device) -> None:
    assert hofunc.hod(f, 2, layout="compact")(rand(device, 3, 2)).pattern == pattern
