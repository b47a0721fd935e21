"""Which parts of a node meet in a block: of those that a node is put together of, side by side, most pairs need not.

A block by a node that is stacked or concatenated of many others has one composition for every pair of these. Where it
ties its slots to each other, as what is computed element by element does, or between neighbours, one part meets few
others: then those are found from where the first one leads to, rather than by trying all.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from hofunc.algebra.compose import compose
from hofunc.algebra.labels import Axis, extent
from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Term, span
from hofunc.plan.blocks import Local

LEAST = 8  # parts, below which all are tried


class Stacked:
    """A node that is put together of many parts, along one axis.

    Args:
        axis: Which axis of the node.
        terms: The derivative by each, in their order along the axis, by keys.
        ranges: Where they are.
    """

    def __init__(self, axis: int, terms: Mapping[Key, Term], ranges: Sequence[range]):
        self._axis, self._terms, self._keys = axis, terms, [*terms]
        self._starts, self._stops = [each.start for each in ranges], [each.stop for each in ranges]

    @classmethod
    def of(cls, local: Local) -> "Stacked | None":
        """Return the parts of a node, given its local derivatives; None if it is not put together of many."""
        if len(local) < LEAST or any(len(key) != 1 or len(terms) != 1 for key, terms in local.items()):
            return None
        found = {key: terms[0] for key, terms in local.items()}
        for axis in range(len(next(iter(found.values())).out)):
            ranges = {key: _range_of(term.out[axis]) for key, term in found.items()}
            order = sorted(ranges, key=lambda key: (ranges[key].start, ranges[key].stop))
            if all(ranges[one].stop <= ranges[other].start for one, other in pairwise(order)):
                return cls(axis, {key: found[key] for key in order}, [ranges[key] for key in order])
        return None

    def meeting(self, index: int, key: Key, terms: Sequence[Term]) -> list[list[Key]]:
        """Return the keys to put into the slots of the node, in ascending order, for which some term may not vanish.

        Args:
            index: The node.
            key: The key of the block, which is symmetric in the slots of the node.
            terms: Its terms.
        """
        places = [place for place, variable in enumerate(key) if variable == index]
        return [[*way] for way in sorted({way for term in terms for way in self._ways(term, places, ())})]

    def _ways(self, term: Term, places: Sequence[int], least: Key) -> Iterator[tuple[Key, ...]]:
        """Yield the keys for the slots at some places, of which each may lie in what those before leave of its slot."""
        place, *others = places
        reached = _range_of(term.slots[place][self._axis])
        first, last = bisect_right(self._stops, reached.start), bisect_left(self._starts, reached.stop)
        for key in self._keys[first:last]:
            if key < least:
                continue
            if not others:
                yield (key,)
                continue
            inners: list[Term | None] = [None] * len(term.slots)
            inners[place] = self._terms[key]
            rest = compose(term, inners)  # the slots of which are those that stayed, and then those of the part
            if rest is not None:
                yield from ((key, *way) for way in self._ways(rest, [each - 1 for each in others], key))


def _range_of(axis: Axis) -> range:
    """Return the indices among which those that an axis reaches are."""
    return span(axis[0]) if len(axis) == 1 else range(extent(axis))
