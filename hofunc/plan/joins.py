"""Where axes that are read through indices meet: the pairs of entries that do, told from the values of the indices.

Where neighbours of a point are summed, each of which depends on a neighbour of its own, edges meet that share a point.
They are few, and which they are follows from the indices only. Where the values of these are known as a plan is made,
two entries that meet become one entry of a pair, and nothing is ever as large as points times points. The plan is good
for indices of these values, which are compared at every call. Where they are likely to change, see NOTE [likely
values], pairs are found as the plan runs, and it is good for all indices of which no more pairs meet than it has room
for.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import permutations
from math import prod
from typing import Any, NamedTuple

import torch

from hofunc.algebra.labels import Label, labels_of
from hofunc.algebra.operators import Map, selection_of
from hofunc.algebra.term import Factor, Term, visible
from hofunc.graph.node import Mask
from hofunc.plan.builder import Builder
from hofunc.plan.lookups import products_added, products_in
from hofunc.plan.operators import masked_by
from hofunc.plan.program import Register
from hofunc.plan.relations import At, Join, Known, as_factor, composed, known, read_where, spare_left_out
from hofunc.plan.selections import entries_of
from hofunc.plan.tables import different, place_among, ranked, ranks_fit, room_for
from hofunc.plan.values import Column, Condition, emitting, fact, go_by, register_of
from hofunc.scatter import added, laid_out, size_of
from hofunc.views import Emit, Labelled, aligned, each

SPARSE = 2  # how many times as many entries a dense tensor has as a sparse one at least; zero for any number
PAIR = 8  # entries of a product of matrices that take as long as one of a pair
SHORT = 200  # likewise as a pair takes beside its entries, as axes are short along which it has few
FOLLOWS = 64  # likewise as what follows takes for an entry of a block, dense or of pairs: some products and additions
HELD = 4  # entries of dense tensors that are held where one of pairs would be
MOST = 1 << 28  # bytes of places of entries, beyond which it takes too long to tell which are different
TOLD = 4  # numbers for each entry, beside its place along each axis, that are held meanwhile
FEWER = 0.9  # of entries, as many places, from which on it takes less to go on with all of them than to add them


Multiply = Callable[[Builder, Sequence[Labelled], set[Label]], Labelled]


class Met(NamedTuple):
    """What became of operators as two of them met.

    Attributes:
        operators: Those that are left.
        at: What everything else is read at.
        masks: The masks among those that were there, which are to be read at it too.
        ends: The selections that are gone.
    """

    operators: list[Factor]
    at: At
    masks: list[Factor]
    ends: list[Known]


def joined(
    builder: Builder,
    operators: Sequence[Factor],
    operands: Sequence[Labelled],
    shown: Collection[Label],
    multiply: Multiply,
) -> tuple[list[Factor], list[Labelled]]:
    """Return the factors of a product in which selections that meet are joined, as far as they are known."""
    left, found = [*operators], [*operands]
    borne = {*shown, *(label for operand in operands for label in operand.labels)}
    while len(left) > 1 and (met := _met(builder, left, shown, borne)) is not None:
        left = met.operators
        found = _summed_before(builder, found, met, shown, multiply)
        found = [read_where(builder, operand, met.at) for operand in _multiplied_before(builder, found, met)]
        found = spare_left_out(builder, found, met.at)
        for mask in met.masks:
            read = read_where(builder, builder.read(mask.source, mask.axes), met.at)
            found = masked_by(builder, mask, read, found)
    return left, found


def _multiplied_before(builder: Builder, operands: Sequence[Labelled], met: Met) -> Sequence[Labelled]:
    """Multiply operands into larger ones that have all their labels, be it that they are read at labels of these.

    They have fewer entries than there are pairs, for which it would be done otherwise.
    """
    if len(met.ends) < 2:
        return operands
    waiting, left = sorted(operands, key=lambda operand: size_of(operand.labels)), []
    while waiting:
        operand = waiting.pop(0)
        found = ((place, _as_in(builder, operand, other, met.ends)) for place, other in enumerate(waiting))
        place, read = next((pair for pair in found if pair[1] is not None), (0, None))
        if read is None:
            left.append(operand)
        else:
            labels = waiting[place].labels
            factors = [aligned(builder.emit, each, labels) for each in (waiting[place], read)]
            waiting[place] = Labelled(builder.emit(torch.mul, *factors), labels)
    return left


def _summed_before(
    builder: Builder, operands: Sequence[Labelled], met: Met, shown: Collection[Label], multiply: Multiply
) -> list[Labelled]:
    """Multiply operands and sum over labels that only these two have, where pairs are not needed for that.

    One of them is read at one of two ends only, which has fewer entries than there are pairs.
    """
    left = [*operands]
    if len(met.ends) < 2:
        return left
    axes = labels_of(*(factor.axes for factor in (*met.operators, *met.masks)))
    needed = {*shown, *axes, *(label for end in met.ends for label in end.labels)}
    for end in met.ends:
        while size_of(end.read) < size_of(met.at.labels) and (found := _summable(left, end, needed)) is not None:
            first, second, keep = found
            pair = [read_where(builder, left[place], At.of(emitting(builder), end)) for place in (first, second)]
            left = [operand for place, operand in enumerate(left) if place not in (first, second)]
            left.append(multiply(builder, pair, keep))
    return left


def _summable(operands: Sequence[Labelled], end: Known, needed: set[Label]) -> tuple[int, int, set[Label]] | None:
    """Return the places of an operand that is read at one end and of one that has labels of both, and what is kept.

    None if there are no two of which the product is summed over labels that they have and nothing else has.
    """
    for first, second in permutations(range(len(operands)), 2):
        whole, part = {*operands[first].labels}, {*operands[second].labels}
        if {*end.targets} <= whole and {*end.read} <= part <= whole | {*end.read}:
            others = (operand for place, operand in enumerate(operands) if place not in (first, second))
            keep = needed.union(*(operand.labels for operand in others))
            if whole & part - keep:
                return first, second, keep
    return None


def _as_in(builder: Builder, operand: Labelled, other: Labelled, ends: Sequence[Known]) -> Labelled | None:
    """Return an operand so that it has labels of another one only; None if it cannot be read so."""
    own, labels = {*operand.labels}, {*other.labels}
    if own <= labels:
        return operand
    for end in ends:
        if own - labels == {*end.targets} and {*end.read} <= labels:
            return read_where(builder, operand, At.of(emitting(builder), end))
    return None


def can_join(builder: Builder, term: Term) -> bool:
    """Tell whether all selections of a term that meet are joined in few pairs."""
    operators = [factor for factor in term.factors if isinstance(factor.source, Map | Mask)]
    shown = visible(term)
    tensors = (factor.axes for factor in term.factors if not isinstance(factor.source, Map | Mask))
    borne = {*shown, *labels_of(*tensors)}
    while (met := _met(builder, operators, shown, borne)) is not None:
        operators = met.operators
    targets = [
        label
        for factor in operators
        if (selection := selection_of(factor)) is not None
        for label in labels_of((selection.target,))
    ]
    return len({*targets}) == len(targets)


def _met(
    builder: Builder, operators: Sequence[Factor], shown: Collection[Label], borne: Collection[Label]
) -> Met | None:
    """Let the first two selections meet that can, or one be read through another."""
    every = (known(builder, factor, borne) for factor in operators)
    found = {place: one for place, one in enumerate(every) if one is not None}
    if len(found) < 2:
        return None
    for place, one in found.items():
        for other_place, other in found.items():
            met = None
            if place != other_place and not one.is_taken and not {*one.targets}.isdisjoint(other.read):
                met = _substituted(builder, operators, found, [place], At.of(emitting(builder), one), shown)
            elif place < other_place and not {*one.targets}.isdisjoint(other.targets):
                met = _paired(builder, operators, found, place, other_place, shown)
            if met is not None:
                return met
    return None


def _paired(
    builder: Builder,
    operators: Sequence[Factor],
    found: Mapping[int, Known],
    place: int,
    other_place: int,
    shown: Collection[Label],
) -> Met | None:
    """Let two selections of one axis meet, if that makes few pairs."""
    join = Join.of(builder, found[place], found[other_place])
    count = join.rows
    spreads = _spread(join.one, join, found, shown), _spread(join.other, join, found, shown)
    points = size_of(join.shared)
    taken = {label for each in found.values() for label in each.labels}
    pair_cost = PAIR + SHORT / max(1, size_of([label for label in shown if label not in taken]))
    follows = FOLLOWS if builder.in_blocks else 0
    is_sooner = SPARSE * (pair_cost + follows) * count <= (points + follows) * prod(spreads)
    is_sparse = is_sooner and SPARSE * count <= HELD * points * sum(spreads)
    nbytes = join.bytes()
    if count < 2 or (SPARSE and not is_sparse) or nbytes > builder.leave.bytes or not builder.may_hold(nbytes):
        return None
    at, facts = join.pairs(builder)
    return _substituted(builder, operators, found, [place, other_place], at, shown, facts)


def _spread(selection: Known, join: Join, found: Mapping[int, Known], shown: Collection[Label]) -> int:
    """Return the entries along what a selection reads, if everything that is read there were dense."""
    own = [label for label in selection.read if label not in join.shared]
    beside = [
        label
        for other in found.values()
        if other is not selection and not {*other.read}.isdisjoint(own)
        for label in other.targets
        if label not in join.shared
    ]
    return size_of([label for label in own if label in shown]) * size_of(beside)


def _substituted(
    builder: Builder,
    operators: Sequence[Factor],
    found: Mapping[int, Known],
    gone: Sequence[int],
    at: At,
    shown: Collection[Label],
    facts: Sequence[Condition] = (),
) -> Met | None:
    """Read operators at the indices that some labels have, relying on facts; None if one cannot be."""
    conditions = [*(each for place in gone for each in found[place].conditions), *facts]
    kept: list[Factor] = []
    masks: list[Factor] = []
    targets: set[Label] = set()
    for place, factor in enumerate(operators):
        selection = found.get(place)
        if place in gone:
            continue
        if {*labels_of(factor.axes)}.isdisjoint(at.places):
            kept.append(factor)
        elif isinstance(factor.source, Mask):
            masks.append(factor)
        elif selection is None:
            return None
        else:
            targets.update(label for label in selection.targets if label in at.places)
            kept.append(as_factor(builder, composed(emitting(builder), selection, at)))
            conditions += selection.conditions
    needed = [label for label in at.places if label in shown or label in targets]
    own = [Known((label,), at.labels, at.places[label], has_spare=at.has_spare) for label in needed]
    kept += [as_factor(builder, one) for one in own]
    go_by(builder, conditions)
    return Met(kept, at, masks, [found[place] for place in gone])


def coalesced(builder: Builder, terms: Sequence[Term], fewer: int = 1) -> Term | None:
    """Return the sum of terms of one pattern as one with an entry for each place that some have; None if not known.

    None too if that would be nearly as many as a dense tensor has, or if to find that out takes too much memory.

    Args:
        builder: Takes the steps.
        terms: The terms.
        fewer: How many times as many entries these have to have.
    """
    sparse = [_all_known(builder, term) for term in terms]
    found = [selections for selections in sparse if selections is not None]
    shown = visible(terms[0])
    own = [{label for one in selections for label in one.labels if label in shown} for selections in found]
    if len(found) < len(terms) or any(labels != own[0] for labels in own):
        return None
    targets = [label for label in shown if label in own[0]]
    runs = [tuple(dict.fromkeys(label for one in selections for label in one.read)) for selections in found]
    nbytes = torch.long.itemsize * sum(map(size_of, runs)) * (len(targets) + TOLD)
    if nbytes > min(MOST, builder.leave.bytes):
        return None
    emit = emitting(builder)
    places = [_flat(emit, selections, labels, targets) for selections, labels in zip(found, runs, strict=True)]
    table = _different(builder, places, size_of(targets), fewer)
    if table is None:
        return None
    go_by(builder, [each for selections in found for one in selections for each in one.conditions])
    if len(terms) == 1 and table.is_each:
        return terms[0]
    go_by(builder, table.facts)
    entry, rest = Label(len(table.places.tensor)), [x for x in shown if x not in own[0] and x.size > 1]
    held = [register_of(builder, ranks) for ranks in table.ranks]
    cores = [entries_of(builder, term).core for term in terms]
    vectors = [laid_out(builder.emit, core, [*own, *rest]) for core, own in zip(cores, runs, strict=True)]
    total = _added(builder, (entry.size, size_of(rest)), [term.coefficient for term in terms], held, vectors)
    tensor = builder.emit(torch.reshape, total, tuple(label.size for label in (entry, *rest)))
    whole = Known(tuple(targets), (entry,), table.places, has_spare=table.places.register is not None)
    factors = [
        as_factor(builder, whole._replace(targets=(label,), indices=index))
        for label, index in whole.places(emit).items()
    ]
    return terms[0]._replace(coefficient=1, factors=(Factor(tensor, each((entry, *rest))), *factors))


class _Table(NamedTuple):
    """Different places of entries.

    Attributes:
        places: The places; where they are likely only, some may be spare.
        ranks: For each entry of each term, which of the places it has.
        facts: What this relies on.
        is_each: Whether each entry has a place of its own.
    """

    places: Column
    ranks: Sequence[Column]
    facts: tuple[Condition, ...]
    is_each: bool


def _different(builder: Builder, places: Sequence[Column], size: int, fewer: int) -> _Table | None:
    """Tell which places of terms are different; None if that would be nearly as many as there are, or not fewer."""
    is_likely = any(column.register is not None for column in places)
    flat = torch.cat([column.tensor for column in places])
    distinct, inverse = flat[flat < size].unique(return_inverse=True)
    room = min(size, room_for(builder.lowered.room * len(distinct))) if is_likely else len(distinct)
    if len(distinct) < 2 or (SPARSE and SPARSE * room >= size) or fewer * room > len(flat):
        return None
    if not is_likely:
        parts = inverse.split([len(column.tensor) for column in places])
        return _Table(Column(distinct), [*map(Column, parts)], (), len(distinct) == len(inverse))
    emit = emitting(builder)
    if len(places) == 1 and len(distinct) > FEWER * len(inverse):
        return _Table(places[0], places, (), is_each=True)
    ranks = emit(ranked, size, *places)
    facts = fact(builder, emit(ranks_fit, ranks, size, room, *places))
    starts = [sum(len(column.tensor) for column in places[:place]) for place in range(len(places))]
    within = emit(torch.clamp, ranks, 0, room - 1)  # of what is spare nothing is added, wherever
    parts = [emit(torch.narrow, within, 0, n, len(column.tensor)) for n, column in zip(starts, places, strict=True)]
    return _Table(emit(different, ranks, size, room, *places), parts, facts, is_each=False)


def _added(
    builder: Builder, shape: tuple[int, int], weights: Sequence[float], places: Sequence[Register], vectors: Sequence
) -> Register:
    """Add rows to their places in a matrix of zeros; of products of pairs never all are held."""
    found = [products_in(builder, vector, weight) for vector, weight in zip(vectors, weights, strict=True)]
    plain = [place for place, products in enumerate(found) if products is None]
    total: Any = shape  # of zeros
    if plain:
        args = (*(places[place] for place in plain), *(vectors[place] for place in plain))
        total = builder.emit(added, *shape, tuple([weights[place] for place in plain]), *args)
    for place, products in enumerate(found):
        for weight, args in products or ():
            total = builder.emit(products_added, total, weight, places[place], *args)
    return total


def _all_known(builder: Builder, term: Term) -> list[Known] | None:
    """Return the selections of a term; None if one is not known."""
    shown = visible(term)
    found = [known(builder, factor, shown) for factor in term.factors if selection_of(factor) is not None]
    selections = [one for one in found if one is not None]
    return selections if len(selections) == len(found) else None


def _flat(emit: Emit, found: Sequence[Known], runs: Sequence[Label], targets: Sequence[Label]) -> Column:
    """Return the places of entries, which run over some labels, among those of the targets."""
    every = {label: (index, one.read) for one in found for label, index in one.places(emit).items()}
    shape, indices = tuple([label.size for label in runs]), []
    for label in targets:
        if label in every:
            index, labels = every[label]
        else:
            index, labels = Column(torch.arange(label.size, device=found[0].indices.tensor.device)), (label,)
        indices.append(emit(torch.Tensor.expand, aligned(emit, Labelled(index, labels), runs), shape))
    flat = emit(place_among, tuple([label.size for label in targets]), *indices)
    return emit(torch.reshape, flat, (-1,))
