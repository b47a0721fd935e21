"""What is differentiated, and random numbers to make it of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from hofunc.graph.record import record
from hofunc.plan.blueprint import Limits
from hofunc.plan.planner import Quick, quickly
from hofunc.rules.lower import lower

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Problem:
    """A scalar function and the derivative of it by all its arguments that is asked for.

    Attributes:
        f: The function.
        args: Its arguments.
        order: That of the derivative.
        written_out: The same function by ops of which nested torch.func is right, where for f it is wrong or fails.
    """

    f: Function
    args: tuple[Any, ...]
    order: int = 2
    written_out: Function | None = None

    @property
    def argnums(self) -> int | tuple[int, ...]:
        """All arguments: an integer where there is one, so that the result nests no deeper than needed."""
        return 0 if len(self.args) == 1 else tuple(range(len(self.args)))

    def planned(self) -> Quick:
        """Plan the derivative as its first call does."""
        leaves, spec = tree_flatten(self.args)
        with torch.no_grad():
            recording = record(lambda inputs, _: self.f(*tree_unflatten(inputs, spec)), leaves)
            lowered = lower(recording.graph, recording.values, self.order)
            return quickly(lowered, (self.order,), compact=False, limits=Limits(), looks=True)


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Return normal numbers in float64, the same ones for a seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64) * scale
