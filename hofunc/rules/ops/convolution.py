"""Convolutions of any number of axes, plain and transposed: products of their input, their weight and windows.

With windows as constant factors a convolution is multilinear, and every derivative leaves what is not differentiated
by. The first derivative by the input is not multiplied out, but applied by torch's own kernels where it meets one
tensor only.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from math import prod
from operator import add
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from hofunc.algebra.labels import Axes, Axis, Label, fresh_axes, full
from hofunc.algebra.operators import Map
from hofunc.algebra.term import Factor, Term
from hofunc.graph.followed import is_followed
from hofunc.graph.identity import PLAIN
from hofunc.graph.node import Call, Ref
from hofunc.rules.kinds import OfProducts, Positions, Site
from hofunc.rules.ops.windows import Windows, along_windows
from hofunc.rules.registry import define

aten = torch.ops.aten

LAID_OUT = 4 << 20  # bytes of windows of the images that are convolved at once


class Kernel(NamedTuple):
    """How a weight is applied, without its values.

    Attributes:
        windows: Along each axis, between the shorter side and the longer one: a convolution goes from the latter to
            the former, a transposed one back.
        transposed: Whether it is a transposed one.
        groups: Number of groups of channels.
    """

    windows: tuple[Windows, ...]
    transposed: bool
    groups: int

    @property
    def rank(self) -> int:
        """Number of axes, of which those of batch and channels are none."""
        return len(self.windows)

    @property
    def channel_axes(self) -> int:
        """Number of axes for channels: one, and one for groups if there are several."""
        return 1 if self.groups == 1 else 2


# The map from input to output, by torch's own kernels.


def convolved(tensor: Tensor, weight: Tensor, kernel: Kernel) -> Tensor:
    """Convolve what lies in the last axes of a tensor: channels, with groups as an axis of their own, and places."""
    return _to_large(tensor, weight, kernel) if kernel.transposed else _to_small(tensor, weight, kernel)


def convolved_back(tensor: Tensor, weight: Tensor, kernel: Kernel) -> Tensor:
    """Apply the transpose of `convolved`."""
    return _to_small(tensor, weight, kernel) if kernel.transposed else _to_large(tensor, weight, kernel)


def _to_small(tensor: Tensor, weight: Tensor, kernel: Kernel) -> Tensor:
    strides, dilations, paddings = _numbers(kernel)

    def of(images: Tensor) -> Tensor:
        result = torch.convolution(
            images, weight, None, strides, paddings, dilations, False, [0] * kernel.rank, kernel.groups
        )
        for dim, windows in enumerate(kernel.windows, 2):
            result = result.narrow(dim, 0, windows.number)
        return result

    return _of_images(of, tensor, weight, kernel)


def _to_large(tensor: Tensor, weight: Tensor, kernel: Kernel) -> Tensor:
    if _is_sooner_turned(tensor, weight, kernel):
        turned = tuple([windows.turned for windows in kernel.windows])
        return _to_small(tensor, _turned(weight, kernel.groups), kernel._replace(windows=turned))
    strides, dilations, paddings = _numbers(kernel)
    behind = [w.length + 2 * w.padding - w.reach for w in kernel.windows]

    def of(images: Tensor) -> Tensor:
        if images.dtype == torch.float64 and len(images) > 1 and {*dilations} == {1} and kernel.rank < 3:
            # that of transposed convolutions takes twice as long in double precision, and up to five times the memory
            shape = (len(images), weight.shape[1] * kernel.groups, *(w.length for w in kernel.windows))
            sides = images, images.new_empty(shape), weight
            numbers = strides, paddings, dilations, False, [0] * kernel.rank, kernel.groups
            result, _, _ = aten.convolution_backward(*sides, None, *numbers, _BY_INPUT)
            return result
        return torch.convolution(images, weight, None, strides, paddings, dilations, True, behind, kernel.groups)

    return _of_images(of, tensor, weight, kernel)


def _is_sooner_turned(tensor: Tensor, weight: Tensor, kernel: Kernel) -> bool:
    """Tell whether the way back from windows takes less time as a convolution by a weight that is turned round.

    On a CPU it does in single precision, where torch has a kernel for few channels that takes half of the time or less,
    and in double precision if there are fewer channels of which windows are laid out.
    """
    images = tensor.shape[: tensor.dim() - kernel.rank - kernel.channel_axes].numel()
    is_sooner = tensor.dtype == torch.float32 or len(weight) < weight.shape[1] * kernel.groups
    return tensor.device.type == "cpu" and images > 1 and is_sooner and all(w.is_turnable for w in kernel.windows)


def _turned(weight: Tensor, groups: int) -> Tensor:
    """Turn a weight round along all axes of places, and exchange those of channels."""
    turned = weight.flip(tuple(range(2, weight.dim()))).unflatten(0, (groups, -1))
    return turned.transpose(1, 2).flatten(0, 1)


def _of_images(of: Callable[[Tensor], Tensor], tensor: Tensor, weight: Tensor, kernel: Kernel) -> Tensor:
    """Return what a function makes of images, the axes before whose channels are one for it."""
    flat, lead = _flattened(tensor, kernel)
    size = _at_once(flat, weight, kernel)
    if size is None:
        return _unflattened(of(flat), lead, kernel)
    first = of(flat[:size])
    result = first.new_empty((len(flat), *first.shape[1:]))
    result[:size] = first
    for start in range(size, len(flat), size):
        result[start : start + size] = of(flat[start : start + size])
    return _unflattened(result, lead, kernel)


def _at_once(images: Tensor, weight: Tensor, kernel: Kernel) -> int | None:
    """Return of how many images to compute something at once, None for all of them.

    On a CPU torch lays out all windows of all images, in double precision, or images with more channels than they have.
    Where that is more than memory at hand, the system gives it anew at every call, which takes up to ten times as long
    as the rest. Who follows what is done sees a single step.
    """
    windows = prod(each.number for each in kernel.windows) * prod(weight.shape[1:]) * kernel.groups
    size = max(1, LAID_OUT // max(1, windows * images.element_size()))
    if len(images) <= size or images.device.type != "cpu" or is_compiling():
        return None
    return size if PLAIN.issuperset((type(images), type(weight))) and not is_followed((images, weight)) else None


def convolved_weight(small: Tensor, large: Tensor, kernel: Kernel) -> Tensor:
    """Sum products of what lies at windows and in them over images: the derivative of a convolution by its weight.

    Args:
        small: What lies at the windows: images, channels with groups as an axis of their own, and places.
        large: What lies in them, likewise.
        kernel: How a weight of which this is the derivative is applied to the latter.

    Returns:
        Groups if there are several, channels of the former, those of the latter, and places of the weight.
    """
    strides, dilations, paddings = _numbers(kernel)
    (small, _), (large, _) = _flattened(small, kernel), _flattened(large, kernel)
    inner = large.shape[1] // kernel.groups
    weight = large.new_empty((small.shape[1], inner, *(w.width for w in kernel.windows)))

    def of(small: Tensor, large: Tensor) -> Tensor:
        numbers = strides, paddings, dilations, False, [0] * kernel.rank, kernel.groups
        return aten.convolution_backward(small, large, weight, None, *numbers, _BY_WEIGHT)[1]

    size = _at_once(large, weight, kernel)
    result = of(small, large) if size is None else reduce(add, map(of, small.split(size), large.split(size)))
    return result if kernel.groups == 1 else result.unflatten(0, (kernel.groups, -1))


# The axes of both tensors that a convolution sums over, beside those of windows.
AXES_SUMMED: dict[Callable[..., Tensor], tuple[int, int]] = {
    convolved: (1, 1),
    convolved_back: (1, 0),
    convolved_weight: (0, 0),
}


def convolved_jointly(
    one: Tensor, other: Tensor, more: Tensor, another: Tensor, function: Callable[..., Tensor], kernel: Kernel
) -> Tensor:
    """Return the sum of two convolutions, ``function(one, other, kernel)`` and that of the others, as one."""
    first, second = AXES_SUMMED[function]
    return function(torch.cat((one, more), first), torch.cat((other, another), second), kernel)


_BY_INPUT = [True, False, False]
_BY_WEIGHT = [False, True, False]


def _numbers(kernel: Kernel) -> tuple[list[int], list[int], list[int]]:
    """Return the strides, dilations and paddings."""
    return tuple(map(list, zip(*((w.stride, w.dilation, w.padding) for w in kernel.windows), strict=True)))  # type: ignore[return-value]


def _flattened(tensor: Tensor, kernel: Kernel) -> tuple[Tensor, tuple[int, ...]]:
    """Merge the axes before the channels into one, and those of the channels; returns the former's shape too."""
    start = tensor.dim() - kernel.rank
    channels, places = tensor.shape[start - kernel.channel_axes : start].numel(), tensor.shape[start:]
    lead = tuple(tensor.shape[: start - kernel.channel_axes])
    return tensor.reshape(torch.Size(lead).numel(), channels, *places), lead


def _unflattened(tensor: Tensor, lead: tuple[int, ...], kernel: Kernel) -> Tensor:
    channels = (tensor.shape[1],) if kernel.groups == 1 else (kernel.groups, tensor.shape[1] // kernel.groups)
    return tensor.reshape(*lead, *channels, *tensor.shape[2:])


class Work(NamedTuple):
    """What a call of a kernel of convolutions takes.

    Attributes:
        products: How many products it sums up.
        columns: How many numbers it lays out in columns: in double precision all windows of all images.
        at_once: How many of these it holds at once.
    """

    products: int
    columns: int
    at_once: int


def work_of(
    call: Call, operands: Sequence[tuple[int, ...]], result: tuple[int, ...], dtype: torch.dtype
) -> Work | None:
    """Return what a call takes, given the shapes of its operands and of its result; None if it is no convolution."""
    if call.op is convolved_jointly:
        *_, function, used = call.args
        work = work_of(Call(function, (Ref(0), Ref(1), used)), operands[:2], result, dtype)
        return work and work._replace(products=2 * work.products, columns=2 * work.columns)
    is_in_columns, most = dtype == torch.float64, LAID_OUT // dtype.itemsize
    if call.op is convolved or call.op is convolved_back:
        kernel: Kernel = call.args[-1]
        transposed, groups = kernel.transposed is (call.op is convolved), kernel.groups
    elif call.op is convolved_weight:
        small, rank = operands[0], call.args[-1].rank
        products = prod(small) * prod(result[-rank - 1 :])
        columns = products // max(1, small[-rank - 1]) if is_in_columns else 0
        return Work(products, columns, min(columns, most))
    elif call.op is aten.convolution.default:
        transposed, groups = call.args[6], call.args[8]
    else:
        return None
    weight = operands[1]  # each place on the shorter side meets all of it that is for one channel
    products = prod(operands[0] if transposed else result) * prod(weight[1:])
    columns = products // weight[0] * groups if is_in_columns and not transposed and 0 not in weight else 0
    return Work(products, columns, columns if call.op is aten.convolution.default else min(columns, most))


# The rule.


class Labelling(NamedTuple):
    """The axes of a convolution: of its groups and channels, and along each of its axes of the three tensors."""

    group: Axis
    inner: Axis
    outer: Axis
    inputs: Axes
    places: Axes
    outputs: Axes

    def windows(self, kernel: Kernel) -> tuple[Factor, ...]:
        """Return the factor of the windows along each axis."""
        small, large = (self.inputs, self.outputs) if kernel.transposed else (self.outputs, self.inputs)
        return tuple(map(along_windows, kernel.windows, small, self.places, large))

    def weight(self, kernel: Kernel) -> Axes:
        """Return the axes of the weight."""
        first, second = (self.inner, self.outer) if kernel.transposed else (self.outer, self.inner)
        return (self.group + first, second, *self.places)

    def applied(self, weight: Ref, kernel: Kernel) -> Factor:
        """Return the factor of the map between input and output."""
        sides = (self.outer, *self.outputs, self.inner, *self.inputs)
        count = 1 + kernel.rank
        source = Map(
            convolved,
            convolved_back,
            (weight, kernel),
            outs=count,
            ins=count,
            parts=parts,
            covers=not kernel.transposed,
        )
        return Factor(source, (*sides, self.group) if kernel.groups > 1 else sides)


def parts(axes: Axes, weight: Ref, kernel: Kernel) -> tuple[Factor, ...]:
    """Return the factors of which the map between input and output is the product."""
    side = 1 + kernel.rank
    (outer, *outputs), (inner, *inputs), separate = axes[:side], axes[side : 2 * side], axes[2 * side :]
    places = fresh_axes(windows.width for windows in kernel.windows)
    labelling = Labelling(sum(separate, ()), inner, outer, tuple(inputs), places, tuple(outputs))
    return (Factor(weight, labelling.weight(kernel)), *labelling.windows(kernel))


class Options(NamedTuple):
    """The arguments of a convolution that are no tensors."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int


@dataclass(frozen=True, slots=True)
class Convolution(OfProducts):
    """One of three tensors from the others: input, weight and output, of which the product is summed over windows.

    A convolution takes its input and weight, and its backward pass takes what stands for the output and one of them.

    Attributes:
        operands: What the op's tensors are. A bias is added to each channel of the output.
        results: What its outputs are; that for a bias is the sum over each channel of the output.
        options: Given the op's arguments, those that say how.
    """

    operands: tuple[str, ...]
    results: tuple[str, ...]
    options: Callable[..., Options]

    def positions(self, site: Site, order: int) -> Iterable[Positions]:
        """See `Rule`."""
        result = self.results[site.node.output or 0]
        linear = {"input", "weight", "output"} - {result} if result != "bias" else {"output"}
        taken = [place for place, _ in enumerate(site.operands) if self.operands[place] in linear]
        if order == 1 and result == "output":
            taken.extend(range(len(taken), len(site.operands)))  # the bias
        return combinations(taken, order)

    def terms(self, site: Site, positions: Positions) -> Sequence[Term]:
        """See `Rule`."""
        result = self.results[site.node.output or 0]
        refs = dict(zip(self.operands, map(site.ref, range(len(site.operands))), strict=False))
        shapes = {**dict(zip(self.operands, site.shapes, strict=False)), result: site.node.shape}
        options = site.bind(self.options, site.operands)
        kernel, axes = _kernel(options, shapes), _labelling(options.groups, shapes)
        batch = (full(Label(shapes["input"][0])),)
        sides = {
            "input": (batch, axes.group + axes.inner, *axes.inputs),
            "weight": axes.weight(kernel),
            "output": (batch, axes.group + axes.outer, *axes.outputs),
            "bias": (axes.group + axes.outer,),
        }
        slots = [self.operands[position] for position in positions]
        shown = {result, *slots}
        if "bias" in shown:
            factors: tuple[Factor, ...] = ()
        elif shown == {"input", "output"}:
            factors = (axes.applied(refs["weight"], kernel),)
        else:
            given = [Factor(refs[side], sides[side]) for side in ("input", "output") if side not in shown]
            factors = (*given, *axes.windows(kernel))
        return [Term(1, factors, sides[result], tuple(sides[slot] for slot in slots))]


def _kernel(options: Options, shapes: dict[str, tuple[int, ...]]) -> Kernel:
    small, large = ("input", "output") if options.transposed else ("output", "input")
    sizes = shapes[small][2:], shapes["weight"][2:], shapes[large][2:]
    rank = len(sizes[0])
    numbers = (tuple(option) * (rank // len(option)) for option in options[:3])
    return Kernel(tuple(map(Windows, *sizes, *numbers)), options.transposed, options.groups)


def _labelling(groups: int, shapes: dict[str, tuple[int, ...]]) -> Labelling:
    x, weight, out = shapes["input"], shapes["weight"], shapes["output"]
    group: Axis = () if groups == 1 else (full(Label(groups)),)
    inner, outer = fresh_axes((x[1] // groups, out[1] // groups))
    return Labelling(group, inner, outer, fresh_axes(x[2:]), fresh_axes(weight[2:]), fresh_axes(out[2:]))


def _options(x: Any, weight: Any, bias: Any, *options: Any) -> Options:
    return Options(*options)


def _backward_options(grad: Any, x: Any, weight: Any, bias_sizes: Any, *options: Any) -> Options:
    return Options(*options[:-1])


define(aten.convolution.default, Convolution(("input", "weight", "bias"), ("output",), _options))
define(
    aten.convolution_backward.default,
    Convolution(("output", "input", "weight"), ("input", "weight", "bias"), _backward_options),
)
