"""What the derivatives of a function are compared with: nested torch.func, and differences of the order below."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any, NamedTuple

import torch

from hofunc.arguments import Arguments, check_outputs, split
from hofunc.complex_tensors import taken_apart
from hofunc.internals import keystr, tree_flatten_with_path, tree_leaves
from hofunc.testing.differences import Estimate, slope
from hofunc.transforms import hod

Function = Callable[..., Any]
Argnums = int | Sequence[int]
Leaves = list[torch.Tensor]


class Named(NamedTuple):
    """What a tensor is called, and what it is."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


def named(root: str, tree: Any) -> list[Named]:
    """Name the tensors of a pytree after where they lie in it."""
    return [Named(root + keystr(path), tuple(leaf.shape), leaf.dtype) for path, leaf in tree_flatten_with_path(tree)[0]]


def of_parts(name: str, f: Function, args: tuple, argnums: Argnums) -> tuple[Function, tuple]:
    """Return a function and its arguments with real tensors, of parts, for the complex ones to differentiate by.

    The function returns no complex tensors either.

    Raises:
        ArgumentError: As from a call of `hod`, under the given name.
    """
    arguments = split(name, args, {}, argnums)
    real = arguments._replace(are_complex=(False,) * len(arguments.leaves))
    function = update_wrapper(partial(_called_by_parts, f, arguments), f, assigned=(), updated=())
    return function, tuple(real.joined(arguments.leaves, arguments.rest)[0])


def _called_by_parts(f: Function, arguments: Arguments, *args: Any) -> Any:
    leaves = [leaf for place in arguments.argnums for leaf in tree_leaves(args[place])]
    return taken_apart(f(*arguments.joined(leaves, (args, {}))[0]))


@dataclass(frozen=True, slots=True)
class Subject:
    """A function, and the point at which its derivatives are looked at. All tensors are returned in float64.

    Attributes:
        f: The function.
        argnums: What it is differentiated by.
        strategy: How.
        arguments: The point.
        inputs: The tensors that it is differentiated by.
        outputs: The tensors that it returns.
    """

    f: Function
    argnums: int | tuple[int, ...]
    strategy: str
    arguments: Arguments
    inputs: list[Named]
    outputs: list[Named]

    @classmethod
    def at(
        cls, name: str, f: Function, args: tuple, argnums: Argnums, output: Any, strategy: str = "auto"
    ) -> "Subject":
        """Return a function at its arguments, given what it returns there.

        Raises:
            ArgumentError: As from a call of `hod`, under the given name.
        """
        arguments = split(name, args, {}, argnums)
        check_outputs(name, output, tree_leaves(output))
        inputs = [entry for place in arguments.argnums for entry in named(f"args[{place}]", args[place])]
        numbers = argnums if isinstance(argnums, int) else tuple(argnums)
        return cls(f, numbers, strategy, arguments, inputs, named("f(*args)", output))

    def derivative(self, order: int, inputs: Sequence[torch.Tensor] | None = None) -> Leaves:
        """Return the derivative by hod, of order 0 the value of f; at the point, or at other inputs."""
        return self._called(hod(self.f, order, self.argnums, strategy=self.strategy) if order else self.f, inputs)

    def nested(self, order: int) -> Leaves:
        """Return the derivative by ``torch.func.jacrev``, nested."""
        g = self.f
        for _ in range(order):
            g = torch.func.jacrev(g, self.argnums)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is no concern of the caller's which batching rules torch lacks
            return self._called(g)

    def along(self, order: int, direction: Sequence[torch.Tensor]) -> list[Estimate]:
        """Return the slope of the derivative of the order below, by differences, in a direction."""
        below = order - 1
        shapes = [leaf.shape for leaf in self.derivative(below)]
        sizes = [shape.numel() for shape in shapes]

        def g(h: float) -> torch.Tensor:
            inputs = [x.detach() + h * v for x, v in zip(self.arguments.leaves, direction, strict=True)]
            return torch.cat([leaf.flatten() for leaf in self.derivative(below, inputs)])

        parts = zip(*(flat.split(sizes) for flat in slope(g)), strict=True)
        return [
            Estimate(*(tensor.reshape(shape) for tensor in part)) for part, shape in zip(parts, shapes, strict=True)
        ]

    def differences(self, order: int) -> list[Estimate]:
        """Return the derivative by differences of that of the order below."""
        columns: list[list[list[Estimate]]] = []  # by input, by its elements, by tensor of the order below
        for number, x in enumerate(self.arguments.leaves):
            columns.append([])
            for place in range(x.numel()):
                direction = [torch.zeros_like(leaf) for leaf in self.arguments.leaves]
                direction[number].view(-1)[place] = 1
                columns[-1].append(self.along(order, direction))
        below = self.derivative(order - 1)
        return [
            Estimate(*(_stacked([column[place][field] for column in of_input], leaf, x) for field in range(2)))
            for place, leaf in enumerate(below)
            for of_input, x in zip(columns, self.arguments.leaves, strict=True)
        ]

    def name(self, tensor: int, index: tuple[int, ...], order: int) -> str:
        """Name an entry of the derivative of an order, given the number of its tensor and its index there."""
        slots: list[Named] = []
        for _ in range(order):
            tensor, number = divmod(tensor, len(self.inputs))
            slots.insert(0, self.inputs[number])
        names = []
        for name, shape, _ in (self.outputs[tensor], *slots):
            own, index = index[: len(shape)], index[len(shape) :]
            names.append(f"{name}{list(own) if own else ''}")
        if not order:
            return names[0]
        return f"d^{order} {names[0]} / {' '.join(f'd {name}' for name in names[1:])}"

    def _called(self, g: Function, inputs: Sequence[torch.Tensor] | None = None) -> Leaves:
        args, kwargs = self.arguments.joined(self.arguments.leaves if inputs is None else inputs, self.arguments.rest)
        return [leaf.detach().double() for leaf in tree_leaves(g(*args, **kwargs))]


def _stacked(columns: Leaves, leaf: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return tensors, one for each element of an input, as one of the shape of the derivative by it."""
    if not columns:
        return leaf.new_zeros((*leaf.shape, *x.shape))
    return torch.stack(columns, -1).reshape((*leaf.shape, *x.shape))
