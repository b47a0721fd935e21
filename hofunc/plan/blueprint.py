"""Blueprints: the program of one strategy, the chunks in which to run it, and the places of its results."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch

from hofunc.algebra.extents import plain
from hofunc.algebra.operators import Indices, selections_of
from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Factor, Term
from hofunc.graph.readings import Reading
from hofunc.plan.accumulate import accumulated, dense
from hofunc.plan.blocks import Blocks
from hofunc.plan.builder import Builder, Part, memory_of
from hofunc.plan.chunks import Chunks, chunked
from hofunc.plan.constants import with_tables
from hofunc.plan.cost import Cost, Kept
from hofunc.plan.devices import rates_of
from hofunc.plan.lean import Arranged, Lean, arranged
from hofunc.plan.memory import bytes_of
from hofunc.plan.program import Program, Register, Table, is_check
from hofunc.plan.rows import number_of_rows, unmarked
from hofunc.plan.selections import core_and_reads, entries, tensor_of
from hofunc.plan.tracing import Trace
from hofunc.rules.lower import Lowered
from hofunc.scatter import size_of
from hofunc.views import each

CHUNK_BYTES = 4 << 20  # what a chunk may hold at once, about the cache of a core
SMALLEST_CHUNK = 4


@dataclass(frozen=True, slots=True, weakref_slot=True)
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
        effort: How many steps planning took: contractions of terms, and steps of the program, needed or not.
        chunks: The program taken apart to run on some rows at a time, if that is better or asked for.
        carried: For every node that is propagated along slots, how many vectors it carries, and how many adjoints.
        owners: By the register that a step of the program computes, the node for which it does.
        careful: If results are right only where they are finite, makes the blueprint of what is right everywhere.
        plain: The steps before they were arranged to hold little, if memory is limited.
        trace: What the registers of the program hold, while it is one of several of which what they hold is compared.
    """

    lowered: Lowered
    program: Program
    dense: dict[tuple[int, Key], int]
    terms: dict[tuple[int, Key], tuple[Term, ...]]
    patterns: dict[tuple[int, Key], tuple[Term, ...]]
    strategy: str
    cost: Cost
    effort: int = 0
    chunks: Chunks | None = None
    carried: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    owners: Mapping[int, int] = field(default_factory=dict)
    careful: "Callable[[], Blueprint] | None" = None
    plain: Program | None = None
    trace: Trace | None = None

    @property
    def goes_by_facts(self) -> bool:
        """Whether it checks facts about indices as it is run, and may refuse some."""
        return self.chunks is None and any(map(is_check, self.program.steps))

    @property
    def run_cost(self) -> Cost:
        """What it costs as it is run."""
        return self.cost if self.chunks is None else self.chunks.cost._replace(reading=self.cost.reading)


class Limits(NamedTuple):
    """What a caller asks of the way a plan is run.

    Attributes:
        chunk_size: How many rows to run at a time; None for as many as are best.
        max_bytes: How much memory may be held at once; None for any.
        in_pieces: Whether results are handed over as they are computed, some coordinates at a time, and not held.
        made_after: Bytes of what is made of the results of the plan after it, and beside these.
        beside: Bytes that are there beside a plan where it starts, and to its end if it runs by coordinates.
        left: Of those, bytes that are there to the end in any case.
    """

    chunk_size: int | None = None
    max_bytes: int | None = None
    in_pieces: bool = False
    made_after: int = 0
    beside: int = 0
    left: int = 0


def table_bytes(made: Blueprint) -> int:
    """Return the bytes of the constants of a blueprint, which a plan holds from the time on at which it is made."""
    programs = [made.program] if made.chunks is None else made.chunks.programs
    origins = [given.origin for program in programs for given in program.given.values()]
    tables = {id(origin): origin.nbytes for origin in origins if isinstance(origin, Table)}
    return sum(tables.values()) + bytes_of([origin for origin in origins if isinstance(origin, torch.Tensor)])


def taken(made: Blueprint) -> Blueprint:
    """Return a blueprint with the tables of what is run, which were not made while it was one of several."""
    known: dict[int, torch.Tensor] = {}
    if made.chunks is None:
        unarranged = made.plain and with_tables(made.plain, known)
        return replace(made, program=with_tables(made.program, known), plain=unarranged, trace=None)
    bodies = [
        body._replace(programs={size: with_tables(program, known) for size, program in body.programs.items()})
        for body in made.chunks.bodies
    ]
    before, after = with_tables(made.chunks.before, known), with_tables(made.chunks.after, known)
    chunks = made.chunks._replace(before=before, bodies=tuple(bodies), after=after)
    return replace(made, chunks=chunks, plain=None, trace=None)


Peak = Callable[[Blueprint], int]


def told_once(peak: Peak) -> Peak:
    """Return what tells the same of blueprints, of all that run the same only once."""
    known: dict[tuple[int, ...], tuple[tuple, int]] = {}

    def told(made: Blueprint) -> int:
        runs = made.program, made.plain, made.chunks  # which are kept, so that nothing else bears their numbers
        key = tuple(map(id, runs))
        if key not in known:
            known[key] = runs, peak(made)
        return known[key][1]

    return told


def own_peak(made: Blueprint) -> int:
    """Return the most that a blueprint holds at once by itself."""
    return made.run_cost.peak_bytes


def drawn(
    builder: Builder,
    blocks: Blocks,
    strategy: str,
    *,
    compact: bool,
    limits: Limits,
    peak: Peak = own_peak,
    allowed: int = 0,
) -> Blueprint:
    """Return the blueprint of what a strategy came to.

    Args:
        builder: The builder that has its steps.
        blocks: The derivatives wanted.
        strategy: Its name.
        compact: Whether to return terms rather than dense tensors.
        limits: Rows at a time, and memory.
        peak: Tells what is held at once where a blueprint is run, which is kept to max_bytes if it can be; where it
            cannot, the blueprint is the one of those tried that holds least.
        allowed: How many bytes it may hold of which nobody asks whether they could be less.
    """
    outputs: Sequence[Register]
    terms: dict[tuple[int, Key], tuple[Term, ...]] = {}
    places: dict[tuple[int, Key], int] = {}
    if compact:
        blocks = {block: accumulated(builder, terms) for block, terms in blocks.items()}
        found: dict[Register, int] = {}
        terms = {block: tuple(_placed(builder, block[0], term, found) for term in blocks[block]) for block in blocks}
        outputs = [*found]
    else:
        places = {block: place for place, block in enumerate(blocks)}
        outputs = _own(builder, [cast(builder, block[0], dense(builder, blocks[block])) for block in blocks])
    unarranged = builder.program(outputs)
    patterns = {block: tuple(term._replace(factors=()) for term in blocks[block]) for block in blocks}
    kept = _kept([term for block in terms for term in blocks[block]])
    reading = kept.seconds(builder.dtype.itemsize, rates_of(builder.device))
    decided = (*builder.lowered.decided, *(each for each in builder.went_by.values() if isinstance(each, Reading)))
    rows = number_of_rows(builder.lowered.graph)
    nothing = MappingProxyType[int, torch.Tensor]({})
    lowered = builder.lowered._replace(decided=decided, values=nothing, likely=nothing)
    if builder.went_by:  # by indices of all rows, which cannot be taken apart then
        lowered = lowered._replace(graph=unmarked(lowered.graph))

    def of(made: Lean) -> Blueprint:
        cost = made.cost(builder.device)._replace(reading=reading)
        found = Blueprint(lowered, made.program, places, terms, patterns, strategy, cost, builder.effort)
        return found if limits.max_bytes is None else replace(found, plain=unarranged, trace=made.trace)

    first = arranged(unarranged, builder.device, limits.max_bytes)
    may_loop = rows is None and limits.chunk_size is None
    held = _within(of, first, limits.max_bytes, peak) if may_loop and limits.max_bytes is not None else None
    whole = held or of(first.leaner(builder.leave.seconds, allowed))
    program = whole.program
    cores = [
        source
        for group in blocks.values()
        for term in group
        for source, _ in term.factors
        if isinstance(source, Register)
    ]
    known = builder.owners
    owners = {step.target: owner for step in program.steps if (owner := known.get(step.target)) is not None}
    whole = replace(whole, carried=_carried(builder, program), owners=owners)
    if rows is not None:
        whole = replace(whole, program=program._replace(steps=plain(program.steps)), plain=None, trace=None)
    return _best(whole, _Chunking(program, cores, builder.device), limits, peak)


def _kept(terms: Sequence[Term]) -> Kept:
    """Return what contracted terms leave to whoever reads them."""
    placed = sum(size_of(entries(term)) for term in terms if selections_of(term))
    cores = [tensor_of(term) for term in terms if not selections_of(term)]
    return Kept(len(terms), sum(size_of(core.labels) for core in cores if core is not None), int(placed))


def _carried(builder: Builder, program: Program) -> dict[int, tuple[int, int]]:
    """Return how many vectors and adjoints each node carries, of those that a program needs."""
    needed = {step.target for step in program.steps} | {*program.given}
    found = {}
    for node, registers in builder.carried.items():
        kept = [(count, is_adjoint) for register, count, is_adjoint in registers if register.index in needed]
        adjoints = sum(count for count, is_adjoint in kept if is_adjoint)
        found[node] = (sum(count for count, _ in kept) - adjoints, adjoints)
    return found


class _Chunking(NamedTuple):
    """A program whose rows are marked, the registers that its results are made from, and where it runs."""

    program: Program
    cores: Sequence[Register]
    device: torch.device

    def of(self, whole: Blueprint, size: int) -> Blueprint | None:
        """Return a blueprint in chunks of so many rows, None if its rows cannot be taken apart."""
        rows = number_of_rows(whole.lowered.graph)
        if rows is None or size >= rows:
            return None
        chunks = chunked(self.program, self.cores, rows, size, self.device)
        return None if chunks is None else replace(whole, chunks=chunks)


def _best(whole: Blueprint, chunking: _Chunking, limits: Limits, peak: Peak) -> Blueprint:
    """Return a blueprint in the chunks in which to run it."""
    if limits.chunk_size is not None:
        return chunking.of(whole, limits.chunk_size) or whole
    rows, held = number_of_rows(whole.lowered.graph), whole.cost.peak_bytes
    if rows is None:
        return whole
    best = whole if limits.max_bytes is None else largest(whole, chunking, rows, limits.max_bytes, peak)
    if held <= CHUNK_BYTES or chunking.device.type != "cpu":
        return best
    if not best.run_cost.renewing:  # the time of new memory is all that chunks save
        return best
    size = max(SMALLEST_CHUNK, rows * CHUNK_BYTES // held)
    cached = chunking.of(whole, size) if best.chunks is None or size < best.chunks.sizes[0] else None
    if cached is None or cached.run_cost.seconds >= best.run_cost.seconds:
        return best
    return cached if limits.max_bytes is None or peak(cached) <= max(limits.max_bytes, peak(best)) else best


def _within(of: Callable[[Lean], Blueprint], first: Arranged, max_bytes: int, peak: Peak) -> Blueprint | None:
    """Return a blueprint with loops over labels that are summed, by which so much is held, or less if that is more.

    None if it holds no more without them.
    """
    found = [of(first.made)]
    beside = max(0, peak(found[0]) - first.made.peak)
    if peak(found[0]) <= max_bytes:
        return None
    for most in (max_bytes - beside, 0):  # it may hold more beside what is given
        if peak(found[-1]) > max_bytes:
            made = first.within(most)
            found.append(of(made))
            if made.peak > most:  # the least of all that are tried, whatever is allowed
                break
    return min(found, key=peak)


class Cut(Protocol):
    """What can be taken apart along rows, of whatever kind."""

    def of(self, whole: Blueprint, size: int) -> Blueprint | None:
        """Return a blueprint in chunks of so many rows, None if they cannot be taken apart."""


def largest(
    whole: Blueprint, chunking: Cut, rows: int, max_bytes: int, peak: Peak, one: Blueprint | None = None
) -> Blueprint:
    """Return the blueprint of most rows at a time that keeps to so many bytes; of least bytes, if none does.

    Args:
        whole: It of all rows at a time.
        chunking: Takes it apart.
        rows: How many there are.
        max_bytes: How many bytes may be held.
        peak: Tells how many are.
        one: It of one row at a time, if that was made before.
    """
    most, best = peak(whole), one or chunking.of(whole, 1)
    if most <= max_bytes or best is None:
        return whole
    least = peak(best)
    if least > max_bytes:
        return min(whole, best, key=peak)
    low, high = 1, rows
    while True:
        # what is held grows with the rows, and ever faster if not in proportion, so that this size should keep to it
        size = low + (high - low) * (max_bytes - least) // max(1, most - least)
        made = chunking.of(whole, size) if low < size < high else None
        if made is None:
            return best
        held = peak(made)
        if held <= max_bytes:
            low, least, best = size, held, made
        else:
            high, most = size, held


def cast(builder: Builder, output: int, register: Register) -> Register:
    """Return a result in the dtype of an output."""
    dtype = builder.lowered.graph.nodes[output].dtype
    return register if dtype == builder.dtype else builder.emit(torch.Tensor.to, register, dtype)


def _own(builder: Builder, outputs: Sequence[Register]) -> list[Register]:
    """Copy every result that shares memory with a value of the graph or with another result."""
    result: list[Register] = []
    taken: dict[Register, set[Part]] = defaultdict(set)
    for place, register in enumerate(outputs):
        memory = memory_of(builder, register)
        if memory is not None and memory.is_beside(taken[memory.base]):
            taken[memory.base].add(memory.part)
            result.append(register)
        else:
            result.append(builder.emit(copied, register, place))
    return result


def copied(tensor: torch.Tensor, _: int) -> torch.Tensor:
    """Return a copy; the number keeps copies for different results apart."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _placed(builder: Builder, output: int, term: Term, outputs: dict[Register, int]) -> Term:
    """Replace the register of a term's factor by the place that it gets among the outputs, selections by indices."""

    def place(register: Register) -> int:
        return outputs.setdefault(register, len(outputs))

    if not selections_of(term):
        factors = [Factor(place(cast(builder, output, source)), axes) for source, axes in term.factors]
        return term._replace(factors=tuple(factors))
    tensor, reads = core_and_reads(builder, term)
    core = Factor(place(cast(builder, output, tensor.tensor)), each(tensor.labels))
    found = [Factor(Indices(place(index.tensor)), (target, *each(index.labels))) for target, index in reads]
    return term._replace(factors=(core, *found))
