"""The mixed strategy: Taylor polynomials up to the order below, and one adjoint pass for the highest order.

The highest order of a node's polynomial enters all that follows linearly, so that it need not be propagated: with the
adjoint a of every node v, the derivative of the output by the node,

    D^k y = sum over the nodes v of a_v times those terms of the rule of Faa di Bruno for v that have several blocks,

for which polynomials up to order k - 1 are enough. Linear nodes have no such terms.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import reduce
from itertools import chain, product
from operator import or_
from typing import NamedTuple

from hofunc.algebra.labels import fresh_axes
from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Term, identity, with_slots
from hofunc.plan.accumulate import accumulated
from hofunc.plan.blocks import Blocks, Local, is_nonlinear
from hofunc.plan.builder import Builder
from hofunc.plan.contract import contracted
from hofunc.plan.forward import Group, Polynomials, grouped_slots, halves, splits
from hofunc.plan.halves import Halves
from hofunc.plan.packing import Variables, joined, opened
from hofunc.plan.preaccumulated import Start
from hofunc.plan.recipes import composed
from hofunc.plan.replaced import Replaced
from hofunc.plan.reverse import operands_of
from hofunc.plan.sums import Product, contributed, summed


def mixed(
    polynomials: Polynomials,
    local: dict[int, Local] | None = None,
    starts: Sequence[Start] = (),
    replaced: Replaced | None = None,
    leading: frozenset[int] = frozenset(),
) -> Blocks:
    """Return the derivatives of every output by the variables that are asked for.

    Args:
        polynomials: Those of the nodes.
        local: All local derivatives, where those of the polynomials have some preaccumulated, for order two.
        starts: By what.
        replaced: What has wide nodes replaced in those of the polynomials, likewise.
        leading: The nodes that halves are led on through, likewise.

    Raises:
        RowsMixError: An axis that variables have for a batch is none.
    """
    builder, variables = polynomials.builder, polynomials.variables
    local = polynomials.local if local is None else local
    asked = polynomials.asked
    inputs = polynomials.joint.ranges if polynomials.joint else variables
    by = [*chain(*[start.region.starts for start in starts]), *(replaced.starts if replaced else ())]
    polynomials.fill(_before_nonlinear(polynomials.local, inputs, by), max(asked.orders) - 1)
    blocks: Blocks = {}
    for output in dict.fromkeys(builder.lowered.graph.outputs):
        if not builder.lowered.graph.nodes[output].active:
            continue
        adjoints = _adjoints(builder, local, output, inputs)
        for variable in inputs:
            if asked.has((variable,)):
                blocks[output, (variable,)] = adjoints.get(variable, [])
        found = _highest(
            polynomials, adjoints, [order for order in asked.orders if order > 1], starts, replaced, leading
        )
        for key in sorted(found, key=lambda key: (len(key), key)):
            blocks[output, key] = _assembled(builder, variables, found[key], key)
    return {block: terms for block, terms in blocks.items() if terms}


def _before_nonlinear(local: dict[int, Local], inputs: Collection[int], others: Iterable[int]) -> set[int]:
    """Return the nodes whose polynomials are asked for: what nonlinear nodes take, some others, and all before."""
    left = [operand for node in local if is_nonlinear(local[node]) for operand in operands_of(local[node])]
    left += others
    found: set[int] = set()
    while left:
        node = left.pop()
        if (node in local or node in inputs) and node not in found:
            found.add(node)
            left.extend(operands_of(local[node]) if node in local else ())
    return found


def _adjoints(builder: Builder, local: dict[int, Local], output: int, inputs: Iterable[int]) -> dict[int, list[Term]]:
    """Return the first derivative of an output by every node that it depends on."""
    pending = defaultdict(list, {output: [identity(fresh_axes(builder.lowered.graph.nodes[output].shape))]})
    adjoints: dict[int, list[Term]] = {}
    for node in sorted([*local, *inputs], reverse=True):
        if node not in pending:
            continue
        builder.node = node
        adjoints[node] = accumulated(builder, pending[node])
        for key, terms in local.get(node, {}).items():
            if len(key) == 1:
                found = [contracted(builder, outer, [inner]) for outer in adjoints[node] for inner in terms]
                pending[key[0]] += [term for term in found if term is not None]
    builder.node = None
    return adjoints


class Split(NamedTuple):
    """How a product of polynomials splits a key.

    Attributes:
        parts: The key of each factor.
        symmetric: Whether factors of equal keys may be exchanged, since both come from one polynomial.
    """

    parts: tuple[Key, ...]
    symmetric: bool


def _highest(
    polynomials: Polynomials,
    adjoints: dict[int, list[Term]],
    orders: Sequence[int],
    starts: Sequence[Start],
    replaced: Replaced | None,
    leading: frozenset[int],
) -> dict[Key, dict[Split, list[Product]]]:
    """Return what all nodes contribute to the coefficients of an output's polynomial, by how they split the key."""
    found: dict[Key, dict[Split, list[Product]]] = defaultdict(lambda: defaultdict(list))
    builder, depends, highest = polynomials.builder, polynomials.depends, max(orders, default=0)

    def multiply(nodes: Key, nonlinear: Sequence[tuple[list[Group], Term]]) -> None:
        builder.node = nodes[0]
        varied = reduce(or_, map(depends.__getitem__, nodes))
        for key in polynomials.asked.asked_among(varied, orders) if nonlinear else []:
            _multiply(polynomials, nonlinear, key, found[key])

    halves = Halves(polynomials, leading)
    for node in sorted(adjoints.keys() & polynomials.local.keys()):
        builder.node = node
        given = [*_nonlinear(builder, adjoints[node], polynomials.local[node], highest)]
        keys = polynomials.asked.asked_among(polynomials.depends[node], (2,)) if given and leading else []
        multiply((node,), [(groups, outer) for groups, outer in given if not halves.take(groups, outer, keys)])
    beside = [(key, _through(start, key, adjoints)) for start in starts if highest > 1 for key in start.keys]
    for key, terms in replaced.seconds(adjoints, beside) if replaced and highest > 1 else beside:
        multiply(key, [grouped_slots(key, term) for term in terms])
    for node, (first, rest), terms in halves.arrived():
        builder.node = node  # what a symmetric split stands for is doubled where both variables are one
        once = [term._replace(coefficient=term.coefficient / 2) if first == rest else term for term in terms]
        found[first, rest][Split(((rest,), (first,)), True)] += contributed(builder, once)
    builder.node = None
    return found


def _through(start: Start, key: Key, adjoints: dict[int, list[Term]]) -> list[Term]:
    """Return what the nodes that follow others contribute to a second derivative of an output by these."""
    own = start.polynomials
    found: dict[Split, list[Product]] = defaultdict(list)
    for node in [node for node in start.region.nodes if node in adjoints]:
        own.builder.node = node
        nonlinear = [*_nonlinear(own.builder, adjoints[node], start.local[node], len(key))]
        if nonlinear:
            _multiply(own, nonlinear, key, found)
    return _assembled(own.builder, own.variables, found, key)


def _multiply(
    polynomials: Polynomials, nonlinear: Sequence[tuple[list[Group], Term]], key: Key, found: dict[Split, list[Product]]
) -> None:
    """Add the contributions of one node to a coefficient."""
    halved: dict[tuple[int, Key, Key], list[tuple[Term, list[Term]]]] = defaultdict(list)
    for groups, outer in nonlinear:
        if len(groups) > 1:
            for parts in splits(key, tuple([group.size for group in groups])):
                inners = [polynomials.power(*group, part) for group, part in zip(groups, parts, strict=True)]
                found[Split(parts, False)] += contributed(polynomials.builder, polynomials.products(outer, inners))
            continue
        ((operand, size),) = groups
        for (first, rest), weight in halves(key, size):
            both = outer._replace(coefficient=outer.coefficient * weight, slots=outer.slots * 2)
            if inner := polynomials.power(operand, size - 1, rest):
                halved[operand, first, rest].append((both, inner))
    for (operand, first, rest), halves_of_rest in halved.items():
        inner = polynomials.coefficient(operand, first)
        terms = _multiplied(polynomials, halves_of_rest, inner)
        found[Split((rest, first), True)] += contributed(polynomials.builder, terms)


def _multiplied(polynomials: Polynomials, others: Sequence[tuple[Term, list[Term]]], one: Sequence[Term]) -> list[Term]:
    """Put a polynomial into the first slot of terms, and others into their second, which come first in the result.

    What is multiplied by the one polynomial is added up before, if there are several others.
    """
    if len(others) == 1:
        ((both, inner),) = others
        swapped = both._replace(slots=both.slots[::-1])
        return polynomials.products(swapped, [inner, one])
    filled = [term for both, inner in others for term in polynomials.composed(both, [[None], inner])]
    return [
        term
        for half in accumulated(polynomials.builder, filled)
        for term in polynomials.products(half, [one, *[[None]] * (len(half.slots) - 1)])
    ]


def _nonlinear(
    builder: Builder, adjoints: Sequence[Term], local: Local, order: int
) -> Iterator[tuple[list[Group], Term]]:
    """Yield the local derivatives of a node of orders from two on, by groups of slots, through its adjoint."""
    for operands, terms in local.items():
        for adjoint, term in product(adjoints, terms) if 1 < len(operands) <= order else []:
            groups, outer = grouped_slots(operands, term)
            through = composed(builder, adjoint, [outer])
            if through is not None:
                yield groups, through


def _assembled(builder: Builder, variables: Variables, found: dict[Split, list[Product]], key: Key) -> list[Term]:
    """Add the contributions to a coefficient up, and return the derivative that it stands for.

    At order two nothing needs packing: the derivative is the product and the same with its slots exchanged.
    """
    added = {split: summed(builder, given) for split, given in found.items()}
    if len(key) > 2:
        packed = [joined(builder, variables, term, split.parts) for split, terms in added.items() for term in terms]
        return [opened(builder, variables, term, [key]) for term in accumulated(builder, packed)]
    result = []
    for (parts, symmetric), terms in added.items():
        orders = [(0, 1) if parts[0] <= parts[1] else (1, 0)]
        if key[0] == key[1]:
            orders += orders if symmetric else [(1, 0)]
        result += [with_slots(opened(builder, variables, term, parts), order) for term in terms for order in orders]
    return accumulated(builder, result)
