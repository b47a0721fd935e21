"""Hooks for what autograd saves, as of activation checkpointing: a tape does not see what they do.

A function that is recorded runs with the hooks that are set around it, since the history of its values is kept. What
they compute, such as a copy elsewhere, is no part of the function. Activation checkpointing computes what was saved
anew and counts on finding the same tensors again, in the same order; so under hooks nothing may go by how often a
function was called before.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from hofunc.internals import times_written
from hofunc.internals_saving import saving_hooks, without_modes


def is_hooked() -> bool:
    """Tell whether there are hooks for what autograd saves, that is other ones than those of `unhooked`."""
    return saving_hooks() not in (None, (_itself, _itself))


def unhooked() -> AbstractContextManager[object]:
    """Return a context in which autograd saves tensors as they are: for what nobody goes back through."""
    return saved_tensors_hooks(_itself, _itself) if is_hooked() else nullcontext()


def unseen_hooks() -> AbstractContextManager[object]:
    """Return a context that keeps hooks for what autograd saves from the modes inside of it, of which a tape is one.

    What a backward pass in there goes back to is what was saved, and not what the hooks make of that.
    """
    hooks = saving_hooks()
    return nullcontext() if hooks is None else _Apart(*hooks)


class _Apart(saved_tensors_hooks):
    """Hooks that do what others do, apart from all modes."""

    def __init__(self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> None:
        super().__init__(self._packed, self._unpacked)
        self._kept: dict[int, tuple[Tensor, int]] = {}
        self._pack, self._unpack = pack, unpack

    def __exit__(self, *args: object) -> None:
        super().__exit__(*args)
        self._kept.clear()

    def _packed(self, tensor: Tensor) -> tuple[int, Any]:
        place = len(self._kept)
        self._kept[place] = tensor, times_written(tensor)
        with without_modes():
            return place, self._pack(tensor)

    def _unpacked(self, saved: tuple[int, Any]) -> Tensor:
        place, packed = saved
        if place not in self._kept:
            return self._unpack(packed)
        tensor, before = self._kept[place]
        if times_written(tensor) != before:
            shape, times = tuple(tensor.shape), times_written(tensor) - before
            raise RuntimeError(
                "what a backward pass needs has been modified by an inplace operation: a tensor of shape "
                f"{shape} was written to {times} times since it was saved. Clone it before it is written to."
            )
        return tensor


def _itself(tensor: Tensor) -> Tensor:
    return tensor
