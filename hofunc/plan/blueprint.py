"""Blueprints: the program of one strategy, the chunks in which to run it, and the places of its results."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from hofunc.algebra.extents import plain
from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Factor, Term
from hofunc.plan.accumulate import dense
from hofunc.plan.blocks import Blocks
from hofunc.plan.chunks import Chunks, chunked
from hofunc.plan.cost import Cost, cost_of
from hofunc.plan.program import Builder, Program, Register, memory_of
from hofunc.plan.rows import number_of_rows
from hofunc.rules.lower import Lowered

CHUNK_BYTES = 4 << 20  # what a chunk may hold at once, about the cache of a core
SMALLEST_CHUNK = 4


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What to compute for one structure of graph.

    Attributes:
        lowered: The graph that the plan is of.
        program: The steps.
        dense: For every block that does not vanish, the place of its dense tensor among the program's outputs.
        terms: For a compact plan, for every such block its terms; the source of a factor is a place likewise.
        patterns: For every such block, the axes of its terms.
        strategy: The direction of propagation that it takes.
        cost: What the program costs.
        chunks: The program taken apart to run on some rows at a time, if that is better or asked for.
    """

    lowered: Lowered
    program: Program
    dense: dict[tuple[int, Key], int]
    terms: dict[tuple[int, Key], tuple[Term, ...]]
    patterns: dict[tuple[int, Key], tuple[Term, ...]]
    strategy: str
    cost: Cost
    chunks: Chunks | None = None

    @property
    def run_cost(self) -> Cost:
        """What it costs as it is run."""
        return self.cost if self.chunks is None else self.chunks.cost


class Limits(NamedTuple):
    """What a caller asks of the way a plan is run.

    Attributes:
        chunk_size: How many rows to run at a time; None for as many as are best.
        max_bytes: How much memory may be held at once; None for any.
    """

    chunk_size: int | None = None
    max_bytes: int | None = None


def drawn(builder: Builder, blocks: Blocks, strategy: str, *, compact: bool, limits: Limits) -> Blueprint:
    """Return the blueprint of what a strategy came to.

    Args:
        builder: The builder that has its steps.
        blocks: The derivatives wanted.
        strategy: Its name.
        compact: Whether to return terms rather than dense tensors.
        limits: Rows at a time, and memory.
    """
    outputs: list[Register] = []
    terms: dict[tuple[int, Key], tuple[Term, ...]] = {}
    places: dict[tuple[int, Key], int] = {}
    if compact:
        terms = {block: tuple(_placed(builder, block[0], term, outputs) for term in blocks[block]) for block in blocks}
    else:
        places = {block: place for place, block in enumerate(blocks)}
        outputs = _own(builder, [_cast(builder, block[0], dense(builder, blocks[block])) for block in blocks])
    program = builder.program(outputs)
    patterns = {block: tuple(term._replace(factors=()) for term in blocks[block]) for block in blocks}
    whole = Blueprint(builder.lowered, program, places, terms, patterns, strategy, cost_of(program, builder.device))
    cores = [factor.source for group in blocks.values() for term in group for factor in term.factors]
    chunks = _best_chunks(whole, cores, builder.device, limits)
    return replace(whole, program=program._replace(steps=plain(program.steps)), chunks=chunks)


def _best_chunks(whole: Blueprint, cores: Sequence[Register], device: torch.device, limits: Limits) -> Chunks | None:
    """Return the chunks in which to run a plan, None to run it as a whole."""
    rows, peak = number_of_rows(whole.lowered.graph), whole.cost.peak_bytes
    if rows is None:
        return None
    if limits.chunk_size is not None:
        return chunked(whole.program, cores, rows, limits.chunk_size, device) if limits.chunk_size < rows else None
    if limits.max_bytes is not None and peak > limits.max_bytes:
        size = rows
        while size > 1:
            size = max(1, min(size // 2, size * limits.max_bytes // peak))
            chunks = chunked(whole.program, cores, rows, size, device)
            if chunks is None or chunks.cost.peak_bytes <= limits.max_bytes:
                return chunks
        return None
    if peak <= CHUNK_BYTES or device.type != "cpu":
        return None
    size = max(SMALLEST_CHUNK, rows * CHUNK_BYTES // peak)
    chunks = chunked(whole.program, cores, rows, size, device) if size < rows else None
    return chunks if chunks is not None and chunks.cost.seconds < whole.cost.seconds else None


def _cast(builder: Builder, output: int, register: Register) -> Register:
    dtype = builder.lowered.graph.nodes[output].dtype
    return register if dtype == builder.dtype else builder.emit(torch.Tensor.to, register, dtype)


def _own(builder: Builder, outputs: Sequence[Register]) -> list[Register]:
    """Copy every result that shares memory with a value of the graph or with another result."""
    result, taken = [], set()
    for place, register in enumerate(outputs):
        memory = memory_of(builder, register)
        result.append(builder.emit(copied, register, place) if memory is None or memory in taken else register)
        taken.add(memory)
    return result


def copied(tensor: torch.Tensor, _: int) -> torch.Tensor:
    """Return a copy; the number keeps copies for different results apart."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _placed(builder: Builder, output: int, term: Term, outputs: list[Register]) -> Term:
    """Replace the register of a term's factor by the place that it gets among the outputs."""
    if not term.factors:
        return term
    ((source, axes),) = term.factors
    outputs.append(_cast(builder, output, source))
    return term._replace(factors=(Factor(len(outputs) - 1, axes),))
