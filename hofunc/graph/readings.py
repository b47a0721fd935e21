"""What leaves torch while a function runs, of the tensors that it is given: what it does next may depend on that."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from hofunc.graph.compared import comparisons
from hofunc.graph.identity import tensors_in
from hofunc.graph.node import Call, Ref
from hofunc.graph.reads import Contents, Reads
from hofunc.graph.tape import Tape

_NUMBER = torch.ops.aten._local_scalar_dense.default


class Reading(NamedTuple):
    """What left torch of a tensor, on which what was recorded may depend: a number, a truth value, a shape, contents.

    Attributes:
        call: What returned it, with Refs to nodes.
        operands: The nodes, in order of appearance.
        value: What it was.
    """

    call: Call
    operands: tuple[int, ...]
    value: bool | int | float | complex | tuple[int, ...] | torch.Tensor


class ReadingTape(Tape):
    """A tape that takes note of what is read of tensors that depend on an input.

    Attributes:
        readings: The values that the function read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.readings: list[Reading] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if torch.Tag.data_dependent_output in func.tags:
            self._note(func, args, kwargs or {}, out)
        return out

    def _note(self, op: Any, args: tuple, kwargs: dict, value: Any) -> None:
        """Note what an op has read, if that depends on an input."""
        self._settle()
        tensors = tensors_in((args, kwargs))
        self._storages.refresh(tensors)
        if not self.ledger.nodes_of(tensors):
            return
        operands: list[int] = []
        template = self.ledger.encode(args, operands)
        keywords = tuple(zip(kwargs, self.ledger.encode(kwargs.values(), operands), strict=True))
        compared = comparisons(value) if op is _NUMBER else None
        if compared is None:
            self.readings.append(Reading(Call(op, template, keywords), tuple(operands), value))
        else:
            self.readings += [Reading(Call(each, template), tuple(operands), each.of(value)) for each in compared]

    def read(self, tensors: Sequence[torch.Tensor], by: str) -> None:
        """Note that the numbers in tensors are read past the ops."""
        super().read(tensors, by)
        for tensor in tensors:
            for number in self.ledger.nodes_of((tensor,)):
                self.readings.append(Reading(Call(Contents(by), (Ref(number),)), (number,), tensor.detach().clone()))


def recorded(
    function: Callable, values: Sequence[torch.Tensor], activity: Iterable[bool]
) -> tuple[ReadingTape, list[Any]]:
    """Record a function of tensors; returns its outputs too, a single one as a list."""
    tape = ReadingTape()
    operands = [value.detach() for value in values]
    for operand, active in zip(operands, activity, strict=True):
        tape.ledger.add_input(operand, active=active)
    with tape, Reads(tape.read):
        result = function(*operands)
    return tape, list(result) if isinstance(result, tuple | list) else [result]
