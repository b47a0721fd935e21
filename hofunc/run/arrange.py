"""What the dense derivatives of one order consist of, told once for a plan, so that a call only picks them."""

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate, chain, product
from math import prod
from typing import Any, NamedTuple

import torch

from hofunc.algebra.partitions import Key
from hofunc.graph.standin import in_transform
from hofunc.internals import count_dispatch_modes, without_views
from hofunc.plan.blueprint import Blueprint
from hofunc.plan.operators import zeros
from hofunc.views import Emit, run_now

Shapes = Sequence[Sequence[int]]

Zero = tuple[int, tuple[int, ...]]  # the output of which a derivative vanishes, and the shape of the derivative

SMALL = 512  # elements; to fill them takes less than to ask for memory
_RESULT, _TRANSPOSED = "result", "transposed"


class Arrangement(NamedTuple):
    """Of what the derivatives consist.

    Attributes:
        transposed: The places of results that are wanted with their axes in another order, and that order.
        vanishing: Those that are zero, and how many of each kind there are.
        places: The place of every derivative among the results, those transposed and those that are zero.
    """

    transposed: tuple[tuple[int, tuple[int, ...]], ...]
    vanishing: tuple[tuple[Zero, int], ...]
    places: "array[int]"

    def gathered(self, results: Sequence[Any], outputs: Sequence[torch.Tensor], emit: Emit) -> list[Any]:
        """Return the derivatives.

        Args:
            results: What the program returned.
            outputs: The tensors that f returned.
            emit: Runs a torch function, or appends it to a program.
        """
        found = [*results, *(emit(torch.permute, results[place], dims) for place, dims in self.transposed)]
        for (output, shape), count in self.vanishing:
            found += _zeros(count, shape, outputs[output], emit)
        return [found[place] for place in self.places]


def arranged(plan: Blueprint, outputs: Shapes, inputs: Shapes, blocks: Iterable[tuple[int, ...]]) -> Arrangement:
    """Tell of what the derivatives of an order consist, by output and then by block.

    Args:
        plan: The plan.
        outputs: The shapes of the outputs that are differentiated.
        inputs: The shapes of the inputs.
        blocks: The inputs of the slots of every block.
    """
    transposed: list[tuple[int, tuple[int, ...]]] = []
    vanishing: Counter[Zero] = Counter()
    found: list[tuple[Any, int]] = []  # of what each is one, and which
    turned = cache(_turned)  # as most blocks are turned in few ways
    for output, slots in product(range(len(outputs)), blocks):
        block, order = block_of(plan, plan.dense, output, slots)
        place, sizes = plan.dense.get(block), [inputs[number] for number in slots]
        if place is None:
            zero = output, (*outputs[output], *chain.from_iterable(sizes))
            found.append((zero, vanishing[zero]))
            vanishing[zero] += 1
        elif order == sorted(order):
            found.append((_RESULT, place))
        else:
            found.append((_TRANSPOSED, len(transposed)))
            transposed.append((place, turned(len(outputs[output]), tuple(map(len, sizes)), tuple(order))))
    counts: dict[Any, int] = {_RESULT: len(plan.program.outputs), _TRANSPOSED: len(transposed), **vanishing}
    starts = dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))
    places = array("q", [starts[kind] + number for kind, number in found])  # with no object for each
    return Arrangement(tuple(transposed), tuple(vanishing.items()), places)


def _turned(first: int, counts: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return the dims of a block whose slots are to be taken in another order, after so many of the output."""
    starts, start = [], first
    for slot in order:
        starts.append(start)
        start += counts[slot]
    dims = list(range(first))
    for slot, count in enumerate(counts):
        begin = starts[order.index(slot)]
        dims += range(begin, begin + count)
    return tuple(dims)


def _zeros(count: int, shape: tuple[int, ...], like: torch.Tensor, emit: Emit) -> list[Any]:
    """Return so many tensors of zeros, small ones in one piece of memory, which is many times as fast."""
    if emit is not run_now or prod(shape) > SMALL or count_dispatch_modes() or in_transform():
        return [emit(zeros, shape, like.dtype, like.device) for _ in range(count)]
    with without_views():
        return [*torch.zeros((count, *shape), dtype=like.dtype, device=like.device).unbind()]


def block_of(
    plan: Blueprint, blocks: Mapping[tuple[int, Key], Any], output: int, inputs: Sequence[int]
) -> tuple[tuple[int, Key], list[int]]:
    """Return the block that holds a derivative, and which of the slots each of its slots is.

    It is that of the sorted variables, unless there is one for the very order of the slots.
    """
    graph = plan.lowered.graph
    node, variables = graph.outputs[output], tuple([graph.inputs[number] for number in inputs])
    order = list(range(len(variables)))
    if (node, variables) not in blocks:
        order.sort(key=variables.__getitem__)
    return (node, tuple([variables[slot] for slot in order])), order
