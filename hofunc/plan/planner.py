"""Planning: from a recorded graph and the orders wanted to a program and the places of its results."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch

from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Factor, Term
from hofunc.plan.accumulate import dense
from hofunc.plan.program import Builder, Program, Register, memory_of
from hofunc.plan.reverse import Blocks, reverse
from hofunc.rules.lower import Lowered


@dataclass(frozen=True, slots=True)
class Plan:
    """What to compute for one structure of graph.

    Attributes:
        lowered: The graph that the plan is of.
        program: The steps.
        dense: For every block that does not vanish, the place of its dense tensor among the program's outputs.
        terms: For a compact plan, for every such block its terms; the source of a factor is a place likewise.
    """

    lowered: Lowered
    program: Program
    dense: dict[tuple[int, Key], int]
    terms: dict[tuple[int, Key], tuple[Term, ...]]


def plan(lowered: Lowered, orders: Sequence[int], *, compact: bool) -> Plan:
    """Plan the derivatives of the outputs of a graph by its active inputs.

    Args:
        lowered: The graph.
        orders: The orders wanted.
        compact: Whether to return terms rather than dense tensors.
    """
    builder = Builder(lowered, computing_dtype(lowered))
    blocks = reverse(builder, orders)
    outputs: list[Register] = []
    if compact:
        terms = {block: tuple(_placed(builder, block[0], term, outputs) for term in blocks[block]) for block in blocks}
        return Plan(lowered, builder.program(outputs), {}, terms)
    places = {block: place for place, block in enumerate(blocks)}
    for block, register in _dense_registers(builder, blocks).items():
        outputs.append(_cast(builder, block[0], register))
    return Plan(lowered, builder.program(_own(builder, outputs)), places, {})


def computing_dtype(lowered: Lowered) -> torch.dtype:
    """Return the dtype to compute in: the widest of the graph, and float32 at least.

    In half precision a sum of many terms would lose more than the values themselves have lost.
    """
    dtypes = {node.dtype for node in lowered.graph.nodes if node.active and node.dtype.is_floating_point}
    return reduce(torch.promote_types, dtypes, torch.float32)


def _dense_registers(builder: Builder, blocks: Blocks) -> dict[tuple[int, Key], Register]:
    return {block: dense(builder, terms) for block, terms in blocks.items()}


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
