"""The facts that a recording depends on, beside its arguments: with all of them the same, it would be the same again.

All that a recording depends on:

- its arguments: their structure, the shape, dtype and device of tensors, the values of all else (`hofunc.signature`);
- values of tensors that the function reads, by `.item()` or past the ops (`Reading`, in `hofunc.graph.capture`);
- and here: tensors that it captures, of which only the values may change; whether autograd follows tensors, if it asks;
  the state of torch (`hofunc.graph.world`); what Python objects hold (`hofunc.graph.holding`, `hofunc.graph.settled`).

Random numbers are drawn anew, by ops of the recording. What sets their generator cannot be recorded and is refused.
"""

from collections.abc import Callable
from typing import NamedTuple, NoReturn

import torch

from hofunc.errors import PlanMismatchError
from hofunc.graph.identity import PLAIN
from hofunc.graph.reads import identical
from hofunc.graph.settled import Reliance
from hofunc.graph.world import STATE, state
from hofunc.internals import form_check


class Facts(NamedTuple):
    """The facts that held while a function was recorded.

    Attributes:
        state: The state of torch.
        captured: The tensors that it captured.
        forms: Shape, dtype, device and strides of each.
        reliance: What the Python objects that it read held, and attributes of tensors that tell of autograd; None where
            these objects are not.
        contents: Captured tensors by whose values a plan goes, each with a copy of what it held.
    """

    state: tuple
    captured: tuple[torch.Tensor, ...]
    forms: tuple[tuple, ...]
    reliance: Reliance | None
    contents: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()

    def checker(self, name: str) -> Callable[[], None]:
        """Return what checks that they still hold, as `check` does, and takes a few microseconds as long as they do."""
        reliance, before, captured, contents = self.reliance, self.state, self.captured, self.contents
        are_as_they_were = _quickly(captured)

        def check() -> None:
            is_same = are_as_they_were(*captured) and state() == before and not contents
            if not is_same or (reliance is not None and reliance.change() is not None):
                self.check(name)

        return check

    def check(self, name: str) -> None:
        """Check that they still hold.

        Args:
            name: Whose plan it is, for the error.

        Raises:
            PlanMismatchError: One does not.
        """
        now = state()
        if now != self.state:
            place = next(place for place, value in enumerate(now) if value != self.state[place])
            _refuse(name, "the state of torch", *_named([*STATE][place], now[place], self.state[place]))
        for number, (tensor, form) in enumerate(zip(self.captured, self.forms, strict=True)):
            if form_of(tensor) != form:
                _refuse_form(name, f"captured tensor {number}", form_of(tensor), form)
        if self.reliance is not None and (change := self.reliance.change()) is not None:
            _refuse(name, *change)
        for tensor, held in self.contents:
            if not identical(tensor, held):
                _refuse(name, "captured indices that tell which entries meet", "other ones", "those that it held")


def _quickly(tensors: tuple[torch.Tensor, ...]) -> Callable[..., bool]:
    """Return what tells of these tensors, in one call, that their forms are surely what they are now."""
    if any(type(tensor) not in PLAIN or tensor.layout is not torch.strided for tensor in tensors):
        return lambda *_: False
    return form_check(tensors)


def form_of(tensor: torch.Tensor) -> tuple:
    """Return what has to stay as it is of a captured tensor."""
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    return tensor.shape, tensor.dtype, tensor.device, strides


def _named(what: str, got: object, expected: object) -> tuple[str, str]:
    return f"{what} as {got}", f"{expected}"


def _refuse_form(name: str, what: str, got: tuple, expected: tuple) -> None:
    for label, now, planned in zip(("shape", "dtype", "device", "strides"), got, expected, strict=True):
        if now != planned:
            as_text = tuple if label in {"shape", "strides"} else str
            _refuse(name, what, f"{label} {as_text(now)}", f"{label} {as_text(planned)}")


def _refuse(name: str, what: str, got: str, expected: str) -> NoReturn:
    raise PlanMismatchError(
        f"{name}: {what}",
        got=got,
        expected=f"{expected}, as planned",
        remedy="Make another plan, or call the transform itself, which records the function anew.",
    )
