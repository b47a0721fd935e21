"""Softmax, its logarithm, and logsumexp, whole and running: cumulants of a categorical distribution, at every order.

The derivatives of logsumexp are the joint cumulants of the indicator of a category,

    K[1, ..., r] = sum over set partitions of (-1)^(m - 1) (m - 1)! times the product over its m blocks of p,

where all slots of a block have one index. Softmax is its first derivative, so that its own derivatives are the same
sum with the output as one more slot. Source: the derivative of p[i] is p[i] (delta[i, j] - p[j]), by induction.

Cumulants of two variables or more are those of the variables less their means, of which every block has two or more.
Where one probability is nearly one, the sum above is of terms that cancel: along a slope of 1e4, of three factors,
which leaves 1e-4 of rounding where the cumulant is zero. What has no mean is zero there itself. The Jacobian of softmax
is one map for the same reason: a diagonal and an outer product would be contracted apart with what comes before and
after, and rounding would be left of their difference. To take the mean once is then enough, and costs no more.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import factorial

import torch

from hofunc.algebra.labels import Axes, fresh_axes
from hofunc.algebra.operators import Map
from hofunc.algebra.partitions import set_partitions
from hofunc.algebra.term import Factor, Term
from hofunc.graph.node import Call, Ref
from hofunc.internals import softmax_back
from hofunc.rules.axes import dims_of
from hofunc.rules.kinds import KeepsZeros, Positions, Site
from hofunc.rules.ops.linear import reduced
from hofunc.rules.registry import define
from hofunc.views import laid_out

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Softmax(KeepsZeros):
    """Softmax, log-softmax or logsumexp over some axes.

    Attributes:
        probabilities: Given a site and the axes, what computes the softmax.
        terms_of: Given a site, the dims, the order and the probabilities, the terms of the derivative.
    """

    probabilities: Callable[[Site, tuple[int, ...]], Ref | Call]
    terms_of: Callable[[Site, tuple[int, ...], int, Ref | Call], list[Term]]

    def positions(self, site: Site, order: int) -> Iterable[Positions]:
        """See `Rule`."""
        return [(0,) * order]

    def terms(self, site: Site, positions: Positions) -> Sequence[Term]:
        """See `Rule`."""
        dims = site.bind(lambda _, dim, *__: dims_of(dim, len(site.shapes[0])), [None])
        return self.terms_of(site, dims, len(positions), self.probabilities(site, dims))


def cumulants(shape: Sequence[int], dims: Sequence[int], count: int, probabilities: Ref | Call) -> list[Term]:
    """Return the joint cumulants over the axes at dims, separate along all others.

    Those of two slots or more are of the centred indicator, see above.

    Args:
        shape: Shape of the probabilities.
        dims: The axes over which they sum to one.
        count: How many slots the cumulant has.
        probabilities: What names them.

    Returns:
        Terms whose slots are the cumulant's, and whose output is empty.
    """
    separate = fresh_axes(shape)
    if count > 1 and not dims:  # of a scalar: there is one category
        return []
    apart = [separate[dim] for dim in range(len(shape)) if dim not in dims]

    def laid() -> Axes:
        own = fresh_axes(shape)
        return tuple(own[dim] if dim in dims else separate[dim] for dim in range(len(shape)))

    def along(forward: Map, block: Axes, slot: Axes) -> Factor:
        ends = (axes[dim] for axes in (block, slot) for dim in range(len(shape)) if dim in dims)
        return Factor(_along(forward, shape, dims, probabilities), (*ends, *apart))

    if count == 1:
        axes = laid()
        return [Term(1, (Factor(probabilities, axes),), (), (axes,))]
    if count == 2:  # to take the mean from one slot is enough, if nothing is left of it
        first, second = laid(), laid()
        return [Term(1, (along(_COVARIANCE, first, second),), (), (first, second))]
    terms = []
    for blocks in set_partitions(count):
        if min(map(len, blocks)) == 1:  # the mean of what has no mean
            continue
        axes_of: dict[int, Axes] = {}
        factors = []
        for block in blocks:
            axes = laid()
            if count > 3:
                factors.append(Factor(probabilities, axes))
            for slot in block:
                axes_of[slot] = laid()
                is_weighted = count == 3 and slot == block[0]
                factors.append(along(_JACOBIAN if is_weighted else _CENTRE, axes, axes_of[slot]))
        weight = (-1) ** (len(blocks) - 1) * factorial(len(blocks) - 1)
        terms.append(Term(weight, tuple(factors), (), tuple(axes_of[slot] for slot in range(count))))
    return terms


def _along(linear_map: Map, shape: Sequence[int], dims: Sequence[int], probabilities: Ref | Call) -> Map:
    """Return a map along the axes at dims, given the probabilities, separate along all others."""
    kept, summed = ([dim for dim in range(len(shape)) if (dim in dims) == end] for end in (False, True))
    return linear_map._replace(args=(probabilities, (*kept, *summed), len(summed)), outs=len(summed), ins=len(summed))


def _centred(tensor: torch.Tensor, p: torch.Tensor, order: tuple[int, ...], count: int) -> torch.Tensor:
    """Take its mean from a tensor, of which the last axes are those of the probabilities.

    It is taken twice, since what rounding leaves of it the first time may be larger than all else.
    """
    p, dims = laid_out(p, order), _last(count)
    tensor = tensor - (tensor * p).sum(dims, keepdim=True)
    return tensor - (tensor * p).sum(dims, keepdim=True)


def _centred_back(tensor: torch.Tensor, p: torch.Tensor, order: tuple[int, ...], count: int) -> torch.Tensor:
    """Apply the transpose of `_centred`."""
    p = laid_out(p, order)
    return _less_sum(_less_sum(tensor, p, count), p, count)


def _changed(tensor: torch.Tensor, p: torch.Tensor, order: tuple[int, ...], count: int) -> torch.Tensor:
    """Apply the Jacobian of softmax, which is its own transpose."""
    return _jacobian_of(tensor, laid_out(p, order), count)


def _covaried(tensor: torch.Tensor, p: torch.Tensor, order: tuple[int, ...], count: int) -> torch.Tensor:
    """Apply the same, and take the mean twice: what is left of it the first time is in proportion to probabilities."""
    p = laid_out(p, order)
    return _less_sum(_jacobian_of(tensor, p, count), p, count)


def _jacobian_of(tensor: torch.Tensor, p: torch.Tensor, count: int) -> torch.Tensor:
    if count == 1 and tensor.shape == p.shape and tensor.dtype == p.dtype:
        return softmax_back(tensor, p, -1, p.dtype)
    return _less_sum(tensor * p, p, count)


def _less_sum(tensor: torch.Tensor, p: torch.Tensor, count: int) -> torch.Tensor:
    """Return a tensor less its sum, which is spread as the probabilities are."""
    return torch.addcmul(tensor, p, tensor.sum(_last(count), keepdim=True), value=-1)


def _reached(tensor: torch.Tensor, p: torch.Tensor, order: tuple[int, ...], count: int) -> torch.Tensor:
    """Return what depends on what along the axes of probabilities: all but what is zero, on all but that."""
    some = (laid_out(p, order) != 0).to(tensor.dtype)
    return some * (some * tensor).sum(_last(count), keepdim=True)


def _last(count: int) -> int | tuple[int, ...]:
    """Return so many last axes; one is passed on as a number, which torch reads sooner."""
    return -1 if count == 1 else tuple(range(-count, 0))


# What takes a tensor, probabilities, the order in which to lay these out, and of how many of the last axes they are.
OF_PROBABILITIES = (_centred, _centred_back, _changed, _covaried, _reached)

_CENTRE = Map(_centred, _centred_back, ())
_JACOBIAN = Map(_changed, _changed, (), reach=_reached)
_COVARIANCE = Map(_covaried, _covaried, (), reach=_reached)


def _jacobian(shape: Sequence[int], dims: Sequence[int], p: Ref | Call) -> list[Term]:
    """Return the term of the Jacobian of softmax, none for that of a scalar, which is one."""
    jacobian = _along(_JACOBIAN, shape, dims, p)
    out, own = fresh_axes(shape), fresh_axes(shape)
    slot = tuple(own[dim] if dim in dims else axis for dim, axis in enumerate(out))
    ends = (axes[dim] for axes in (out, slot) for dim in range(len(shape)) if dim in dims)
    apart = (axis for dim, axis in enumerate(out) if dim not in dims)
    return [Term(1, (Factor(jacobian, (*ends, *apart)),), out, (slot,))] if dims else []


def _softmax(site: Site, dims: tuple[int, ...], order: int, p: Ref | Call) -> list[Term]:
    if order == 1:
        return _jacobian(site.node.shape, dims, p)
    terms = cumulants(site.node.shape, dims, order + 1, p)
    return [term._replace(out=term.slots[0], slots=term.slots[1:]) for term in terms]


def _log_softmax(site: Site, dims: tuple[int, ...], order: int, p: Ref | Call) -> list[Term]:
    shape = site.node.shape
    terms = []
    for term in cumulants(shape, dims, order, p):
        repeated = fresh_axes(shape)
        out = tuple(repeated[dim] if dim in dims else axis for dim, axis in enumerate(term.slots[0]))
        terms.append(term._replace(coefficient=-term.coefficient, out=out))
    if order == 1:
        axes = fresh_axes(shape)
        terms.append(Term(1, (), axes, (axes,)))
    return terms


def _logsumexp(site: Site, dims: tuple[int, ...], order: int, p: Ref | Call) -> list[Term]:
    keepdim = site.bind(lambda _, dim, keepdim=False: keepdim, [None])
    terms = cumulants(site.shapes[0], dims, order, p)
    return [term._replace(out=reduced(term.slots[0], dims, keepdim)) for term in terms]


def _logcumsumexp(site: Site, dims: tuple[int, ...], order: int, p: Ref | Call) -> list[Term]:
    if not site.node.shape:
        axes = fresh_axes(site.node.shape)
        return [Term(1, (), axes, (axes,))] if order == 1 else []
    (dim,) = dims
    *rest, length = _at_end(site.node.shape, dim)

    def own(axes: Axes, place: int) -> Axes:
        """Put the axis of the row, which is at a place, where it belongs, and leave its other copy out."""
        return (*axes[:dim], axes[place], *axes[dim : len(rest)])

    terms = cumulants((*rest, length, length), (len(rest) + 1,), order, p)
    return [
        term._replace(out=own(term.slots[0], len(rest)), slots=tuple(own(slot, len(rest) + 1) for slot in term.slots))
        for term in terms
    ]


def _at_end(items: Sequence[int], place: int) -> tuple[int, ...]:
    return (*items[:place], *items[place + 1 :], items[place])


def running_softmax(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """Return the softmax of the first element of every row, of the first two, and so on, with zeros for the others."""
    rows = x.movedim(dims, (-1,)).unsqueeze(-2)
    length = rows.shape[-1]
    seen = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
    # the softmax of one element is one, whatever it is
    rows = torch.where(torch.arange(length, device=x.device)[:, None] == 0, 0, rows)
    return torch.where(seen, rows, -torch.inf).softmax(-1)


def softmax_over(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """Return the softmax over several axes together; zeros of minus infinity alone, for which torch has no number."""
    total = x.logsumexp(dims, keepdim=True)
    return (x - torch.where(total == -torch.inf, 0, total)).exp()


define(aten._softmax.default, Softmax(lambda site, dims: Ref(site.node.number), _softmax))
# Of a row of nothing but minus infinity this one is zero, and so are its derivatives, by the same terms.
define(aten._safe_softmax.default, Softmax(lambda site, dims: Ref(site.node.number), _softmax))
define(aten._log_softmax.default, Softmax(lambda site, dims: Call(torch.exp, (Ref(site.node.number),)), _log_softmax))
define(aten.logsumexp.default, Softmax(lambda site, dims: Call(softmax_over, (site.ref(0), dims)), _logsumexp))
define(aten.logcumsumexp.default, Softmax(lambda site, dims: Call(running_softmax, (site.ref(0), dims)), _logcumsumexp))
