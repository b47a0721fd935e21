"""Functions that take the same steps over and over: what a step does is drawn, and what of it is differentiated by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

WIDTH = 2
ARGUMENTS = ("start", "pushes", "rate", "matrix")


class Made(NamedTuple):
    """What a step makes next, of two of the tensors that it has so far."""

    kind: int
    one: int
    other: int


class Around(NamedTuple):
    """What a step finds beside its states."""

    push: Tensor
    rate: Tensor
    matrix: Tensor
    number: float


MAKERS: tuple[Callable[[Tensor, Tensor, Around], Tensor], ...] = (
    lambda x, _y, around: around.matrix @ x,
    lambda x, _y, around: x + around.push,
    lambda x, y, around: x * around.number + y,
    lambda x, _y, around: x * around.rate,
    lambda x, y, _around: x * y,
    lambda x, _y, _around: x.sin(),
    lambda x, y, _around: x.tanh() - y,
    lambda x, y, _around: x / (1 + y * y),
    lambda x, _y, _around: (1 + x * x).log(),
    lambda x, _y, around: (1 + x * x).sqrt() * around.number,
    lambda x, y, _around: x.relu() + 0.1 * y,
    lambda x, _y, _around: x.clamp(-0.5, 0.8),
    lambda x, _y, _around: x * x[0],
    lambda x, y, _around: torch.cat([x, y])[1 : WIDTH + 1],
    lambda x, y, _around: torch.stack([x, y]).mean(0),
    lambda x, _y, _around: (-x * x).exp(),
    lambda x, y, _around: torch.outer(x, y).sum(0),
    lambda x, _y, _around: x.softmax(0),
)


@dataclass(frozen=True)
class Recurrence:
    """A function of some of its tensors that takes steps.

    Attributes:
        steps: How many.
        makes: What a step makes, one after the other; the last of it are the next states.
        states: How many states there are.
        named: What it is a function of, of ARGUMENTS.
        returns_all: Whether it returns the first state of all steps, rather than the states of the last one.
        looks_back: Whether a step takes a state of the step before the last one.
    """

    steps: int
    makes: Sequence[Made]
    states: int
    named: tuple[str, ...]
    returns_all: bool
    looks_back: bool

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors that it takes."""
        generator = torch.Generator().manual_seed(self.steps)
        shapes = (WIDTH,), (self.steps, WIDTH), (WIDTH,), (WIDTH, WIDTH)
        drawn = (0.5 * torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes)
        return dict(zip(ARGUMENTS, drawn, strict=True))

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """The point at which to look at it."""
        return tuple([self.tensors[name] for name in self.named])

    def __call__(self, *arguments: Tensor) -> Tensor:
        """Take all steps."""
        given = self.tensors | dict(zip(self.named, arguments, strict=True))
        states = [given["start"], *[torch.linspace(-0.4, 0.7, WIDTH, dtype=torch.float64)] * (self.states - 1)]
        before, firsts = states, []
        for number, push in zip(cycle((0.3, -0.7, 1.1)), given["pushes"], strict=False):
            around = Around(push, given["rate"], given["matrix"], number)
            found = [*states, *before[: self.looks_back]]
            for kind, one, other in self.makes:
                found.append(MAKERS[kind](found[one % len(found)], found[other % len(found)], around))
            before, states = states, [found[-1].tanh(), *found[-self.states : -1]]
            firsts.append(states[0])
        return torch.cat(firsts if self.returns_all else states)


def recurrences() -> st.SearchStrategy[Recurrence]:
    """Draw recurrences."""
    numbers = st.integers(0, 20)
    makes = st.lists(st.builds(Made, st.integers(0, len(MAKERS) - 1), numbers, numbers), min_size=3, max_size=8)
    named = st.sets(st.sampled_from(ARGUMENTS), min_size=1, max_size=3).map(lambda names: tuple(sorted(names)))
    rarely = st.sampled_from([False, False, False, True])
    return st.builds(Recurrence, st.integers(8, 18), makes, st.integers(1, 3), named, rarely, rarely)
