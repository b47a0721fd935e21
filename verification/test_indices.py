"""Derivatives through indices are exact, wherever they are read, added and multiplied.

Claim: of programs that read and add through tensors of indices, on both sides of what is nonlinear, derivatives of
orders one to three are those of nested torch.func, by every strategy and in every layout.
Source: a selection commutes with what acts on each element, and its transpose adds; both are linear.
Falsifier: indices that repeat, are missing or meet others, and labels that two selections share.
Tolerance: 1e-9, since both compute the same sums in another order.
"""

from collections.abc import Callable
from typing import NamedTuple
from unittest.mock import patch

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import hofunc
from hofunc.plan import joins, selections
from verification.profiles import PER_PROPERTY, PROFILE, database

MORE = 4  # times as many examples as of other properties
COLUMNS = 2
INPUTS = 4
Op = Callable[[Tensor], Tensor]


class Indices(NamedTuple):
    """Indices for a tensor of some rows, and for one of a number of its own.

    Attributes:
        read: Of rows, for as many as the new tensor has.
        again: Likewise, others.
        put: For each row where it is added in the new tensor.
        of_input: For each row one of the input.
        grid: As ``read``, for every column.
        places: As ``put``, for every column.
    """

    read: Tensor
    again: Tensor
    put: Tensor
    of_input: Tensor
    grid: Tensor
    places: Tensor


def drawn(generator: torch.Generator, rows: int, count: int) -> Indices:
    """Draw indices, repeated and missing ones among them."""

    def below(stop: int, *shape: int) -> Tensor:
        return torch.randint(0, stop, shape, generator=generator)

    return Indices(
        below(rows, count),
        below(rows, count) - rows,  # negative ones
        below(count, rows),
        below(INPUTS, rows),
        below(rows, count, COLUMNS),
        below(count, rows, COLUMNS),
    )


def op_of(kind: str, at: Indices, count: int, x: Tensor, weights: Tensor) -> Op:
    """Return an op of a kind."""

    def empty() -> Tensor:
        return torch.zeros(count, COLUMNS, dtype=x.dtype)

    ops: dict[str, Op] = {
        "read": lambda t: t[at.read],
        "select": lambda t: t.index_select(0, at.read),
        "gather": lambda t: t.gather(0, at.grid),
        "difference": lambda t: t[at.read] * t[at.again] - t[at.again],
        "pairs": lambda t: t[at.read, at.grid[:, 0] % COLUMNS][:, None] * t[at.again],
        "add": lambda t: empty().index_add(0, at.put, t),
        "scatter": lambda t: empty().scatter_add(0, at.places, t),
        "scatter rows": lambda t: empty().scatter_add(0, at.put[:, None].expand(-1, COLUMNS), t),
        "pairs to pairs": lambda t: empty().index_put((at.put, at.put % COLUMNS), t[:, 0], accumulate=True),
        "accumulate": lambda t: empty().index_put((at.put,), t, accumulate=True),
        "nonlinear": torch.tanh,
        "square": lambda t: t * t + t,
        "mix": lambda t: t @ weights,
        "along rows": lambda t: t.gather(1, at.places % COLUMNS) * t,
        "into rows": lambda t: t.sin().scatter_add(1, at.places % COLUMNS, t),
        "with input": lambda t: t * x[at.of_input] - x[at.of_input].sin(),
        "roll": lambda t: t.roll(1, 0) * t,
        "reverse": lambda t: t.flip(0),
        "columns": lambda t: t[:, [1, 0]] + t[:, [0, 0]],
    }
    return ops[kind]


KINDS = (
    *("read", "select", "gather", "difference", "pairs", "add", "scatter", "scatter rows", "pairs to pairs"),
    *("accumulate", "along rows", "into rows"),
    *("nonlinear", "square", "mix", "with input", "roll", "reverse", "columns"),
)
NEW = {*KINDS[:10]}  # those of another number of rows


@settings(max_examples=MORE * PER_PROPERTY[PROFILE], database=database(), deadline=None)
@given(
    seed=st.integers(0, 2**31),
    kinds=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 6)), min_size=2, max_size=6),
    order=st.sampled_from([1, 2, 2, 2, 3]),
    strategy=st.sampled_from(["auto", "reverse", "mixed", "forward"]),
    scalar=st.booleans(),
    layout=st.sampled_from(["dense", "compact"]),
    small=st.sampled_from([0, 0, 20, selections.SMALL]),
    sparse=st.sampled_from([0, 0, joins.SPARSE]),  # how sparse pairs that meet are, at least
)
def test_programs_that_read_and_add_through_indices(
    seed: int,
    kinds: list[tuple[str, int]],
    order: int,
    strategy: str,
    scalar: bool,
    layout: str,
    small: int,
    sparse: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    sequence = []
    rows = INPUTS
    for kind, count in kinds:
        weights = torch.randn(COLUMNS, COLUMNS, dtype=torch.float64, generator=generator)
        sequence.append((kind, drawn(generator, rows, count), count, weights))
        rows = count if kind in NEW else rows

    def f(x: Tensor) -> Tensor:
        t = x
        for kind, indices, count, weights in sequence:
            t = op_of(kind, indices, count, x, weights)(t)
        return t.tanh().pow(2).sum() if scalar else t.tanh().sum(1)

    x = torch.randn(INPUTS, COLUMNS, dtype=torch.float64, generator=generator)
    expected: Callable[[Tensor], Tensor] = f
    for _ in range(order):
        expected = torch.func.jacrev(expected)
    with patch.object(selections, "SMALL", small), patch.object(joins, "SPARSE", sparse):
        got = hofunc.hod(f, order=order, strategy=strategy, layout=layout)(x)
    dense = got.dense() if isinstance(got, hofunc.Derivative) else got
    torch.testing.assert_close(dense, expected(x), rtol=1e-9, atol=1e-9)
