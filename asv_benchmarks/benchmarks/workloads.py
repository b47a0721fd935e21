"""What is measured: functions with inputs in float32, and which derivative of each is asked for.

T is the network of the thesis of THOAD, P a network with few inputs and one output a row, A attention, C a classifier
by its parameters, and N a network of two convolutions. G, what reads at the indices of a graph, is in `graphs`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .functions import (
    TORCH,
    Array,
    Ops,
    attention,
    classifier,
    convolutional_by_input,
    convolutional_by_parameters,
    perceptron,
    thesis,
    thesis_by_input,
)

Function = Callable[..., Tensor]
RESULT_LIMIT = 512 * 2**20  # bytes of a result; larger ones are no points of the suite


@dataclass(frozen=True)
class Subject:
    """A function of which something is measured.

    Attributes:
        name: Family and sizes, as it is shown.
        function: From ops, constants and args to a scalar, or to (N,) for x of shape (N, d).
        constants: What the function takes but is not differentiated by.
        args: What it is differentiated by.
    """

    name: str
    function: Callable[..., Array]
    constants: tuple[Any, ...]
    args: tuple[Any, ...]

    @property
    def family(self) -> str:
        """The letter that the name starts with."""
        return self.name[0]

    @property
    def f(self) -> Function:
        """The function of the arguments alone, in torch."""
        return partial(self.function, TORCH, self.constants)

    def with_ops(self, ops: Ops, convert: Callable[[Tensor], Array]) -> tuple[Callable[..., Array], tuple[Any, ...]]:
        """Return the function and the arguments for another library."""
        turn = partial(tree_map, lambda leaf: convert(leaf) if isinstance(leaf, Tensor) else leaf)
        return partial(self.function, ops, turn(self.constants)), turn(self.args)


@dataclass(frozen=True)
class Workload(Subject):
    """A derivative of a function by all its arguments.

    Attributes:
        order: That of the derivative.
        rows: Whether each row of the only argument x (N, d) is treated by itself and the derivative wanted is that of
            every row, (N, d, ... order times); otherwise it is that of everything by everything, dense.
        independent: Whether rows are treated by themselves, whatever is wanted.
    """

    order: int
    rows: bool
    independent: bool = False

    @property
    def argnums(self) -> int | tuple[int, ...]:
        """All arguments: an integer where there is one, so that the result nests no deeper than needed."""
        return 0 if len(self.args) == 1 else tuple(range(len(self.args)))

    @property
    def size(self) -> int:
        """The number of entries of the result."""
        if self.rows:
            count, width = self.args[0].shape
            return int(count * width**self.order)
        return int(sum(leaf.numel() for leaf in tree_leaves(self.args)) ** self.order)

    @property
    def nbytes(self) -> int:
        """The bytes of the result, in float32."""
        return 4 * self.size


class Random:
    """Draws from one seed."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, *shape: int) -> Tensor:
        """Return normal numbers."""
        return torch.randn(shape, generator=self.generator)


def _activations(depth: int) -> tuple[str, ...]:
    return tuple("relu" if number % 2 == 0 else "tanh" for number in range(depth - 1))


def thesis_rows(batch: int, width: int, order: int = 2, depth: int = 3) -> Workload:
    """The thesis's network: the derivative of every row of the loss by that row, (batch, width, ...)."""
    random = Random()
    layers = tuple(random(width, width) / width**0.5 for _ in range(depth))
    constants = (random(width), _activations(depth), layers)
    name = f"T rows order {order}, {batch}x{width}, depth {depth}"
    return Workload(name, thesis_by_input, constants, (random(batch, width),), order, rows=True, independent=True)


def thesis_whole(batch: int, width: int, depth: int = 3) -> Workload:
    """The thesis's network: the dense Hessian by its input, (batch, width, batch, width)."""
    rows = thesis_rows(batch, width, 2, depth)
    name = f"T whole Hessian, {batch}x{width}, depth {depth}"
    return Workload(name, rows.function, rows.constants, rows.args, 2, rows=False, independent=True)


def thesis_parameters(width: int, batch: int = 10, depth: int = 3, order: int = 2) -> Workload:
    """The thesis's network: the dense derivative by its input and all its layers, as blocks."""
    random = Random()
    layers = [random(width, width) / width**0.5 for _ in range(depth)]
    constants = (random(width), _activations(depth))
    name = f"T input+parameters order {order}, {batch}x{width}, depth {depth}"
    return Workload(name, thesis, constants, (random(batch, width), *layers), order, rows=False)


def layers_of(random: Random, *sizes: int) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return the weights and biases of layers from each size to the next."""
    return tuple((random(before, after) / before**0.5, random(after) / 2) for before, after in pairwise(sizes))


def perceptron_rows(
    inputs: int, order: int, rows: int = 128, activation: str = "tanh", width: int = 64, depth: int = 4
) -> Workload:
    """A network with one output a row: its derivative by the row, (rows, inputs, ...)."""
    random = Random()
    layers = layers_of(random, inputs, *(depth * [width]), 1)
    name = f"P {activation} order {order}, {rows}x{inputs}, width {width}, depth {depth}"
    args = (random(rows, inputs),)
    return Workload(name, perceptron, (activation, layers), args, order, rows=True, independent=True)


def attention_whole(length: int, width: int) -> Workload:
    """Attention: the dense Hessian by its input, (length, width, length, width)."""
    random = Random()
    maps = (random(width, width) / width**0.5 for _ in range(3))
    constants = (*maps, random(length, width))
    return Workload(f"A Hessian, {length}x{width}", attention, constants, (random(length, width),), 2, rows=False)


def classifier_parameters(hidden: int, inputs: int = 10, classes: int = 10, batch: int = 32) -> Workload:
    """A classifier: the dense Hessian by its parameters, as blocks."""
    random = Random()
    parameters = {
        "bias1": random(hidden) / 2,  # sorted by name, as JAX sorts them
        "bias2": random(classes) / 2,
        "weight1": random(inputs, hidden) / inputs**0.5,
        "weight2": random(hidden, classes) / hidden**0.5,
    }
    targets = torch.arange(batch) % classes
    count = sum(leaf.numel() for leaf in parameters.values())
    name = f"C Hessian, {inputs}-{hidden}-{classes}, {count} parameters"
    return Workload(name, classifier, (random(batch, inputs), targets), (parameters,), 2, rows=False)


def convolutional_whole(by: str, side: int = 8, channels: tuple[int, int, int] = (1, 4, 8)) -> Workload:
    """A network of two convolutions by windows of 3 x 3: the dense Hessian by its "input" or its "parameters"."""
    random = Random()
    first, second, third = channels
    parameters = {
        "bias1": random(second, 1, 1) / 2,  # sorted by name, as JAX sorts them
        "bias2": random(third, 1, 1) / 2,
        "weight1": random(second, first, 3, 3) / (9 * first) ** 0.5,
        "weight2": random(third, second, 3, 3) / (9 * second) ** 0.5,
    }
    x, weights = random(1, first, side, side), random(third, side, side)
    name = f"N Hessian by {by}, {first}x{side}x{side}, channels {second} and {third}"
    if by == "input":
        return Workload(name, convolutional_by_input, (weights, parameters), (x,), 2, rows=False)
    return Workload(name, convolutional_by_parameters, (weights, x), (parameters,), 2, rows=False)
