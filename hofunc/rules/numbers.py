"""Numbers as values: those among the arguments of ops that may be others at another call without another plan.

A number that scales, is added, filled in or compared with is to the derivatives what a captured tensor without axes is.
So a graph may be planned with a node in its place, of which the value is given at every run. Numbers that rules or
recognised formulas read are structure: exponents, bounds, a number that keeps a root away from zero. So are zero, what
is not finite, and, of the others, whether they are surely positive, since this tells where singularities are.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from types import FunctionType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from hofunc.graph.holding import held_by
from hofunc.graph.node import NUMBER, Exact, Graph, Node, Ref, refs
from hofunc.graph.values import Values
from hofunc.rules.kinds import Composite, Constant, Rule
from hofunc.rules.registry import FUSIONS, RULES
from hofunc.rules.signs import Sign, sign_of_number

aten = torch.ops.aten

_EXACT_IN = (torch.float32, torch.float64)  # in which ops on numbers compute, so that a tensor holds what they take


class Spot(NamedTuple):
    """Where a number stands: at a place among the positional arguments of a node, or under a name among the others."""

    node: int
    place: int | str


class _Hole(NamedTuple):
    """Stands in the key of graphs for any number of a sign."""

    sign: Sign


class _Numbers(NamedTuple):
    """The places of an op's numbers that may be values, and its rule with tensors there, or the op that has it."""

    places: tuple[int | str, ...]
    rule: Any


_NUMBERS: dict[Any, _Numbers] = {
    aten.add.Tensor: _Numbers((1, "alpha"), Composite(lambda x, y, *, alpha=1: x + _times(y, alpha))),
    aten.sub.Tensor: _Numbers((1, "alpha"), Composite(lambda x, y, *, alpha=1: x - _times(y, alpha))),
    aten.rsub.Scalar: _Numbers((1, 2), Composite(lambda x, y, alpha=1: y - _times(x, alpha))),
    aten.rsub.Tensor: _Numbers(("alpha",), Composite(lambda x, y, *, alpha=1: y - _times(x, alpha))),
    aten.lerp.Scalar: _Numbers((2,), aten.lerp.Tensor),
    aten.masked_fill.Scalar: _Numbers((2,), aten.masked_fill.Tensor),
    **{op: _Numbers((1,), op) for op in (aten.mul.Tensor, aten.div.Tensor)},
    **{op: _Numbers(("value",), op) for op in (aten.addcmul.default, aten.addcdiv.default)},
    **{
        op: _Numbers(("beta", "alpha"), op)
        for op in (aten.addmm.default, aten.addmv.default, aten.baddbmm.default, aten.addbmm.default, aten.addr.default)
    },
    **{
        op: _Numbers((1,), Constant())
        for op in (aten.gt.Scalar, aten.ge.Scalar, aten.lt.Scalar, aten.le.Scalar, aten.full_like.default)
    },
}


def _times(x: Tensor, factor: Tensor | float) -> Tensor:
    return x if isinstance(factor, int) and factor == 1 else x * factor


def rule_with_numbers(op: Any) -> Rule | Composite | Constant:
    """Return the rule of an op with tensors in the place of numbers."""
    rule = _NUMBERS[op].rule
    return cast(Rule | Composite | Constant, RULES.get(rule, rule))


def numbers_of(graph: Graph) -> dict[Spot, float]:
    """Return the numbers of a graph that may be values, in order."""
    return {
        Spot(node.number, place): number
        for node in graph.nodes
        if node.op in _NUMBERS and (node.dtype in _EXACT_IN or node.dtype is torch.bool)
        for place, number in _arguments(node)
        if place in _NUMBERS[node.op].places and _is_value(number)
    }


def _arguments(node: Node) -> Iterator[tuple[int | str, Any]]:
    yield from enumerate(node.args)
    yield from node.kwargs


def number_at(graph: Graph, spot: Spot) -> float:
    """Return the number at a spot of a graph."""
    return cast(float, dict(_arguments(graph.nodes[spot.node]))[spot.place])


def _is_value(number: object) -> bool:
    return type(number) in (int, float) and not isinstance(number, Exact) and number != 0 and isfinite(number)  # type: ignore[arg-type]


def without_numbers(graph: Graph, numbers: Mapping[Spot, float]) -> Graph:
    """Return a key that graphs share which differ in numbers only."""
    return _filled(graph, {spot: _Hole(sign_of_number(number)) for spot, number in numbers.items()})


def lifted(graph: Graph, numbers: Mapping[Spot, float], devices: Sequence[torch.device]) -> Graph:
    """Return a graph with nodes, after all others, in place of some numbers.

    Args:
        graph: The graph.
        numbers: The numbers.
        devices: The device of the value of every node.
    """
    count = len(graph.nodes)
    filled = _filled(graph, {spot: Ref(count + place) for place, spot in enumerate(numbers)})
    added = tuple(
        Node(
            count + place,
            NUMBER,
            (sign_of_number(number),),
            (),
            None,
            (),
            (),
            _dtype(graph, spot),
            devices[spot.node],
            False,
        )
        for place, (spot, number) in enumerate(numbers.items())
    )
    return filled._replace(nodes=(*filled.nodes, *added))


def as_tensors(graph: Graph, numbers: Mapping[Spot, float], values: list[Tensor] | Values) -> list[Tensor] | Values:
    """Return the values of the nodes of a graph, and after them those of the nodes in place of numbers."""
    result = values.copy()
    result.extend(
        [
            torch.tensor(number, dtype=_dtype(graph, spot), device=values[spot.node].device)
            for spot, number in numbers.items()
        ]
    )
    return result


def _dtype(graph: Graph, spot: Spot) -> torch.dtype:
    dtype = graph.nodes[spot.node].dtype
    return dtype if dtype.is_floating_point else torch.float64


def _filled(graph: Graph, fillings: Mapping[Spot, Any]) -> Graph:
    """Return a graph with other arguments at some spots."""
    nodes = list(graph.nodes)
    for (number, place), filling in fillings.items():
        node = nodes[number]
        args = tuple(filling if at == place else arg for at, arg in enumerate(node.args))
        kwargs = tuple((name, filling if name == place else arg) for name, arg in node.kwargs)
        operands = tuple(ref.node for ref in refs((args, kwargs)))
        nodes[number] = node._replace(args=args, kwargs=kwargs, operands=operands)
    return graph._replace(nodes=tuple(nodes))


def read_by_formulas(graph: Graph, spots: Sequence[Spot]) -> set[Spot]:
    """Return the spots of which the numbers are read where a formula of several ops is recognised, or another one is.

    They are told from the others by halves, since there are few, if any.
    """
    other = _filled(graph, {spot: _Hole(Sign.ANY) for spot in spots})
    own = {spot.node for spot in spots}
    are_read = any(
        not _same(recognise(graph, node), recognise(other, node))
        for node in graph.nodes
        if node.number not in own
        for recognise in FUSIONS.get(node.op, ())
    )
    if not are_read or len(spots) == 1:
        return {*spots} if are_read else set()
    half = len(spots) // 2
    return read_by_formulas(graph, spots[:half]) | read_by_formulas(graph, spots[half:])


def _same(one: Any, other: Any) -> bool:
    """Compare what was recognised, functions by their code and what that has from outside."""
    if isinstance(one, Composite) and type(one) is type(other):
        return _same(one.function, other.function) and getattr(one, "before", ()) == getattr(other, "before", ())
    if isinstance(one, FunctionType) and isinstance(other, FunctionType):
        return one.__code__ is other.__code__ and all(map(_same, _closed_over(one), _closed_over(other)))
    return bool(one == other)


def _closed_over(function: Callable) -> list[Any]:
    return [*map(held_by, getattr(function, "__closure__", None) or ())]
