"""What a function reads of its tensors past the ops: numbers that lists, arrays and new tensors are made of.

A tape sees ops. `.item()` is one; `.tolist()`, `.numpy()` and `torch.tensor([x[0], 1.0])` read memory below all of
them. But each is a torch function, and so is every attribute, which modes of torch functions see.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name

from hofunc.graph.identity import innermost
from hofunc.graph.uncompiled import uncompiled
from hofunc.internals import DisableTorchFunctionSubclass, getter_of, hides_ops, set_data, tree_leaves

_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_MODULES = tuple(os.path.join(_TORCH, name) + os.sep for name in ("nn", "_functorch"))

# By them the numbers in a tensor become something that is no tensor, or a tensor that no op has made.
_CONTENTS = {
    *(Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.__deepcopy__, Tensor.__reduce_ex__),
    *(Tensor.data_ptr, Tensor.untyped_storage, Tensor.storage, Tensor.apply_, Tensor.map_, Tensor.map2_),
    *(torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor, Tensor.new_tensor, Tensor.new),
}
_LIKE = {Tensor.new_tensor, Tensor.new}  # of the tensor itself they take the dtype and the device
# They are ops, unless a constructor that hides its ops calls them, as torch.DoubleTensor([x[0], 1.0]) does.
_NUMBERS = {Tensor.__bool__, Tensor.__complex__, Tensor.__float__, Tensor.__index__, Tensor.__int__}
# What reads an attribute that tells of autograd, and the attribute on which it depends.
_ATTRIBUTES: dict[Any, str] = {
    getter_of(name): attribute
    for name, attribute in (("requires_grad",) * 2, ("is_leaf",) * 2, ("grad_fn", "requires_grad"), ("grad",) * 2)
}
# What tells how a tensor lies in memory.
_LAYOUT = {Tensor.stride, Tensor.is_contiguous, Tensor.dim_order}


class Reads(TorchFunctionMode):
    """Reports what is read of tensors, before it is read.

    Args:
        contents: Called with the tensors whose numbers are read, and the name of what reads them.
        attribute: Called with a tensor and the name of an attribute that is read; what torch's modules ask for, to
            choose between ways of computing the same, does not count.
        replaced: Called with a tensor that is given other data, and with the tensor that these are of.
        layout: Called with a tensor of which is read how it lies in memory, but by torch's modules.
    """

    def __init__(
        self,
        contents: Callable[[list[Tensor], str], None] = lambda *_: None,
        attribute: Callable[[Tensor, str], None] = lambda *_: None,
        replaced: Callable[[Tensor, Tensor], None] = lambda *_: None,
        layout: Callable[[Tensor], None] = lambda _: None,
    ):
        super().__init__()
        self._contents, self._attribute, self._replaced, self._layout = contents, attribute, replaced, layout

    @uncompiled
    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        is_read = (
            (func in _CONTENTS and not _passes_on(func, args))
            or func in _ATTRIBUTES
            or func in _LAYOUT
            or func == set_data
            or _is_hidden(func)
        )
        if is_read and not _reader().startswith(_OWN):  # a transform inside the function
            read = (args[1:] if func in _LIKE else args, kwargs)
            with DisableTorchFunctionSubclass():  # a subclass may hold the tensor in another object
                self._report(func, [leaf for leaf in tree_leaves(read) if isinstance(leaf, Tensor)])
        return func(*args, **kwargs)

    def _report(self, func: Any, tensors: list[Tensor]) -> None:
        if func in _ATTRIBUTES:
            if not _reader().startswith(_MODULES):
                self._attribute(innermost(tensors[0]), _ATTRIBUTES[func])
        elif func in _LAYOUT:
            if not _reader().startswith(_MODULES):
                self._layout(innermost(tensors[0]))
        elif func == set_data:
            self._replaced(*map(innermost, tensors))
        elif tensors:
            self._contents([*map(innermost, tensors)], resolve_name(func) or func.__name__)


def _passes_on(func: Any, args: tuple) -> bool:
    """Tell whether a function that makes tensors of numbers is given a tensor, and so is an op or nothing."""
    return func in (torch.as_tensor, torch.asarray) and bool(args) and isinstance(args[0], Tensor)


def _is_hidden(func: Any) -> bool:
    """Tell whether a function makes a number of a tensor where no mode sees ops."""
    return func in _NUMBERS and hides_ops()


def _reader() -> str:
    """Return the file of the code that reads."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    while frame is not None and frame.f_code.co_name == "__torch_function__":  # of a mode before this one
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename


@dataclass(frozen=True, slots=True)
class Contents:
    """Returns a tensor, to be compared with what it held when its numbers were read.

    Attributes:
        by: The name of what read them.
    """

    by: str

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return the tensor."""
        return tensor

    def __str__(self) -> str:
        return self.by


def identical(value: Any, expected: Any) -> bool:
    """Tell whether two values are the same number for number, with nan as with -0.0.

    Args:
        value: A tensor, number, truth value or text.
        expected: Another one.
    """
    if isinstance(value, Tensor) and isinstance(expected, Tensor):
        return value.shape == expected.shape and torch.equal(raw(value), raw(expected))
    if isinstance(value, float | complex):
        return type(value) is type(expected) and repr(value) == repr(expected)
    return type(value) is type(expected) and bool(value == expected)


def raw(tensor: Tensor) -> Tensor:
    """Return the bytes of the numbers in a tensor."""
    return tensor.detach().resolve_conj().resolve_neg().reshape(-1).contiguous().view(torch.uint8)
