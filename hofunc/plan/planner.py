"""Planning: from a recorded graph and the orders wanted to a program and the places of its results."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch

from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Factor, Term
from hofunc.plan.accumulate import dense
from hofunc.plan.blocks import Blocks, Local, local_blocks
from hofunc.plan.cost import Cost, cost_of
from hofunc.plan.forward import forward
from hofunc.plan.mixed import mixed
from hofunc.plan.packing import DirectionsError, RowsMixError, Variable
from hofunc.plan.program import Builder, Program, Register, memory_of
from hofunc.plan.reverse import reverse
from hofunc.rules.lower import Lowered

STRATEGIES = ("reverse", "forward", "mixed")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to compute for one structure of graph.

    Attributes:
        lowered: The graph that the plan is of.
        program: The steps.
        dense: For every block that does not vanish, the place of its dense tensor among the program's outputs.
        terms: For a compact plan, for every such block its terms; the source of a factor is a place likewise.
        patterns: For every such block, the axes of its terms.
        strategy: The direction of propagation that it takes.
        cost: What the program costs.
    """

    lowered: Lowered
    program: Program
    dense: dict[tuple[int, Key], int]
    terms: dict[tuple[int, Key], tuple[Term, ...]]
    patterns: dict[tuple[int, Key], tuple[Term, ...]]
    strategy: str
    cost: Cost


def plan(lowered: Lowered, orders: Sequence[int], *, compact: bool, strategy: str = "auto") -> tuple[Plan, ...]:
    """Plan the derivatives of the outputs of a graph by its active inputs.

    Args:
        lowered: The graph.
        orders: The orders wanted.
        compact: Whether to return terms rather than dense tensors.
        strategy: One of STRATEGIES, or "auto" for all that apply.

    Returns:
        Plans of the strategies, the one that is estimated to be fastest first.

    Raises:
        DirectionsError: The strategy asked for does not apply; it is an ArgumentError.
    """
    local = local_blocks(lowered, max(orders))
    if strategy != "auto":
        return (_plan(lowered, local, orders, compact, strategy),)
    plans = []
    for name in STRATEGIES if max(orders) > 1 else STRATEGIES[:2]:
        try:
            plans.append(_plan(lowered, local, orders, compact, name))
        except DirectionsError:  # reverse always applies
            continue
    return tuple(sorted(plans, key=lambda made: made.cost.seconds))


def _plan(lowered: Lowered, local: dict[int, Local], orders: Sequence[int], compact: bool, strategy: str) -> Plan:
    builder, blocks = _blocks(lowered, local, orders, strategy)
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
    return Plan(lowered, program, places, terms, patterns, strategy, cost_of(program, builder.device))


def _blocks(lowered: Lowered, local: dict[int, Local], orders: Sequence[int], strategy: str) -> tuple[Builder, Blocks]:
    """Return the blocks of a strategy and the builder that has their steps."""
    dtype = computing_dtype(lowered)
    if strategy == "reverse":
        builder = Builder(lowered, dtype)
        return builder, reverse(builder, local, orders)
    nodes = lowered.graph.nodes
    variables = {number: Variable.of(nodes[number].shape) for number in lowered.graph.inputs if nodes[number].active}
    while True:
        builder = Builder(lowered, dtype)
        try:
            return builder, (forward if strategy == "forward" else mixed)(builder, local, variables, orders)
        except RowsMixError as error:
            variables[error.variable] = variables[error.variable].without(error.axis)


def computing_dtype(lowered: Lowered) -> torch.dtype:
    """Return the dtype to compute in: the widest of the graph, and float32 at least.

    In half precision a sum of many terms would lose more than the values themselves have lost.
    """
    dtypes = {node.dtype for node in lowered.graph.nodes if node.active and node.dtype.is_floating_point}
    return reduce(torch.promote_types, dtypes, torch.float32)


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
