"""What is taken apart for the steps of a recurrence, and put together from them, as one tensor.

A sequence is read by the steps one by one, and what they give is put one after the other again. As all steps are one
batch, that is a tensor which is there, along one of its axes; by way of its parts, each would take calls of its own.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple, cast

import torch

from hofunc.graph.node import Call, Node, Ref, refs
from hofunc.plan.rebuilt import Rebuilt
from hofunc.plan.states import ROW, is_line, row
from hofunc.rules.kinds import Rule
from hofunc.rules.lower import Lowered
from hofunc.rules.registry import RULES

aten = torch.ops.aten


class _Place(NamedTuple):
    """Where a node is read: a tensor, the first of its columns if it is no more than these, and the row."""

    whole: int
    column: int | None
    row: int


class Sequences(Rebuilt):
    """A graph as far as it is made, in which what has rows of a tensor one after the other is part of the tensor.

    Args:
        lowered: The graph in place of which it is.
    """

    def __init__(self, lowered: Lowered):
        super().__init__(lowered)
        self._places: dict[int, _Place] = {}

    def read(self, whole: int, number: int, start: int, shape: tuple[int, ...]) -> int:
        """Append part of a row of a matrix, as a tensor of some shape."""
        flat = shape if is_line(shape) else (prod(shape),)
        found = self.append(Call(row, (Ref(whole), number, start, flat)), flat, rule=ROW)
        if flat != shape:
            found = self.reshaped(found, shape)
        self._places[found] = _Place(whole, start, number)
        return found

    def sequence(self, numbers: Sequence[int]) -> int:
        """Append nodes of one shape as one tensor, along its first axis."""
        shape = self.nodes[numbers[0]].shape
        pieces = [
            self.stack(group) if place is None else self._rows(place, len(group), shape)
            for place, group in self._groups(numbers)
        ]
        if len(pieces) == 1:
            return pieces[0]
        call = Call(aten.cat.default, (tuple(map(Ref, pieces)), 0))
        return self.ruled(call, (len(numbers), *shape))

    def put_together(self, node: Node) -> int | None:
        """Append a node that stacks rows of what is a batch, as one tensor; None if it does something else."""
        numbers = [self.numbers[operand] for operand in node.operands]
        dims = (*node.args[1:], *dict(node.kwargs).values())
        if node.op not in (aten.stack.default, aten.cat.default) or not {*dims} <= {0}:
            return None
        are_rows = node.op is aten.stack.default or {self.nodes[each].shape[:1] for each in numbers} == {(1,)}
        if not are_rows or self._places.keys().isdisjoint(numbers):
            return None
        found = self.sequence(numbers)
        return found if self.nodes[found].shape == node.shape else self.reshaped(found, node.shape)

    def _groups(self, numbers: Sequence[int]) -> list[tuple[_Place | None, list[int]]]:
        """Part nodes into those that are rows one after the other, with the place of the first, and others."""
        groups: list[tuple[_Place | None, list[int]]] = []
        for number in numbers:
            place = self._place(number)
            first, group = groups[-1] if groups else (None, [])
            follows = first is not None and place == first._replace(row=first.row + len(group))
            if group and (follows or (first is None and place is None)):
                group.append(number)
            else:
                groups.append((place, [number]))
        return groups

    def _place(self, number: int) -> _Place | None:
        """Return where a node is read, None if it is no row."""
        node = self.nodes[number]
        if node.op is aten.unbind.int and not any(node.args[1:]):
            return _Place(node.operands[0], None, node.output or 0)
        if node.op is aten.select.int and node.args[1] == 0 and node.args[2] >= 0:
            return _Place(node.operands[0], None, node.args[2])
        return self._places.get(number)

    def _rows(self, place: _Place, count: int, shape: tuple[int, ...]) -> int:
        """Append some rows of a tensor, each as a tensor of some shape."""
        found = self.cut(place.whole, 0, place.row, count)
        if place.column is not None:
            found = self.cut(found, 1, place.column, prod(shape))
        return found if self.nodes[found].shape == (count, *shape) else self.reshaped(found, (count, *shape))

    def cut(self, number: int, dim: int, start: int, size: int) -> int:
        """Append part of a tensor along a dimension."""
        shape = self.nodes[number].shape
        if size == shape[dim]:
            return number
        call = Call(aten.slice.Tensor, (Ref(number), dim, start, start + size))
        return self.ruled(call, (*shape[:dim], size, *shape[dim + 1 :]))

    def ruled(self, call: Call, shape: tuple[int, ...]) -> int:
        """Append a node that is computed by an op of torch, which is linear, from nodes of one dtype."""
        operands = [self.nodes[ref.node] for ref in refs(call.args)]
        rule = cast(Rule, RULES[call.op]) if any(operand.active for operand in operands) else None
        return self.append(call, shape, operands[0].dtype, rule=rule)
