"""Recording for replay: every tensor that a function takes, passed or captured, is an input of its graph.

For one call a tensor that the function captured, and all that it computes from such tensors alone, may stand in the
graph as values. A graph that is to be replayed must compute them again, since a captured weight may have been trained
meanwhile, and since autograd goes back through a value only once.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_leaves

from hofunc.graph.identity import alias_of, root_of
from hofunc.graph.layout import layout_of
from hofunc.graph.node import CONSTANT, Call
from hofunc.graph.record import Recording
from hofunc.graph.tape import Tape


class Reading(NamedTuple):
    """A number or truth value that left torch, on which what was recorded may depend.

    Attributes:
        call: What returned it, with Refs to nodes.
        operands: The nodes, in order of appearance.
        value: What it was.
    """

    call: Call
    operands: tuple[int, ...]
    value: bool | int | float | complex


class Replayable(NamedTuple):
    """A recording of which nothing that its tensors decide is left out.

    Attributes:
        recording: The recording.
        captured: The tensors that the function captured, the last inputs of the graph.
        readings: The values that the function read.
    """

    recording: Recording
    captured: list[torch.Tensor]
    readings: list[Reading]


class CapturingTape(Tape):
    """A tape that makes an input of every tensor that reaches an op and was made by none.

    Attributes:
        readings: The values that the function read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.readings: list[Reading] = []
        self._made: dict[int, torch.Tensor] = {}  # by id, which a tensor keeps while it is alive

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        with torch._C.DisableTorchFunctionSubclass():
            self.capture((args, kwargs))
        out = super().__torch_dispatch__(func, types, args, kwargs)
        self._made.update((id(leaf), leaf) for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor))
        if torch.Tag.data_dependent_output in func.tags:
            self._note(func, args, kwargs or {}, out)
        return out

    def _note(self, op: Any, args: tuple, kwargs: dict, value: Any) -> None:
        """Note what an op has read, if that depends on an input."""
        self._flush()
        self._storages.refresh((args, kwargs))
        if not self.ledger.nodes_of((args, kwargs)):
            return
        operands: list[int] = []
        template = self.ledger.encode(args, operands)
        keywords = tuple(zip(kwargs, self.ledger.encode(kwargs.values(), operands), strict=True))
        self.readings.append(Reading(Call(op, template, keywords), tuple(operands), value))

    def capture(self, tree: Any) -> None:
        """Make inputs of the tensors of a tree that are known from nowhere."""
        for leaf in tree_leaves(tree):
            if isinstance(leaf, torch.Tensor) and not self._is_known(leaf):
                self.captured.add(id(leaf))
                self.ledger.add_input(leaf, active=False)

    def _is_known(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor is an input or was made by an op, or is a view that no op made of such a tensor."""
        if id(tensor) in self._made or id(tensor) in self.ledger.tracked:
            return True
        root = root_of(tensor)
        if id(root) in self.captured:  # of this, the function may have captured views as well
            return layout_of(tensor) == layout_of(root)
        return id(root) in self._made or id(root) in self.ledger.tracked


def record_for_replay(
    f: Callable[..., Any], active: Sequence[torch.Tensor], others: Sequence[torch.Tensor]
) -> Replayable:
    """Call ``f(active, others)`` once and record it.

    Args:
        f: Function of two lists of tensors.
        active: The tensors by which it is differentiated.
        others: Other tensors that it takes.

    Returns:
        The recording, of which the graph's inputs are active, others and the captured tensors, in this order.

    Raises:
        MutationError: f writes to an input or to a captured tensor.
        UntracedError: f computes in a way that cannot be followed.
    """
    tape = CapturingTape()
    with torch.inference_mode(False), torch.enable_grad():
        given = (*active, *others)
        aliases = [alias_of(tensor) for tensor in given]
        for place, alias in enumerate(aliases):
            tape.ledger.add_input(alias, active=place < len(active))
        with tape:
            seen = tape.seen(aliases, given)
            result = f(seen[: len(active)], seen[len(active) :])
        with torch._C.DisableTorchFunctionSubclass():
            tape.capture(result)
        leaves, spec = tree_flatten(result)
        graph = tape.graph([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])
        tape.check_hooks()
    pairs = zip(graph.nodes, tape.ledger.values, strict=True)
    values = [value.detach() if node.op is CONSTANT else value for node, value in pairs]  # f made what is constant
    captured = [values[number] for number in graph.inputs[len(aliases) :]]
    return Replayable(Recording(graph, values, leaves, spec, None), captured, tape.readings)
