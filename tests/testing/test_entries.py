"""Which entry is off."""

import torch

from hofunc.testing.entries import largest, worst

INF, NAN = float("inf"), float("nan")


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_entry_that_is_furthest_off_in_terms_of_what_is_allowed() -> None:
    found = worst(
        [doubles(1, 2, 3), torch.zeros(2, 2).double()],
        [doubles(1, 3, 3.25), doubles(0, 0, 0.125, 0).reshape(2, 2)],
        [0.5, 0.03125],
    )
    assert found is not None
    assert (found.tensor, found.index, found.got, found.expected) == (1, (1, 0), 0.0, 0.125)
    assert (found.error, found.allowed, found.count, found.total) == (0.125, 0.03125, 2, 7)
    assert str(found) == "0.125 off, 0.0312 allowed; 2 of 7 entries differ"


def test_what_is_allowed_may_differ_by_entry() -> None:
    assert worst([doubles(1, 2)], [doubles(1.5, 2)], [doubles(1, 0)]) is None
    found = worst([doubles(1, 2)], [doubles(1.5, 2.5)], [doubles(1, 0)])
    assert found is not None
    assert found.index == (1,)


def test_only_some_entries_are_compared() -> None:
    assert worst([doubles(1, 2)], [doubles(3, 2)], [0.0], [torch.tensor([False, True])]) is None


def test_what_is_not_finite_equals_itself_only() -> None:
    assert worst([doubles(INF, -INF, NAN)], [doubles(INF, -INF, NAN)], [0.0]) is None
    for got, expected in ((INF, -INF), (INF, 1), (1, NAN), (NAN, 1), (NAN, INF)):
        found = worst([doubles(0, got)], [doubles(0.5, expected)], [0.25])
        assert found is not None
        assert found.index == (1,)


def test_a_tensor_without_axes_and_one_without_entries() -> None:
    found = worst([torch.zeros(0, 2).double(), doubles(1)[0]], [torch.zeros(0, 2).double(), doubles(2)[0]], [0.0, 0.0])
    assert found is not None
    assert (found.tensor, found.index, found.total) == (1, (), 1)


def test_the_largest_magnitude_that_is_finite() -> None:
    assert largest([doubles(1, -3, INF), doubles(NAN, 2), doubles()]) == 3
    assert largest([]) == largest([doubles(NAN)]) == 0
