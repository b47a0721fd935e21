"""Ops on meta tensors whose result has a shape that is easily told: reductions, products, convolutions, tensors alike.

torch has kernels for that in Python. The first of them that a process calls imports torch's compiler, or sympy, which
takes many times as long as to plan the derivatives of a network.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

aten = torch.ops.aten

Shape = tuple[int, ...]
Tensors = tuple[torch.Tensor | None, ...]


def shaped(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | Tensors | None:
    """Return what an op returns for meta tensors, of the only floating dtype that these have; None for other ops.

    None likewise where what is given does not fit, of which torch says more.
    """
    shape_of = _SHAPES.get(op)
    if shape_of is None:
        return args[0] if op in _IN_PLACE else None
    given = [each for arg in args for each in (arg if isinstance(arg, list | tuple) else [arg])]
    tensors = [each for each in given if isinstance(each, torch.Tensor)]
    if any(tensor.device.type != "meta" for tensor in tensors):
        return None
    dtypes = {tensor.dtype for tensor in tensors if tensor.dtype.is_floating_point}
    if shape_of is _like:
        dtypes = {tensors[0].dtype}
    if len(dtypes) != 1 or any(kwargs[name] not in _NONE for name in kwargs if name != "keepdim"):
        return None
    shape = shape_of(*args, **{name: kwargs[name] for name in kwargs if name == "keepdim"})
    if shape is None:
        return None
    (dtype,) = dtypes
    if op is aten.convolution_backward.default:
        return tuple([None if each is None else torch.empty(each, dtype=dtype, device="meta") for each in shape])
    return torch.empty(shape, dtype=dtype, device="meta")


_NONE = (None, False, torch.preserve_format)  # of keywords of which the op needs none


def _over(tensor: torch.Tensor, dims: Sequence[int] | int | None = None, keepdim: bool = False) -> Shape | None:
    """Return the shape of a tensor of which some axes are reduced, all of them if none are named."""
    rank = tensor.dim()
    given = [dims] if isinstance(dims, int) else [*(dims or range(rank))]
    gone = {dim % rank for dim in given if -rank <= dim < rank}
    if len(gone) < len(given) or 0 in tensor.shape:  # of no elements there is not every reduction
        return None
    return tuple([1 if dim in gone else size for dim, size in enumerate(tensor.shape) if keepdim or dim not in gone])


def _norm(tensor: torch.Tensor, _: float = 2, dims: Any = None, keepdim: bool = False) -> Shape | None:
    return _over(tensor, dims, keepdim)


def _matrices(rank: int) -> Callable[..., Shape | None]:
    def shape_of(left: torch.Tensor, right: torch.Tensor) -> Shape | None:
        fits = left.dim() == right.dim() == rank and left.shape[:-2] == right.shape[:-2]
        return (*left.shape[:-1], right.shape[-1]) if fits and left.shape[-1] == right.shape[-2] else None

    return shape_of


def _added(rank: int) -> Callable[..., Shape | None]:
    of_product = _matrices(rank)

    def shape_of(added: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> Shape | None:
        shape = of_product(left, right)
        if shape is None or added.dim() > rank:
            return None
        pairs = zip(reversed(added.shape), reversed(shape), strict=False)
        return shape if all(own in (1, size) for own, size in pairs) else None

    return shape_of


def _convolved(
    tensor: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    strides: Sequence[int],
    paddings: Sequence[int],
    dilations: Sequence[int],
    transposed: bool,
    behind: Sequence[int],
    groups: int,
) -> Shape | None:
    axes = tensor.dim() - 2
    options = (strides, paddings, dilations, behind)
    fits = weight.dim() == tensor.dim() and all(len(each) == axes for each in options)
    taken, channels = (
        (weight.shape[0], weight.shape[1] * groups) if transposed else (weight.shape[1] * groups, len(weight))
    )
    if not fits or tensor.shape[1] != taken or weight.shape[0] % groups or not _are_in_order(tensor, weight):
        return None
    if bias is not None and len(bias) != channels:
        return None
    sizes = [
        (size - 1) * stride - 2 * padding + dilation * (window - 1) + 1 + more
        if transposed
        else (size + 2 * padding - dilation * (window - 1) - 1) // stride + 1
        for size, window, stride, padding, dilation, more in zip(
            tensor.shape[2:], weight.shape[2:], *options, strict=True
        )
    ]
    return (tensor.shape[0], channels, *sizes) if all(size > 0 for size in sizes) else None


def _are_in_order(*images: torch.Tensor) -> bool:
    """Tell whether what is made of images or windows lies in order: it lies in memory as these do."""
    return not any(_are_channels_last(each.unsqueeze(2) if each.dim() == 3 else each) for each in images)


def _convolved_back(
    _: torch.Tensor, tensor: torch.Tensor, weight: torch.Tensor, biases: Sequence[int] | None, *rest: Any
) -> Sequence[Shape | None] | None:
    """Return the shapes of derivatives of a convolution by its input, weight and bias, of those that are asked for."""
    if not _are_in_order(tensor, weight):
        return None
    return [
        tuple(each) if is_asked else None
        for each, is_asked in zip((tensor.shape, weight.shape, biases or ()), rest[-1], strict=True)
    ]


def _same(tensor: torch.Tensor, *_: Any) -> Shape | None:
    """Return the shape of a tensor, whose entries are replaced by others along an axis."""
    return tuple(tensor.shape) if tensor.is_contiguous() and tensor.dtype.is_floating_point else None


def _anew(tensor: torch.Tensor, *_: Any) -> Shape | None:
    """Return the shape of a tensor, however it lies: what is added up along an axis lies in order."""
    return tuple(tensor.shape) if tensor.dtype.is_floating_point else None


def _second(_: torch.Tensor, tensor: torch.Tensor, *__: Any) -> Shape | None:
    return _same(tensor)


def _softmax(tensor: torch.Tensor, _: int, half_to_float: bool) -> Shape | None:
    return None if half_to_float else _same(tensor)


def _selected(tensor: torch.Tensor, dim: int, index: torch.Tensor) -> Shape | None:
    if not tensor.dim() or index.dim() != 1 or not tensor.dtype.is_floating_point:
        return None
    dim %= tensor.dim()
    return (*tensor.shape[:dim], len(index), *tensor.shape[dim + 1 :])


def _stacked(tensors: Sequence[torch.Tensor], dim: int = 0) -> Shape | None:
    shape = tuple(tensors[0].shape)
    place = dim % (len(shape) + 1)
    joined = [tensor.unsqueeze(place) for tensor in tensors]
    if any(tuple(tensor.shape) != shape for tensor in tensors) or not (
        _are_joined_in_order(tensors) and _are_joined_in_order(joined)
    ):
        return None
    return (*shape[:place], len(tensors), *shape[place:])


def _joined(tensors: Sequence[torch.Tensor], dim: int = 0) -> Shape | None:
    first = tuple(tensors[0].shape)
    fits = all(tensor.dim() == len(first) for tensor in tensors)
    if not first or not fits or not _are_joined_in_order(tensors):
        return None  # one without elements may have other axes
    place = dim % len(first)
    if any(
        (*tensor.shape[:place], *tensor.shape[place + 1 :]) != first[:place] + first[place + 1 :] for tensor in tensors
    ):
        return None
    return (*first[:place], sum(tensor.shape[place] for tensor in tensors), *first[place + 1 :])


def _are_joined_in_order(tensors: Sequence[torch.Tensor]) -> bool:
    """Tell whether the axes of a result lie in order: of images, channels lie last if they do so in all of them."""
    return len({tensor.dtype for tensor in tensors}) == 1 and not all(map(_are_channels_last, tensors))


def _are_channels_last(tensor: torch.Tensor) -> bool:
    """Tell whether torch takes a tensor for one in which channels lie last, by its strides, as it may overlap."""
    if tensor.dim() not in _OF_IMAGES or 0 in tensor.shape:
        return False
    first, channels, *others = zip(tensor.shape, tensor.stride(), strict=True)
    least = 0
    for size, stride in (channels, *reversed(others), first):
        if stride < least:
            return False
        least = stride * size
    return channels[1] > 0 and first[1] != channels[1]


_OF_IMAGES = (4, 5)  # axes


def _embedded(tensor: torch.Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Shape | None:
    is_usual = (offset, dim1, dim2) == (0, -2, -1)
    return (*tensor.shape, tensor.shape[-1]) if tensor.dim() and is_usual else None


def _like(tensor: torch.Tensor, _: float = 0) -> Shape | None:
    return tuple(tensor.shape) if tensor.is_contiguous() else None


_IN_PLACE = {aten.index_add_.default}  # of what is given, they return the first
_SHAPES: dict[Any, Callable[..., Any]] = {  # None of what does not fit
    aten.sum.default: _over,
    aten.sum.dim_IntList: _over,
    aten.mean.default: _over,
    aten.mean.dim: _over,
    aten.amax.default: _over,
    aten.amin.default: _over,
    aten.logsumexp.default: _over,
    aten.linalg_vector_norm.default: _norm,
    aten.mm.default: _matrices(2),
    aten.bmm.default: _matrices(3),
    aten.addmm.default: _added(2),
    aten.baddbmm.default: _added(3),
    aten.convolution.default: _convolved,
    aten.convolution_backward.default: _convolved_back,
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _softmax,
    aten.cat.default: _joined,
    aten.stack.default: _stacked,
    aten.diag_embed.default: _embedded,
    aten.cumsum.default: _anew,
    aten.cumprod.default: _anew,
    aten.flip.default: _same,
    aten.index_add.default: _same,
    aten.index_select.default: _selected,
    aten.nll_loss_backward.default: _second,
    aten.scatter_add.default: _same,
    aten.diagonal_scatter.default: _same,
    aten.select_scatter.default: _same,
    aten.slice_scatter.default: _same,
    aten.tril.default: _like,
    aten.triu.default: _like,
    aten.empty_like.default: _like,
    aten.full_like.default: _like,
    aten.ones_like.default: _like,
    aten.zeros_like.default: _like,
}
