"""Offsets: a product through windows of few places is a sum of terms, one for each place, where terms are asked for.

The windows of a convolution tie a place of its output to a few of its input, which a matrix of all of them does not
tell. One place of all windows is a part of the axis, laid beside the windows as a slice is, so that what is computed
element by element stays a diagonal: of a stencil that is written as a convolution, the derivative is a band.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import prod

from hofunc.algebra.labels import Axes, Axis, Bindings, Label, Segment, labels_of
from hofunc.algebra.operators import Map
from hofunc.algebra.term import Factor, Term, rebound
from hofunc.graph.node import Graph
from hofunc.plan.blocks import Local
from hofunc.plan.convolving import is_of_windows
from hofunc.rules.ops.windows import Windows

MOST = 256  # terms that windows may become, of which each takes about a tenth of a millisecond to plan
SPARSE = 4  # times as many elements as terms that there are to be, beside which so many take less than a matrix

Reach = Mapping[int, int]  # by axis, over how many places windows reach


def with_offsets(graph: Graph, local: Mapping[int, Local], order: int) -> dict[int, Local]:
    """Return local derivatives in which windows are apart, if all of them together reach few places.

    Args:
        graph: The graph.
        local: The local derivatives of its nodes.
        order: The highest order that is wanted.
    """
    reached: dict[int, Reach] = {}
    apart: dict[int, Local] = {}
    for node, found in local.items():
        operands = {operand for key in found for operand in key}
        own = _widest(_reach(term) for terms in found.values() for term in terms)
        before = _widest(reached.get(operand, {}) for operand in operands)
        reached[node] = {axis: before.get(axis, 1) + own.get(axis, 1) - 1 for axis in {*before, *own}}
        if own:
            apart[node] = {key: [part for term in terms for part in _apart(term)] for key, terms in found.items()}
    count = max((prod(reach.values()) for reach in reached.values()), default=1) ** order
    sizes = [prod(graph.nodes[number].shape) for number in graph.inputs if graph.nodes[number].active]
    is_worth_it = apart and count <= MOST and SPARSE * count <= max(sizes)
    return {**local, **apart} if is_worth_it else {**local}


def _widest(reaches: Iterable[Reach]) -> Reach:
    """Return the largest of several reaches along each axis."""
    widest: dict[int, int] = {}
    for reach in reaches:
        for axis, width in reach.items():
            widest[axis] = max(width, widest.get(axis, 1))
    return widest


def _opened(term: Term) -> Term:
    """Return a term in which windows that are applied by another map are factors of their own."""
    factors: list[Factor] = []
    for factor in term.factors:
        source = factor.source
        parts = source.parts(factor.axes, *source.args) if isinstance(source, Map) and source.parts else ()
        factors += parts if any(map(is_of_windows, parts)) else [factor]
    return term._replace(factors=tuple(factors))


def _is_apart(factor: Factor, term: Term) -> bool:
    """Tell whether windows can be taken apart: nothing is differentiated by the places in them."""
    (windows,), (_, place, _) = factor.source.args, factor.axes
    is_even = windows.stride == 1 or windows.length % windows.stride == 0
    return is_even and {*labels_of((place,))}.isdisjoint(labels_of(*term.slots))


def _reach(term: Term) -> Reach:
    """Return how far the windows of a term reach along each axis of its slots, of those that can be taken apart."""
    opened = _opened(term)
    found = [factor for factor in opened.factors if is_of_windows(factor)]
    if not all(_is_apart(factor, opened) for factor in found):
        return {}
    places = {axis: place for slot in opened.slots for place, axis in enumerate(slot)}
    return {places.get(factor.axes[2], -1): factor.source.args[0].width for factor in found}


def _apart(term: Term) -> Iterator[Term]:
    """Yield the terms of a term, one for each place of its windows."""
    opened = _opened(term)
    place = next((place for place, factor in enumerate(opened.factors) if is_of_windows(factor)), None)
    if place is None or not _is_apart(opened.factors[place], opened):
        yield term
        return
    factor = opened.factors[place]
    rest = opened._replace(factors=(*opened.factors[:place], *opened.factors[place + 1 :]))
    for bindings in _bindings(factor):
        yield from _apart(rebound(rest, bindings))


def _bindings(factor: Factor) -> Iterator[Bindings]:
    """Yield for every place in windows the parts of axes that are related by it."""
    windows: Windows = factor.source.args[0]
    for number in range(windows.width):
        start = number * windows.dilation - windows.padding
        first = max(0, -(start // windows.stride))
        stop = min(windows.number, (windows.length - 1 - start) // windows.stride + 1)
        if first < stop:
            label = Label(stop - first)
            skipped, within = divmod(start, windows.stride)
            along: Axis = (Segment(label, first + skipped, windows.length // windows.stride),)
            if windows.stride > 1:
                along = (*along, Segment(None, within, windows.stride))
            ends: Axes = (
                (Segment(label, first, windows.number),),
                (Segment(None, number, windows.width),),
                along,
            )
            own = zip(factor.axes, ends, strict=True)
            yield {segment.label: end for (segment,), end in own if segment.label is not None}
