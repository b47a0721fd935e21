"""The choice of what an op on complex numbers becomes: what is entered for it, or what its rule for real ones says.

Functions here take and return pairs, see `hofunc.rules.in_parts`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hofunc.errors import HofuncError
from hofunc.graph.layout import as_complex, as_pairs
from hofunc.graph.node import Node, call_of
from hofunc.internals import tree_map
from hofunc.rules.choice import decompositions, is_usable
from hofunc.rules.expansion import Expansion
from hofunc.rules.holomorphic import HOLOMORPHIC, Holomorphic, OnPairs
from hofunc.rules.in_parts import IN_PARTS, linear, on_pairs
from hofunc.rules.kinds import Composite, Constant, Linear, Masked, Multilinear, Rule
from hofunc.rules.registry import RULES

# By op, a function of complex tensors that computes the same.
COMPLEX_COMPOSITES: dict[Any, Callable] = {}

# The ops with an expansion that is written for complex numbers too.
EXPANDED: set[Any] = set()


class AtOnce(NamedTuple):
    """An op on pairs that is differentiated by a rule of its own."""

    op: Callable
    rule: Rule


def on_complex_numbers(
    node: Node, are_complex: Sequence[bool], values: Mapping[int, Tensor]
) -> Callable | AtOnce | Expansion | None:
    """Return what computes the same as a node from tensors in which complex numbers are pairs along the last axis.

    What is made of the rule for real numbers is checked to compute the value that was recorded.

    Args:
        node: A node of which the value or an operand is complex.
        are_complex: Whether each of its operands is.
        values: The values of the node and its operands, complex ones as pairs.

    Returns:
        A function of the node's arguments, what computes it by a rule of its own, the expansion that it has for real
        numbers if that holds for complex ones too, or None if there is none.
    """
    if node.op in IN_PARTS:
        return on_pairs(node.op, IN_PARTS[node.op], are_complex, node.dtype.is_complex, node.output or 0)
    if node.op in COMPLEX_COMPOSITES:
        return _on_complex(COMPLEX_COMPOSITES[node.op], are_complex)
    rule = RULES.get(node.op)
    if isinstance(rule, Constant) or not (node.dtype.is_floating_point or node.dtype.is_complex):
        return None
    return _by_rule(node, rule, are_complex, values)


def _by_rule(
    node: Node, rule: Any, are_complex: Sequence[bool], values: Mapping[int, Tensor]
) -> Callable | AtOnce | Expansion | None:
    """Return the same for an op of which nothing is entered but its rule for real numbers, if it has that."""
    if isinstance(rule, Expansion):
        return rule if node.op in EXPANDED else None
    if node.op in HOLOMORPHIC or isinstance(rule, Multilinear):
        floating = [values[operand].is_floating_point() for operand in node.operands]
        if [*are_complex] == floating:
            flags = tuple(are_complex)
            return AtOnce(OnPairs(node.op, flags), Holomorphic(rule, flags))
        return _on_complex(_promoted(node.op), are_complex)
    if isinstance(rule, Linear) and not isinstance(rule, Masked):
        made = on_pairs(node.op, linear(node.op), are_complex, node.dtype.is_complex, node.output or 0)
        if _is_right(made, node, lambda: _elsewhere(node, are_complex, values)):
            return made
    return next((made for made in _made_of_rules(node, are_complex) if _is_right(made, node, lambda: values)), None)


def _made_of_rules(node: Node, are_complex: Sequence[bool]) -> Iterator[Callable]:
    """Yield what may compute the same as a node, by its rule for real numbers and by torch's definitions."""
    rule = RULES.get(node.op)
    functions = [rule.function] if isinstance(rule, Composite) else []
    for function in (*functions, *decompositions(node.op)):
        yield _on_complex(function, are_complex)


def _elsewhere(node: Node, are_complex: Sequence[bool], values: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Return other values of a node and its operands, which are unlike each other: at zero all linear ops are alike."""
    found = {number: _unlike(values[number], place) for place, number in enumerate(node.operands)}
    operands = zip(node.operands, are_complex, strict=True)
    with torch.no_grad():
        result = call_of(node)(*(as_complex(found[number]) if flag else found[number] for number, flag in operands))
    result = result if node.output is None else result[node.output]
    return {**found, node.number: as_pairs(result) if result.is_complex() else result}


def _unlike(value: Tensor, place: int) -> Tensor:
    if not value.is_floating_point():
        return value
    count = torch.arange(1, value.numel() + 1, device=value.device)
    return (count * (place + 2)).to(value.dtype).cos().reshape(value.shape)


def _is_right(made: Callable, node: Node, values: Callable[[], Mapping[int, Tensor]]) -> bool:
    """Tell whether a function computes the value of a node; one for real numbers may fail in any way of torch's."""
    try:
        return is_usable(made, node, values())
    except (RuntimeError, TypeError, ValueError, IndexError, HofuncError):  # a RecursionError is a RuntimeError
        return False


def _on_complex(function: Callable, are_complex: Sequence[bool]) -> Callable:
    """Return what computes a function of complex tensors from pairs."""

    def on_tensors(*args: Any, **kwargs: Any) -> Any:
        flags = iter(are_complex)

        def taken(template: Any) -> Any:
            if isinstance(template, Tensor):
                return as_complex(template) if next(flags) else template
            return tuple(map(taken, template)) if type(template) is tuple else template

        result = function(*map(taken, args), **{name: taken(value) for name, value in kwargs.items()})
        return tree_map(lambda y: as_pairs(y) if isinstance(y, Tensor) and y.is_complex() else y, result)

    return on_tensors


def changed_by_parts(changed: Callable, are_complex: Sequence[bool]) -> Callable:
    """Return what computes the outputs of an expansion, from changes by parts where operands are complex.

    Args:
        changed: Computes them from tensors of which the last are changes; see `hofunc.rules.expansion`.
        are_complex: Whether each operand is complex.
    """

    def on_tensors(*tensors: Tensor) -> list[Any]:
        changes = tensors[-len(are_complex) :]
        changes = tuple(as_complex(x) if flag else x for x, flag in zip(changes, are_complex, strict=True))
        outputs = changed(*tensors[: -len(are_complex)], *changes)
        return [as_pairs(y) if isinstance(y, Tensor) and y.is_complex() else y for y in outputs]

    return on_tensors


def _promoted(op: Callable) -> Callable:
    """Return what computes an op with its floating-point tensors as complex ones."""

    def on_tensors(*args: Any, **kwargs: Any) -> Any:
        return op(*tree_map(_as_complex_numbers, args), **tree_map(_as_complex_numbers, kwargs))

    return on_tensors


def _as_complex_numbers(leaf: Any) -> Any:
    if isinstance(leaf, Tensor) and leaf.is_floating_point():
        return torch.complex(leaf, torch.zeros_like(leaf))
    return leaf
