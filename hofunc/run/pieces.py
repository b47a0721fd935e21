"""Pieces: dense derivatives handed over as they are computed, some coordinates of the first slot at a time."""

from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

import torch

from hofunc.graph.world import without_autocast
from hofunc.plan.blueprint import Blueprint
from hofunc.run.asked import runner
from hofunc.run.executor import compiled


class Piece(NamedTuple):
    """A part of a derivative.

    A derivative by several inputs is there for one order of them, that of the arguments, the others being transposes.

    Attributes:
        output: Which of the tensors that f returns is differentiated.
        inputs: For each slot, by which of the tensors, counted over all arguments to differentiate by.
        start: The first of the coordinates of the first slot, of which it has some, counted in order of memory.
        stop: The one after the last.
        tensor: The part: of shape ``(*out, stop - start, *in, ...)``, with the shape of the input of every other slot.

    Example:
        >>> for piece in hofunc.hessian(lambda x: (x**3).sum(), chunk_size=2).pieces(torch.ones(3)):
        ...     print(piece.start, piece.stop, piece.tensor.tolist())
        0 2 [[6.0, 0.0, 0.0], [0.0, 6.0, 0.0]]
        2 3 [[0.0, 0.0, 6.0]]
    """

    output: int
    inputs: tuple[int, ...]
    start: int
    stop: int
    tensor: torch.Tensor


class Block(NamedTuple):
    """A derivative that does not vanish.

    Attributes:
        output: The number of the output.
        inputs: Those of the inputs, by slot.
        before: The shape of the output.
        first: That of the input of the first slot.
        rest: Those of all others together.
        dtype: Its dtype.
    """

    output: int
    inputs: tuple[int, ...]
    before: tuple[int, ...]
    first: tuple[int, ...]
    rest: tuple[int, ...]
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return (*self.before, *self.first, *self.rest)

    @property
    def rows(self) -> int:
        """How many coordinates the first slot has."""
        return prod(self.first)

    def piece(self, start: int, stop: int, tensor: torch.Tensor) -> Piece:
        """Return a piece of it."""
        return Piece(self.output, self.inputs, start, stop, tensor.reshape(*self.before, stop - start, *self.rest))


def blocks_of(made: Blueprint) -> list[Block]:
    """Return the derivatives that a plan computes, in the order of its results."""
    graph = made.lowered.graph
    found = []
    for output, key in sorted(made.dense, key=made.dense.__getitem__):
        before, first, *rest = [tuple(map(int, graph.nodes[number].shape)) for number in (output, *key)]
        inputs = tuple([graph.inputs.index(number) for number in key])
        number, dtype = graph.outputs.index(output), graph.nodes[output].dtype
        found.append(Block(number, inputs, before, first, sum(rest, ()), dtype))
    return found


def pieces_of(
    made: Blueprint, values: Sequence[torch.Tensor], done: Collection[int] = ()
) -> Iterator[tuple[int, list[Piece]]]:
    """Yield the number of every chunk of a plan in pieces, and what it computes; those of what is done are left out."""
    blocks = blocks_of(made)
    if made.chunks is None:  # there are too few coordinates to part them
        if 0 not in done:
            results = without_autocast(runner(made), [*values])
            yield 0, [block.piece(0, block.rows, tensor) for block, tensor in zip(blocks, results, strict=True)]
        return
    chunks, number = made.chunks, 0
    held = without_autocast(compiled(chunks.before), values)
    for body in chunks.bodies:
        programs = {size: compiled(program) for size, program in body.programs.items()}
        for size, first in zip(body.sizes, accumulate(body.sizes, initial=0), strict=False):
            if number not in done:
                parts = without_autocast(programs[size], chunks.taken(held, torch.narrow, body.start + first, size))
                yield number, [blocks[place].piece(first, first + size, parts.pop(0)) for place in body.places]
            number += 1


def number_of_chunks(made: Blueprint) -> int:
    """Return how many chunks a plan in pieces has."""
    return 1 if made.chunks is None else len(made.chunks.sizes)
