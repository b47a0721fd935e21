"""The forward strategy: Taylor polynomials of every node in the inputs, from the inputs to the outputs.

The polynomial of a node is kept as its coefficients of each order, the packed derivatives of the node by the inputs.
It costs as much for many outputs as for one, and grows with the number of directions in which inputs are varied.
Source: Griewank and Walther, Evaluating Derivatives (2008), chapter 13, for polynomial arithmetic; packing the
coefficients of all directions into one axis makes a linear layer one matrix product.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, islice, product
from math import factorial, prod
from typing import NamedTuple

from hofunc.algebra.labels import fresh_axes
from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Term
from hofunc.plan.accumulate import accumulated, added_in_place
from hofunc.plan.blocks import Blocks, Local
from hofunc.plan.builder import Builder
from hofunc.plan.contract import contracted
from hofunc.plan.jointly import Jointly
from hofunc.plan.keys import Keys, depends_of
from hofunc.plan.meetings import inners_met
from hofunc.plan.packing import Variables, joined, opened, seed
from hofunc.plan.reads import placed
from hofunc.plan.recipes import by_recipe, composed, interned
from hofunc.plan.shifts import Shift, shift_of, shift_through, shifted


class Group(NamedTuple):
    """Slots of a local derivative that lie on one diagonal: the operand, and how many of them there are."""

    operand: int
    size: int


def grouped_slots(key: Key, term: Term) -> tuple[list[Group], Term]:
    """Group the slots of a local term by operand and axes.

    A slot for each group is left, and the coefficient is that of Taylor polynomials: divided by the number of ways to
    order the slots of each operand.

    Args:
        key: The operand of every slot.
        term: The term.
    """
    if len(key) == 1:
        return [Group(key[0], 1)], term
    groups = Counter(zip(key, term.slots, strict=True))
    scale = prod(factorial(count) for count in Counter(key).values())
    kept = term._replace(coefficient=term.coefficient / scale, slots=tuple(axes for _, axes in groups))
    return [Group(operand, count) for (operand, _), count in groups.items()], kept


@lru_cache(maxsize=4096)
def splits(key: Key, least: tuple[int, ...]) -> list[tuple[Key, ...]]:
    """List the ways to part a multiset of variables into an ordered tuple of multisets of at least the given sizes."""
    if len(least) == 1:
        return [(key,)] if len(key) >= least[0] else []
    counts, found = Counter(key), []
    for taken in product(*(range(count + 1) for count in counts.values())):
        first = tuple(v for v, number in zip(counts, taken, strict=True) for _ in range(number))
        if len(first) >= least[0] and len(key) - len(first) >= sum(least[1:]):
            rest = tuple((counts - Counter(first)).elements())
            found += [(first, *others) for others in splits(rest, least[1:])]
    return found


@lru_cache(maxsize=4096)
def halves(key: Key, exponent: int) -> list[tuple[tuple[Key, Key], int]]:
    """List how a coefficient of a power of a polynomial is a sum of products with the power one lower, with weights.

    Of the square, the two products that differ only in their order are listed as one of weight two.
    """
    return [
        ((first, rest), 2 if exponent == 2 and first != rest else 1)
        for first, rest in splits(key, (1, exponent - 1))
        if exponent > 2 or first <= rest
    ]


class Polynomials:
    """Taylor polynomials of the nodes of a graph, computed as they are asked for.

    Args:
        builder: Takes the steps.
        local: The local derivatives of every node on the way.
        variables: The inputs.
        asked: The keys of the blocks that are asked for.
        joint: All inputs as the only variable, if they are varied jointly.

    Attributes:
        builder: What was given.
        local: Likewise.
        asked: Likewise.
        joint: Likewise.
        variables: The variables, with the axes that turned out to be a batch so far.
        depends: Those on which each node depends.
    """

    def __init__(
        self,
        builder: Builder,
        local: dict[int, Local],
        variables: Variables,
        asked: Keys,
        joint: Jointly | None = None,
    ):
        self.builder = builder
        self.local = local
        self.asked = asked
        self.joint = joint
        self.variables = {**variables}
        self._powers: dict[_Place, list[Term]] = {}
        self._shifts: dict[_Place, tuple[list[Term], Shift | None]] = {}  # as if read at the first place, and where
        self._batches = 0  # how often axes turned out to be no batch
        self.depends = depends_of(local, variables if joint is None else joint.ranges)
        if joint is not None:
            self.depends = dict.fromkeys(self.depends, 1 << joint.number)

    def fill(self, nodes: Iterable[int], order: int) -> None:
        """Compute polynomials up to an order, from the inputs on, so that no later question goes deep."""
        for node in sorted(nodes):
            for key in self.asked.among(self.depends[node], range(1, order + 1)):
                self.coefficient(node, key)

    def without(self, variable: int, axes: Iterable[int]) -> None:
        """Take some axes of a variable for a batch no longer, and forget what rests on that."""
        self.variables[variable] = self.variables[variable].without(axes)
        self._batches += 1
        self._powers = {place: terms for place, terms in self._powers.items() if variable not in place[2]}
        self._shifts = {place: found for place, found in self._shifts.items() if variable not in place[2]}

    def coefficient(self, node: int, key: Key) -> list[Term]:
        """Return the coefficient of a node's polynomial: contracted terms with a packed slot for each variable."""
        return self.power(node, 1, key)

    def power(self, node: int, exponent: int, key: Key) -> list[Term]:
        """Return a coefficient of a power of a node's polynomial, elementwise and without its constant."""
        place = (node, exponent, key)
        if place not in self._powers:
            before, self.builder.node = self.builder.node, node
            if exponent == 1 and (start := self._start(node, key)) is not None:
                self._powers[place] = start
            else:
                products = [*(self._power(node, exponent, key) if exponent > 1 else self._coefficient(node, key))]
                self._powers[place] = self._added(products) if len(key) > 1 else self._first(place, products)
            self.builder.node = before
        return self._powers[place]

    def _first(self, place: "_Place", products: "Sequence[_Product]") -> list[Term]:
        """Return a coefficient of first order: what is read at one place of an input as if it were the first.

        If all of it is, that is noted, so that what follows may be computed likewise.
        """
        moved = [self._at_first(each) for each in products]
        shifts = dict.fromkeys(shift for _, shift in moved)
        if not any(shifts):
            return self._added(products)
        found: list[list[Term]] = []
        for shift in shifts:
            terms = self._added([each for each, other in moved if other == shift], at_first=shift is not None)
            there = terms if shift is None else shifted(self.builder, terms, shift)
            if there is not None and len(shifts) == 1:
                self._shifts[place] = terms, shift
            alike = [each for each, (_, other) in zip(products, moved, strict=True) if other == shift]
            found.append(self._added(alike) if there is None else there)
        return found[0] if len(found) == 1 else added_in_place(self.builder, [*chain(*found)])

    def _at_first(self, product: "_Product") -> "tuple[_Product, Shift | None]":
        """Return a product of one coefficient as if what it reads were at the first place, and where that is.

        If it is read all over, it is returned as it is, and None.
        """
        outer, (place,) = product
        is_input = place[0] in self.variables
        if not is_input and place not in self._shifts:
            terms = self.power(*place)
            shift = shift_of(self.builder, terms)
            back = shifted(self.builder, terms, shift, back=True) if shift else None
            self._shifts[place] = (terms, None) if back is None else (back, shift)
        terms, own = ([], None) if is_input else self._shifts[place]
        if own is None and (read := shift_of(self.builder, [outer])) is not None:
            there = read if is_input else shift_through(read, outer.slots[0], terms)
            moved = there and shifted(self.builder, [outer], read, back=True)
            if moved:
                return product._replace(outer=moved[0]), there
        return product, own

    def _start(self, node: int, key: Key) -> list[Term] | None:
        """Return a coefficient of a variable; None for any other node."""
        if self.joint is not None and node in self.joint.ranges:
            return self.joint.seed(self.builder, node) if key == (self.joint.number,) else []
        if node in self.variables:
            axes = fresh_axes(self.variables[node].shape)
            return [seed(self.variables[node], axes)] if key == (node,) else []
        return None

    def _power(self, node: int, exponent: int, key: Key) -> Iterator["_Product"]:
        axes = fresh_axes(self.builder.lowered.graph.nodes[node].shape)
        square = interned(self.builder, Term(1, (), axes, (axes, axes)))
        for (first, rest), weight in halves(key, exponent):
            yield _Product(square._replace(coefficient=weight), ((node, 1, first), (node, exponent - 1, rest)))

    def _coefficient(self, node: int, key: Key) -> Iterator["_Product"]:
        for operands, local in self.local.get(node, {}).items():
            for term in local if len(operands) <= len(key) else []:
                groups, outer = grouped_slots(operands, term)
                for parts in splits(key, tuple([group.size for group in groups])):
                    yield _Product(outer, [(*group, part) for group, part in zip(groups, parts, strict=True)])

    def _added(self, products: "Sequence[_Product]", *, at_first: bool = False) -> list[Term]:
        """Return the sum of products, worked out once for all nodes whose products are of the same axes.

        What is read at one place can be taken as if that were the first.
        """
        terms: list[Term] = []
        form: list[tuple[tuple[Key, ...], tuple[int, ...]]] = []
        for outer, places in products:
            inners = [self._moved(place) if at_first else self.power(*place) for place in places]
            if all(inners):
                terms += [outer, *chain.from_iterable(inners)]
                form.append((tuple([part for _, _, part in places]), tuple([len(inner) for inner in inners])))
        return by_recipe(self.builder, self._worked_out, terms, self._batches, tuple(form)) if terms else []

    def _moved(self, place: "_Place") -> list[Term]:
        """Return a coefficient as if it were read at the first place."""
        return self._shifts[place][0] if place in self._shifts else self.power(*place)

    def _worked_out(
        self, builder: Builder, terms: Sequence[Term], _: int, form: Sequence[tuple[Sequence[Key], Sequence[int]]]
    ) -> list[Term]:
        """Return the sum of products that are given by their terms, and how many of these are in each slot of them."""
        given, found = iter(terms), []
        for parts, counts in form:
            outer, inners = next(given), [[*islice(given, count)] for count in counts]
            met = composed_each(builder, outer, inners)
            found += [joined(builder, self.variables, term, parts) for term in accumulated(builder, met)]
        return accumulated(builder, found)

    def composed(self, outer: Term, inners: Sequence[Sequence[Term | None]]) -> list[Term]:
        """Put polynomials into the slots of a term.

        Args:
            outer: The term.
            inners: For each slot the terms of the coefficient that is put there, or only None for one that stays.

        Returns:
            Contracted terms; their slots are those that stayed and then those of the polynomials.
        """
        return composed_each(self.builder, outer, inners)

    def products(self, outer: Term, inners: Sequence[Sequence[Term | None]]) -> list[Term]:
        """Put polynomials into the slots of a term as `composed` does, and contract nothing yet."""
        inners = inners_met(self.builder, outer, inners)
        found = (composed(self.builder, outer, chosen) for chosen in product(*inners))
        return [term for term in found if term is not None]


_Place = tuple[int, int, Key]  # of a coefficient: the node, which power of its polynomial, and the variables


class _Product(NamedTuple):
    """Coefficients that are put into the slots of a term."""

    outer: Term
    places: Sequence[_Place]


def composed_each(builder: Builder, outer: Term, inners: Sequence[Sequence[Term | None]]) -> list[Term]:
    """Put one of several terms into each slot of a term, in all ways; see `Polynomials.composed`."""
    inners = inners_met(builder, outer, inners)
    found = (_composed(builder, outer, chosen) for chosen in product(*inners))
    return [term for term in found if term is not None]


def _composed(builder: Builder, outer: Term, inners: Sequence[Term | None]) -> Term | None:
    """Put a term into each slot of a term, and contract it."""
    inner = inners[0] if len(inners) == 1 else None
    named = None if inner is None else placed(builder, outer, inner)
    return contracted(builder, outer, inners) if named is None else named


def forward(polynomials: Polynomials) -> Blocks:
    """Return the derivatives of every output by the variables that are asked for.

    Raises:
        RowsMixError: An axis that variables have for a batch is none.
    """
    builder, variables, asked = polynomials.builder, polynomials.variables, polynomials.asked
    polynomials.fill(polynomials.local, max(asked.orders))
    blocks: Blocks = {}
    for output in dict.fromkeys(builder.lowered.graph.outputs):
        if builder.lowered.graph.nodes[output].active:
            for key in asked.asked_among(polynomials.depends[output], asked.orders):
                terms = polynomials.coefficient(output, key)
                blocks[output, key] = [opened(builder, variables, term, [key]) for term in terms]
    return {block: terms for block, terms in blocks.items() if terms}
