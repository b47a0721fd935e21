"""Selections that stay beside the tensor of a term: where they can, how many entries that has, and how it ends."""

import torch

from hofunc.algebra.labels import Axes, Label, Segment, full
from hofunc.algebra.operators import Map, Selection, selection_of
from hofunc.algebra.term import Factor, Term
from hofunc.plan.meetings import meeting
from hofunc.plan.selections import can_stay, entries, without_selections
from hofunc.scatter import added, flat_places

READ, ADD = Map(len, abs, ("i",), selects=True), Map(abs, len, ("i",), adds=True)
OTHER = Map(len, abs, ("j",), selects=True)


def axes(*labels: Label) -> Axes:
    return tuple((full(label),) for label in labels)


def selection(factor: Factor) -> Selection:
    found = selection_of(factor)
    assert found is not None
    return found


def test_a_selection_and_its_transpose_are_read_alike() -> None:
    edge, point = Label(7), Label(4)
    reads, adds = selection(Factor(READ, axes(edge, point))), selection(Factor(ADD, axes(point, edge)))
    assert (reads.function, reads.indexed, reads.target) == (adds.function, adds.indexed, adds.target)
    assert selection_of(Factor(Map(len, abs, ()), axes(edge, point))) is None


def test_it_stays_where_the_whole_of_what_it_reads_from_is_visible() -> None:
    edge, point, part = Label(7), Label(4), Label(2)
    one = selection(Factor(READ, axes(edge, point)))
    assert can_stay(one, {point})
    assert not can_stay(one, {edge})
    of_a_part = selection(Factor(READ, (axes(edge)[0], (Segment(part, 1, 4),))))
    assert not can_stay(of_a_part, {part})


def test_entries_run_over_what_is_read() -> None:
    edge, first, second, x, y = Label(7), Label(400), Label(400), Label(3), Label(3)
    factors = (
        Factor("core", axes(edge, x, y)),
        Factor(READ, axes(edge, first)),
        Factor(OTHER, axes(edge, second)),
    )
    term = Term(1, factors, (), (axes(first, x), axes(second, y)))
    assert {*entries(term)} == {edge, x, y}
    assert without_selections(term).factors == factors[:1]


def test_two_selections_of_one_axis_that_is_summed_meet() -> None:
    edge, other, point, same = Label(7), Label(5), Label(4), Label(4)
    block = Term(1, (Factor("core", axes(edge)), Factor(READ, axes(edge, point))), (), (axes(point),))
    adding = Term(1, (Factor(ADD, axes(same, other)),), axes(same), (axes(other),))
    reading = Term(1, (Factor(READ, axes(other, same)),), axes(other), (axes(same),))
    assert meeting([block], [[adding]]) == (True, [True])
    assert meeting([block], [[reading._replace(out=axes(same), slots=(axes(other),))]])[0]
    plain = Term(1, (), axes(same), (axes(same),))
    assert meeting([block], [[plain]]) == (False, [False])
    square = Term(1, (), axes(point), (axes(point), axes(point)))
    assert meeting([square], [[adding], [adding]]) == (False, [True, True])
    assert meeting([square], [[adding], [plain]]) == (False, [False, False])
    assert meeting([square], [[adding], [None]]) == (False, [False, False])


def test_places_are_those_in_the_memory_of_the_result() -> None:
    rows, columns = torch.tensor([2, 0, 1]), torch.tensor([[1], [3]])
    got = flat_places((2, 3), (1, 0, 4, 1, 0, 1), rows, rows, columns)
    torch.testing.assert_close(got, torch.tensor([9, 1, 5, 11, 3, 7]))
    pairs = torch.tensor([5, 2])  # of an axis of 2 x 3, of which the second comes first
    got = flat_places((2,), (3, 2, 1, 1, 3, 2), pairs, pairs, pairs)
    torch.testing.assert_close(got, torch.tensor([1 + 2 * 2, 0 + 2 * 2]))


def test_rows_are_added_to_their_places() -> None:
    places, rows = torch.tensor([1, 1, 3]), torch.arange(6.0).reshape(3, 2)
    expected = torch.tensor([[0.0, 0.0], [2.0, 4.0], [0.0, 0.0], [4.0, 5.0]])
    torch.testing.assert_close(added(4, 2, (1,), places, rows), expected)
    torch.testing.assert_close(added(4, 2, (2, -2), places, places, rows, rows), torch.zeros(4, 2))
    torch.testing.assert_close(added(4, 2, (-0.5,), places, rows.T.contiguous().T), -expected / 2)
    torch.testing.assert_close(torch.func.vmap(lambda rows: added(4, 2, (1,), places, rows))(rows[None])[0], expected)
    torch.testing.assert_close(torch.func.vmap(lambda at: added(4, 2, (1,), at, rows))(places[None])[0], expected)
