"""What a function did when it was last recorded, along which a recording goes as long as the function does the same.

Most calls of a function come to the graph of the call before. Then no node has to be made to find that it is equal to
the one that it was: it is enough to compare, and the graph is the very object of which all else is known already.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hofunc.graph.calls import Again, Calls
from hofunc.graph.node import CONSTANT, Graph, Node, Ref, call_of
from hofunc.graph.route import Route
from hofunc.internals import OpOverload

PATIENCE = 8  # calls, over which a function may take other tensors again that it captures
_OTHERWISE = (torch.ops.aten.as_strided.default, torch.ops.aten.detach.default)  # what the ledger enters in other ways
_HOW = frozenset((type(None), torch.dtype, torch.device, torch.layout, torch.memory_format))  # equal to nothing else
_PLAIN = frozenset((int, bool, str, float, type(None), torch.dtype, torch.device, torch.layout))


class Step(NamedTuple):
    """A call of an op that is expected, which returns tensors and takes no lists of tensors.

    Attributes:
        op: The op.
        arity: The number of its arguments.
        known: Which of them are tensors that are tracked, and their nodes.
        constants: Which are constants, and their nodes, of which those come right before that nothing took before.
        others: Which are no tensors, what they are, and their types.
        keywords: What it takes by name, which is how a tensor is to be made.
        node: The node of what it returns, or the first of several.
        shape: The shape of that.
        dtype: Its dtype.
        several: The nodes of all that it returns, if the op returns several tensors; None if it returns one.
    """

    op: OpOverload
    arity: int
    known: tuple[tuple[int, int], ...]
    constants: tuple[tuple[int, int], ...]
    others: tuple[tuple[int, Any, type], ...]
    keywords: dict[str, Any]
    node: Node
    shape: tuple[int, ...]
    dtype: torch.dtype
    several: tuple[Node, ...] | None


class Trail:
    """A recorded graph as what to expect of the next recording.

    Args:
        graph: The graph.
        are_known: Whether it is only given to recordings of inputs that are like those of the graph: plain tensors of
            the same shapes, dtypes and devices.
        are_plain: Whether autograd follows none of these inputs, and all are dense.
        writes: Whether the function wrote in place.
        before: What was recorded last of such inputs, which is another graph.

    Attributes:
        steps: The calls that are expected, by how many nodes there are before; none until the graph was met again.
        writes: Whether the function writes in place, as far as was seen.
        hides_history: Whether it does so to what depends on its inputs, as far as was seen.
        is_another: Whether such inputs came to another graph before: this one has to be met again to be looked at.
        calls: The calls of torch's functions that it made, if these tell that it comes to the graph, see NOTE [calls].
        have_calls_differed: Whether they were other ones once.
        others_met: For how many calls it is still looked at what the function reaches, before it is called: since it
            took other tensors in the place of those that it captured, as a function that is made anew does.
        are_calls_untold: Whether they do not, or have differed twice.
        own: The tensors of plans that they took when they were noted first, if they took some.
        route: All that it did, if that was surveyed, for one that writes.
        is_untold: Whether a survey came to no route.
        leads_outside: Which values autograd followed where outputs had derivatives by what the function captured.
        is_bare: Whether of what is recorded next no history is needed but that of the inputs; None if without another
            graph is recorded.
    """

    __slots__ = (
        "are_calls_untold",
        "are_known",
        "are_plain",
        "calls",
        "graph",
        "have_calls_differed",
        "hides_history",
        "is_another",
        "is_bare",
        "is_untold",
        "leads_outside",
        "others_met",
        "own",
        "route",
        "steps",
        "writes",
    )

    def __init__(
        self,
        graph: Graph,
        *,
        are_known: bool = False,
        are_plain: bool = False,
        writes: bool = False,
        before: "Trail | None" = None,
    ):
        self.graph, self.are_known, self.are_plain = graph, are_known, are_plain
        self.steps: dict[int, Step] = {}
        self.writes, self.hides_history, self.is_untold = writes, writes, False
        self.route: Route | None = None
        self.calls: Calls | None = None
        self.own: Sequence[Tensor] | None = None
        self.is_another = before is not None
        self.others_met = 0
        self.have_calls_differed: bool = before is not None and before.have_calls_differed
        self.are_calls_untold: bool = before is not None and before.are_calls_untold
        self.leads_outside: list[bool] | None = None
        self.is_bare: bool | None = False

    def met_again(self) -> Graph:
        """Note that a recording went along all of it, and return the graph."""
        if not self.steps:
            self.steps = dict(_steps(self.graph))
        return self.graph

    def note_calls(self, found: Calls | None) -> None:
        """Note the calls that were made, if these tell anything, which are gone by from now on.

        Tensors that they took of plans have to be the same ones twice, so that it is known that plans keep them.
        """
        if found is not None and found.own and self.own is None:
            self.own = found.own
            return
        is_known = found is not None and (not found.own or [*map(id, found.own)] == [*map(id, self.own or ())])
        self.calls = found if is_known else None
        self.are_calls_untold = self.calls is None

    def lose_calls(self) -> None:
        """Note that other calls were made than these."""
        self.calls, self.are_calls_untold = None, self.have_calls_differed
        self.have_calls_differed = True

    def note_met(self, again: Again) -> None:
        """Note which tensors a recording along calls met in the place of captured ones."""
        if again.met and self.calls is not None:
            self.calls.captured.meet(again.met)
            self.others_met = PATIENCE
        elif self.others_met:
            self.others_met -= 1

    def may_tell_calls(self) -> bool:
        """Tell whether calls may tell that a recording comes to the graph, which are not known as yet."""
        if self.calls is not None or self.are_calls_untold or (self.is_another and not self.steps):
            return False
        self.are_calls_untold = not all(node.is_given or isinstance(node.op, OpOverload) for node in self.graph.nodes)
        return not self.are_calls_untold


NOTHING = Trail(Graph((), (), ()))  # to expect


def _steps(graph: Graph) -> Iterator[tuple[int, Step]]:
    """Yield the calls that may be expected, each after how many nodes there are before it and its new constants."""
    before = 0
    for node in graph.nodes:
        if node.op is CONSTANT:
            continue
        step = None if node.is_given or node.output else _step(graph, node, before)
        if step is not None:
            yield before, step
        before = node.number + 1


def _outputs(graph: Graph, first: Node) -> tuple[Node, ...] | None:
    """Return the nodes of all that a call returned of which the first is given, if it returned several; else None."""
    if first.output is None:
        return None
    found = [first]
    for node in graph.nodes[first.number + 1 :]:
        if node.output != len(found) or call_of(node) != call_of(first):
            break
        found.append(node)
    return tuple(found)


def _step(graph: Graph, node: Node, before: int) -> Step | None:
    """Return the call of a node as it is expected; None if it has to be entered otherwise."""
    if not isinstance(node.op, OpOverload) or node.op in _OTHERWISE:
        return None
    taken = [(place, arg.node) for place, arg in enumerate(node.args) if type(arg) is Ref]
    new = dict.fromkeys(number for _, number in taken if number >= before)
    constants = tuple((place, number) for place, number in taken if graph.nodes[number].op is CONSTANT)
    known = tuple((place, number) for place, number in taken if graph.nodes[number].op is not CONSTANT)
    others = [(place, _passed(arg)) for place, arg in enumerate(node.args) if type(arg) is not Ref]
    if (
        [*new] != [*range(before, node.number)]
        or not known
        or any(other is _OTHERWISE for _, other in others)
        or any(type(value) not in _HOW for _, value in node.kwargs)
    ):
        return None
    typed = tuple((place, other, type(other)) for place, other in others)
    several = _outputs(graph, node)
    keywords = dict(node.kwargs)
    return Step(node.op, len(node.args), known, constants, typed, keywords, node, node.shape, node.dtype, several)


def _passed(arg: Any) -> Any:
    """Return what stands for an argument in a graph as it is passed; something else if it has to be encoded."""
    if type(arg) is tuple and all(type(item) is int for item in arg):
        return [*arg]
    is_told_apart = type(arg) in _PLAIN and (type(arg) is not float or arg != 0)  # which -0.0 is equal to
    return arg if is_told_apart else _OTHERWISE
