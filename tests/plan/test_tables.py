"""Tables of indices that go together, made as a program runs: the same pairs as all that are tried, and spare ones."""

import pytest
import torch
from torch import Tensor

from hofunc.plan import tables
from hofunc.plan.tables import (
    UnfitError,
    different,
    elements_or_zero,
    index_of,
    inside,
    pairs_fit,
    pairs_of,
    place_among,
    ranked,
    ranks_fit,
    required,
    room_for,
    rows_of,
)

SIZE = 5


def keys(count: int, seed: int) -> Tensor:
    """Return keys of rows, of which the size itself is that of spare ones."""
    return torch.randint(SIZE + 1, (count,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("count", [1, 7, 30])
@pytest.mark.parametrize("seed", range(4))
def test_pairs_are_all_that_meet(count: int, seed: int) -> None:
    one, other = keys(count, seed), keys(9, seed + 10)
    expected = [(i, j) for i, k in enumerate(one) for j, m in enumerate(other) if k == m < SIZE]
    for room in (len(expected), len(expected) + 3):
        assert pairs_fit(one, other, SIZE, room)
        first, second = pairs_of(one, other, SIZE, room).tolist()
        assert sorted(zip(first, second, strict=True)) == [*expected, *[(count, 9)] * (room - len(expected))]
    assert not expected or not pairs_fit(one, other, SIZE, len(expected) - 1)


def test_pairs_of_members_of_a_batch_are_their_own() -> None:
    ones, others = (torch.stack([keys(12, seed + start) for seed in range(3)]) for start in (0, 20))
    got = torch.func.vmap(lambda one, other: pairs_of(one, other, SIZE, 60))(ones, others)
    for found, one, other in zip(got, ones, others, strict=True):
        assert torch.equal(found, pairs_of(one, other, SIZE, 60))


@pytest.mark.parametrize("marked", [0, 8])
def test_different_places(marked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_MARKED", marked)  # none, or all that there are
    places = [torch.tensor([3, 1, 9, 3]), torch.tensor([1, 7, 9])]  # of which nine and more are spare
    ranks = ranked(9, *places)
    assert ranks.tolist() == [1, 0, 3, 1, 0, 2, 3]
    assert different(ranks, 9, 3, *places).tolist() == [1, 3, 7]
    assert different(ranks, 9, 5, *places).tolist() == [1, 3, 7, 9, 9]
    assert ranks_fit(ranks, 9, 3, *places)
    assert not ranks_fit(ranks, 9, 2, *places)


def test_spare_indices_are_spare_along_every_axis() -> None:
    flat = torch.tensor([0, 7, 11, 12])
    rows, columns = index_of(flat, 12, 4, 3), index_of(flat, 12, 1, 4)
    assert (rows.tolist(), columns.tolist()) == ([0, 1, 2, 3], [0, 3, 3, 4])
    assert torch.equal(place_among((3, 4), rows, columns), flat)


def test_what_is_read_at_spare_indices() -> None:
    table = torch.arange(6).reshape(3, 2)
    assert rows_of(table, 9, torch.tensor([2, 3]), torch.tensor([1, 2])).tolist() == [5, 9]
    assert elements_or_zero(table).tolist() == [[0, 1], [2, 3], [4, 5], [0, 0]]
    assert inside(torch.tensor([4, 1, 7]), 6).tolist() == [4, 1, 4]  # where one is added to anyway
    assert inside(torch.tensor([6, 6]), 6).tolist() == [5, 5]


def test_facts_are_required_of_every_member_of_a_batch() -> None:
    def checked(size: Tensor) -> Tensor:
        required(size < 3)
        return size

    torch.func.vmap(checked)(torch.tensor([1, 2]))
    with pytest.raises(UnfitError, match=r"a plan that goes by facts about indices: got indices of which more"):
        torch.func.vmap(checked)(torch.tensor([1, 3]))


@pytest.mark.parametrize("count", [1, 100, 10_000])
def test_there_is_room_for_some_more(count: int) -> None:
    assert 1.1 * count < room_for(count) <= 1.15 * count + 30
