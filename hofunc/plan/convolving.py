"""Products of two tensors through windows: a convolution each, by torch's own kernels.

A factor of windows relates the window, the place in it and the place that this is of an axis. Of two tensors that have
two of these each, the sum of products over both is a convolution, the transpose of one, or the derivative of one by its
weight, whatever the tensors are: values, directions or cotangents. So the windows of neither are ever laid out.
"""

from collections.abc import Collection, Sequence
from math import prod
from typing import NamedTuple

import torch

from hofunc.algebra.labels import Label, extent, labels_of
from hofunc.algebra.operators import Map
from hofunc.algebra.term import Factor
from hofunc.plan.builder import Builder
from hofunc.plan.program import Register
from hofunc.rules.ops.convolution import Kernel, convolved, convolved_back, convolved_weight
from hofunc.rules.ops.windows import windowed
from hofunc.views import Labelled, permuted

Labels = tuple[Label, ...]
Ends = tuple[Label | None, Label | None, Label | None]  # the window, the place in it, the place along the axis

WINDOW, PLACE, AXIS = range(3)
MOST_AXES = 3  # of torch's kernels
FEW_PRODUCTS = 1 << 16  # below which to set up a kernel of single precision takes longer than to lay windows out


class _Pair(NamedTuple):
    """Two operands of which the product through windows is a convolution.

    Attributes:
        made: Which end of the windows the product has.
        hosts: The places of the operands with either of the others, in order.
        windows: The factors of the windows.
        ends: The labels of each.
    """

    made: int
    hosts: tuple[int, int]
    windows: list[Factor]
    ends: list[Ends]

    def labels(self, end: int) -> Labels:
        """Return the labels of one end of the windows."""
        return tuple([label for ends in self.ends if (label := ends[end]) is not None])

    def sizes(self, end: int) -> tuple[int, ...]:
        """Return the size of one end along each axis."""
        return tuple([1 if ends[end] is None else ends[end].size for ends in self.ends])  # type: ignore[union-attr]


def convolved_pair(
    builder: Builder, operators: Sequence[Factor], operands: Sequence[Labelled], shown: Collection[Label]
) -> tuple[list[Factor], list[Labelled]] | None:
    """Replace two operands and the windows between them by their convolution.

    Args:
        builder: Takes the step.
        operators: The operators of a term.
        operands: Its tensors.
        shown: The labels that are visible.

    Returns:
        Both without what was replaced; None if no two operands are convolved.
    """
    pair = _pair(operators, operands, shown)
    if pair is None:
        return None
    rest = [operator for operator in operators if not any(operator is each for each in pair.windows)]
    others = [operand for place, operand in enumerate(operands) if place not in pair.hosts]
    needed = {*shown, *labels_of(*(each.axes for each in rest)), *(label for one in others for label in one.labels)}
    one, other = pair.hosts
    result = _convolved(builder, pair, operands[one], operands[other], needed)
    return None if result is None else (rest, [*others, result])


def is_of_windows(factor: Factor) -> bool:
    """Tell whether a factor relates windows along an axis to it."""
    return isinstance(factor.source, Map) and factor.source.forward is windowed


def _pair(operators: Sequence[Factor], operands: Sequence[Labelled], shown: Collection[Label]) -> _Pair | None:
    every = [(factor, ends) for factor in operators if (ends := _ends(factor)) is not None]
    for made in (WINDOW, AXIS, PLACE):
        one, other = (end for end in (AXIS, WINDOW, PLACE) if end != made)
        for _, ends in every:
            hosts = _host(operands, ends[one]), _host(operands, ends[other])
            if None in ends or None in hosts or hosts[0] == hosts[1]:
                continue
            pair = _Pair(made, hosts, *_between(every, operands, hosts, made))  # type: ignore[arg-type]
            if 0 < len(pair.windows) <= MOST_AXES and _is_summed(pair, operators, operands, shown):
                return pair
    return None


def _ends(factor: Factor) -> Ends | None:
    """Return the labels of windows, of those that are whole axes; None for any other factor."""
    if not is_of_windows(factor):
        return None
    if not all(extent(axis) == 1 or (len(axis) == 1 and axis[0].is_full) for axis in factor.axes):
        return None
    return tuple([axis[0].label if extent(axis) > 1 else None for axis in factor.axes])  # type: ignore[return-value]


def _host(operands: Sequence[Labelled], label: Label | None) -> int | None:
    """Return the place of the only operand that has a label, None if there is no such operand."""
    places = [place for place, operand in enumerate(operands) if label in operand.labels]
    return places[0] if len(places) == 1 else None


def _between(
    every: Sequence[tuple[Factor, Ends]], operands: Sequence[Labelled], hosts: tuple[int, int], made: int
) -> tuple[list[Factor], list[Ends]]:
    """Return the windows between two operands."""
    others = [end for end in (AXIS, WINDOW, PLACE) if end != made]
    found = [
        (factor, ends)
        for factor, ends in every
        if all(ends[end] is None or _host(operands, ends[end]) == host for end, host in zip(others, hosts, strict=True))
    ]
    return [factor for factor, _ in found], [ends for _, ends in found]


def _is_summed(
    pair: _Pair, operators: Sequence[Factor], operands: Sequence[Labelled], shown: Collection[Label]
) -> bool:
    """Tell whether nothing else has what a convolution sums over, and neither operand what it makes."""
    rest = [operator.axes for operator in operators if not any(operator is each for each in pair.windows)]
    needed = {*shown, *labels_of(*rest)}
    made = pair.labels(pair.made)
    summed = [label for end in (WINDOW, PLACE, AXIS) if end != pair.made for label in pair.labels(end)]
    own = {label for place in pair.hosts for label in operands[place].labels}
    is_distinct = len({*made, *summed}) == len(made) + len(summed)
    return is_distinct and needed.isdisjoint(summed) and own.isdisjoint(made)


def _convolved(
    builder: Builder, pair: _Pair, one: Labelled, other: Labelled, needed: Collection[Label]
) -> Labelled | None:
    """Return the convolution of two operands, None where it takes longer by the kernels of torch."""
    first, second = (end for end in (AXIS, WINDOW, PLACE) if end != pair.made)
    along = {*pair.labels(first), *pair.labels(second)}
    left, right = ([label for label in each.labels if label not in along] for each in (one, other))
    both = [label for label in left if label in right]
    if any(label in needed for label in both):
        return None  # rows that stay apart, or groups
    own, others = ([label for label in each if label not in both] for each in (left, right))
    kernel = Kernel(tuple([factor.source.args[0] for factor in pair.windows]), False, 1)
    if not all(windows.is_whole for windows in kernel.windows) or _takes_longer(builder, pair, {*left, *right}):
        return None
    if pair.made == PLACE:
        images = _laid_out(builder, other, (both, others), pair, WINDOW)
        args, groups = (builder.stand_in(_laid_out(builder, one, (both, own), pair, AXIS)), kernel), (others, own)
    else:
        images = _laid_out(builder, one, (own, both), pair, first)
        weights = (others, both) if pair.made == WINDOW else (both, others)
        args, groups = (builder.stand_in(_laid_out(builder, other, weights, pair, PLACE)), kernel), (own, others)
    function = {WINDOW: convolved, AXIS: convolved_back, PLACE: convolved_weight}[pair.made]
    shape = (*(prod(label.size for label in group) for group in groups), *pair.sizes(pair.made))
    result = builder.apply(function, images, args, shape)
    labels = (*groups[0], *groups[1], *pair.labels(pair.made))
    if not _is_one_each(groups, pair, pair.made):
        result = builder.emit(torch.reshape, result, tuple([label.size for label in labels]))
    return Labelled(result, labels)


def _takes_longer(builder: Builder, pair: _Pair, beside: Collection[Label]) -> bool:
    """Tell whether torch's kernels take longer than to lay windows out and to multiply matrices."""
    products = prod(label.size for label in {*beside, *pair.labels(WINDOW), *pair.labels(PLACE)})
    return builder.device.type == "cpu" and builder.dtype != torch.float64 and products < FEW_PRODUCTS


def _laid_out(
    builder: Builder, operand: Labelled, groups: Sequence[Sequence[Label]], pair: _Pair, end: int
) -> Register:
    """Lay an operand out with a dimension for each of two groups of labels, and one for each axis of the windows."""
    order = [operand.labels.index(label) for label in (*groups[0], *groups[1], *pair.labels(end))]
    tensor = permuted(builder.emit, operand.tensor, tuple(order))
    shape = (*(prod(label.size for label in group) for group in groups), *pair.sizes(end))
    return tensor if _is_one_each(groups, pair, end) else builder.emit(torch.reshape, tensor, shape)


def _is_one_each(groups: Sequence[Sequence[Label]], pair: _Pair, end: int) -> bool:
    """Tell whether there is a label for each dimension."""
    return all(len(group) == 1 for group in groups) and len(pair.labels(end)) == len(pair.ends)
