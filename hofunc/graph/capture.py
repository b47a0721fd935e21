"""Recording for replay: every tensor that a function takes, passed or captured, is an input of its graph.

For one call a tensor that the function captured, and all that it computes from such tensors alone, may stand in the
graph as values. A graph that is to be replayed must compute them again, since a captured weight may have been trained
meanwhile, and since autograd goes back through a value only once.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves

from hofunc.graph.record import Recording
from hofunc.graph.tape import Tape


class CapturingTape(Tape):
    """A tape that makes an input of every tensor that reaches an op and was made by none."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, torch.Tensor] = {}  # by id, which a tensor keeps while it is alive

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.capture((args, kwargs))
        out = super().__torch_dispatch__(func, types, args, kwargs)
        self._made.update((id(leaf), leaf) for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor))
        return out

    def capture(self, tree: Any) -> None:
        """Make inputs of the tensors of a tree that are known from nowhere."""
        for leaf in tree_leaves(tree):
            if isinstance(leaf, torch.Tensor) and id(leaf) not in self._made and id(leaf) not in self.ledger.tracked:
                self.ledger.add_input(leaf, active=False)


def record_for_replay(
    f: Callable[..., Any], active: Sequence[torch.Tensor], others: Sequence[torch.Tensor]
) -> tuple[Recording, list[torch.Tensor]]:
    """Call ``f(active, others)`` once and record it.

    Args:
        f: Function of two lists of tensors.
        active: The tensors by which it is differentiated.
        others: Other tensors that it takes.

    Returns:
        The recording and the tensors that f captured. The graph's inputs are active, others and the captured tensors,
        in this order.

    Raises:
        MutationError: f writes to an input or to a captured tensor.
        UntracedError: f computes in a way that cannot be followed.
    """
    tape = CapturingTape()
    with torch.inference_mode(False), torch.enable_grad():
        aliases = [tensor.view_as(tensor) for tensor in (*active, *others)]
        for place, alias in enumerate(aliases):
            tape.ledger.add_input(alias, active=place < len(active))
        with tape:
            result = f(aliases[: len(active)], aliases[len(active) :])
        tape.capture(result)
        leaves, spec = tree_flatten(result)
        graph = tape.graph([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])
    values = tape.ledger.values
    captured = [values[number] for number in graph.inputs[len(aliases) :]]
    return Recording(graph, values, leaves, spec, None), captured
