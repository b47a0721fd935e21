"""Flexible attention, computed by the ops of which it is made.

NOTE [imported]: torch's module for it is no part of `import torch`, and imports sympy in some releases. So it is not
imported here: what hofunc changes in it is changed when somebody imports it, maybe while a function is recorded.
"""

import sys
from collections.abc import Callable
from functools import wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from hofunc.graph.tape import is_recording
from hofunc.internals import cast_as_autocast, math_attention, tree_leaves

_MODULE = "torch.nn.attention.flex_attention"
_UNCOMPILED = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
_INDEX = torch.ops.aten.index.Tensor


class _Indexing(TorchFunctionMode):
    """Reads elements at tensors of single indices by the op for it, where torch would take these for numbers.

    Torch has such a mode too, but its op is a custom Function.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.Tensor.__getitem__:
            indices = [_index(each, args[0]) for each in tree_leaves(args[1])]
            if all(isinstance(index, torch.Tensor) for index in indices):
                return _INDEX(args[0], indices)
        return func(*args, **(kwargs or {}))


def _index(index: Any, tensor: torch.Tensor) -> Any:
    return torch.tensor(index, device=tensor.device) if type(index) is int else index


def _indexing(function: Callable) -> Callable:
    @wraps(function)
    def call(*args: Any) -> Any:
        with _Indexing():
            return function(*args)

    return call


def flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable,
    block_mask: tuple,
    *others: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what the operator does: the output, and the logsumexp and the largest of the scores in units of log(2).

    Args:
        query: The queries.
        key: The keys.
        value: The values.
        score_mod: Computes other scores.
        block_mask: The mask, of which the last is the function.
        others: What else the operator takes.
    """
    mask, device = (*block_mask[:-1], _indexing(block_mask[-1])), query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = [cast_as_autocast(tensor, device, dtype) for tensor in (query, key, value)]
    with torch.autocast(device, enabled=False):
        out, logsumexp, largest = math_attention(query, key, value, _indexing(score_mod), mask, *others)
    return _laid_out_as(out, query), logsumexp, largest


def _laid_out_as(out: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Return a tensor with its dims in the order in memory that those of another have, the last one innermost."""
    last = out.ndim - 1
    order = [*sorted(range(last), key=query.stride, reverse=True), last]
    return out.permute(order).contiguous().permute([order.index(dim) for dim in range(out.ndim)])


class _WhileRecording:
    """Is true while a function is recorded, and otherwise what it was before."""

    def __init__(self, before: bool) -> None:
        self._before = before

    def __bool__(self) -> bool:
        return is_recording() or bool(self._before)


def _unless_recorded(check: Callable) -> Callable:
    @wraps(check)
    def call(*args: Any) -> None:
        if torch.compiler.is_dynamo_compiling() or not is_recording():
            check(*args)

    return call


def _change(module: ModuleType) -> None:
    """Have torch call the operator while a function is recorded.

    It calls it by torch.compile, unless told not to; and it refuses what requires gradients where it has no kernel for
    the backward pass, which hofunc does not need.
    """
    scope = vars(module)
    scope[_UNCOMPILED] = _WhileRecording(scope[_UNCOMPILED])
    scope["_validate_device"] = _unless_recorded(scope["_validate_device"])


class _Finder(MetaPathFinder):
    """Finds torch's module as Python does, and changes it as soon as it has run; see NOTE [imported]."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == _MODULE else None
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _changing(spec.loader)  # type: ignore[method-assign, assignment]
        return spec


def _changing(loader: Loader) -> Callable[[ModuleType], None]:
    run = loader.exec_module

    def call(module: ModuleType) -> None:
        run(module)
        _change(module)

    return call


if _MODULE in sys.modules:
    _change(sys.modules[_MODULE])
else:
    sys.meta_path.insert(0, _Finder())
