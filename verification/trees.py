"""Functions of pytrees whose leaves are of any shape: numbers, rows, matrices, and tensors without elements."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

WIDTH = 3
SHAPES = ((WIDTH,), (), (2, WIDTH), (0,), (1,), (WIDTH, WIDTH), (WIDTH, 1), (0, 2), (4,), (2, 1, WIDTH), (1, 1))


class Layer(NamedTuple):
    """What a layer does with a part of two leaves."""

    kind: int
    source: int
    place: int


@dataclass(frozen=True, repr=False)
class Function:
    """A function of a pytree, which has for its argument the tensors that are given, and what it returns.

    Attributes:
        layers: What it does, one after the other.
        nest: How the leaves are nested.
        returned: What it returns of its state.
        argument: The point at which to look at it.
    """

    layers: Sequence[Layer]
    nest: int
    returned: int
    argument: Any

    def __call__(self, argument: Any) -> Any:
        """Call the function."""
        leaves = tree_leaves(argument)
        state, total = torch.linspace(-1, 1, WIDTH, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for kind, source, place in self.layers:
            one, other = (part(leaves[number % len(leaves)], place) for number in (source, source + 1))
            state, added = KINDS[kind](state, one, other)
            total = total + added
        return RETURNED[self.returned](state, total)

    def like(self, seed: int) -> Any:
        """Return a pytree like the argument, of other numbers."""
        generator = torch.Generator().manual_seed(seed)
        return tree_map(lambda x: torch.randn(x.shape, dtype=x.dtype, generator=generator), self.argument)

    def __repr__(self) -> str:
        shapes = [tuple(x.shape) for x in tree_leaves(self.argument)]
        return f"function_of({[*map(tuple, self.layers)]}, {shapes}, {self.nest}, {self.returned})"


def part(x: Tensor, place: int) -> Tensor:
    """Return as many numbers of a leaf as a state has, from a place on; of none, the ones that do not depend on it."""
    if not x.numel():
        return x.sum() + torch.linspace(0.2, 0.7, WIDTH, dtype=x.dtype)
    if not x.dim():
        return x.expand(WIDTH)
    if x.shape[-1] == WIDTH:
        return x.reshape(-1, WIDTH)[place % (x.numel() // WIDTH)]
    return x.reshape(-1)[(torch.arange(WIDTH) + place) % x.numel()]


def _written(state: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    result = state.clone()
    result[1:] = (state[:-1] * one[1:]).tanh()
    result[0] = other[0] + state[2]
    return result, one[2] * other[1]


def _summed(state: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    index = torch.tensor([2, 0, 2])
    first, second, third = state[index]  # torch is wrong of prod at zero
    return state.index_add(0, index, one * other[index]).sin(), first * second * third


def _solved(state: Tensor, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    matrix = torch.outer(one, other).tanh() + 3 * torch.eye(WIDTH, dtype=state.dtype)
    return torch.linalg.inv(matrix) @ (state + other), matrix.diagonal().log().sum()  # torch is wrong of solve


KINDS: tuple[Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]], ...] = (
    lambda state, one, other: ((state + one).tanh(), other.sum()),
    lambda state, one, other: ((state * one).sin() + other.flip(0), (state * other).sum() ** 2),
    lambda state, one, other: (torch.where(one > 0, state * other, state.cos()), one.square().sum()),
    lambda state, one, other: (torch.softmax(state * other, 0).cumsum(0), (one * state).sum().sin()),
    lambda state, one, other: (torch.cat([one[:1].exp().reciprocal(), state[1:]]) + 0 * other, state.sum() * one[1]),
    _written,
    _summed,
    _solved,
)
RETURNED: tuple[Callable[[Tensor, Tensor], Any], ...] = (
    lambda state, total: total + state.square().sum(),
    lambda state, total: state * total,
    lambda state, total: {"loss": (state.sum() * total).sin()},
    lambda state, total: (total + state[0], {"rest": [state[1:], state[:0] * total]}),
)


def nested(shapes: Sequence[Sequence[int]], nest: int, seed: int) -> Any:
    """Return tensors of these shapes as a pytree."""
    generator = torch.Generator().manual_seed(seed)
    first, *rest = (0.6 * torch.randn(tuple(x), dtype=torch.float64, generator=generator) for x in shapes)
    if not rest:
        return (first, {"w": first}, [(first,)])[nest % 3]
    return (
        [first, *rest],
        {"a": [*rest], "w": first},
        ({"b": (first,)}, *rest),
        {"y": (first, rest[1:]), "z": rest[0]},
    )[nest]


def function_of(layers: Sequence[Sequence[int]], shapes: Sequence[Sequence[int]], nest: int, returned: int) -> Function:
    """Return a function of leaves of these shapes."""
    return Function([Layer(*layer) for layer in layers], nest, returned, nested(shapes, nest, 0))


def functions(*, most_leaves: int = 10, most_layers: int = 6) -> st.SearchStrategy[Function]:
    """Return a strategy of functions of up to so many leaves, which shrinks to few of both."""
    layers = st.tuples(st.integers(0, len(KINDS) - 1), st.integers(0, most_leaves - 1), st.integers(0, 5))
    return st.builds(
        function_of,
        st.lists(layers, min_size=1, max_size=most_layers),
        st.lists(st.sampled_from(SHAPES), min_size=1, max_size=most_leaves),
        st.integers(0, 3),
        st.integers(0, len(RETURNED) - 1),
    )
