"""Which numbers of a graph change from call to call, told from the graphs that were met.

NOTE [numbers]: a number is structure at first, since with it the planner makes the smaller plan, and most never change.
Where a graph is met again with other numbers at some places, those become values for good, so that a weight that is
annealed is planned for twice and no more, and what stays the same costs nothing.
"""

from collections import OrderedDict
from collections.abc import Hashable, Mapping

from hofunc.graph.node import Graph
from hofunc.rules.numbers import Spot, read_by_formulas


class _Met:
    """The numbers of the first graph of a kind, and the places at which later ones had others: values, or structure."""

    __slots__ = ("first", "structure", "values")

    def __init__(self, first: Mapping[Spot, float]):
        self.first = first
        self.values: set[Spot] = set()
        self.structure: set[Spot] = set()


class Schedules:
    """What is known of graphs that differ in numbers only.

    Args:
        most: Of how many kinds of graph to keep it.
    """

    def __init__(self, most: int):
        self._most = most
        self._met: OrderedDict[Hashable, _Met] = OrderedDict()

    def varying(self, key: Hashable, graph: Graph, numbers: Mapping[Spot, float]) -> dict[Spot, float]:
        """Return those of the numbers of a graph that are to be values, and take note of the graph.

        Args:
            key: What graphs have in common that differ in numbers only.
            graph: The graph.
            numbers: Its numbers that may be values.
        """
        met = self._met.setdefault(key, _Met(numbers))
        self._met.move_to_end(key)
        while len(self._met) > self._most:
            self._met.popitem(last=False)
        known = met.values | met.structure
        changed = [spot for spot, number in numbers.items() if number != met.first[spot] and spot not in known]
        if changed:
            read = read_by_formulas(graph, changed)
            met.structure |= read
            met.values |= {*changed} - read
        return {spot: number for spot, number in numbers.items() if spot in met.values}

    def clear(self) -> None:
        """Forget all graphs."""
        self._met.clear()
