"""A sample: one use of an op, ready to be differentiated."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sample:
    """One use of an op, as a pure function of the real tensors that it can be differentiated by.

    Attributes:
        f: Function of ``inputs`` that returns a list of real tensors; random numbers in it are the same at every call.
        inputs: Where it is differentiated, float64.
        outputs: What it returns there.
    """

    f: Callable[..., list[Tensor]]
    inputs: tuple[Tensor, ...]
    outputs: list[Tensor]

    @property
    def entries(self) -> int:
        """How many numbers the third derivative has."""
        return sum(y.numel() for y in self.outputs) * sum(x.numel() for x in self.inputs) ** 3
