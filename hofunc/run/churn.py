"""Functions that are planned anew at every call, and what of them changes."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from hofunc.errors import PlanningWarning, warn
from hofunc.graph.node import Graph, Node

MANY = 16  # times that something is planned again before anything is said
KEPT = 4096  # of the plans that were dropped, how many are known


class _Series:
    """Graphs that one function is likely to have, as they are planned.

    Args:
        difference: Says what two graphs differ in, and what helps; None if they are not likely to be of one function.
    """

    __slots__ = ("_difference", "_graph", "_warned", "in_a_row")

    def __init__(self, difference: Callable[[Graph, Graph], str | None]):
        self.in_a_row = 0
        self._difference = difference
        self._graph: Graph | None = None
        self._warned = False

    def note(self, graph: Graph) -> None:
        """Take note that a graph was planned, and warn if that is so at every call."""
        before, self._graph = self._graph, graph
        difference = None if before is None or self._warned else self._difference(before, graph)
        self.in_a_row = 1 if difference is None else self.in_a_row + 1
        if self.in_a_row < MANY or difference is None:
            return
        self._warned = True
        warn(
            f"hofunc: a function was planned anew at each of {self.in_a_row} calls, which takes longer than what is "
            f"planned: {difference}",
            PlanningWarning,
        )


class Family:
    """Graphs of the same ops in the same order, which one function is likely to have, and graphs that are akin.

    Args:
        kin: Those of the same ops, some of them more or less often, as a loop has that takes more or fewer turns.
    """

    __slots__ = ("_kin", "_own")

    def __init__(self, kin: "Kin"):
        self._own, self._kin = _Series(_difference), kin

    def note(self, graph: Graph) -> None:
        """Take note that a graph was planned, and warn if that is so at every call."""
        self._own.note(graph)
        self._kin.note(graph)

    def met_again(self) -> None:
        """Take note that the plan of a graph was found."""
        self._own.in_a_row = self._kin.in_a_row = 0


class Kin(_Series):
    """Graphs of the same ops, of which one has more of them than the one before or fewer, and all else the same."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_difference_in_number)


class Dropped:
    """The plans that the cache dropped, by the hashes of their keys, and how many of them were made again."""

    def __init__(self) -> None:
        self._hashes: OrderedDict[int, None] = OrderedDict()
        self._made_again = 0

    def note(self, key: int) -> None:
        """Take note that a plan is dropped."""
        self._hashes[key] = None
        while len(self._hashes) > KEPT:
            self._hashes.popitem(last=False)

    def holds(self, key: int, bounds: str) -> bool:
        """Tell whether a plan that is made now had been dropped, and warn once if so were several."""
        if self._hashes.pop(key, "") is not None:
            return False
        self._made_again += 1
        if self._made_again == MANY:
            warn(
                f"hofunc: {MANY} plans were made again that had been dropped, since the cache keeps no more than "
                f"{bounds}. Raise hofunc.options(cache_bytes=...), or keep plans yourself, by .plan of a transform.",
                PlanningWarning,
            )
        return True

    def clear(self) -> None:
        """Forget all of them."""
        self._hashes.clear()
        self._made_again = 0


def _difference(before: Graph, after: Graph) -> str:
    """Say what two graphs of the same ops differ in, and what helps."""
    for one, other in zip(before.nodes, after.nodes, strict=True):
        if one != other:
            return _difference_of_nodes(one, other)
    return "another number of elements that a mask selects. Keep all, and leave some out by torch.where."


def _difference_in_number(before: Graph, after: Graph) -> str | None:
    """Say how many ops two graphs have, if the ops of one are those of the other with some left out."""
    was, now = ([node.op for node in graph.nodes] for graph in (before, after))
    fewer, more = sorted((was, now), key=len)
    left = iter(more)
    if len(was) == len(now) or not all(any(op is other for other in left) for op in fewer):
        return None
    counts, others = Counter(was), Counter(now)
    op = max(others, key=lambda op: abs(others[op] - counts[op]))
    return (
        f"{len(was)} nodes, then {len(now)}, of {op} {counts[op]}, then {others[op]}. Let loops take as many turns at "
        "every call, with torch.where for what is to stay as it is in those that are too many."
    )


def _difference_of_nodes(one: Node, other: Node) -> str:
    if one.args != other.args or one.kwargs != other.kwargs:
        pairs = [*zip(one.args, other.args, strict=False), *zip(one.kwargs, other.kwargs, strict=False)]
        was, now = _first_different(pairs)
        return f"{_shown(was)}, then {_shown(now)}, among the arguments of {one.op}. Pass a tensor, if it takes one."
    what = f"the result of {one.op}" if not one.is_given else f"an {one.op} of f" if one.op == "input" else "a constant"
    if one.shape == other.shape:
        return f"{what} is of {one.dtype} on {one.device}, then of {other.dtype} on {other.device}."
    return (
        f"{what} has shape {tuple(one.shape)}, then {tuple(other.shape)}. Pad to a few sizes, or keep all elements and "
        "leave some out by torch.where."
    )


def _first_different(pairs: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    return next(((was, now) for was, now in pairs if was != now), ("an argument", "another number of them"))


def _shown(value: Any) -> str:
    is_named = isinstance(value, tuple) and len(value) > 1 and isinstance(value[0], str)
    return f"{value[0]}={value[1]!r}" if is_named else repr(value)
