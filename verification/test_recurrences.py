"""Recurrences of which all steps are taken as one batch have the derivatives that their nodes have.

Claim: derivatives of orders two and three of functions that take the same steps over and over, by the start, by what
each step takes of its own, and by what all of them share, are those of nested torch.func, by calls and by plans; so are
their contractions.
Source: the derivatives of a composition follow from those of its parts, whatever these are made of.
Falsifier: a state that is taken for another; what one step takes that is taken for what all share; a step that is left
out, or whose derivatives are those of another step; an output of a step that nobody follows.
Tolerance: that of `verification.vectors`.
"""

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_leaves

import hofunc
from hofunc.plan import planner
from hofunc.run.cache import forget
from verification.recurrences import Recurrence, recurrences
from verification.vectors import assert_close

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")


def nested(f: Callable[..., Tensor], arguments: tuple[Tensor, ...], order: int) -> list[Tensor]:
    """Return what nested reverse mode gives."""
    g: Callable = f
    for _ in range(order):
        g = torch.func.jacrev(g, argnums=tuple(range(len(arguments))))
    return tree_leaves(g(*arguments))


@given(recurrences(), st.sampled_from([2, 2, 2, 3]), st.booleans())
def test_derivatives_of_recurrences(f: Recurrence, order: int, is_planned: bool) -> None:
    arguments = f.arguments
    order = 2 if sum(x.numel() for x in arguments) > 8 else order
    derivative = hofunc.hod(f, order=order, argnums=tuple(range(len(arguments))))
    with patch.object(planner, "LONG_RECURRENCE", 0):
        forget()
        found = derivative.plan(*arguments)(*arguments) if is_planned else derivative(*arguments)
    for one, other in zip(tree_leaves(found), nested(f, arguments, order), strict=True):
        assert_close(one, other)


def vectors_like(arguments: tuple[Tensor, ...], seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(x.shape, dtype=x.dtype, generator=generator) for x in arguments)


def by_products(f: Callable[..., Tensor], arguments: tuple[Tensor, ...]) -> list[Tensor]:
    """Return products with second and third derivatives, by hofunc: each has open slots, or none."""
    places, u, v = tuple(range(len(arguments))), vectors_like(arguments, 0), vectors_like(arguments, 1)
    return [
        *tree_leaves(hofunc.hvp(f, argnums=places)(*arguments, vector=u)),
        hofunc.directional(f, order=3, argnums=places)(*arguments, vector=v),
        *tree_leaves(
            hofunc.einsum(lambda *x: f(*x).sum(), ", *p, *q, *p -> *q", argnums=(places, places))(
                *arguments, operands=(v,)
            )
        ),
    ]


def by_nesting(f: Callable[..., Tensor], arguments: tuple[Tensor, ...]) -> list[Tensor]:
    """Return the same by nested torch.func."""
    places, u, v = tuple(range(len(arguments))), vectors_like(arguments, 0), vectors_like(arguments, 1)

    def along(g: Callable[..., Tensor], vectors: tuple[Tensor, ...]) -> Callable[..., Tensor]:
        return lambda *x: torch.func.jvp(g, x, vectors)[1]

    def slope(g: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        return torch.func.jacrev(g, argnums=places)(*arguments)

    return [*slope(along(f, u)), along(along(along(f, v), v), v)(*arguments), *slope(lambda *x: along(f, v)(*x).sum())]


@given(recurrences())
def test_contractions_of_recurrences(f: Recurrence) -> None:
    with patch.object(planner, "LONG_RECURRENCE", 0):
        forget()
        found = by_products(f, f.arguments)
    for one, other in zip(found, by_nesting(f, f.arguments), strict=True):
        assert_close(one, other)
