"""Scratch: what a call allocates beside its result and gives back before it returns."""

import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from hofunc.graph.draws import is_random
from hofunc.graph.node import Call
from hofunc.graph.uncompiled import UncompiledMode
from hofunc.internals import identity_of
from hofunc.plan.factored import factored
from hofunc.plan.pointwise import check_shapes, pointwise
from hofunc.plan.shaped import shaped
from hofunc.plan.tried import tried

aten = torch.ops.aten

_NEED_VALUES = {aten.nonzero.default, aten.masked_select.default}  # of which torch imports sympy to say so


class Seen(NamedTuple):
    """A tensor without data: what it looks like, and which of some memories it views."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    memory: int
    nbytes: int


class Memories:
    """Numbers the memories of tensors in the order in which they are seen."""

    def __init__(self) -> None:
        self._storages: list[torch.UntypedStorage] = []
        self._numbers: dict[int, int] = {}

    def seen(self, value: Any) -> Any:
        """Replace the tensors of nested tuples and lists by what is seen of them."""
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            number = self._numbers.setdefault(identity_of(storage), len(self._storages))
            self._storages += [storage] * (number == len(self._storages))
            offset = int(value.storage_offset())
            return Seen(tuple(value.shape), value.stride(), offset, value.dtype, number, storage.nbytes())
        if type(value) in (tuple, list):
            return tuple(map(self.seen, value))
        return value

    def shown(self, value: Any) -> Any:
        """Replace what was seen of tensors by meta tensors that look like that."""
        if isinstance(value, Seen):
            if value.memory == len(self._storages):
                made = torch.empty(value.nbytes, dtype=torch.uint8, device="meta").untyped_storage()
                self._numbers[identity_of(made)] = value.memory
                self._storages.append(made)
            empty = torch.empty(0, dtype=value.dtype, device="meta")
            return empty.set_(self._storages[value.memory], value.offset, value.shape, value.stride)
        return tuple(map(self.shown, value)) if type(value) is tuple else value


def called(function: Callable | Call, args: Sequence[Any]) -> tuple[Any, int]:
    """Call a function on meta tensors.

    Returns:
        What it returns, lists as tuples, and the bytes that it allocates beside.

    Raises:
        RuntimeError: It needs values.
    """
    memories = Memories()
    result, scratch = _called(function, memories.seen(tuple(args)))
    return memories.shown(result), scratch


@lru_cache(maxsize=4096)
def _called(function: Callable | Call, seen: tuple) -> tuple[Any, int]:
    """Return what is seen of a call's result, and its scratch; calls recur along sequences and layers."""
    memories = Memories()
    args = memories.shown(seen)
    with Watch(args) as watch:
        result = function(*args)
    return memories.seen(result), watch.peak - watch.held(result)


class Watch(UncompiledMode):
    """Notes the most that is held at once of what is allocated inside.

    Tensors say when they are gone, so that an op takes no longer the more are held.

    Args:
        outside: Tensors of which the memory does not count.

    Attributes:
        peak: Its bytes.
    """

    def __init__(self, outside: Any):
        super().__init__()
        self.peak = 0
        self._outside = {identity_of(tensor.untyped_storage()) for tensor in _tensors(outside)}
        self._held = 0
        self._bytes: dict[int, int] = {}  # of every memory
        self._holders: dict[int, dict[int, weakref.ref[torch.Tensor]]] = {}  # the tensors that lie in it

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if func in _NEED_VALUES:
            raise NotImplementedError(f"{func} of tensors without elements")
        told = (tell(func, args, kwargs) for tell in (pointwise, shaped, factored, tried))
        made = next((found for found in told if found is not None), None)
        if made is None:
            check_shapes(func, args)
        if is_random(func, args, kwargs) and not _tensors(args):  # which would draw, and on a device
            kwargs = {**kwargs, "device": "meta", **({"generator": None} if "generator" in kwargs else {})}
        result = func(*args, **kwargs) if made is None else made
        for tensor in _tensors(result):
            self._hold(tensor)
        self.peak = max(self.peak, self._held + inside(func, args, result))
        return result

    def _hold(self, tensor: torch.Tensor) -> None:
        """Count the memory of a tensor for as long as there is the tensor."""
        storage = tensor.untyped_storage()
        key = identity_of(storage)
        if key in self._outside:
            return
        self._held += storage.nbytes() - self._bytes.get(key, 0)
        self._bytes[key] = storage.nbytes()
        holders = self._holders.setdefault(key, {})

        def gone(one: weakref.ref[torch.Tensor]) -> None:
            del holders[id(one)]
            if not holders:
                del self._holders[key]
                self._held -= self._bytes.pop(key)

        one = weakref.ref(tensor, gone)
        holders[id(one)] = one

    def held(self, value: Any) -> int:
        """Return the bytes that tensors hold."""
        storages = [tensor.untyped_storage() for tensor in _tensors(value)]
        return sum({identity_of(s): s.nbytes() for s in storages if identity_of(s) not in self._outside}.values())


def _tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors of nested tuples and lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, tuple | list) else []


# What kernels allocate inside, where it is more than a few numbers, as measured with torch 2.13 on a CPU. Those of
# linear algebra copy what they factorise; losses are reduced after they were computed element by element.


def inside(op: Any, args: Sequence[Any], result: Any) -> int:
    """Return the bytes that an op of torch allocates inside."""
    return int(_INSIDE[op](args, result)) if op in _INSIDE else 0


def _nbytes(*tensors: torch.Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _of_first(times: float) -> Callable[[Sequence[Any], Any], float]:
    return lambda args, _: times * _nbytes(args[0])


def _of_elements(times: float) -> Callable[[Sequence[Any], Any], float]:
    return lambda args, _: times * torch.broadcast_shapes(args[0].shape, args[1].shape).numel() * args[0].element_size()


def _of_loss(times: float) -> Callable[[Sequence[Any], Any], float]:
    return lambda args, result: 0 if result.dim() else _of_elements(times)(args, result)


def of_product(*matrices: torch.Tensor) -> int:
    """Return the bytes of those matrices that have to be laid out anew to be multiplied."""
    return _nbytes(*(matrix for matrix in matrices if not _is_laid_out(matrix)))


def _is_laid_out(matrix: torch.Tensor) -> bool:
    """Tell whether one axis of a matrix has stride one, and the other skips whole rows."""
    (rows, columns), (row, column) = matrix.shape[-2:], matrix.stride()[-2:]
    return (column == 1 and row >= max(1, columns)) or (row == 1 and column >= max(1, rows)) or min(rows, columns) == 1


CHANNELS = 16  # of a block of oneDNN's layout


def _of_convolution(args: Sequence[Any], result: torch.Tensor) -> int:
    """Return the bytes of the windows in double precision, of tensors in the layout of oneDNN in single."""
    tensor, weight, groups = args[0], args[1], args[8]
    if result.dtype != torch.float64:
        laid_out = [tensor, result] if args[6] or set(weight.shape[2:]) == {1} else [result]
        return _nbytes(weight) + sum(_in_blocks(each) for each in laid_out)
    small, large = (tensor, result) if args[6] else (result, tensor)
    windows = small.numel() // small.shape[1] * (weight.numel() // weight.shape[0] * groups) * result.element_size()
    if any(size > 1 for size in args[5]):
        windows //= len(tensor)  # where they are dilated, samples come one by one
    return windows if groups == 1 else max(_nbytes(result), (windows + _nbytes(large)) // groups)


def _of_derivative_of_convolution(args: Sequence[Any], result: Sequence[Any]) -> int:
    """Return the bytes of windows and layouts of a derivative by the weight, and of what comes group by group."""
    (small, large), groups, (by_tensor, by_weight, _) = args[:2], args[9], result
    if by_weight is None:
        return _nbytes(by_tensor) if groups > 1 else 0
    if small.dtype != torch.float64:
        wide = [each for each in (small, large) if each.shape[1] >= CHANNELS] or [small]
        return _nbytes(by_weight) + sum(map(_in_blocks, wide))
    small, large = (large, small) if args[7] else (small, large)
    windows = small.numel() // small.shape[1] * (by_weight.numel() // by_weight.shape[0]) * small.element_size()
    return windows + (_nbytes(by_weight) if groups == 1 else _nbytes(small, large) // groups)


def _in_blocks(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor whose channels are laid out in blocks."""
    return _nbytes(tensor) // tensor.shape[1] * CHANNELS * -(-tensor.shape[1] // CHANNELS)


def _of_heads(args: Sequence[Any], _: Any) -> int:
    """Return the bytes of queries, keys, values and what is made of them, and of their products."""
    batch, length = args[0].shape[:2]
    return 5 * _nbytes(args[0]) + batch * args[4] * length**2 * args[0].element_size()


_INSIDE: dict[Any, Callable[[Sequence[Any], Any], float]] = {
    aten.convolution.default: _of_convolution,
    aten.convolution_backward.default: _of_derivative_of_convolution,
    aten.logsumexp.default: lambda args, result: _nbytes(args[0], result),
    aten.linalg_inv_ex.default: lambda args, _: _nbytes(args[0]) + 4 * args[0].numel() // args[0].shape[-1] + 600,
    aten._linalg_det.default: _of_first(0.2),
    aten._linalg_slogdet.default: _of_first(0.2),
    aten._linalg_svd.default: _of_first(1.05),
    aten.linalg_matrix_exp.default: _of_first(10.1),
    aten.linalg_pinv.atol_rtol_tensor: _of_first(3.3),
    aten.upsample_bilinear2d.default: lambda args, result: _nbytes(args[0], result),
    aten.im2col.default: _of_first(1),
    aten._euclidean_dist.default: lambda args, _: 1.04 * _nbytes(args[0], args[1]),
    aten._trilinear.default: _of_first(1),
    aten.mse_loss.default: _of_loss(2),
    aten.huber_loss.default: _of_loss(1),
    aten.smooth_l1_loss.default: _of_loss(2),
    aten.binary_cross_entropy_with_logits.default: _of_elements(2),
    aten.kthvalue.default: lambda args, _: _nbytes(args[0]) + 8 * args[0].numel(),
    aten.mm.default: lambda args, _: of_product(*args[:2]),
    aten.addmm.default: lambda args, _: of_product(*args[1:3]),
    aten._native_multi_head_attention.default: _of_heads,
}
