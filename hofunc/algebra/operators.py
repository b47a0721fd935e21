"""Sources of factors that are applied rather than built: Kronecker deltas and linear maps along axes."""

from collections.abc import Callable
from typing import NamedTuple

from hofunc.algebra.labels import Label, labels_of
from hofunc.algebra.term import Factor, Term, renamed


class Delta:
    """One where the indices of the factor's two axes are equal, zero elsewhere."""


class Map(NamedTuple):
    """A linear map, known by what it does to a tensor; its matrix is never built if that can be helped.

    The axes of its factor are those of its output, then those of its input, then those along which it acts
    separately. ``forward(t, *args)`` takes a tensor whose last dimensions are the separate ones and those of the
    input, and returns the same with those of the output in their place; ``transpose`` takes it back.

    Attributes:
        forward: Applies the map.
        transpose: Applies its transpose.
        args: Arguments of both, tensors as what names them.
        outs: Number of output axes.
        ins: Number of input axes.
        selects: Whether every element of the output is one element of the input.
        covers: Whether every element of the output depends on some of the input, as it does if the map selects.
        parts: ``parts(axes, *args)`` returns factors of which the map is the product, given the axes of its own, for
            where it cannot be applied; None if there is no such product.
        reach: A map of the same axes and arguments, symmetric, of which no elements cancel, and which is zero where
            this one is for good; None if that is so of this one.
    """

    forward: Callable
    transpose: Callable
    args: tuple
    outs: int = 1
    ins: int = 1
    selects: bool = False
    parts: Callable[..., tuple[Factor, ...]] | None = None
    covers: bool = False
    reach: Callable | None = None


DELTA = Delta()


def with_merged_selections(term: Term) -> Term:
    """Replace selections of one index by the same map by a single one, whose label all their slots then share.

    If y[m] = x[s(m)], then two slots that have m in common have s(m) in common: a diagonal stays one under any
    selection, also one that repeats elements. It does not where the output, too, bears m.
    """
    groups: dict[tuple, list[Factor]] = {}
    for factor in term.factors:
        if isinstance(factor.source, Map) and factor.source.selects and factor.source.ins == 1:
            separate = factor.axes[factor.source.outs + 1 :]
            groups.setdefault((factor.source, factor.axes[: factor.source.outs], separate), []).append(factor)
    for (source, taken, _), factors in groups.items():
        columns = [factor.axes[source.outs] for factor in factors]
        shown = {*labels_of(term.out, *term.slots)}
        if len(factors) == 1 or shown & {*labels_of(taken)} or not all(_is_free(axis) for axis in columns):
            continue
        names: dict[Label, Label] = {axis[0].label: columns[0][0].label for axis in columns}
        kept = (factors[0], *(factor for factor in term.factors if factor not in factors))
        return with_merged_selections(renamed(term._replace(factors=kept), names))
    return term


def _is_free(axis: tuple) -> bool:
    return len(axis) == 1 and axis[0].is_full
