"""Sums of terms: which terms of a block can be added into one, and how."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from hofunc.algebra.labels import Axes, Axis, Bindings, Label, Segment, full, labels_of
from hofunc.algebra.operators import Indices, is_reading, selections_of
from hofunc.algebra.term import Factor, Term, pattern, rebound, relabelled, renamed, span, visible


def grouped(terms: Iterable[Term]) -> list[list[Term]]:
    """Group terms whose axes are equal up to names, each group relabelled to the names of its first term.

    Terms of a group read at the same selections or indices, if they read at any.
    """
    return _alike(terms, _structure, _labels)


def by_pattern(terms: Iterable[Term]) -> list[list[Term]]:
    """Group terms whose visible axes are equal up to names, each group relabelled to the names of its first term."""
    return _alike(terms, pattern, lambda term: [*visible(term)])


def _alike(
    terms: Iterable[Term], key_of: Callable[[Term], Hashable], labels_in: Callable[[Term], list[Label]]
) -> list[list[Term]]:
    """Group terms of one key, whose labels are as many, each group relabelled to those of its first term."""
    groups: dict[Hashable, list[Term]] = {}
    known: dict[tuple, Hashable] = {}  # by the identity of axes, which many terms share
    for term in terms:
        reads = is_reading(term)
        axes = id(term.out), *map(id, term.slots), *map(id, term.factors if reads else ())
        if axes not in known:
            known[axes] = key_of(term)
        group = groups.setdefault(known[axes], [])
        names = dict(zip(labels_in(term), labels_in(group[0]), strict=True)) if group else {}
        rename = relabelled if reads else renamed  # hidden labels of what is read may be others' visible ones
        group.append(rename(term, names) if group else term)
    return [*groups.values()]


def _structure(term: Term) -> Hashable:
    """Return a key that terms share if they have equal axes, and read at the same, up to the names of the labels."""
    factors = _reading_factors(term)
    every = term._replace(slots=(*term.slots, *(factor.axes for factor in factors)))
    return tuple([_named(factor.source) for factor in factors]), pattern(every)


def _named(source: Any) -> Hashable:
    """Return what two sources share that read at the same: tensors of indices are known by their identity."""
    return id(source.tensor) if isinstance(source, Indices) else source


def _labels(term: Term) -> list[Label]:
    """Return the labels of the axes of a term, and then those of what it reads at."""
    return [*dict.fromkeys((*visible(term), *labels_of(*(factor.axes for factor in _reading_factors(term)))))]


def _reading_factors(term: Term) -> list[Factor]:
    """Return the factors that read axes at indices, in the order in which the term's axes have what they read from."""
    order = {label: place for place, label in enumerate(visible(term))}

    def place(read: tuple[Axis, Factor]) -> int:
        return min([order.get(label, len(order)) for label in labels_of((read[0],))], default=0)

    found = [(selection.target, selection.factor) for selection in selections_of(term)]
    found += [(factor.axes[0], factor) for factor in term.factors if isinstance(factor.source, Indices)]
    return [factor for _, factor in sorted(found, key=place)]


def cover(term: Term) -> Term:
    """Return the densest pattern of which a term is a part: whole axes in place of parts, without any factor.

    Segments that bear one label from the same start on still share a label; those that start elsewhere do not.
    """
    labels: dict[tuple, Label] = {}

    def covered(axes: Axes) -> Axes:
        return tuple(
            tuple(
                full(labels.setdefault(segment if segment.label else (len(labels),), Label(segment.extent)))
                for segment in axis
            )
            for axis in axes
        )

    return Term(1, (), covered(term.out), tuple(covered(slot) for slot in term.slots))


def hull(parts: Sequence[Term], *, rounded: int = 0) -> Term:
    """Return the least pattern in which terms lie of which all have one cover, without any factor.

    It reaches, on every axis, from where the first of them starts to where the last one ends; if rounded, to the next
    multiples of the largest power of two of which so many are no more than its length.
    """
    names: dict[Label | None, Label | None] = {}

    def reached(segments: Sequence[Segment], extent: int) -> tuple[int, int]:
        start, stop = min(s.start for s in segments), max(s.stop for s in segments)
        if not rounded or stop - start < 2:
            return start, stop
        step = 1 << max(0, (int(stop - start) // rounded).bit_length() - 1)
        return start - start % step, min(int(extent), stop + -stop % step)

    def narrowed(segments: Sequence[Segment]) -> Segment:
        whole, *each = segments
        start, stop = reached(each, whole.extent)
        if whole.label not in names:
            names[whole.label] = Label(stop - start) if (start, stop) != (0, whole.extent) else whole.label
        is_one = stop - start == 1 and all(s.label is None for s in each)
        return Segment(None if is_one else names[whole.label], start, whole.extent)

    def joined(groups: Sequence[Axes]) -> Axes:
        return tuple(tuple(map(narrowed, zip(*axes, strict=True))) for axes in zip(*groups, strict=True))

    terms = [cover(parts[0]), *parts]
    slots = zip(*(term.slots for term in terms), strict=True)
    return Term(1, (), joined([term.out for term in terms]), tuple(map(joined, slots)))


def is_partial(term: Term) -> bool:
    """Tell whether some axis of a term is reached only in part."""
    return any(segment.extent > len(span(segment)) for axes in (term.out, *term.slots) for x in axes for segment in x)


def embedding(special: Term, general: Term) -> Bindings | None:
    """Say where in a general pattern a special one lies, or None if it does not lie in it.

    Returns:
        For every visible label of the general term the segment of it that the special term reaches: a diagonal
        where two labels go to one, a part where the segment is shorter, a single index where it has no label.
    """
    if _extents(special) != _extents(general):
        return None
    found: Bindings = {}
    for wide_axes, narrow_axes in zip((general.out, *general.slots), (special.out, *special.slots), strict=True):
        for wide_axis, narrow_axis in zip(wide_axes, narrow_axes, strict=True):
            for wide, narrow in zip(wide_axis, narrow_axis, strict=True):
                if not _contains(wide, narrow):
                    return None
                if wide.label is None:
                    continue
                place = _place(wide.label, wide, narrow)
                if found.setdefault(wide.label, place) != place:
                    return None
    return found


def split_alike(terms: Sequence[Term]) -> list[Term]:
    """Return terms in which labels that no factor bears are several, as after a reshape, where they then lie in others.

    A term that is the same along an axis, as a mean is, is so along all that the axis is made of.
    """
    forms = {tuple([len(axis) for axes in (term.out, *term.slots) for axis in axes]): term for term in terms}
    return [*terms] if len(forms) == 1 else [_split(term, forms.values()) for term in terms]


def _split(term: Term, others: Iterable[Term]) -> Term:
    borne = labels_of(*(factor.axes for factor in term.factors))
    for other in others:
        bindings: Bindings = {}
        for axes, others_axes in zip((term.out, *term.slots), (other.out, *other.slots), strict=True):
            for axis, parts in zip(axes, others_axes, strict=True):
                label = axis[0].label if len(axis) == 1 < len(parts) and axis[0].is_full else None
                if label is not None and label not in borne:
                    bindings.setdefault(label, tuple([full(Label(part.extent)) for part in parts]))
        found = rebound(term, bindings)
        if bindings and embedding(found, other) is not None:
            return found
    return term


def _extents(term: Term) -> list[list[int]]:
    return [[segment.extent for segment in axis] for axes in (term.out, *term.slots) for axis in axes]


def _contains(wide: Segment, narrow: Segment) -> bool:
    if wide.label is None:
        return narrow.label is None and wide.start == narrow.start
    return wide.start <= narrow.start and narrow.stop <= wide.stop


def _place(label: Label, wide: Segment, narrow: Segment) -> tuple[Segment]:
    return (Segment(narrow.label, narrow.start - wide.start, label.size),)
