"""Sources of factors that are applied rather than built: Kronecker deltas and linear maps along axes."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from hofunc.algebra.labels import Axes, Axis
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
        adds: Whether every element of the input is added to one element of the output: the transpose selects.
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
    adds: bool = False
    parts: Callable[..., tuple[Factor, ...]] | None = None
    covers: bool = False
    reach: Callable | None = None


DELTA = Delta()


class Indices(NamedTuple):
    """A tensor of integers as the source of a factor, with the axes of what is read from and then the tensor's.

    The factor is one where the index along the first axis is what the tensor has, and zero elsewhere.

    Attributes:
        tensor: The tensor, of which every dimension runs over a label of its own.
    """

    tensor: Any


def sources(terms: Iterable[Term]) -> Iterator[Any]:
    """Return the sources of all factors, those of indices being their tensors."""
    found = (factor.source for term in terms for factor in term.factors)
    return (source.tensor if isinstance(source, Indices) else source for source in found)


def with_sources(terms: Iterable[Term], supply: Iterator[Any]) -> tuple[Term, ...]:
    """Return terms whose factors have others in place of the `sources` that they have."""

    def others(factors: tuple[Factor, ...]) -> tuple[Factor, ...]:
        sources = [Indices(next(supply)) if isinstance(source, Indices) else next(supply) for source, _ in factors]
        return tuple([Factor(source, axes) for source, (_, axes) in zip(sources, factors, strict=True)])

    return tuple([Term(coefficient, others(factors), out, slots) for coefficient, factors, out, slots in terms])


class Selection(NamedTuple):
    """A map of which every element of one end is one element of the other, so that it is known by their indices.

    Attributes:
        factor: The factor of the map.
        read: The axis of the elements that are read.
        target: The axis that they are read from.
        beside: The axes along each of which indices are of their own.
        function: Reads them: ``function(t, *args)`` takes a tensor whose last dimensions are those beside and that of
            the target.
    """

    factor: Factor
    read: Axis
    target: Axis
    beside: Axes
    function: Callable

    @property
    def indexed(self) -> Axes:
        """The axes of the tensor of indices."""
        return (*self.beside, self.read)

    @property
    def args(self) -> tuple:
        """The other arguments of the function."""
        return self.factor.source.args


def selection_of(factor: Factor) -> Selection | None:
    """Return the selection that a factor is, None if it is none, or one of several axes."""
    source = factor.source
    if not isinstance(source, Map) or not (source.selects or source.adds) or (source.outs, source.ins) != (1, 1):
        return None
    out, taken, *beside = factor.axes
    if source.selects:
        return Selection(factor, out, taken, tuple(beside), source.forward)
    return Selection(factor, taken, out, tuple(beside), source.transpose)


def selections_of(term: Term) -> list[Selection]:
    """Return the selections among the factors of a term."""
    return [selection for factor in term.factors if (selection := selection_of(factor)) is not None]


def is_reading(term: Term) -> bool:
    """Tell whether a term reads an axis at indices, those of a selection or of a tensor."""
    return bool(selections_of(term)) or any(isinstance(factor.source, Indices) for factor in term.factors)


def with_merged_selections(term: Term) -> Term:
    """Replace selections by the same indices by a single one, whose label all their slots then share.

    What is read at the same places is the same: a diagonal stays one under any selection, also one that repeats
    elements.
    """
    groups: dict[tuple, list[Selection]] = {}
    for selection in selections_of(term):
        groups.setdefault((selection.function, selection.args, selection.indexed), []).append(selection)
    for same in groups.values():
        if len(same) == 1 or not all(_is_free(selection.target) for selection in same):
            continue
        first, *others = same
        names = {selection.target[0].label: first.target[0].label for selection in others}
        left = [selection.factor for selection in others]
        kept = tuple([factor for factor in term.factors if not any(factor is other for other in left)])
        return with_merged_selections(renamed(term._replace(factors=kept), names))  # type: ignore[arg-type]
    return term


def _is_free(axis: Axis) -> bool:
    return len(axis) == 1 and axis[0].is_full
