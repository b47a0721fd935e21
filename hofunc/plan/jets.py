"""Jets: Taylor coefficients of the nodes of a graph along the slots of a contracted derivative.

The coefficient of a node along some slots is its derivative in the directions that these stand for, with the labels
that only they bear already summed: for a Laplacian, along both of its slots, it is one vector and not a matrix. By the
rule of Faa di Bruno it is a sum over the ways to deal the slots out to those of the local derivatives; ways that an
exchange of like slots makes equal are computed once, and so are coefficients that differ only by the names of labels.
Source: Griewank and Walther, Evaluating Derivatives (2008), chapters 10.2 and 13; Bettencourt, Johnson and Duvenaud,
Taylor-mode automatic differentiation for higher-order derivatives in JAX (2019), for Faa di Bruno's rule by partitions.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, reduce
from itertools import chain, product
from math import prod
from operator import or_
from typing import NamedTuple

from hofunc.algebra.labels import labels_of
from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Factor, Term, with_slots
from hofunc.graph.node import Ref
from hofunc.plan.accumulate import accumulated
from hofunc.plan.blocks import Local, is_nonlinear
from hofunc.plan.builder import Builder
from hofunc.plan.contract import contract
from hofunc.plan.recipes import composed, worked
from hofunc.plan.slots import (
    Bearer,
    Indices,
    Slots,
    axes_of,
    canonical,
    deals,
    labelled,
    multiplying_each,
    sizes_of,
    symmetric,
    tied,
)
from hofunc.plan.symmetric import Symmetry, pays


class Coefficient(NamedTuple):
    """A coefficient as it is kept: terms with a slot for every open label, and terms whose like ones are packed."""

    plain: list[Term]
    packed: list[Term]


_PACKED = "packed"  # the name of the label of a packed slot


def _names(names: Sequence[str], symmetric_ones: Sequence[str]) -> list[str]:
    """Return names of slots, the packed one last in place of the symmetric ones, if there are some of these."""
    left = [name for name in names if name not in symmetric_ones]
    return left if len(left) == len(names) else [*left, _PACKED]


def _tight(term: Term, part: Slots, names: Sequence[str], symmetry: Symmetry) -> Term | None:
    """Return a term of some slots with the entries of the packed slot in place of those slots that are symmetric."""
    places = [place for place, name in enumerate(part.open) if name in names]
    if not places:
        return term
    return symmetry.gathered(term, places, [names.index(part.open[place]) for place in places])


class Jets:
    """Taylor coefficients of the nodes of a graph, each computed once.

    Args:
        builder: Takes the steps.
        local: The local derivatives of every node on the way.
    """

    def __init__(self, builder: Builder, local: dict[int, Local]):
        self.builder, self.local = builder, local
        self._nodes = builder.lowered.graph.nodes
        self._coefficients: dict[tuple[int, Slots], Coefficient] = {}
        self._opened: dict[tuple[int, Slots], list[Term]] = {}  # those that are packed, with all their slots
        self._sizes: dict[Slots, dict[str, int]] = {}
        self._multiplied: dict[Slots, dict[int, list[tuple[Indices, list[Bearer]]]]] = {}
        self._filled: dict[Slots, set[int]] = defaultdict(set)  # the nodes whose coefficients are computed
        inputs = [number for number in builder.lowered.graph.inputs if self._nodes[number].active]
        self._depends = {number: 1 << number for number in inputs}  # sets of inputs, as the bits of a number
        for node in sorted(local):
            operands = {operand for key in local[node] for operand in key}
            self._depends[node] = reduce(or_, (self._depends[operand] for operand in operands), 0)

    def sizes(self, bearers: Iterable[Bearer]) -> dict[str, int]:
        """Return the size of every label that something bears."""
        return sizes_of(self._nodes, bearers)

    def sizes_of(self, slots: Slots) -> dict[str, int]:
        """Return the size of every label of some slots, and of their operands."""
        if slots not in self._sizes:
            self._sizes[slots] = self.sizes(slots.bearers())
        return self._sizes[slots]

    def fill(self, nodes: Iterable[int], slots: Iterable[Slots]) -> None:
        """Compute coefficients from the inputs on, so that no later question goes deep."""
        every = {*nodes}
        wanted = [
            each for each in dict.fromkeys(canonical(each)[0] for each in slots) if not every <= self._filled[each]
        ]
        for node in sorted(every) if wanted else ():
            for each in wanted:
                self.coefficient(node, each)
        for each in wanted:
            self._filled[each] |= every

    def coefficient(self, node: int, slots: Slots) -> list[Term]:
        """Return a coefficient of a node: contracted terms with a slot for every open label."""
        known, places = canonical(slots)
        found = self._kept(node, known)
        if found.packed and (node, known) not in self._opened:
            names, symmetry = self._symmetry(known) or ((), None)
            at = [known.open.index(name) for name in names]
            self._opened[node, known] = [symmetry.opened(term, at) for term in found.packed if symmetry]
        return [with_slots(term, places) for term in (*found.plain, *self._opened.get((node, known), ()))]

    def _kept(self, node: int, slots: Slots) -> Coefficient:
        """Return the coefficient of a node along canonical slots, as it is kept."""
        if (node, slots) not in self._coefficients:
            before, self.builder.node = self.builder.node, node
            self._coefficients[node, slots] = found = self._coefficient(node, slots)
            self.builder.node = before
            self.carries(node, (*found.plain, *found.packed), is_adjoint=False)
        return self._coefficients[node, slots]

    def _coefficient(self, node: int, slots: Slots) -> Coefficient:
        depends = self._depends.get(node, 0)
        if not all(any(depends >> number & 1 for number, _ in slot) for slot in slots.slots):
            return Coefficient([], [])
        if node not in self.local:
            return Coefficient(self.added(self._seeds(node, slots)), [])
        symmetry = self._symmetry(slots)
        if symmetry is None:
            return Coefficient(self.added(self.composed(self.local[node], slots)), [])
        found = list(self._tightened(self.local[node], slots, *symmetry))
        plain, packed = ([term for term, is_packed in found if is_packed == kind] for kind in (False, True))
        return Coefficient(self.added(plain), self.added(packed))

    def _symmetry(self, slots: Slots) -> tuple[tuple[str, ...], Symmetry] | None:
        """Return the open labels in which a coefficient is symmetric, and how it is packed, if it is."""
        names = symmetric(slots)
        size = self.sizes_of(slots)[names[0]] if names else 0
        return (names, Symmetry(self.builder, size, len(names))) if pays(size, len(names)) else None

    def _tightened(
        self, local: Local, slots: Slots, names: tuple[str, ...], symmetry: Symmetry
    ) -> Iterator[tuple[Term, bool]]:
        """Yield what `composed` does, and whether it is packed, as it is where all that it is made of can be."""
        sizes = {**self.sizes_of(slots), _PACKED: symmetry.entries}
        for outers, operands, parts, factors in self._dealt(local, slots, 1):
            if len(parts) == 1:  # all of it enters linearly, as it is kept
                kept = self._kept(operands[0], slots)
                for outer, (place, inners) in product(outers, enumerate(kept)):
                    found = (composed(self.builder, outer, [inner]) for inner in inners)
                    yield from ((term, place == 1) for term in found if term is not None)
                continue
            inners = [self.coefficient(operand, part) for operand, part in zip(operands, parts, strict=True)]
            for outer, *chosen in product(outers, *inners):
                tight = [_tight(term, part, names, symmetry) for term, part in zip(chosen, parts, strict=True)]
                is_packed = None not in tight
                packed = names if is_packed else ()
                borne = tuple(chain(*(_names(part.open, packed) for part in parts)))
                term = composed(self.builder, outer, tight if is_packed else chosen)
                term = term and tied(self.builder, term, 0, borne, _names(slots.open, packed), factors, sizes)
                if term is not None:
                    yield term, is_packed

    def _seeds(self, node: int, slots: Slots) -> Iterator[Term]:
        """Yield the coefficient of an input, which has none along several slots."""
        sizes = self.sizes_of(slots)
        for indices, operands in self._multiplying(slots).get(node, ()) if len(slots.slots) == 1 else ():
            bearers = [(node, indices), *operands]
            names = labelled({**{name: sizes[name] for name in slots.open}, **self.sizes(bearers)})
            factors = tuple([Factor(Ref(number), axes_of(own, names)) for number, own in operands])
            axes = axes_of(indices, names, self._nodes[node].shape)
            yield Term(1, factors, axes, tuple([axes_of((name,), names) for name in slots.open]))

    def _multiplying(self, slots: Slots) -> dict[int, list[tuple[Indices, list[Bearer]]]]:
        """Return, by the input, the indices of every variable of a single slot and what multiplies it."""
        if slots not in self._multiplied:
            found, (slot,) = self._multiplied.setdefault(slots, {}), slots.slots
            entering = [operand.bearer for operand in slots.operands]
            for (node, indices), operands in multiplying_each(slot, entering).items():
                found.setdefault(node, []).append((indices, operands))
        return self._multiplied[slots]

    def composed(self, local: Local, slots: Slots, least: int = 1) -> Iterator[Term]:
        """Yield the sum over the ways to deal slots out to those of local derivatives of some order at least."""
        sizes = self.sizes_of(slots)
        for outers, operands, parts, factors in self._dealt(local, slots, least):
            indices = tuple(chain(*(part.open for part in parts)))
            inners = [self.coefficient(operand, part) for operand, part in zip(operands, parts, strict=True)]
            for outer, *chosen in product(outers, *inners):
                term = composed(self.builder, outer, chosen)
                term = term and tied(self.builder, term, 0, indices, slots.open, factors, sizes)
                if term is not None:
                    yield term

    def _dealt(
        self, local: Local, slots: Slots, least: int
    ) -> Iterator[tuple[list[Term], Key, list[Slots], list[Bearer]]]:
        """Yield the ways to deal slots out to those of local derivatives.

        Each comes as the terms of these, the node in each of their slots, what each gets of the slots, and the operands
        that multiply all of it.
        """
        for key, outers in local.items():
            if least <= len(key) <= len(slots.slots):
                for times, groups in deals(slots, tuple(Counter(key).values())):
                    scaled = [outer._replace(coefficient=outer.coefficient * times) for outer in outers]
                    yield scaled, key, [slots.part(group) for group in groups], slots.joining(groups)

    def added(self, terms: Iterable[Term]) -> list[Term]:
        """Contract terms and add them up."""
        return accumulated(self.builder, [worked(self.builder, contract, term) for term in terms])

    def carries(self, node: int, terms: Iterable[Term], *, is_adjoint: bool) -> None:
        """Take note that a node carries terms, and of how many vectors they are: its own labels are none of theirs."""
        for term in terms:
            own, *others = (*term.slots, term.out) if is_adjoint else (term.out, *term.slots)
            count = prod(int(label.size) for label in {*labels_of(*others)} - {*labels_of(own)})
            register = term.factors[0].source if term.factors else self.builder.value(node)
            self.builder.carried.setdefault(node, []).append((register, count, is_adjoint))

    @cached_property
    def before_nonlinear(self) -> set[int]:
        """The nodes whose coefficients are asked for below the highest order: what nonlinear ones take."""
        left = [
            operand for node in self.local if is_nonlinear(self.local[node]) for operand in self._nodes[node].operands
        ]
        found: set[int] = set()
        while left:
            node = left.pop()
            if node in self._depends and node not in found:
                found.add(node)
                left.extend(self._nodes[node].operands)
        return found
