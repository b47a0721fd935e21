"""Which blocks are asked for, and what lies on the way to them, told by keys: the variables of a block's slots.

A coefficient, or a block by nodes, is on the way to a block that is asked for only if its slots can become slots of
that block, each by a variable on which it depends; all else is left out before it is composed.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import chain, combinations, combinations_with_replacement
from operator import or_

from hofunc.algebra.partitions import Key
from hofunc.plan.blocks import Local
from hofunc.plan.wanted import Chosen, Wanted, highest, orders_of

Variables = int  # a set of them, as the bits of a number


class Keys:
    """The keys of the blocks that are asked for.

    Args:
        wanted: What is asked for: all blocks of some orders, unless some are chosen.
        inputs: The nodes that are inputs.

    Attributes:
        orders: Their orders.
        highest: The highest of them, one at least.
        are_chosen: Whether some blocks of these orders are not asked for.
    """

    def __init__(self, wanted: Wanted, inputs: Sequence[int]):
        self.orders, self.highest = orders_of(wanted), highest(wanted)
        self.are_chosen = isinstance(wanted, Chosen)
        self._asked: set[Key] = set()
        self._parts: dict[int, list[tuple[Key, Variables]]] = defaultdict(list)  # what is part of one, by order
        self._beside: dict[Key, Variables] = defaultdict(int)  # what a part may have besides
        self._known: dict[tuple[Variables, ...], bool] = {}
        if isinstance(wanted, Chosen):
            self._asked = {tuple(sorted([inputs[number] for number in block])) for block in wanted.blocks}
            self._note_parts()

    def _note_parts(self) -> None:
        """Note all that keys are made from, the empty key too."""
        parts = {part for key in self._asked for size in range(len(key) + 1) for part in combinations(key, size)}
        for part in sorted(parts):
            self._parts[len(part)].append((part, set_of(part)))
            for place, variable in enumerate(part):
                self._beside[part[:place] + part[place + 1 :]] |= 1 << variable

    def has(self, key: Key) -> bool:
        """Tell whether the block of a key, in any order of its slots, is asked for."""
        return tuple(sorted(key)) in self._asked if self.are_chosen else len(key) in self.orders

    def among(self, variables: Variables, orders: Iterable[int]) -> list[Key]:
        """List what keys are made from, of the given orders and of these variables alone."""
        if self.are_chosen:
            return [part for order in orders for part, own in self._parts[order] if not own & ~variables]
        return keys_of(members(variables), orders)

    def asked_among(self, variables: Variables, orders: Iterable[int]) -> list[Key]:
        """List the keys that are asked for, likewise."""
        return [key for key in self.among(variables, orders) if self.has(key)]

    def leads(self, slots: Sequence[Variables]) -> bool:
        """Tell whether a block can become part of one that is asked for, given what each of its slots depends on."""
        if not self.are_chosen:
            return True
        slots = tuple(sorted(slots))
        if slots not in self._known:
            self._known[slots] = self._lead((), slots)
        return self._known[slots]

    def _lead(self, part: Key, slots: Sequence[Variables]) -> bool:
        """Tell whether slots can be put beside a part of a key."""
        if not slots:
            return True
        left = slots[0] & self._beside.get(part, 0)
        while left:
            variable = left.bit_length() - 1
            if self._lead(tuple(sorted((*part, variable))), slots[1:]):
                return True
            left ^= 1 << variable
        return False


def keys_of(variables: Iterable[int], orders: Iterable[int]) -> list[Key]:
    """List the multisets of variables of the given orders."""
    every = sorted(variables)
    return [key for order in orders for key in combinations_with_replacement(every, order)]


def set_of(variables: Iterable[int]) -> Variables:
    """Return a set of variables."""
    return reduce(or_, (1 << variable for variable in variables), 0)


def members(variables: Variables) -> list[int]:
    """List the members of a set of variables."""
    found = []
    while variables:
        rest = variables & variables - 1
        found.append((variables ^ rest).bit_length() - 1)
        variables = rest
    return found


def depends_of(local: Mapping[int, Local], variables: Iterable[int]) -> dict[int, Variables]:
    """Return the variables on which each node depends, given the local derivatives of the nodes, and each variable."""
    depends = {variable: 1 << variable for variable in variables}
    for node in sorted(local):
        depends[node] = reduce(or_, (depends[operand] for operand in {*chain(*local[node])}), 0)
    return depends
