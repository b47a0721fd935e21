"""Rows of structured derivatives: those of the labels that all slots share."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc import ArgumentError, Derivative
from tests.cases import rand
from tests.checks import assert_equal, refused
from verification.oracles import nested_reverse


def row(x: Tensor) -> Tensor:
    return x.prod(-1).sin() + (x**3).sum(-1)


def compact(f: Callable[[Tensor], Tensor], x: Tensor, order: int = 2) -> Any:
    return hofunc.hod(f, order, layout="compact")(x)


INDICES: dict[str, Any] = {
    "an int": 3,
    "one from the end": -1,
    "a slice": slice(1, 4),
    "a slice with a step": slice(None, None, 2),
    "backwards": slice(None, None, -1),
    "a list": [0, 0, 3],
    "a tensor": torch.tensor([4, -5]),
    "a number in a tensor": torch.tensor(2),
    "a mask": torch.tensor([True, False, False, True, True]),
    "one row": slice(2, 3),
    "no row": slice(3, 3),
}


@pytest.mark.parametrize("name", INDICES)
def test_rows(name: str, device: torch.device) -> None:
    x, index = rand(device, 5, 3), INDICES[name]
    index = index.to(device) if isinstance(index, Tensor) else index
    taken = x.flip(0) if name == "backwards" else x[index]
    functions: list[tuple[Callable[[Tensor], Tensor], int]] = [
        (row, 2),
        (row, 1),
        (lambda x: row(x).sum(), 2),
        (lambda x: row(x.t().t()).sum(-1, keepdim=False), 3),
        (lambda x: x.sin(), 2),
        (lambda x: row(x) + x.exp().sum(-1), 2),
    ]
    for f, order in functions:
        got = compact(f, x, order)[index]
        assert isinstance(got, Derivative)
        assert_equal(got.dense(), nested_reverse(f, order)(taken))


def test_rows_one_by_one(device: torch.device) -> None:
    x = rand(device, 2, 4, 3)
    transform = hofunc.hessian(lambda x: row(x).sum(), layout="compact")
    expected = torch.func.vmap(nested_reverse(row, 2))(x[0])
    assert_equal(torch.stack([each.dense() for each in transform(x[0])]), expected)
    members = [*torch.func.vmap(transform)(x)]
    assert [each.mapped for each in members] == [(), ()]
    assert_equal(members[1].dense(), transform(x[1]).dense())
    refused(lambda: [*compact(lambda x: x.sum().sin(), x)], ArgumentError, "0 labels that all slots share")


def test_rows_of_several_labels(device: torch.device) -> None:
    x = rand(device, 2, 4, 3)
    got = compact(lambda x: row(x).sum(), x)
    assert_equal(got[1].dense(), nested_reverse(lambda x: row(x).sum(), 2)(x[1]))
    assert_equal(got[:, 1:3].dense(), nested_reverse(lambda x: row(x).sum(), 2)(x[:, 1:3]))
    assert_equal(got[1, 2].dense(), nested_reverse(row, 2)(x[1, 2]))


def test_rows_of_merged_axes(device: torch.device) -> None:
    x = rand(device, 4, 3)
    got = compact(lambda x: x.reshape(-1).sin(), x)
    assert_equal(got[1:3].dense(), nested_reverse(lambda x: x.reshape(-1).sin(), 2)(x[1:3]))
    assert_equal(got[1].dense(), nested_reverse(torch.sin, 2)(x[1]))


def test_rows_of_one(device: torch.device) -> None:
    x = rand(device, 1, 3)
    got = compact(lambda x: row(x).sum(), x)
    expected = nested_reverse(row, 2)(x[0])
    assert_equal(got[0].dense(), expected)
    assert_equal(got[[0, 0]].dense(keep_batch=True), torch.stack([expected, expected]))


def test_rows_of_what_is_read_through_indices(device: torch.device) -> None:
    x, i = rand(device, 5, 3), torch.tensor([0, 2, 2, 4], device=device)
    weight = rand(device, 4, seed=1)

    def f(x: Tensor) -> Tensor:
        return (row(x[i]) * weight).sum()

    got, expected = compact(f, x), hofunc.hessian(f)(x)
    at = expected.diagonal(0, 0, 2).movedim(-1, 0)
    assert_equal(got[2].dense(), at[2])
    assert_equal(got[1:].dense(keep_batch=True), at[1:])


def test_members_and_rows_of_what_vmap_returned(device: torch.device) -> None:
    x = rand(device, 3, 5, 2)
    transform = hofunc.hessian(lambda x: row(x).sum(), layout="compact")
    got = torch.func.vmap(transform)(x)
    assert_equal(got[2].dense(), transform(x[2]).dense())
    assert_equal(got[2, 1].dense(), transform(x[2])[1].dense())
    assert_equal(got[:, 1:3].dense(), torch.stack([transform(each)[1:3].dense() for each in x]))
    refused(lambda: got[3], ArgumentError, "row 3", "one from -3 to 2")
    refused(lambda: got[0, 0, 0], ArgumentError, "2 indices, and 1 labels that all slots share")


def test_rows_that_are_not_known(device: torch.device) -> None:
    for got in (compact(lambda x: x.sum().sin(), rand(device, 4, 3)), compact(lambda x: 2 * x, rand(device, 4, 3))):
        refused(partial(got.__getitem__, 0), ArgumentError, "0 labels that all slots share", ".dense()")
