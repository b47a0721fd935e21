"""Reductions of segments, against reductions of slices by nested torch.func."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.checks import assert_equal
from verification.oracles import nested_reverse

EMPTY = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -torch.inf, "min": torch.inf}
REDUCE: dict[str, Any] = {
    "sum": lambda start, x: start + x.sum(0),
    "mean": lambda start, x: (start + x.sum(0)) / len(x),
    "prod": lambda start, x: start * x.prod(0),
    "max": lambda start, x: torch.maximum(start, x.amax(0)),
    "min": lambda start, x: torch.minimum(start, x.amin(0)),
}
SEGMENTS: list[tuple[dict[str, Any], list[int]]] = [
    ({"lengths": [3, 4]}, [0, 3, 7]),
    ({"lengths": [3, 0, 4]}, [0, 3, 3, 7]),
    ({"offsets": [0, 2, 2, 7]}, [0, 2, 2, 7]),
    ({"lengths": [2, 1, 2], "unsafe": True}, [0, 2, 3, 5]),  # which leave elements out
    ({"offsets": [1, 3, 4, 6]}, [1, 3, 4, 6]),
]


def by_slices(x: Tensor, reduce: str, limits: Sequence[int], initial: float | None) -> Tensor:
    found = []
    for first, stop in pairwise(limits):
        start = torch.full_like(x[0], EMPTY[reduce] if initial is None else initial)
        found.append(REDUCE[reduce](start, x[first:stop]) if stop > first else start)
    return torch.stack(found)


def weighed(y: Tensor) -> Tensor:
    """Return functions of segments, but for those of nothing."""
    return (y.nan_to_num(0, 0, 0) * torch.linspace(0.5, 1, y.numel(), dtype=y.dtype).reshape(y.shape)).exp().sum(0)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("initial", [None, 0.3])
@pytest.mark.parametrize(("how", "limits"), SEGMENTS)
@pytest.mark.parametrize("reduce", REDUCE)
def test_reductions_of_segments(
    reduce: str, how: dict[str, Any], limits: list[int], initial: float | None, order: int
) -> None:
    x = rand(torch.device("cpu"), 7, 2)
    given: Any = {name: torch.tensor(value) if name != "unsafe" else value for name, value in how.items()}

    def f(x: Tensor) -> Tensor:
        return weighed(torch.segment_reduce(x.sin(), reduce, axis=0, initial=initial, **given))

    def reference(x: Tensor) -> Tensor:
        return weighed(by_slices(x.sin(), reduce, limits, initial))

    assert_equal(f(x), reference(x))
    assert_equal(hofunc.hod(f, order)(x), nested_reverse(reference, order)(x))


def test_segments_along_another_axis() -> None:
    x, lengths = rand(torch.device("cpu"), 2, 5, 2), torch.tensor([[2, 3], [0, 5]])

    def f(x: Tensor) -> Tensor:
        return torch.segment_reduce(x.sin(), "sum", lengths=lengths, axis=1).pow(3).sum()

    def reference(x: Tensor) -> Tensor:
        limits = [0, 2, 5], [0, 0, 5]
        rows = [by_slices(row.sin(), "sum", each, None) for row, each in zip(x, limits, strict=True)]
        return torch.stack(rows).pow(3).sum()

    assert_equal(hofunc.hessian(f)(x), torch.func.hessian(reference)(x))


@pytest.mark.parametrize("initial", [None, 2.0, 3.0])
def test_equal_ones_share_an_extreme_as_in_torch(initial: float | None) -> None:
    x = torch.tensor([1.0, 2, 2, 0, 0], dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        return torch.segment_reduce(x, "max", lengths=torch.tensor([3, 2]), initial=initial)

    followed = x.clone().requires_grad_()
    f(followed).sum().backward()
    assert_equal(hofunc.jacobian(f)(x).sum(0), followed.grad)


def test_sums_of_segments_are_as_sparse_as_those_at_indices() -> None:
    x = rand(torch.device("cpu"), 120, 3)
    first, second = torch.arange(40).repeat_interleave(3), torch.arange(120).flip(0)

    def by_lengths(x: Tensor) -> Tensor:
        heard = (x[first] - x[second]).tanh()
        return torch.segment_reduce(heard, "sum", lengths=torch.full((40,), 3)).pow(3).sum()

    def by_indices(x: Tensor) -> Tensor:
        return x.new_zeros(40, 3).index_add(0, first, (x[first] - x[second]).tanh()).pow(3).sum()

    got, expected = (hofunc.hessian(f, layout="compact")(x) for f in (by_lengths, by_indices))
    assert_equal(got.to_sparse().to_dense(), expected.dense())
    assert got.nbytes < 1.1 * expected.nbytes
