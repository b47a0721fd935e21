"""Slots of a contracted derivative: what indices they have, which of these are summed, and how slots part into groups.

A contraction gives each axis of every slot an index: the name of a label, or a number. A label may stand on several
slots, and on operands, which multiply the derivative. It is open if it is still asked for, be it by the result, by the
output or by a slot that is not there yet; all others are summed as soon as everything that bears them is there.

What multiplies one of the variables of a slot, and none of the others, is told by the labels that the two have in
common. A variable without axes has none; in their place it and what multiplies it bear a tag, which is the index of no
axis.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain, combinations, permutations
from typing import NamedTuple

from hofunc.algebra.compose import compose
from hofunc.algebra.labels import Axes, Label, Segment, extent, full
from hofunc.algebra.partitions import set_partitions
from hofunc.algebra.term import Factor, Term
from hofunc.graph.node import Node, Ref
from hofunc.plan.builder import Builder
from hofunc.plan.recipes import joined

Index = str | int  # the name of a label, or the one place that is taken of an axis
Indices = tuple[Index, ...]
Bearer = tuple[int, Indices]  # a tensor, by its node, and the index of each of its axes
Slot = tuple[Bearer, ...]  # the variables of which a slot is one, each with its indices
Places = tuple[int, ...]


class Operand(NamedTuple):
    """A tensor that multiplies the derivative where some slots are.

    Attributes:
        bearer: The tensor, with its indices.
        home: The slots that have to be there: those that bear labels of it that are summed.
    """

    bearer: Bearer
    home: Places


_TAG = "!"  # the last of the name of a tag

MOST_ORDERS = 6  # slots, up to which all their orders are compared


class _Slots(NamedTuple):
    slots: tuple[Slot, ...]
    operands: tuple[Operand, ...]
    open: tuple[str, ...]


class Slots(_Slots):
    """Some slots of a contracted derivative, with the operands whose labels they bear.

    A slot may be one of hundreds of variables, each with an operand, and every node is asked for its coefficient along
    it. So slots are hashed once, and keep their parts.

    Attributes:
        slots: The indices of every slot.
        operands: The operands that multiply what is here.
        open: The labels that are kept, in order.
    """

    @cached_property
    def _hash(self) -> int:
        return tuple.__hash__(self)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _parts(self) -> "dict[Places, Slots]":
        return {}

    def part(self, places: Places) -> "Slots":
        """Return some of the slots, with what multiplies them alone; labels that others bear are open."""
        if places not in self._parts:
            self._parts[places] = self._part(places)
        return self._parts[places]

    def _part(self, places: Places) -> "Slots":
        """Work out a part, see above."""
        inside = tuple([self.slots[place] for place in places])
        outside = [self.slots[place] for place in range(len(self.slots)) if place not in places]
        homes = {home: tuple(map(places.index, home)) for home in self._homes if {*home} <= {*places}}
        others = [bearer for bearer, home in self.operands if home not in homes]
        asked = {*self.open, *labels_of(chain(*outside, others))}
        moved = tuple([Operand(bearer, homes[home]) for bearer, home in self.operands if home in homes])
        borne = labels_of(chain(*inside, (operand.bearer for operand in moved)))
        return Slots(inside, moved, tuple([name for name in borne if name in asked]))

    @cached_property
    def _homes(self) -> dict[Places, list[Bearer]]:
        """The operands by their home, of which there are few."""
        found: dict[Places, list[Bearer]] = {}
        for bearer, home in self.operands:
            found.setdefault(home, []).append(bearer)
        return found

    def joining(self, groups: Iterable[Places]) -> list[Bearer]:
        """Return the operands that multiply what is here, and none of some groups of it alone."""
        inside = [{*group} for group in groups]
        left = (own for home, own in self._homes.items() if not any({*home} <= group for group in inside))
        return [*chain(*left)]

    def bearers(self) -> Iterator[Bearer]:
        """Yield all that bears a label."""
        yield from chain(*self.slots, (operand.bearer for operand in self.operands))


def tag(name: str) -> str:
    """Return a name for an index of no axis."""
    return name + _TAG


def is_tag(name: str) -> bool:
    """Tell whether a name is of an index of no axis."""
    return name.endswith(_TAG)


def of_axes(indices: Indices) -> Indices:
    """Return those indices that are of axes."""
    return tuple([index for index in indices if isinstance(index, int) or not is_tag(index)])


def labels_of(bearers: Iterable[Bearer]) -> list[str]:
    """Return the labels that something bears, and tags, in order of first appearance."""
    return list(dict.fromkeys(index for _, indices in bearers for index in indices if isinstance(index, str)))


@lru_cache(maxsize=4096)
def canonical(slots: Slots, fixed: tuple[str, ...] = ()) -> tuple[Slots, tuple[int, ...]]:
    """Return the slots in the order, and by the names, that all have that differ from them in these only.

    Args:
        slots: The slots.
        fixed: Labels that keep their names.

    Returns:
        The slots, and the place that each open label of the given slots has among those of the returned ones.
    """
    count = len(slots.slots)
    orders = permutations(range(count)) if count <= MOST_ORDERS else [tuple(range(count))]
    named = [_named(slots, order, fixed) for order in orders]
    best, names = min(named, key=lambda found: _sortable(found[0]))
    return best, tuple([best.open.index(names[name]) for name in slots.open])


def _named(slots: Slots, order: Places, fixed: tuple[str, ...]) -> tuple[Slots, dict[str, str]]:
    """Return slots in an order, their labels numbered by first appearance but for fixed ones, and the name of each."""
    inside = [slots.slots[place] for place in order]
    moved = [Operand(bearer, tuple(sorted(map(order.index, home)))) for bearer, home in slots.operands]
    first = {name: number for number, name in enumerate(labels_of(chain(*inside)))}
    operands = sorted(moved, key=lambda one: (one.bearer[0], one.home, [first.get(str(x), -1) for x in one.bearer[1]]))
    borne = labels_of(chain(*inside, (operand.bearer for operand in operands)))
    free = [name for name in borne if name not in fixed]
    names = {name: f"{number:03}{_TAG * is_tag(name)}" for number, name in enumerate(free)}
    names |= {name: name for name in borne if name in fixed}
    renamed = tuple([tuple([_renamed(bearer, names) for bearer in slot]) for slot in inside])
    entered = tuple([operand._replace(bearer=_renamed(operand.bearer, names)) for operand in operands])
    return Slots(renamed, entered, tuple(sorted(names[name] for name in slots.open))), names


def _renamed(bearer: Bearer, names: Mapping[str, str]) -> Bearer:
    node, indices = bearer
    return node, tuple([names.get(index, index) if isinstance(index, str) else index for index in indices])


def _sortable(slots: Slots) -> tuple:
    """Return what slots are ordered by: numbers before labels."""
    bearers = [[(node, [str(index) for index in indices]) for node, indices in slot] for slot in slots.slots]
    operands = [(node, [str(index) for index in indices], home) for (node, indices), home in slots.operands]
    return bearers, operands, slots.open


class Deal(NamedTuple):
    """A way to deal slots out to the slots of a local derivative.

    Attributes:
        times: How many ways are like it, so that all come to the same.
        groups: The places of the slots that each of those of the local derivative gets.
    """

    times: int
    groups: tuple[Places, ...]


@lru_cache(maxsize=4096)
def deals(slots: Slots, counts: tuple[int, ...]) -> tuple[Deal, ...]:
    """List the ways to deal slots out to the slots of a local derivative, of which every one gets a group.

    Args:
        slots: The slots.
        counts: How many slots the local derivative has of each of its operands, among which groups are not told apart.
    """
    exchanges = _exchanges(slots)
    left = dict.fromkeys(chain.from_iterable(_dealt(part, counts) for part in _parts(len(slots.slots), sum(counts))))
    found = []
    while left:
        first, _ = left.popitem()
        alike, waiting = {first}, [first]
        while waiting:
            groups = waiting.pop()
            for exchange in exchanges:
                other = _exchanged(groups, exchange)
                if other not in alike:
                    alike.add(other)
                    waiting.append(other)
        for other in alike - {first}:
            del left[other]
        found.append(Deal(len(alike), tuple(chain.from_iterable(first))))
    return tuple(found)


_Groups = tuple[tuple[Places, ...], ...]  # by operand, sorted


def _parts(count: int, number: int) -> list[tuple[Places, ...]]:
    return [parts for parts in set_partitions(count) if len(parts) == number]


def _dealt(parts: tuple[Places, ...], counts: tuple[int, ...]) -> Iterator[_Groups]:
    """Yield the ways to give groups to operands, to each its number."""
    if not counts:
        yield ()
        return
    for chosen in combinations(sorted(parts), counts[0]):
        rest = tuple([group for group in parts if group not in chosen])
        for others in _dealt(rest, counts[1:]):
            yield chosen, *others


def _exchanged(groups: _Groups, exchange: Places) -> _Groups:
    moved = [[tuple(sorted(exchange[place] for place in group)) for group in one] for one in groups]
    return tuple([tuple(sorted(one)) for one in moved])


@lru_cache(maxsize=4096)
def _exchanges(slots: Slots) -> tuple[Places, ...]:
    """List exchanges of slots that change nothing, of two or of two pairs at once, of which all others are made."""
    count = len(slots.slots)
    pairs = [*combinations(range(count), 2)]
    alone = [pair for pair in pairs if _is_symmetric(slots, _exchange(count, [pair]))]
    rest = [pair for pair in pairs if pair not in alone]
    together = [two for two in combinations(rest, 2) if not {*two[0]} & {*two[1]}]
    exchanges = [_exchange(count, two) for two in together]
    next_ones = dict(reversed(alone))  # of each the next that is like it
    found = [_exchange(count, [pair]) for pair in next_ones.items()]
    return (*found, *(exchange for exchange in exchanges if _is_symmetric(slots, exchange)))


def _exchange(count: int, pairs: Sequence[Places]) -> Places:
    places = list(range(count))
    for one, other in pairs:
        places[one], places[other] = other, one
    return tuple(places)


@lru_cache(maxsize=4096)
def symmetric(slots: Slots) -> tuple[str, ...]:
    """Return the most open labels of which any two may be exchanged: in them a coefficient is a symmetric tensor."""
    count = len(slots.slots)
    exchanges = [_exchange(count, [pair]) for pair in combinations(range(count), 2)]
    groups: list[list[str]] = []
    for name in slots.open:
        for group in groups:
            names: dict[Index, Index] = {**{other: other for other in slots.open}, name: group[0], group[0]: name}
            if any(_is_symmetric(slots, exchange, names) for exchange in exchanges):
                group.append(name)
                break
        else:
            groups.append([name])
    most = max(map(len, groups), default=0)
    return tuple(next((group for group in groups if len(group) == most), ()))


def _is_symmetric(slots: Slots, exchange: Places, open_names: Mapping[Index, Index] | None = None) -> bool:
    """Tell whether slots, and operands, are the same with some exchanged, up to the names of labels that are summed.

    Args:
        slots: The slots.
        exchange: Which slot takes the place of each.
        open_names: Which open label takes the place of each; itself if it is left out.
    """
    names: dict[Index, Index] = {name: name for name in slots.open} if open_names is None else {**open_names}
    if not all(_matches(slot, slots.slots[exchange[place]], names) for place, slot in enumerate(slots.slots)):
        return False
    if len({*names.values()}) < len(names):
        return False
    moved = [
        (node, tuple([names.get(index, index) for index in indices]), sorted(exchange[place] for place in home))
        for (node, indices), home in slots.operands
    ]
    there = [(node, indices, sorted(home)) for (node, indices), home in slots.operands]
    return all(moved.count(each) == there.count(each) for each in there)


def _matches(left: Sequence[Bearer], right: Sequence[Bearer], names: dict[Index, Index]) -> bool:
    """Tell whether two slots have the same variables, and indices that go by the names; note those that are new."""
    if [(node, len(indices)) for node, indices in left] != [(node, len(indices)) for node, indices in right]:
        return False
    pairs = [pair for (_, one), (_, other) in zip(left, right, strict=True) for pair in zip(one, other, strict=True)]
    return all(names.setdefault(one, other if isinstance(one, str) else one) == other for one, other in pairs)


Sizes = Mapping[str, int]


def axes_of(indices: Indices, labels: Mapping[str, Label], shape: Sequence[int] = ()) -> Axes:
    """Return the axes of a tensor whose indices are given, and whose shape is, if any of these is a number."""
    return tuple(
        [
            (full(labels[index]),) if isinstance(index, str) else (Segment(None, index, shape[dim]),)
            for dim, index in enumerate(of_axes(indices))
        ]
    )


def multiplying(slots: Iterable[Slot], chosen: Sequence[Bearer], operands: Iterable[Bearer]) -> list[Bearer]:
    """Return the operands that multiply a choice of a variable for every slot: those that none of the others is for."""
    left = {*labels_of(chain(*slots))} - {*labels_of(chosen)}
    return [operand for operand in operands if not left & {*labels_of([operand])}]


def multiplying_each(slot: Slot, operands: Iterable[Bearer]) -> dict[Bearer, list[Bearer]]:
    """Return what `multiplying` does for each variable of a slot, of which there may be hundreds."""
    found: dict[Bearer, list[Bearer]] = {bearer: [] for bearer in slot}
    bearing: dict[str, list[Bearer]] = {}
    for bearer in found:
        for name in labels_of([bearer]):
            bearing.setdefault(name, []).append(bearer)
    for operand in operands:
        own = [name for name in labels_of([operand]) if name in bearing]
        for bearer in bearing[own[0]] if own else found:
            if {*own} <= {*bearer[1]}:
                found[bearer].append(operand)
    return found


def sizes_of(nodes: Sequence[Node], bearers: Iterable[Bearer]) -> dict[str, int]:
    """Return the size of every label that something bears."""
    pairs = [pair for number, indices in bearers for pair in zip(of_axes(indices), nodes[number].shape, strict=True)]
    return {index: size for index, size in pairs if isinstance(index, str)}


def labelled(sizes: Sizes) -> dict[str, Label]:
    """Return a new label for every name."""
    return {name: Label(size) for name, size in sizes.items()}


def tied(
    builder: Builder,
    term: Term,
    beside: int,
    indices: Indices,
    kept: Sequence[str],
    operands: Sequence[Bearer],
    sizes: Sizes,
) -> Term | None:
    """Make axes of one label equal, multiply by operands, and sum over the labels that are not kept.

    It is one composition, with a term that has the labels for its axes.

    Args:
        builder: Keeps what is known of terms of the same axes.
        term: A term, whose slots have one axis each beyond the first.
        beside: How many slots are left as they are.
        indices: The index of each other slot.
        kept: The labels that are kept.
        operands: What multiplies it.
        sizes: The sizes of the labels.

    Returns:
        The term, in which a slot for every label that is kept comes after those that were left; None if it vanishes.
    """
    if tuple(indices) == tuple(kept) and not operands:
        return term

    def work(unit: Term) -> Term | None:
        return _tied(unit, beside, indices, kept, operands, own_sizes)

    names, sources = tuple([own for _, own in operands]), [Ref(node) for node, _ in operands]
    borne = dict.fromkeys(chain(indices, kept, *names))
    own_sizes = {name: size for name in borne if isinstance(name, str) and (size := sizes.get(name)) is not None}
    known = tuple([(name, size, getattr(size, "factor", 0)) for name, size in own_sizes.items()])
    return joined(builder, work, term, sources, beside, tuple(indices), tuple(kept), names, known)


def _tied(
    term: Term, beside: int, indices: Indices, kept: Sequence[str], operands: Sequence[Bearer], sizes: Sizes
) -> Term | None:
    """Compose a term with one that has the labels for its axes, see above."""
    axes = tuple([axis for (axis,) in term.slots[beside:]])
    labels = labelled(sizes)
    factors = tuple([Factor(Ref(node), axes_of(names, labels)) for node, names in operands])
    form = Term(1, factors, axes_of(tuple(kept), labels), (axes_of(indices, labels, [extent(axis) for axis in axes]),))
    turned = Term(term.coefficient, term.factors, axes, (term.out, *term.slots[:beside]))
    found = compose(form, [turned])
    if found is None:
        return None
    out, *left = found.slots
    return Term(found.coefficient, found.factors, out, (*left, *[(axis,) for axis in found.out]))
