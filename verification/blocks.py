"""The blocks of a derivative by several inputs: one tensor for every output and every choice of inputs in the slots."""

from collections.abc import Sequence
from itertools import product
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from hofunc import Derivative
from verification.programs import Program
from verification.vectors import ENTRIES

BATCH_NAMES = set("bcdefgh")
Blocks = dict[tuple[int, ...], Tensor]


def inputs_of(program: Program) -> tuple[int, ...]:
    """Return the numbers of all inputs: argnums by which a derivative has all blocks."""
    return tuple(range(len(program.inputs)))


def reachable(program: Program, order: int, rows: int = 1) -> int:
    """Return the highest order, up to the given one, at which all blocks together are not too large to compare."""
    output = program(*program.inputs)
    outputs = rows * sum(y.numel() for y in (output if isinstance(output, tuple) else (output,)))
    inputs = rows * sum(x.numel() for x in program.inputs)
    while order > 1 and outputs * inputs**order > ENTRIES:
        order -= 1
    return order


def blocks_of(derivative: Any, outputs: int, inputs: int, order: int) -> Blocks:
    """Return all blocks by (output, input of the first slot, of the second, ...)."""
    result: Blocks = {}
    for output, of_output in enumerate(derivative if outputs > 1 else (derivative,)):
        for slots in product(range(inputs), repeat=order):
            block = of_output
            for number in slots:
                block = block[number]
            result[output, *slots] = block
    return result


def transposed(block: Tensor, turns: Sequence[Sequence[int]]) -> Tensor:
    """Transpose a block, given how the axes of its output and of every slot are transposed."""
    axes: list[int] = []
    for turn in turns:
        first = len(axes)
        axes.extend(first + axis for axis in turn)
    return block.permute(axes)


def compact_blocks(derivative: Any) -> list[Derivative]:
    """Return the compact derivatives of a pytree."""
    leaves: list[Derivative] = tree_leaves(derivative, is_leaf=lambda leaf: isinstance(leaf, Derivative))
    return leaves


def kept_axes(block: Derivative) -> set[tuple[int, ...]]:
    """Return the axes that share an index in all slots of all terms, by their numbers in every slot.

    They are read off the pattern, in which labels that all slots share are named from b to h, and an axis of which a
    term has a single index is that number. A derivative that vanishes has none.
    """
    if not block.terms:
        return set()
    of_terms = []
    for term in block.pattern.split(" + "):
        _, *slots = (axes.split(" ") for axes in term.split(", "))
        places = product(*(range(len(slot)) for slot in slots))
        names = {axes: {slot[axis] for slot, axis in zip(slots, axes, strict=True)} for axes in places}
        of_terms.append({axes for axes, met in names.items() if len(met) == 1 and is_shared(*met)})
    return set.intersection(*of_terms)


def is_shared(name: str) -> bool:
    """Tell whether an axis of this name has one index in all slots."""
    return name in BATCH_NAMES or name.isdigit()
