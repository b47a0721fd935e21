"""The graph of a recorded function: plain tuples, hashable, without tensor data.

The nodes of a graph are its structure (ops, constants, wiring, shapes and dtypes), and so the graph itself is the key
under which a plan is cached. The values of the nodes are kept beside it, in a list with the same numbering.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import copysign, isnan
from struct import pack
from typing import Any, NamedTuple

import torch

INPUT = "input"
CONSTANT = "constant"
NUMBER = "number"


class Ref(NamedTuple):
    """Stands for the value of a node, by its number, among the arguments of an op."""

    node: int


class Node(NamedTuple):
    """One tensor of the recorded function, and how it is computed.

    Attributes:
        number: Its place in the graph.
        op: The callable that computes it; INPUT, CONSTANT or NUMBER for a tensor that is given, the last if it stands
            for a number among the arguments of ops.
        args: Positional arguments of op, tensors as Refs, lists as tuples.
        kwargs: Keyword arguments as pairs.
        output: Which of several outputs of op this is; None if op returns one tensor.
        operands: Numbers of the nodes that its Refs stand for, in order of appearance.
        shape: Shape of its value.
        dtype: Dtype of its value.
        device: Device of its value, if it is given; that of the others follows.
        active: Whether it depends, differentiably as far as is known, on a differentiated input.
    """

    number: int
    op: Any
    args: tuple
    kwargs: tuple[tuple[str, Any], ...]
    output: int | None
    operands: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device | None
    active: bool

    @property
    def is_given(self) -> bool:
        """Whether the node is an input, a constant or a number, which no op computes."""
        return self.op is INPUT or self.op is CONSTANT or self.op is NUMBER

    def moved(self, number: int, operands: tuple[int, ...], *, active: bool) -> "Node":
        """Return the same node of another graph, by its number there and those of its operands."""
        args, kwargs = self.args, self.kwargs
        if operands != self.operands:
            numbers = dict(zip(self.operands, operands, strict=True))
            args, kwargs = renumbered(args, numbers), renumbered(kwargs, numbers) if kwargs else kwargs
        looks = self.output, operands, self.shape, self.dtype, self.device
        return Node(number, self.op, args, kwargs, *looks, active)


class _Graph(NamedTuple):
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    aux: tuple[int, ...] = ()


class Graph(_Graph):
    """Nodes in order of computation.

    Attributes:
        nodes: The nodes.
        inputs: Numbers of those that are inputs.
        outputs: Numbers of those that are differentiated.
        aux: Numbers of those of which only the value is wanted.
    """

    def __hash__(self) -> int:
        known = self.__dict__.get("hash")
        if known is None:
            known = self.__dict__["hash"] = tuple.__hash__(self)
        return known

    def exchanged(self, count: int, forms: tuple[tuple[tuple[int, ...], torch.dtype, torch.device], ...]) -> "Graph":
        """Return the same graph with other inputs after the first few, none of which any node takes.

        Args:
            count: How many stay.
            forms: Shapes, dtypes and devices of the others.
        """
        known = self.__dict__.setdefault("others", {})
        if (count, forms) not in known:
            known.clear()
            known[count, forms] = self._exchanged(count, forms)
        found: Graph = known[count, forms]
        return found

    def _exchanged(self, count: int, forms: tuple) -> "Graph":
        before, after = len(self.inputs), count + len(forms)
        numbers = [*range(count), *[-1] * (before - count), *range(after, after + len(self.nodes) - before)]
        given = [
            Node(number, INPUT, (), (), None, (), shape, dtype, device, True)
            for number, (shape, dtype, device) in enumerate(forms, count)
        ]
        moved = [
            node.moved(numbers[node.number], tuple([numbers[operand] for operand in node.operands]), active=node.active)
            for node in self.nodes[before:]
        ]
        ends = [tuple([numbers[number] for number in group]) for group in (self.outputs, self.aux)]
        return Graph((*self.nodes[:count], *given, *moved), tuple(range(after)), *ends)

    def __getstate__(self) -> None:
        """Leave out the hash, which is another one in another process, and what is kept of others like it."""


class Exact(float):
    """A number among constants that ``==`` does not tell from others or from itself: -0.0, or nan, by its bits."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Exact) and _bits(self) == _bits(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(_bits(self))


class ExactComplex(complex):
    """A complex number among constants, of which a part is such a number."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExactComplex) and _bits(self.real, self.imag) == _bits(other.real, other.imag)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(_bits(self.real, self.imag))


def _bits(*parts: float) -> bytes:
    return pack(f"{len(parts)}d", *parts)


def exact(number: float | complex) -> float | complex:
    """Return a number of type float or complex so that it is equal to itself, and to nothing else, in a key."""
    parts = (number.real, number.imag)
    if not any(isnan(part) or (part == 0 and copysign(1, part) < 0) for part in parts):
        return number
    return ExactComplex(number) if isinstance(number, complex) else Exact(number)


class Call(NamedTuple):
    """A function and its arguments, with a Ref for every tensor; calling it fills in the tensors.

    Among the arguments of what computes a factor may be other Calls, of tensors that several factors are made from: a
    plan computes each of them once, and puts a Ref in its place.

    Example:
        >>> Call(torch.add, (Ref(3), 1), (("alpha", 2),))(torch.tensor(5.0))
        tensor(7.)
    """

    op: Callable
    args: tuple
    kwargs: tuple[tuple[str, Any], ...] = ()

    def __call__(self, *tensors: Any) -> Any:
        """Call the function with the given objects, in order, in place of the Refs."""
        supply = iter(tensors)
        if not self.kwargs:
            return self.op(*fill(self.args, supply))
        return self.op(*fill(self.args, supply), **{name: fill(value, supply) for name, value in self.kwargs})


class Mask(Call):
    """A call that tells which elements are passed on: others become zero, also what is nan, which a product keeps."""

    __slots__ = ()


class Weights(Mask):
    """A call that tells with what weight elements are passed on; those of weight zero become zero likewise."""

    __slots__ = ()


def fill(template: Any, supply: Iterator) -> Any:
    """Replace every Ref of a nested tuple, and of Calls in it, by the next item of supply."""
    kind = type(template)
    if kind is Ref:
        return next(supply)
    if kind is tuple:
        return tuple(
            [
                next(supply) if type(item) is Ref else fill(item, supply) if type(item) in _NESTED else item
                for item in template
            ]
        )
    if kind is Call:
        return Call(template.op, fill(template.args, supply), fill(template.kwargs, supply))
    return template


def refs(template: Any) -> list[Ref]:
    """List the Refs of a nested tuple, and of Calls in it, in order of appearance."""
    if type(template) is Ref:
        return [template]
    found: list[Ref] = []
    if type(template) is tuple:
        for item in template:
            kind = type(item)
            if kind is Ref:
                found.append(item)
            elif kind in _NESTED:
                found += refs(item)
    elif type(template) is Call:
        return refs(template.args) + refs(template.kwargs)
    return found


_NESTED = {tuple, Call}
_FILLED = {tuple, Call, Ref}


def renumbered(template: Any, numbers: Mapping[int, int] | Sequence[int]) -> Any:
    """Replace every Ref of a nested tuple, and of Calls in it, by a Ref to numbers[node]."""
    kind = type(template)
    if kind is Ref:
        return Ref(numbers[template.node])
    if kind is tuple:
        return tuple([renumbered(item, numbers) if type(item) in _FILLED else item for item in template])
    if kind is Call:
        return Call(template.op, renumbered(template.args, numbers), renumbered(template.kwargs, numbers))
    return template


def with_calls(template: Any, replace: Callable[[Call], Any]) -> Any:
    """Replace every outermost Call of a nested tuple."""
    kind = type(template)
    if kind is tuple and not _NESTED.isdisjoint(map(type, template)):
        return tuple([with_calls(item, replace) for item in template])
    return replace(template) if kind is Call else template


def computed(template: Any, values: Mapping[int, Any] | Sequence[Any]) -> Any:
    """Return a nested tuple with the values of nodes in place of Refs to them, and the results of Calls in theirs."""
    kind = type(template)
    if kind is Ref:
        return values[template.node]
    if kind is tuple:
        return tuple([computed(item, values) for item in template])
    if kind is Call:
        return template.op(*computed(template.args, values), **dict(computed(template.kwargs, values)))
    return template


def call_of(node: Node) -> Call:
    """Return the call that computes a node."""
    return Call(node.op, node.args, node.kwargs)
