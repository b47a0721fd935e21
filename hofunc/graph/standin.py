"""Stand-ins: how to record under an outer torch.func transform.

Inside vmap, grad or jvp the inputs are wrappers, and a dispatch mode sees only the level below. So the function is
recorded on stand-ins, plain tensors of the logical shape, with the outer transforms out of the way, and the recorded
graph is then replayed on the real, wrapped tensors. Wrappers that the function captured are swapped for stand-ins
when they first reach a torch function, and become inputs of the graph.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from hofunc.errors import UntracedError
from hofunc.graph.identity import check_elements, plain, tensors_in
from hofunc.graph.layout import copied_as_laid
from hofunc.graph.picks import PICKING, Picks
from hofunc.graph.uncompiled import uncompiled
from hofunc.internals import (
    DisableTorchFunction,
    VmapInterpreter,
    add_batch_dim,
    enter_vmap,
    get_inplace_requires_grad_allowed,
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    leave_vmap,
    maybe_current_level,
    maybe_get_bdim,
    maybe_get_level,
    peek_interpreter_stack,
    retrieve_current_functorch_interpreter,
    set_inplace_requires_grad_allowed,
    temporarily_clear_interpreter_stack,
    tree_map,
    unwrap_if_dead,
)


def in_transform() -> bool:
    """Tell whether a torch.func transform is running."""
    return peek_interpreter_stack() is not None


@contextmanager
def outside_transforms() -> Iterator[int]:
    """Set the running torch.func transforms aside; yields how many there are.

    NOTE [neutral levels]: transforms inside the recorded function number their levels from the depth of the stack.
    On an empty stack they would take numbers that captured wrappers of the outer transforms already bear, and would
    silently treat those wrappers as their own. So the stack is refilled with vmap levels, which leave tensors that
    they do not batch alone.
    """
    depth, allowed = maybe_current_level() or 0, get_inplace_requires_grad_allowed()
    with temporarily_clear_interpreter_stack():
        for _ in range(depth):
            enter_vmap(1, "same")
        set_inplace_requires_grad_allowed(True)
        try:
            yield depth
        finally:
            set_inplace_requires_grad_allowed(allowed)
            for _ in range(depth):
                leave_vmap()


def is_wrapper(value: Any) -> bool:
    """Tell whether a value is a tensor wrapped by a torch.func transform."""
    return isinstance(value, torch.Tensor) and is_functorch_wrapped_tensor(value)


def stand_in(value: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """Return a plain tensor of a wrapper's logical shape, and whether it is only one of a batch.

    Its values are those of the first member of every batch, so that ops which check their input accept it. Its memory
    is its own, so that what reads that is known not to be a tensor that the function captured.
    """
    dims = []  # those that vmap hides, of what each wrapper wraps; no op runs on a wrapper, whose level is set aside
    while is_functorch_wrapped_tensor(value):
        if is_batchedtensor(value):
            dims.append(maybe_get_bdim(value))
        value = get_unwrapped(value)
    check_elements(value)
    value = plain(value)
    for dim in reversed(dims):
        value = value.select(dim, 0)
    return copied_as_laid(value).detach(), bool(dims)


def looks_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what two tensors have in common for which what stands in is alike, under as many transforms."""
    kinds, inner = [], tensor
    while is_functorch_wrapped_tensor(inner):
        kinds.append((maybe_get_level(inner), is_batchedtensor(inner)))
        inner = get_unwrapped(inner)
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, (*kinds,)


def wrappers_in(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return those of some tensors that transforms of torch.func wrap, each once."""
    return [*{id(tensor): tensor for tensor in tensors if is_functorch_wrapped_tensor(tensor)}.values()]


def batches_of(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Return the levels of the vmaps that map some of the tensors, and the sizes of their batches."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        outer = tensor
        while is_functorch_wrapped_tensor(outer):
            inner = get_unwrapped(outer)
            if is_batchedtensor(outer):
                sizes[maybe_get_level(outer)] = inner.shape[maybe_get_bdim(outer)]
            outer = inner
    return sizes


def in_batches(value: Any, sizes: Mapping[int, int]) -> Any:
    """Return a tensor that no transform wraps as a batch, without a copy; anything else as it is.

    From vmap, torch returns what it does not map for ``out_dims=0`` only.
    """
    if not isinstance(value, torch.Tensor) or is_wrapper(value):
        return value
    for level, size in sorted(sizes.items()):
        value = add_batch_dim(value.expand(size, *value.shape), 0, level)
    return value


def as_mapped(value: Any) -> Any:
    """Return a tensor as one that the innermost transform maps, if that is a vmap, for the reason of `in_batches`."""
    level = retrieve_current_functorch_interpreter() if in_transform() else None
    if not isinstance(value, torch.Tensor) or not isinstance(level, VmapInterpreter):
        return value
    if maybe_get_level(value) == level.level():
        return value
    return add_batch_dim(value.expand(level.batch_size(), *value.shape), 0, level.level())


class Lift(TorchFunctionMode):
    """Swaps the wrappers of outer transforms that reach a torch function for stand-ins.

    Args:
        depth: Number of outer transforms; deeper levels belong to transforms inside the function.
        add: Called with the stand-in of every new wrapper and whether it is batched.
        picks: Calls what may pick a part by the number in a stand-in.

    Attributes:
        aside: Returns a context manager in which no note is taken of ops.
        wrappers: The wrappers, in the order in which they came.
    """

    def __init__(self, depth: int, add: Callable[[torch.Tensor, bool], None], picks: Picks):
        super().__init__()
        self.depth, self._picks = depth, picks
        self.aside: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.wrappers: list[torch.Tensor] = []
        self._stand_ins: dict[int, torch.Tensor] = {}
        self._add = add

    @uncompiled
    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if True in map(is_functorch_wrapped_tensor, tensors_in((args, kwargs))):
            with DisableTorchFunction(), self.aside():  # nobody is to take this for what the function does
                args, kwargs = tree_map(self.swap, (args, kwargs))
        return self._picks.call(func, args, kwargs) if func in PICKING else func(*args, **kwargs)

    def swap(self, value: Any) -> Any:
        """Return the stand-in of an outer wrapper, and anything else as it is."""
        if not is_wrapper(value):
            return value
        if unwrap_if_dead(value) is not value:
            return value  # of a vjp inside the function, whose backward pass runs when its level has ended
        if maybe_get_level(value) > self.depth:
            self._check_inside(value)
            return value
        if id(value) not in self._stand_ins:
            member, batched = stand_in(value)
            self._add(member, batched)
            self.wrappers.append(value)
            self._stand_ins[id(value)] = member
        return self._stand_ins[id(value)]

    def places(self) -> dict[int, tuple[int, torch.Tensor]]:
        """Return the place of every wrapper, and itself, by the id of its stand-in."""
        return {id(self._stand_ins[id(each)]): (place, each) for place, each in enumerate(self.wrappers)}

    def _check_inside(self, value: torch.Tensor) -> None:
        while is_functorch_wrapped_tensor(value):
            if maybe_get_level(value) <= self.depth:
                raise UntracedError(
                    "hofunc: f maps a transform of its own over a captured tensor of an outer transform",
                    got="a tensor wrapped by both",
                    expected="captured tensors that f's own transforms do not wrap",
                    remedy="Pass the captured tensor to f as an argument.",
                )
            value = get_unwrapped(value)
