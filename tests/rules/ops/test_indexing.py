"""Indexing by tensors, against nested torch.func."""

import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, ints, use
from verification.oracles import relative_error

aten = torch.ops.aten
pytestmark = ORACLE_WARNINGS


def above(x: Tensor) -> Tensor:
    """Return where the input is positive, as a constant."""
    return x.detach() > 0


READ = [
    use("index", lambda x: x[ints(x, 2, 0)], (3, 2)),
    use("index of repeated and negative indices", lambda x: x[ints(x, -1, 1, 1)], (3,)),
    use("index by a matrix of indices", lambda x: x[ints(x, [0, 1], [2, 0])], (3,)),
    use("index of two dims", lambda x: x[ints(x, 0, 1), ints(x, 2, 0)], (2, 3)),
    use("index of two dims that broadcast", lambda x: x[ints(x, [0], [1]), ints(x, 2, 0)], (2, 3)),
    use("index of dims apart", lambda x: x[ints(x, 0, 1), :, ints(x, 1, 1)], (2, 2, 2)),
    use("index of inner dims", lambda x: x[:, ints(x, 0, 1), ints(x, 1, 1)], (2, 2, 2)),
    use("index of the last dim", lambda x: x[:, ints(x, 1, 0, 1)], (2, 2)),
    use("index beside slices and None", lambda x: x[None, 1:, ints(x, 0, 0)], (2, 2)),
    use("index by a scalar tensor", lambda x: x[ints(x, 1)[0]], (2, 2)),
    use("index of nothing", lambda x: x[ints(x).long()], (3,), orders=(1,)),
    use("index by a mask", lambda x: x[torch.tensor([True, False, True], device=x.device)], (3, 2)),
    use("index by a mask of two dims", lambda x: x[above(x) | True], (2, 2)),
    use("index of an empty tensor", lambda x: x[:, [0, 2]], (0, 3), orders=(1,)),
    use(
        "padding of an empty batch",
        lambda x: torch.nn.functional.pad(x, (1, 1), mode="reflect"),
        (0, 1, 3),
        orders=(1,),
    ),
    use("index by an empty mask", lambda x: x[above(x) & False], (3,), orders=(1,)),
    use(
        "index by a mask beside indices",
        lambda x: x[torch.tensor([True, False, True], device=x.device), ints(x, 1, 0)],
        (3, 2),
    ),
    use("_unsafe_index", lambda x: aten._unsafe_index.Tensor(x, [None, ints(x, 1, 1)]), (2, 2)),
    use("take", lambda x: x.take(ints(x, [5, 0], [0, 2])), (2, 3)),
    use("take of negative indices", lambda x: x.take(ints(x, -1, 2)), (2, 2)),
    use(
        "_unsafe_masked_index",
        lambda x: aten._unsafe_masked_index(x, ints(x, [1], [0]) > 0, [ints(x, 1, 7), None], 0.5),
        (2, 2),
        reference=lambda x: torch.stack([x[1], torch.full_like(x[1], 0.5)]),
    ),
    use(
        "_unsafe_masked_index_put_accumulate",
        lambda x, y: aten._unsafe_masked_index_put_accumulate(x, ints(x, 1, 1, 0) > 0, [ints(x, 1, 1, -9)], y),
        (2,),
        (3,),
        reference=lambda x, y: torch.stack([x[0], x[1] + y[0] + y[1]]),
    ),
    use("unfold", lambda x: x.unfold(0, 2, 1), (4,)),
    use("unfold of a negative dim with a step", lambda x: x.unfold(-2, 2, 2), (5, 2), orders=(1, 2)),
    use("unfold of everything", lambda x: x.unfold(0, 3, 1), (3,)),
]

WRITTEN = [
    use("index_put", lambda x, y: x.index_put((ints(x, 2, 0),), y), (3,), (2,)),
    use("index_put broadcasts the values", lambda x, y: x.index_put((ints(x, 1, 0),), y), (2, 2), (1,)),
    use("index_put of two dims", lambda x, y: x.index_put((ints(x, 0, 1), ints(x, 1, 1)), y), (2, 2), (2,)),
    use("index_put of the last dim", lambda x, y: aten.index_put.default(x, [None, ints(x, 1)], y), (2, 2), (2, 1)),
    use(
        "index_put that adds at repeated indices",
        lambda x, y: x.index_put((ints(x, 1, 1, 0),), y, accumulate=True),
        (2,),
        (3,),
    ),
    use(
        "index_put at repeated indices",
        lambda x, y: x.index_put((ints(x, 1, 1),), y),
        (3,),
        (2,),
        reference=lambda x, y: torch.stack([x[0], y[1], x[2]]),
    ),
    use("index_put by a mask", lambda x, y: x.index_put((above(x),), y), (4,), ()),
    use("index_put by a mask of rows", lambda x, y: x.index_put((above(x)[:, 0],), y), (3, 2), (2,)),
    use("index_put by a mask, with a value each", lambda x, y: x.index_put((above(x) | True,), y), (3,), (3,)),
    use("index_put of itself", lambda x: x.index_put((ints(x, 0),), x[1:2] * x[:1]), (3,)),
    use("_unsafe_index_put", lambda x, y: aten._unsafe_index_put.default(x, [ints(x, 1)], y), (2,), (1,)),
]

CASES: list[OpCase] = [
    *READ,
    *WRITTEN,
    use(
        "masked_select",
        lambda x: x.masked_select(above(x)),
        inputs=lambda device: [torch.tensor([1.0, -0.4, 2.0], dtype=torch.float64, device=device)],
        reference=lambda x: torch.stack([x[0], x[2]]),
    ),
    use("masked_select of a scalar", lambda x: x.masked_select(x.detach() != 0), ()),
    use(
        "masked_select broadcasts",
        lambda x: x.masked_select(torch.tensor([[True], [False]], device=x.device)),
        (3,),
        reference=lambda x: x,
    ),
]


@every_row(CASES)
def test_indexing(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


@pytest.mark.parametrize(
    ("index", "pattern"), [((slice(None), [1, 0, 1]), "b, b c, b c"), (([0, 2], slice(None)), "b, I[b] c, I[b] c")]
)
def test_labels_of_axes_that_are_not_indexed_are_kept(index: tuple, pattern: str, device: torch.device) -> None:
    got = hofunc.hod(lambda x: x.tanh()[index].sum(1), 2, layout="compact")(rand(device, 3, 2))
    assert got.pattern == pattern


def test_a_write_to_whole_matrices(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        y = x.clone()
        y[torch.tensor([1], device=device)] = 0.5
        return (y**3).sum()

    x = rand(device, 2, 2, 3)
    expected = 3 * x**2
    expected[1] = 0
    assert relative_error(hofunc.jacobian(f)(x), expected) < 1e-12
