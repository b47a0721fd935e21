"""Sums: adding the terms of a block where their patterns allow it, and writing a block as one dense tensor."""

from bisect import bisect
from collections import Counter
from collections.abc import Hashable, Sequence
from math import prod

import torch

from hofunc.algebra.combine import by_pattern, cover, embedding, grouped, hull, is_partial, split_alike
from hofunc.algebra.labels import Bindings, Label, labels_of
from hofunc.algebra.operators import selections_of
from hofunc.algebra.term import Factor, Term, pattern, visible
from hofunc.plan.builder import Builder
from hofunc.plan.joins import SPARSE, coalesced
from hofunc.plan.operators import one_like
from hofunc.plan.placing import joint
from hofunc.plan.program import Register
from hofunc.plan.recipes import axes_of, by_recipe, interned
from hofunc.plan.selections import entries, solid, tensor_of, without_selections
from hofunc.views import Labelled, Part, add_within, aligned, as_number, each, plus, spread, times

FEW = 4  # terms of a block, beyond which every further one costs more than some zeros between them
SMALL = 4096  # entries of a block that take no longer to compute with than a call does
MEDIUM = 1 << 16  # those that take no longer than it takes to plan a block of its own, if they are an eighth more
EIGHTH = 8

LARGEST = 2.0**20  # coefficient that stays apart from the tensor of a term, and one over which is the least one


def accumulated(builder: Builder, terms: Sequence[Term]) -> list[Term]:
    """Add contracted terms: those of one pattern into one, and a diagonal one into a denser one that there is.

    Terms whose patterns do not lie in each other stay apart until a dense tensor is asked for.
    """
    found = by_recipe(builder, _accumulated, terms) if len(terms) > 1 else terms
    return [_in_range(builder, term) for term in found if term.coefficient != 0]


def _in_range(builder: Builder, term: Term) -> Term:
    """Return a contracted term whose coefficient is neither very large nor very small, by multiplying its tensor by it.

    Coefficients of the steps of a loop are multiplied as it is planned. As long as they are beside what the steps
    make of the tensor, one overflows and the other underflows though their product does neither: 2^200 beside 2^-200.
    """
    if 1 / LARGEST <= abs(term.coefficient) <= LARGEST:
        return term
    coefficient = 1.0 * term.coefficient  # an int may grow without an end
    tensor = tensor_of(term)
    if tensor is None:
        return term._replace(coefficient=coefficient)
    made = Factor(times(builder.emit, tensor.tensor, coefficient), each(tensor.labels))
    kept = [selection.factor for selection in selections_of(term)]
    return interned(builder, term._replace(coefficient=1, factors=(made, *kept)))


def added_in_place(builder: Builder, terms: Sequence[Term]) -> list[Term]:
    """Add contracted terms that are read at several places: of two, one into the other if it lies in that.

    A recipe for it is worked out at the second time, as most are read at places where none is read again.
    """
    key = added_in_place, *map(axes_of, terms)
    known = builder.recipes.setdefault(key, terms)
    if known is terms and len(terms) == 2 and not any(map(selections_of, terms)):
        special, general = sorted(terms, key=_size)
        bindings = embedding(special, general)
        if bindings is not None and 0 not in (special.coefficient, general.coefficient):
            builder.spend()
            return [interned(builder, _fold(builder, general, special, bindings))]
    return accumulated(builder, terms)


def _accumulated(builder: Builder, terms: Sequence[Term]) -> list[Term]:
    summed = [_sum(builder, group) for group in grouped(split_alike(terms))]
    reading, others = _parted(builder, [term for term in summed if term.coefficient != 0])
    return [*_together(builder, others), *reading]


def _parted(builder: Builder, terms: Sequence[Term]) -> tuple[list[Term], list[Term]]:
    """Part terms into those that read through indices and others, of which the former are made if they are as many.

    That is if there is such a dense term already, or if the entries of what is read are as many as those of one. Where
    many of them are at the same places, as those of pairs are that meet, these are added.
    """
    reading, others = by_reading(terms)
    left: list[Term] = []
    for alike in reading:
        whole = without_selections(alike[0])
        is_there = any(embedding(whole, other) is not None for other in others)
        count, size = sum(_size(term) for term in alike), prod(label.size for label in visible(whole))
        is_full, is_tried = count >= size, SPARSE * count >= size and not is_there and builder.went_by
        few = coalesced(builder, alike, 1 if is_full else SPARSE) if is_tried else None
        if few is not None:
            left.append(few)
        elif is_there or is_full:
            others.append(_solid(builder, alike))
        else:
            left.extend(alike)
    return left, others


def without_reading(builder: Builder, terms: Sequence[Term]) -> list[Term]:
    """Return the sum of contracted terms as terms that read nothing through indices."""
    reading, others = by_reading(terms)
    return [*others, *(_solid(builder, alike) for alike in reading)]


def by_reading(terms: Sequence[Term]) -> tuple[list[list[Term]], list[Term]]:
    """Return those terms that read through indices, by pattern, and the others."""
    reading: list[Term] = []
    others: list[Term] = []
    for term in terms:
        (reading if selections_of(term) else others).append(term)
    return by_pattern(reading), others


def _solid(builder: Builder, terms: Sequence[Term]) -> Term:
    """Return the sum of terms of one pattern, some of which read through indices, as one that does not."""
    found = solid(builder, terms, [*visible(terms[0])])
    return terms[0]._replace(coefficient=1, factors=(Factor(found.tensor, each(found.labels)),))


def _together(builder: Builder, terms: Sequence[Term]) -> list[Term]:
    """Add terms that do not read through indices, which differ in their patterns: each into the least one that has it.

    Where each lies in the next, as what is known of ever more steps of a sequence does, no sum is larger than it is.
    """
    ordered = sorted(_covered(builder, terms), key=_size)
    sizes, reach = [*map(_size, ordered)], [*map(_first, ordered)]
    result: list[Term] = []
    for number, term in enumerate(ordered):
        start, stop = reach[number]
        larger = range(bisect(sizes, sizes[number]), len(ordered))  # of two patterns of one size neither has the other
        for place in [place for place in larger if reach[place][0] <= start and stop <= reach[place][1]]:
            bindings = embedding(term, ordered[place])
            if bindings is not None:
                ordered[place] = _fold(builder, ordered[place], term, bindings)
                break
        else:
            result.append(term)
    return result[::-1]


def _first(term: Term) -> tuple[int, int]:
    """Return where the first segment of a term that is part of a range starts and stops."""
    segments = (segment for axes in (*term.slots, term.out) for axis in axes for segment in axis)
    return next(((segment.start, segment.stop) for segment in segments if segment.extent > 1), (0, 0))


def _covered(builder: Builder, terms: Sequence[Term]) -> list[Term]:
    """Lay terms that are parts of one pattern into the least one that has them all, where they are most of that.

    The parts of a tensor that was cut into chunks come back together here, and so does what depends on many steps of a
    sequence, each read by its index. Together they cost one contraction further on.
    """
    if sum(map(is_partial, terms)) < 2:
        return list(terms)
    result: list[Term] = []
    by_cover: dict[Hashable, list[Term]] = {}
    for term in terms:
        by_cover.setdefault(pattern(cover(term)), []).append(term)
    for parts in by_cover.values():
        if len(parts) > 1 and all(map(is_partial, parts)):
            whole = _hull(builder, parts)
            if _size(whole) <= max(2 * sum(map(_size, parts)), SMALL * (len(parts) > FEW)):
                result.append(_laid_into(builder, whole, parts))
                continue
        result.extend(parts)
    return result


def _hull(builder: Builder, parts: Sequence[Term]) -> Term:
    """Return the pattern to lay parts into: of a sequence, one that serves for some more of its steps, if it is small.

    So what follows from ever more steps has the axes of few patterns, each of which is worked out once. The larger it
    is, the fewer zeros are worth that.
    """
    for most, parts_of_length in (SMALL, 1), (MEDIUM, EIGHTH):
        rounded = hull(parts, rounded=parts_of_length)
        if builder.rounds and _size(rounded) <= most:
            return rounded
    return hull(parts)


def _laid_into(builder: Builder, whole: Term, parts: Sequence[Term]) -> Term:
    """Add parts of a pattern up to one term of the whole pattern."""
    cores = [core(builder, part) for part in parts]
    found = [embedding(part, whole) or {} for part in parts]
    most = max(range(len(parts)), key=lambda number: _size(parts[number]))
    place = cores[most].labels.index

    def where(label: Label) -> int:
        """Return where the largest part has a label of the whole, which need not be turned then."""
        own = [place(x) for x in labels_of((found[most][label],)) if x in cores[most].labels]
        return min(own, default=-1)

    labels = sorted((label for label in visible(whole) if label.size > 1), key=where)
    pieces = [
        Part(part.coefficient, own, tuple(bindings[label] for label in labels))
        for part, own, bindings in zip(parts, cores, found, strict=True)
    ]
    return whole._replace(factors=(Factor(joint(builder, pieces), each(labels)),))


def _size(term: Term) -> int:
    return prod(label.size for label in entries(term))


def core(builder: Builder, term: Term) -> Labelled:
    """Return the tensor of a contracted term whose labels are all visible, the number one if it has none.

    What it reads through indices is added to the places that it is read from.
    """
    if selections_of(term):
        return solid(builder, [term._replace(coefficient=1)], [*visible(term)])
    return tensor_of(term) or Labelled(builder.emit(one_like, builder.like()), ())


def _sum(builder: Builder, terms: Sequence[Term]) -> Term:
    """Add contracted terms with equal axes."""
    weights: dict[Labelled, float] = {}
    constant: float = 0
    for term in terms:
        labelled = tensor_of(term)
        if labelled is None:
            constant += term.coefficient
        else:
            weights[labelled] = weights.get(labelled, 0) + term.coefficient
    weights = {labelled: weight for labelled, weight in weights.items() if weight != 0}
    kept = tuple([selection.factor for selection in selections_of(terms[0])])
    if not weights:
        return terms[0]._replace(coefficient=constant, factors=kept)
    common = next(iter(weights.values()))
    if constant or any(weight != common for weight in weights.values()):
        common = 1
    labels = _order_of([labelled.labels for labelled in weights])
    cores = sorted(weights, key=lambda labelled: (weights[labelled] != common, len(labelled.labels)))
    total, is_turned = None, False
    for labelled in cores:
        tensor, weight = aligned(builder.emit, labelled, labels), weights[labelled] / common
        lies_so = labelled.labels == labels
        if total is None:
            total, is_turned = times(builder.emit, tensor, weight), not lies_so
        elif is_turned and lies_so and weight == 1:  # the sum lies in memory as what comes first does
            total, is_turned = plus(builder.emit, tensor, total, 1), False
        else:
            total = plus(builder.emit, total, tensor, weight)
    if constant:
        total = builder.emit(torch.add, total, as_number(constant))
    return terms[0]._replace(coefficient=common, factors=(Factor(total, each(labels)), *kept))


def _order_of(orders: Sequence[tuple[Label, ...]]) -> tuple[Label, ...]:
    """Return the labels of tensors to add in the order that most of those have that have all, if there are such.

    So that most are added as they lie in memory: to turn one takes several times as long where axes are short.
    """
    every = dict.fromkeys(label for labels in sorted(orders, key=len, reverse=True) for label in labels)
    counts = Counter(labels for labels in orders if len(labels) == len(every))
    return max(counts, key=counts.__getitem__, default=tuple(every))


def _fold(builder: Builder, general: Term, special: Term, bindings: Bindings) -> Term:
    """Add a term to the part that it takes of a denser one."""
    base, part = core(builder, general), core(builder, special)
    labels = tuple(label for label in visible(general) if label.size > 1)
    if len(base.labels) < len(labels):
        base = Labelled(spread(builder.emit, base, each(labels)), labels)
    axes = tuple(bindings[label] for label in base.labels)
    if general.coefficient not in (1, special.coefficient):
        base = base._replace(tensor=times(builder.emit, base.tensor, general.coefficient))
        general = general._replace(coefficient=1)
    ratio = special.coefficient / general.coefficient
    total = add_within(builder.emit, base.tensor, axes, part, ratio)
    return general._replace(factors=(Factor(total, each(base.labels)),))


def dense(builder: Builder, terms: Sequence[Term]) -> Register:
    """Write the sum of the contracted terms of a block, of which there is one at least, as one tensor.

    Its axes are those of the output and then those of every slot.
    """
    parts = [
        Part(term.coefficient, core(builder, term), (*term.out, *sum(term.slots, ())))
        for term in without_reading(builder, terms)
    ]
    return joint(builder, parts)
