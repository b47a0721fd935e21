"""Stretches that repeat: those that can be seen, and of any sequence only what is there."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hofunc.run.repeats import Repeat, repeats


@pytest.mark.parametrize(
    ("items", "least", "expected"),
    [
        ("abcabcabc", 2, [Repeat(0, 9, 3)]),
        ("xabcabcabcay", 2, [Repeat(1, 11, 3)]),  # may start later by one
        ("abcdefgh", 1, []),
        ("aaaaaaa", 3, [Repeat(0, 7, 3)]),  # two times three, of one
        ("abababab", 3, [Repeat(0, 8, 4)]),
        ("abab", 3, []),
        ("abcabc--xyxyxy", 2, [Repeat(0, 6, 3), Repeat(8, 14, 2)]),
        ("aabaabaab", 1, [Repeat(0, 9, 3)]),  # rather than the two that are next to each other
        ("", 1, []),
    ],
)
def test_what_repeats(items: str, least: int, expected: list[Repeat]) -> None:
    assert repeats(items, least) == expected


def test_how_much_is_spared() -> None:
    (found,) = repeats("xabcabcabcay", 2)
    assert (found.times, found.spared) == (3, 6)


@given(st.text("ab", max_size=30) | st.text("abc", max_size=40), st.integers(1, 5))
def test_of_any_sequence(items: str, least: int) -> None:
    found = repeats(items, least)
    for each in found:
        assert each.length >= least
        assert each.times > 1
        for place in range(each.start, each.stop - each.length):
            assert items[place] == items[place + each.length]
    assert all(one.stop <= other.start for one, other in pairwise(found))
    spared = max((each.spared for each in found), default=0)
    assert spared == max((_spared(items, least, length) for length in range(1, len(items))), default=0)


def _spared(items: str, least: int, length: int) -> int:
    """Return how many items at most are like those that come some length before them, in stretches of a least size."""
    size, most = -(-least // length) * length, 0
    for start in range(len(items)):
        stop = start
        while stop + length < len(items) and items[stop] == items[stop + length]:
            stop += 1
        most = max(most, ((stop + length - start) // size - 1) * size)
    return most
