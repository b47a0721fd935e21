"""Which blocks of a derivative are asked for, by tensors or by groups of them, and how they are nested."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, combinations, product
from math import prod
from typing import Any, NamedTuple

from hofunc.arguments import Arguments
from hofunc.given import refuse
from hofunc.internals import TreeSpec
from hofunc.keypaths import is_entry, part_of
from hofunc.plan.wanted import Block, Chosen, Wanted
from hofunc.run.nest import Nest, nest_of, nesting
from hofunc.trees import tree_flatten

BLOCKS = ("all", "diagonal")

MOST_KEPT = 64  # structures of arguments for which it is kept what is asked for

Entries = tuple[tuple[Any, ...], ...]
BlocksAsked = str | Sequence[Sequence[Any]]
GroupsAsked = Sequence[Sequence[Any]]


class Asked(NamedTuple):
    """What blocks are asked for of some arguments.

    Attributes:
        wanted: The blocks of all orders; for an order, those that are returned come first.
        nests: By order, what puts those of one output together.
    """

    wanted: Wanted
    nests: Mapping[int, Nest]

    def nested(self, blocks: Sequence[Any], order: int, spec: TreeSpec) -> Any:
        """Nest the blocks of an order of all outputs, given the structure of these."""
        count = len(blocks) // max(1, spec.num_leaves)
        each = [blocks[place * count : (place + 1) * count] for place in range(spec.num_leaves)]
        return nest_of(spec)([self.nests[order](part) for part in each])


class Tree(NamedTuple):
    """Leaves by their numbers, and their structure."""

    numbers: tuple[int, ...]
    spec: TreeSpec


class Which(NamedTuple):
    """Which blocks a caller asks for; see `hofunc.hod`."""

    blocks: BlocksAsked
    groups: GroupsAsked | None


class Choice:
    """Blocks as a caller asks for them, checked for what does not depend on a call.

    Args:
        name: Name of the transform.
        orders: The orders that it computes.
        blocks: Blocks by the entries of their slots; None if there are groups, or those on the diagonal are asked for.
        groups: Groups of entries; None for the diagonal.
        orders_below: Whether what the blocks are derivatives of is needed too.
    """

    def __init__(
        self, name: str, orders: Sequence[int], blocks: Entries | None, groups: Entries | None, orders_below: bool
    ):
        self._name, self._orders, self._orders_below = name, orders, orders_below
        self._blocks, self._groups = blocks, groups
        self._known: dict[Any, Asked] = {}

    def asked(self, arguments: Arguments) -> Asked:
        """Return what is asked for of the arguments of a call.

        Raises:
            ArgumentError: An entry names nothing, or several things, or something is asked for twice.
        """
        key = (arguments.specs, arguments.variables, arguments.parameters, len(arguments.rest[0]))
        if key not in self._known:
            if len(self._known) >= MOST_KEPT:
                self._known.clear()
            self._known[key] = self._asked(arguments)
        return self._known[key]

    def _asked(self, arguments: Arguments) -> Asked:
        """Return what is asked for, see above."""
        if self._blocks is None and self._groups is None:
            blocks = [(number,) * order for order in self._orders for number in range(len(arguments.leaves))]
            return Asked(self._wanted(blocks, arguments), dict.fromkeys(self._orders, nest_of(arguments.spec)))
        products = self._of_groups(arguments) if self._groups is not None else self._of_blocks(arguments)
        found = {order: [*chain(*map(_listed, products[order]))] for order in self._orders}
        blocks = [*chain(*found.values()), *(_below(found) if self._orders_below else ())]
        return Asked(self._wanted(blocks, arguments), {order: _nest(each) for order, each in products.items()})

    def _wanted(self, blocks: Sequence[Block], arguments: Arguments) -> Wanted:
        """Return what is asked for, which is orders if these blocks are all there are."""
        orders, numbers = tuple(self._orders), range(len(arguments.leaves))
        if len(blocks) == sum(len(numbers) ** order for order in orders):
            every = chain(*(product(numbers, repeat=order) for order in orders))
            if all(block == other for block, other in zip(blocks, every, strict=True)):
                return orders
        return Chosen(tuple(blocks))

    def _of_groups(self, arguments: Arguments) -> dict[int, list[tuple[Tree, ...]]]:
        """Return, by order, what stands in the slots of each group."""
        groups = []
        for group in self._groups or ():
            trees = [part_of(self._name, entry, arguments).tree for entry in group]
            numbers, spec = tree_flatten(tuple(trees))
            if len({*numbers}) < len(numbers):
                refuse(self._name, "groups", f"a tensor twice in {group!r}", "every tensor once in a group", _LEAVE_OUT)
            groups.append(Tree(tuple(numbers), spec))
        self._check_distinct("groups", [frozenset(group.numbers) for group in groups])
        return {order: [(group,) * order for group in groups] for order in self._orders}

    def _of_blocks(self, arguments: Arguments) -> dict[int, list[tuple[Tree, ...]]]:
        """Return, by order, what stands in the slots of each block."""
        blocks = []
        for block in self._blocks or ():
            flat = [tree_flatten(part_of(self._name, entry, arguments).tree) for entry in block]
            blocks.append(tuple([Tree(tuple(numbers), spec) for numbers, spec in flat]))
        self._check_distinct("blocks", [tuple([tree.numbers for tree in block]) for block in blocks])
        return {order: [block for block in blocks if len(block) == order] for order in self._orders}

    def _check_distinct(self, what: str, found: Sequence[Any]) -> None:
        given = self._groups if what == "groups" else self._blocks
        seen: set[Any] = set()
        for place, each in enumerate(found):
            if each in seen:
                got = f"{(given or ())[place]!r} twice"
                refuse(self._name, what, got, "each of them once", _LEAVE_OUT)
            seen.add(each)


_LEAVE_OUT = "Leave the second one out."


def _listed(block: Sequence[Tree]) -> Iterable[Block]:
    """Return the blocks that one of trees stands for, that of the first slot outermost."""
    return product(*(tree.numbers for tree in block))


def _nest(blocks: Sequence[Sequence[Tree]]) -> Nest:
    """Return what nests the blocks that each of some blocks of trees stands for, and makes a tuple of these."""
    counts = [prod([len(tree.numbers) for tree in block]) for block in blocks]
    nests = [nesting([tree.spec for tree in block]) for block in blocks]

    def nest_all(found: Sequence[Any]) -> Any:
        parts, start = [], 0
        for count, nest in zip(counts, nests, strict=True):
            parts.append(nest(found[start : start + count]))
            start += count
        return tuple(parts)

    return nest_all


def _below(found: Mapping[int, Sequence[Block]]) -> list[Block]:
    """Return the blocks of lower orders that some blocks are derivatives of, but those that are there."""
    every = {*chain(*found.values())}
    parts = {part for block in every for order in range(1, len(block)) for part in combinations(sorted(block), order)}
    return sorted(parts - every)


# Checks that do not depend on a call.


def checked(name: str, which: Which, order: int, *, all_orders: bool, orders_below: bool) -> Choice | None:
    """Return which blocks are asked for, None if all of them are.

    Args:
        name: Name of the transform.
        which: What the caller asked for.
        order: The highest order that the transform computes.
        all_orders: Whether it returns all orders up to that.
        orders_below: Whether what the blocks are derivatives of is needed too.

    Raises:
        ArgumentError: It is no such thing.
    """
    blocks, groups = which
    orders = range(1, order + 1) if all_orders or orders_below else (order,)
    if groups is not None:
        if not isinstance(blocks, str) or blocks != "all":
            refuse(name, "groups", f"groups={groups!r} and blocks={blocks!r}", "one of the two", "Leave one out.")
        found = _entries(name, "groups", groups, "Put each group into a list: groups=[[0, 1], [2]].")
        return Choice(name, orders, None, found, orders_below)
    if isinstance(blocks, str):
        if blocks not in BLOCKS:
            expected = f"one of {BLOCKS}, or a list of tuples"
            refuse(name, "blocks", repr(blocks), expected, "A block of 'w' and 'b' is blocks=[('w', 'b')].")
        return None if blocks == "all" else Choice(name, orders, None, None, orders_below)
    found = _entries(name, "blocks", blocks, f"Put each block into a tuple: blocks=[{(0,) * order}].")
    for block in found:
        if len(block) > order or (len(block) < order and not all_orders):
            expected = f"{'at most ' if all_orders else ''}{order}, one for every slot"
            remedy = f"Write a path as a tuple in the tuple of a block: blocks=[{(('layers', 0, 'w'),) * order}]."
            refuse(name, "blocks", f"{block!r}, of {len(block)} entries", expected, remedy)
    return Choice(name, orders, found, None, orders_below)


def _entries(name: str, what: str, given: Any, remedy: str) -> Entries:
    """Return a list of lists of entries as tuples."""
    if not isinstance(given, list | tuple) or not given:
        refuse(name, what, repr(given), "a list of tuples of entries, with one at least", remedy)
    for each in given:
        if not isinstance(each, list | tuple) or not each:
            refuse(name, what, repr(each), "a tuple of entries, with one at least", remedy)
        for entry in each:
            if not is_entry(entry):
                expected = "the number of an argument, a key, or a tuple of these"
                refuse(name, f"an entry of {what}", repr(entry), expected, "A path is a tuple: ('layers', 0, 'w').")
    return tuple([tuple(each) for each in given])
