"""Tensors that a function captured, which are to be the same ones where it makes the same calls again."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import ref

from torch import Tensor

from hofunc.graph.route import Form
from hofunc.internals import form_check


class Given(NamedTuple):
    """Stands for a tensor that the function captured, which comes along for the first time.

    Attributes:
        number: Its number.
        form: What it is but for its values.
        known: The tensor itself as it was noted, unless it is gone.
    """

    number: int
    form: Form
    known: Callable[[], Tensor | None]


class Captured:
    """All of these of a function, and what tells at once that they are there, and are what they were but for values.

    Args:
        given: What stands for each.
    """

    def __init__(self, given: Sequence[Given]):
        self._given = given
        self._known = {each.number: each.known for each in given}  # the tensors that were met last
        self._offsets = [each.form.layout.offset for each in given]
        self._are_same: Callable[..., bool] | None = None

    def have_gone(self) -> bool:
        """Tell whether some are gone, in the place of which there has to be something else."""
        return any(known() is None for known in self._known.values())

    def is_known(self, number: int, tensor: Tensor) -> bool:
        """Tell whether a tensor is the one that was met last in the place of one."""
        return self._known[number]() is tensor

    def meet(self, tensors: Mapping[int, Tensor]) -> None:
        """Note tensors that were met in the places of some, of the same forms, by number."""
        self._known |= {number: ref(tensor) for number, tensor in tensors.items()}

    def unchanged(self) -> dict[int, Tensor]:
        """Return those that are there and have the form that they had, by number."""
        tensors: list[Any] = [known() for known in self._known.values()]
        if (
            self._are_same is not None
            and not any(tensor is None for tensor in tensors)
            and self._are_same(*tensors)
            and [tensor.storage_offset() for tensor in tensors] == self._offsets
        ):
            return dict(zip(self._known, tensors, strict=True))
        pairs = zip(self._given, tensors, strict=True)
        found = {each.number: tensor for each, tensor in pairs if tensor is not None and each.form.is_of(tensor)}
        if found and len(found) == len(tensors):
            self._are_same = form_check(tensors)
        return found
