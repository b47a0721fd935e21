"""Determinants: of every matrix, also a singular one, and their logarithms.

A determinant is a polynomial, all derivatives of which are finite. torch differentiates it by way of the inverse, and
its third derivatives are wrong or nan: see docs/explanations/torch-errors.md.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations, permutations
from math import factorial, prod

import torch
from torch import Tensor

from hofunc.algebra.labels import Axes, Axis, Segment, fresh_axes
from hofunc.algebra.term import Factor, Term
from hofunc.graph.node import Call
from hofunc.rules.expansion import Operand
from hofunc.rules.kinds import Positions, Site
from hofunc.rules.ops.series import identity_like
from hofunc.rules.registry import define, define_expansion

aten = torch.ops.aten

SMALL = 4  # up to this size, all products of elements are cheaper than singular values


class Determinant:
    """The rule of the determinant: order r is made of minors, which lack r rows and columns."""

    def positions(self, site: Site, order: int) -> Iterable[Positions]:
        """See `Rule`."""
        return [(0,) * order] if order <= site.shapes[0][-1] else []

    def terms(self, site: Site, positions: Positions) -> Sequence[Term]:
        """See `Rule`."""
        return (_by_products if site.shapes[0][-1] <= SMALL else _by_singular_values)(site, len(positions))


def _by_products(site: Site, order: int) -> list[Term]:
    """Return the term of a small matrix: with e the sign of a permutation, det a is e e a ... a / n!.

    Each derivative leaves out one a.
    """
    *batch, size, _ = site.shapes[0]
    out, rows, columns = fresh_axes(batch), fresh_axes([size] * size), fresh_axes([size] * size)
    elements = [(*out, row, column) for row, column in zip(rows, columns, strict=True)]
    signs = Call(permutation_signs, (site.ref(0),))
    factors = [Factor(signs, rows), Factor(signs, columns)]
    factors += [Factor(site.ref(0), axes) for axes in elements[order:]]
    return [Term(1 / factorial(size - order), tuple(factors), out, tuple(elements[:order]))]


def permutation_signs(x: Tensor) -> Tensor:
    """Return the totally antisymmetric tensor that has as many dimensions as a matrix has rows."""
    size = x.shape[-1]
    places = torch.meshgrid([torch.arange(size, device=x.device)] * size, indexing="ij") if size else ()
    signs = [(later - earlier).sign() for earlier, later in combinations(places, 2)]
    return prod(signs, start=x.new_ones((size,) * size))


def _sign(places: Sequence[int]) -> int:
    """Return the sign of a permutation, 0 of what is none."""
    return prod((later > earlier) - (later < earlier) for earlier, later in combinations(places, 2))


def _by_singular_values(site: Site, order: int) -> list[Term]:
    """Return the terms of a matrix of any size: with rotations u and v, det a is the product of s in a = u s v^T.

    Order r is the sum over rows i of u and v of the product of the other s times det(u_i^T h v_i), in which each of
    the r rows takes another change h.
    """
    *batch, size, _ = site.shapes[0]
    out, places = fresh_axes(batch), fresh_axes([size] * order)
    slots = [(*out, *fresh_axes([size, size])) for _ in range(order)]
    others = Factor(Call(products_of_others, (site.ref(0), order)), (*out, *places))
    vectors = Call(rotations, (site.ref(0),))

    def rotated(half: int, slot: Axes, place: Axis) -> Factor:
        (segment,) = slot[len(batch) + half]
        return Factor(vectors, (*out, (Segment(segment.label, half * size, 2 * size),), place))

    terms = []
    for chosen in permutations(range(order)):
        lefts = [rotated(0, slot, place) for slot, place in zip(slots, places, strict=True)]
        rights = [rotated(1, slot, places[place]) for slot, place in zip(slots, chosen, strict=True)]
        terms.append(Term(_sign(chosen), (others, *lefts, *rights), out, tuple(slots)))
    return terms


def rotations(x: Tensor) -> Tensor:
    """Return u and then v, one below the other, of the singular value decomposition; det u is that of v."""
    u, _, vh = torch.linalg.svd(x)
    sign = (torch.linalg.det(u) * torch.linalg.det(vh)).detach().sign()[..., None, None]
    return torch.cat([torch.cat([u[..., :-1], u[..., -1:] * sign], -1), vh.mT], -2)


def products_of_others(x: Tensor, order: int) -> Tensor:
    """Return the products of the singular values but some, by the places of these, which differ."""
    size = x.shape[-1]
    s = torch.linalg.svdvals(x)
    s = torch.cat([s[..., :-1], s[..., -1:] * torch.linalg.slogdet(x).sign.detach()[..., None]], -1)
    numbers = torch.arange(size, device=x.device)
    places = torch.cartesian_prod(*[numbers] * order).reshape(-1, order, 1)
    taken = (places == numbers).any(1)
    result = torch.where(taken, 1, s.unsqueeze(-2)).prod(-1) * (taken.sum(-1) == order)
    return result.reshape(*x.shape[:-2], *[size] * order)


define(aten._linalg_det.default, Determinant())


# The logarithm: the change of log det a is the trace of y h - y h y h / 2 + ..., with y the inverse of a.


@define_expansion(aten._linalg_slogdet.default)
def _slogdet(order: int, outputs: tuple[Tensor, ...], a: Operand) -> tuple[Tensor | None, Tensor]:
    lu, pivots, _ = torch.linalg.lu_factor_ex(a.value)  # those among the outputs may be of the transpose
    step = torch.linalg.lu_solve(lu, pivots, identity_like(a.value)) @ a.change
    total, power = step.diagonal(0, -2, -1).sum(-1), step
    for degree in range(2, order + 1):
        total = total + (power * step.mT).sum((-2, -1)) * ((-1) ** (degree + 1) / degree)
        power = power @ step
    if total.is_complex():  # and turns the sign
        return outputs[0] * ((1j * total.imag).exp() - 1), total.real
    return None, total
