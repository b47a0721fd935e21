"""Products along an axis, whole and running, at every order, exact also where elements are zero.

The derivative by some of the elements is the product of all others: for a < b what comes before a, what lies between
a and b, and what follows b. So it is a term for each order in which the slots may stand, and nothing is divided by.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from math import prod

import torch
from torch import Tensor

from hofunc.algebra.labels import Axes, Axis, fresh_axes
from hofunc.algebra.term import Factor, Term
from hofunc.graph.node import Call
from hofunc.rules.kinds import OfProducts, Positions, Site
from hofunc.rules.ops.linear import reduced
from hofunc.rules.registry import define

aten = torch.ops.aten


def before(x: Tensor, dim: int | None) -> Tensor:
    """Multiply what comes before each place of a row."""
    return _shifted(_rows(x, dim), 1).cumprod(-1)


def after(x: Tensor, dim: int | None) -> Tensor:
    """Multiply what follows each place of a row."""
    return _shifted(_rows(x, dim).flip(-1), 1).cumprod(-1).flip(-1)


def until(x: Tensor, dim: int | None) -> Tensor:
    """Multiply what follows a first place, up to and with a second one; zero where the second comes first."""
    rows = _rows(x, dim)
    later = torch.ones(rows.shape[-1], rows.shape[-1], dtype=torch.bool, device=rows.device).triu(1)
    return torch.where(later, rows.unsqueeze(-2), 1).cumprod(-1).triu()


def between(x: Tensor, dim: int | None) -> Tensor:
    """Multiply what lies between two places; zero where the second is not the later one."""
    return _shifted(until(x, dim), 0)


def _rows(x: Tensor, dim: int | None) -> Tensor:
    return x.reshape(-1) if dim is None else x.movedim(dim, -1)


def _shifted(rows: Tensor, first: float) -> Tensor:
    """Move all of a row one place on, with a number at the first one."""
    return torch.nn.functional.pad(rows[..., :-1], (1, 0), value=first)


@dataclass(frozen=True, slots=True)
class Product(OfProducts):
    """The product of rows.

    Attributes:
        running: Whether the result has the product up to each place, rather than that of the row.
    """

    running: bool

    def positions(self, site: Site, order: int) -> Iterable[Positions]:
        """See `Rule`."""
        dim, _ = _arguments(site)
        length = prod(site.shapes[0]) if dim is None else site.shapes[0][dim]
        return [(0,) * order] if order <= length else []

    def terms(self, site: Site, positions: Positions) -> Sequence[Term]:
        """See `Rule`."""
        dim, keepdim = _arguments(site)
        return [self._term(site, order, dim, keepdim) for order in permutations(range(len(positions)))]

    def _term(self, site: Site, order: Sequence[int], dim: int | None, keepdim: bool) -> Term:
        """Return the term in which the slots stand in an order along the row."""
        shape = site.shapes[0]
        separate = () if dim is None else _without(fresh_axes(shape), dim)
        own = [fresh_axes(shape) if dim is None else fresh_axes([shape[dim]]) for _ in (*order, None)]
        places = [sum(axes, ()) for axes in own]

        def factor(function: object, *ends: Axis) -> Factor:
            return Factor(Call(function, (site.ref(0), dim)), (*separate, *ends))  # type: ignore[arg-type]

        def whole(place: Axes) -> Axes:
            return place if dim is None else (*separate[:dim], *place, *separate[dim:])

        factors = [factor(before, places[order[0]])]
        factors += [factor(between, places[first], places[second]) for first, second in pairwise(order)]
        factors.append(
            factor(until, places[order[-1]], places[-1]) if self.running else factor(after, places[order[-1]])
        )
        out = whole(own[-1]) if self.running else reduced(whole(own[-1]), dim, keepdim)
        return Term(1, tuple(factors), out, tuple(whole(axes) for axes in own[:-1]))


def _without(axes: Axes, dim: int) -> Axes:
    return (*axes[:dim], *axes[dim + 1 :])


def _arguments(site: Site) -> tuple[int | None, bool]:
    """Return the axis of the rows, None for all elements as one row, and whether it stays."""
    rank = len(site.shapes[0])

    def read(_: None, dim: int | None = None, keepdim: bool = False, **__: object) -> tuple[int | None, bool]:
        return (None if dim is None or not rank else dim % rank), keepdim

    return site.bind(read, [None])


define(aten.prod.default, Product(running=False))
define(aten.prod.dim_int, Product(running=False))
define(aten.cumprod.default, Product(running=True))
