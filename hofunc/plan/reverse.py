"""The reverse strategy: eliminate the nodes of the graph one by one, from the outputs to the inputs.

A block is one derivative of one output by one multiset of nodes that are still live. Eliminating a node replaces it,
in every block that has it, by the nodes it is computed from. Source: thesis of THOAD, Algorithms 2 and 3; taking one
node at a time needs neither balanced layers nor identity nodes.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, compress, product

from hofunc.algebra.labels import fresh_axes
from hofunc.algebra.partitions import Key, arrangements, choices, number_of_arrangements
from hofunc.algebra.term import Term, identity, with_slots
from hofunc.plan.accumulate import accumulated
from hofunc.plan.blocks import Blocks, Local
from hofunc.plan.builder import Builder
from hofunc.plan.bundle import LEAST, Block, Bundle, Taken
from hofunc.plan.contract import contracted
from hofunc.plan.keys import Keys, depends_of
from hofunc.plan.meetings import Inners, outers_met
from hofunc.plan.reads import read
from hofunc.plan.stacked import Stacked

Adding = Callable[[Builder, Sequence[Term]], list[Term]]
Leads = Callable[[Key], bool]
Elimination = Callable[[Builder, int, Key, Sequence[Term], Local, int, Leads], Iterator[tuple[Key, list[Term]]]]


def eliminated(
    builder: Builder, index: int, key: Key, terms: Sequence[Term], local: Local, highest: int, leads: Leads
) -> Iterator[tuple[Key, list[Term]]]:
    """Replace a node in a block by what it is computed from: one composition for each choice of inner derivatives.

    By Schwarz's theorem the slots of the node are alike, and so are choices that differ in their order: each is
    composed once, and the block gets it once for every distinct way of dealing out its slots. What leads to no block
    that is asked for is left out.
    """
    rest, chosen = substitutions(index, key, local, highest, terms)
    for groups in chosen:
        target = tuple(sorted(chain(rest, *groups)))
        if leads(target):
            inners = [local[group] for group in groups]
            composed = substituted(builder, index, key, terms, inners, is_read=is_reading(local))
            yield target, _dealt(composed, rest, groups)


def _dealt(terms: Sequence[Term], rest: Key, groups: Sequence[Key]) -> list[Term]:
    """Return terms for every way to deal out their slots; those that are the same whichever it is, times the number."""
    variables = (*rest, *chain(*groups))
    different = len({*variables})
    order = sorted(range(len(variables)), key=variables.__getitem__)
    if different == len(variables):  # of which there is one way
        return [with_slots(term, order) for term in terms]
    alike = [len({*zip(variables, term.slots, strict=True)}) == different for term in terms]
    if not any(alike):
        return [with_slots(term, order) for order in arrangements(rest, groups)[1] for term in terms]
    number = number_of_arrangements(rest, groups)
    once = [term._replace(coefficient=number * term.coefficient) for term in compress(terms, alike)]
    others = [term for term, is_alike in zip(terms, alike, strict=True) if not is_alike]
    return [with_slots(term, order) for term in once] + (_dealt(others, rest, groups) if others else [])


def substitutions(
    index: int, key: Key, local: Local, highest: int, terms: Sequence[Term]
) -> tuple[Key, list[list[Key]]]:
    """Return what stays of a key without a node, and the choices of inner keys for its slots up to an order in all.

    Of the parts of a node that is put together of many, those are left out that do not meet in any of the terms.
    """
    rest = tuple([variable for variable in key if variable != index])
    slots = len(key) - len(rest)
    if slots > 1 and (stacked := Stacked.of(local)) is not None:
        return rest, stacked.meeting(index, key, terms)
    return rest, choices_of(local, slots, highest - len(rest))


def choices_of(keys: Iterable[Key], slots: int, highest: int) -> list[list[Key]]:
    """Return the choices of inner keys for so many slots, up to an order in all."""
    return _chosen(tuple(sorted(keys)), slots, highest)


@lru_cache(maxsize=4096)
def _chosen(inner_keys: tuple[Key, ...], slots: int, highest: int) -> list[list[Key]]:
    """Return the choices of inner keys for so many slots, up to an order in all."""
    chosen = choices(tuple(map(len, inner_keys)), slots, highest)
    return [[inner_keys[place] for place in places] for places in chosen]


def substituted(
    builder: Builder,
    index: int,
    key: Key,
    terms: Sequence[Term],
    inners: Sequence[Sequence[Term]],
    *,
    is_read: bool = False,
) -> list[Term]:
    """Put inner derivatives into the slots of a block that a node has, one for each; the other slots come first.

    Args:
        builder: Takes the steps.
        index: The node.
        key: The key of the block.
        terms: Its terms.
        inners: The derivatives of the node that are put into its slots, each a sum of terms.
        is_read: Whether that is the only term of a node which only reads another one.

    Returns:
        Contracted terms.
    """
    composed = []
    given = iter(inners)
    places: Inners = [next(given) if variable == index else [None] for variable in key]
    terms = outers_met(builder, terms, places)
    for outer, *chosen in product(terms, *inners):
        if is_read and (named := read(builder, outer, [variable == index for variable in key], chosen[0])) is not None:
            composed.append(named)
            continue
        supply = iter(chosen)
        term = contracted(builder, outer, [next(supply) if variable == index else None for variable in key])
        if term is not None:
            composed.append(term)
    return composed


def reverse(
    builder: Builder,
    local: dict[int, Local],
    asked: Keys,
    *,
    add: Adding = accumulated,
    eliminate: Elimination = eliminated,
    bundles: bool = True,
    start: Blocks | None = None,
) -> Blocks:
    """Return the derivatives of every output by the active inputs that are asked for.

    Args:
        builder: Takes the steps.
        local: The local derivatives of every node.
        asked: The keys of the blocks that are asked for.
        add: Adds up the terms of a block.
        eliminate: Replaces a node in a block by what it is computed from.
        bundles: Whether many inputs may be taken as one variable, for which keys of blocks have to be sorted; they are
            not, if only some blocks are asked for.
        start: The blocks to begin with, by nodes that all that is asked for goes through; the outputs if left out.

    Returns:
        Contracted terms by output node and sorted tuple of input nodes; a block that vanishes is left out.
    """
    nodes, highest = builder.lowered.graph.nodes, max(asked.orders)
    inputs = [number for number in builder.lowered.graph.inputs if nodes[number].active]
    bundle = Bundle(builder, inputs if bundles and not asked.are_chosen and len(inputs) >= LEAST else ())
    degrees, depends = [*_degrees(builder, local, highest), 1], depends_of(local, inputs)

    least = min(asked.orders)

    def leads(target: Key) -> bool:
        if sum(degrees[variable] for variable in target) < least:
            return False
        return not asked.are_chosen or asked.leads([depends.get(variable, 0) for variable in target])

    blocks = Pending()
    for block, terms in (_outputs(builder) if start is None else start).items():
        blocks.add(block, terms)
    for index in elimination_order(local):
        builder.node = index
        taken: Taken = [(block, add(builder, pending)) for block, pending in blocks.taken(index)]
        for (output, key), terms in bundle.tied(taken, index):
            for target, composed in eliminate(builder, index, key, terms, local[index], highest, leads):
                blocks.add((output, target), composed)
                bundle.inherit((output, target), (output, key))
    builder.node = None
    result: dict[Block, list[list[Term]]] = defaultdict(list)
    for block, pending in blocks.terms.items():
        if asked.has(block[1]):
            for wanted, terms in bundle.untied(block, add(builder, pending)):
                result[wanted].append(terms)
    added = {
        block: parts[0] if len(parts) == 1 and block in blocks.terms else add(builder, [*chain(*parts)])
        for block, parts in result.items()
    }
    return {block: terms for block, terms in added.items() if terms}


def _outputs(builder: Builder) -> Blocks:
    """Return the derivative of every active output by itself."""
    graph = builder.lowered.graph
    active = [output for output in dict.fromkeys(graph.outputs) if graph.nodes[output].active]
    return {(output, (output,)): [identity(fresh_axes(graph.nodes[output].shape))] for output in active}


class Pending:
    """Blocks that are not added up yet, found by the nodes that they have.

    Attributes:
        terms: The terms of each.
    """

    def __init__(self) -> None:
        self.terms: dict[tuple[int, Key], list[Term]] = {}
        self._having: dict[int, dict[tuple[int, Key], None]] = defaultdict(dict)

    def add(self, block: tuple[int, Key], terms: Sequence[Term]) -> None:
        """Add terms to a block."""
        if block not in self.terms:
            self.terms[block] = []
            for node in block[1]:
                self._having[node][block] = None
        self.terms[block].extend(terms)

    def taken(self, node: int) -> Iterator[tuple[tuple[int, Key], list[Term]]]:
        """Yield the blocks that have a node, with their terms, and forget them."""
        for block in self._having.pop(node, {}):
            for other in {*block[1]} - {node}:
                del self._having[other][block]
            yield block, self.terms.pop(block)


def elimination_order(local: Mapping[int, Local]) -> list[int]:
    """Return the nodes in an order in which each comes after all that take it.

    It is the latest first; but what only reads a part of another node comes at once, so that all that depends on the
    parts of a node, as on the steps of a sequence, is soon one block of the node rather than one for each part.
    """
    operands = {node: operands_of(each) for node, each in local.items()}
    takers = Counter(chain.from_iterable(operands.values()))
    order: dict[int, None] = {}
    for latest in sorted(local, reverse=True):
        ready = [latest]
        while ready:
            node = ready.pop()
            if node in order:
                continue
            order[node] = None
            for operand in operands[node]:
                takers[operand] -= 1
                if not takers[operand] and operand in local and is_reading(local[operand]):
                    ready.append(operand)
    return list(order)


def is_reading(local: Local) -> bool:
    """Tell whether every element of a node is one of its only operand."""
    if len(local) != 1:
        return False
    ((key, terms),) = local.items()
    return len(key) == len(terms) == 1 and not terms[0].factors


def operands_of(local: Local) -> set[int]:
    """Return the nodes that a node takes."""
    return {operand for key in local for operand in key}


def _degrees(builder: Builder, local: dict[int, Local], highest: int) -> list[int]:
    """Bound, for every node, the order up to which it has derivatives by the inputs, counting no further than highest.

    A block that cannot reach the lowest order that is wanted is dead: all of order one below the last nonlinear node.
    """
    degrees = [1] * len(builder.lowered.graph.nodes)
    for index in sorted(local):
        reached = (sum(degrees[variable] for variable in key) for key in local[index])
        degrees[index] = min(highest, max(reached, default=0))
    return degrees
