"""Packed entries and their inverse."""

from itertools import combinations_with_replacement
from math import comb

import pytest
import torch

import hofunc
from hofunc import ArgumentError, unpack
from hofunc.algebra.packed import count
from hofunc.structured.packed import multisets
from tests.cases import rand
from tests.checks import Largest, assert_equal, refused
from verification.oracles import nested_reverse

CPU = torch.device("cpu")


@pytest.mark.parametrize(("n", "order"), [(1, 1), (1, 3), (4, 1), (4, 2), (3, 4), (0, 2)])
def test_multisets_are_in_lexicographic_order(n: int, order: int) -> None:
    got = [*zip(*(place.tolist() for place in multisets(n, order, CPU)), strict=True)]
    assert got == [*combinations_with_replacement(range(n), order)]
    assert len(got) == count(n, order)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_batch_in_front(order: int, device: torch.device) -> None:
    x = rand(device, 5, 3)

    def row(x: torch.Tensor) -> torch.Tensor:
        return x.prod(-1).sin() + (x**3).sum(-1)

    expected = torch.func.vmap(nested_reverse(row, order))(x)
    for f in (row, lambda x: row(x).sum()) if order > 1 else (row,):
        got = hofunc.hod(f, order, layout="compact")(x).packed(keep_batch=True)
        assert got.shape == (5, comb(3 + order - 1, order))
        assert_equal(unpack(got, (3,), order), expected)


def test_a_batch_at_other_places_in_other_slots(device: torch.device) -> None:
    x = rand(device, 2, 3)
    d = hofunc.hod(lambda x: (x @ x.t()).sin().sum(), 2, layout="compact")(x)
    assert_equal(unpack(d.packed(), (2, 3), 2), nested_reverse(lambda x: (x @ x.t()).sin().sum(), 2)(x))


def test_the_dense_tensor_is_not_made() -> None:
    d = hofunc.hod(lambda x: (x.sin() * x.exp().sum()).sum(), 3, layout="compact")(torch.ones(60))
    largest = Largest()
    with largest:
        d.packed()
    assert largest.numel <= comb(62, 3) < 60**3 / 5


def test_gradients_flow_through_unpack(device: torch.device) -> None:
    entries = rand(device, 2, 6)
    got = torch.func.jacrev(lambda entries: unpack(entries, (3,), 2))(entries)
    assert_equal(torch.einsum("aijbk,bk->aij", got, entries), unpack(entries, (3,), 2))
    assert_equal(torch.func.vmap(lambda entries: unpack(entries, (3,), 2))(entries), unpack(entries, (3,), 2))


def test_wrong_use() -> None:
    entries = torch.ones(6)
    refused(lambda: unpack(entries, (4,), 2), ArgumentError, "hofunc.unpack: entries: got shape (6,)", "10 entries")
    refused(lambda: unpack([1.0], (1,), 1), ArgumentError, "got list")  # type: ignore[arg-type]
    refused(lambda: unpack(entries, (3,), 0), ArgumentError, "hofunc.unpack: order: got 0, expected an int")
    refused(lambda: unpack(entries, 3, 2), ArgumentError, "hofunc.unpack: shape: got 3, expected a tuple of sizes")  # type: ignore[arg-type]
    refused(lambda: unpack(torch.tensor(1.0), (1,), 1), ArgumentError, "got shape ()")
