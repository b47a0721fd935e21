"""Adjoints of the nodes of a graph along slots of a contracted derivative.

The adjoint of a node is the derivative of the output by it; along some slots, it is the Taylor coefficient of that.
With those along all slots but one, the last one is read off where they arrive at the inputs. A label that the output
and a slot bear is one from where that slot joins, and is summed as soon as nothing that is still to come bears it.
Source: Griewank and Walther, Evaluating Derivatives (2008), chapter 10.2, for adjoints of Taylor polynomials.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from functools import lru_cache
from itertools import chain, combinations, product
from typing import NamedTuple

from hofunc.algebra.term import Factor, Term, with_slots
from hofunc.graph.node import Ref
from hofunc.plan.blocks import Local
from hofunc.plan.contract import contract
from hofunc.plan.jets import Jets
from hofunc.plan.recipes import composed
from hofunc.plan.slots import Bearer, Indices, Places, Slots, axes_of, canonical, deals, labelled, labels_of, tied

NONE = Slots((), (), ())


def subsets(count: int) -> list[Places]:
    """List the choices of some of so many places, none and all among them."""
    return [chosen for size in range(count + 1) for chosen in combinations(range(count), size)]


class Start(NamedTuple):
    """The output from which adjoints start, and what of it is wanted.

    Attributes:
        node: The output.
        indices: The index of each of its axes.
        operands: What it is multiplied by.
        open: The labels that are kept.
        bearers: Of how many slots, and operands that enter with these, each of those labels is one; from where all of
            them are there it is summed. Infinitely many for one that something else bears.
    """

    node: int
    indices: Indices
    operands: tuple[Bearer, ...]
    open: tuple[str, ...]
    bearers: tuple[float, ...]


class Open(NamedTuple):
    """The labels of an adjoint along some slots.

    Attributes:
        out: Those of the output that are kept.
        slots: Those of the slots alone.
    """

    out: tuple[str, ...]
    slots: tuple[str, ...]


@lru_cache(maxsize=4096)
def open_along(start: Start, slots: Slots) -> Open:
    """Return the labels of adjoints along some slots, of which labels are named as those of the output are."""
    there = Counter(chain.from_iterable({*labels_of(slot)} for slot in slots.slots))
    there.update(chain.from_iterable({*labels_of([operand.bearer])} for operand in slots.operands))
    kept = tuple([name for name, count in zip(start.open, start.bearers, strict=True) if there[name] < count])
    return Open(kept, tuple([name for name in slots.open if name not in start.open]))


class Adjoints:
    """Adjoints of the nodes of a graph, each computed once.

    Args:
        jets: The coefficients of the nodes.
        among: The nodes through which they are led back; all of them if they are left out.
    """

    def __init__(self, jets: Jets, among: Collection[int] | None = None):
        self._jets = jets
        self._nodes, self._local = jets.builder.lowered.graph.nodes, jets.local
        self._known: dict[tuple[Start, int, Slots], list[Term]] = {}
        self._filled: set[tuple[Start, Slots]] = set()
        self._sizes_of: dict[tuple[Start, Slots], dict[str, int]] = {}
        self._takers: dict[int, list[int]] = defaultdict(list)  # by node, those that are computed from it
        for node in sorted(jets.local if among is None else among):
            for operand in {operand for key in jets.local[node] for operand in key}:
                self._takers[operand].append(node)

    def fill(self, start: Start, slots: Slots) -> None:
        """Compute adjoints along all choices of some slots, from the output on, so that no later question goes deep.

        Those of inputs are computed where they are asked for, as none are led on from them.
        """
        if (start, slots) in self._filled:
            return
        self._filled.add((start, slots))
        parts = [slots.part(places) for places in subsets(len(slots.slots))]
        for node in sorted(self._local, reverse=True):
            for part in parts:
                self.along(start, node, part)

    def along(self, start: Start, node: int, slots: Slots) -> list[Term]:
        """Return the coefficient of the derivative of an output by a node: contracted terms.

        Their axes are told by `open_along`: the outputs, and, after the node's slot, one slot each.
        """
        known, order = _known(start.open, slots)
        if (start, node, known) not in self._known:
            before, self._jets.builder.node = self._jets.builder.node, node
            if node == start.node:
                terms = [] if known.slots else [self._started(start)]
            else:
                terms = self._jets.added(self._led_back(start, node, known))
            self._jets.builder.node = before
            self._known[start, node, known] = terms
            self._jets.carries(node, terms, is_adjoint=True)
        return [with_slots(term, order) for term in self._known[start, node, known]]

    def _started(self, start: Start) -> Term:
        names = labelled(self._jets.sizes([(start.node, start.indices), *start.operands]))
        factors = tuple([Factor(Ref(number), axes_of(indices, names)) for number, indices in start.operands])
        axes = axes_of(start.indices, names, self._nodes[start.node].shape)
        return contract(self._jets.builder, Term(1, factors, axes_of(start.open, names), (axes,)))

    def _led_back(self, start: Start, node: int, slots: Slots) -> Iterator[Term]:
        """Yield the adjoint of a node by those of the nodes that take it."""
        builder, sizes, after = self._jets.builder, self._sizes(start, slots), open_along(start, slots)
        kept = (*after.out, *after.slots)
        for taker, places in product(self._takers[node], subsets(len(slots.slots))):
            part = slots.part(places)
            rest = tuple([place for place in range(len(slots.slots)) if place not in places])
            slopes = self._slopes(taker, node, slots, rest) if (adjoints := self.along(start, taker, part)) else ()
            before = open_along(start, part)
            for (slope, indices, groups), adjoint in product(slopes, adjoints):
                found = composed(builder, adjoint, [slope, *[None] * len(before.slots)])
                if found is None:
                    continue
                others, own = found.slots[: len(before.slots)], found.slots[len(before.slots) :]
                apart = found._replace(out=(), slots=(own[0], *((axis,) for axis in found.out), *others, *own[1:]))
                names, operands = (*before.out, *before.slots, *indices), slots.joining((places, *groups))
                term = tied(builder, apart, 1, names, kept, operands, sizes)
                if term is not None:
                    out, left = term.slots[1 : 1 + len(after.out)], term.slots[1 + len(after.out) :]
                    yield term._replace(out=tuple([axis for (axis,) in out]), slots=(term.slots[0], *left))

    def _sizes(self, start: Start, slots: Slots) -> dict[str, int]:
        """Return the size of every label of an output and of slots."""
        if (start, slots) not in self._sizes_of:
            given = [(start.node, start.indices), *start.operands]
            self._sizes_of[start, slots] = self._jets.sizes([*given, *slots.bearers()])
        return self._sizes_of[start, slots]

    def _slopes(
        self, taker: int, node: int, slots: Slots, places: Places
    ) -> Iterator[tuple[Term, Indices, tuple[Places, ...]]]:
        """Yield the derivative of a node by one that it takes along some of the slots, not joined yet.

        Each term comes with the labels of its slots beyond the first, and the groups of which they are.
        """
        for key, outers in self._local[taker].items():
            if node not in key or not len(key) - 1 <= len(places) or (len(key) == 1) != (not places):
                continue
            here = key.index(node)
            others = key[:here] + key[here + 1 :]
            for times, groups in deals(slots.part(places), tuple(Counter(others).values())):
                own = tuple([tuple([places[place] for place in group]) for group in groups])
                parts = [slots.part(group) for group in own]
                inners = [self._jets.coefficient(operand, part) for operand, part in zip(others, parts, strict=True)]
                for outer, *chosen in product(outers, *inners):
                    filled: list[Term | None] = [*chosen[:here], None, *chosen[here:]]
                    term = composed(self._jets.builder, outer._replace(coefficient=outer.coefficient * times), filled)
                    if term is not None:
                        yield term, tuple(chain(*(part.open for part in parts))), own

    def through(self, start: Start, node: int) -> Local:
        """Return the local derivatives of a node, of orders from two on, as they enter the output."""
        adjoints = self.along(start, node, NONE)
        return {
            key: [
                term
                for term in (
                    composed(self._jets.builder, adjoint, [outer]) for adjoint, outer in product(adjoints, outers)
                )
                if term
            ]
            for key, outers in self._local[node].items()
            if len(key) > 1
        }


@lru_cache(maxsize=4096)
def _known(fixed: tuple[str, ...], slots: Slots) -> tuple[Slots, tuple[int, ...]]:
    """Return slots as adjoints are kept along them, and which slot of these each slot along the given ones is."""
    known, places = canonical(slots, fixed)
    own = [place for place, name in enumerate(known.open) if name not in fixed]
    order = [own.index(place) for place, name in zip(places, slots.open, strict=True) if name not in fixed]
    return known, (0, *(1 + place for place in order))
