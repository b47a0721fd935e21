"""Functions that are planned anew at every call, and what of them changes."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from hofunc.errors import PlanningWarning, warn
from hofunc.graph.node import Graph, Node

MANY = 16  # times that something is planned again before anything is said
KEPT = 4096  # of the plans that were dropped, how many are known


class Family:
    """Graphs of the same ops in the same order, which one function is likely to have.

    Attributes:
        in_a_row: How many of them were planned since one was last met again.
    """

    __slots__ = ("_graph", "_warned", "in_a_row")

    def __init__(self) -> None:
        self.in_a_row = 0
        self._graph: Graph | None = None
        self._warned = False

    def note(self, graph: Graph) -> None:
        """Take note that a graph was planned, and warn if that is so at every call."""
        before, self._graph = self._graph, graph
        self.in_a_row += 1
        if self.in_a_row < MANY or self._warned or before is None:
            return
        self._warned = True
        warn(
            f"hofunc: a function was planned anew at each of {self.in_a_row} calls, which takes longer than what is "
            f"planned: {_difference(before, graph)}",
            PlanningWarning,
        )


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
