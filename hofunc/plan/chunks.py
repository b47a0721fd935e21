"""Chunks: a program taken apart so that its body runs on some rows at a time.

What rules compute from the values of nodes is prepared for all rows, since a mask may depend on which row it is for.
The contractions that follow are the body, which is the same for any number of rows; their results are laid together
along the rows, and what a dense layout makes of them comes after. A chunk that fits into a cache is faster than the
whole, and its intermediates take as much less memory.
"""

from collections.abc import Iterable, Sequence
from operator import getitem
from typing import NamedTuple

import torch

from hofunc.algebra.extents import Rows, UnevenError, has_rows, sized
from hofunc.graph.node import Call
from hofunc.plan.cost import Cost, cost_of
from hofunc.plan.memory import Held, bytes_of, memory_of
from hofunc.plan.operators import eye_like, one_like
from hofunc.plan.peak import peak_of
from hofunc.plan.program import Given, Program, Register, Step, finished
from hofunc.plan.tracing import traced
from hofunc.scatter import range_like

_MAKERS = (eye_like, one_like, range_like)  # what they take gives them a dtype and a device only


class Chunks(NamedTuple):
    """A program in three parts.

    Attributes:
        before: From the values of recorded nodes to what the other parts take.
        dims: For each output of ``before``, the axis of its rows, None if it has none.
        bodies: The body by the number of its rows, from the outputs of ``before``.
        joints: For each output of the body, the axis along which those of all chunks are laid together.
        after: From the joint outputs of the body, and then those of ``before``, to the results.
        sizes: The number of rows of every chunk.
        cost: What all of it costs.
    """

    before: Program
    dims: tuple[int | None, ...]
    bodies: dict[int, Program]
    joints: tuple[int, ...]
    after: Program
    sizes: tuple[int, ...]
    cost: Cost


def chunked(program: Program, cores: Iterable[Register], rows: int, size: int, device: torch.device) -> Chunks | None:
    """Take a program apart for chunks of so many rows; None if its rows cannot be taken apart.

    Args:
        program: A program over a graph whose rows are marked.
        cores: The registers of contracted terms, from which the program makes its results.
        rows: The number of rows.
        size: How many of them a chunk has; the last may have fewer.
        device: Where it is to run.
    """
    early, body, late = _parts(program, cores)
    if not body:
        return None
    try:
        return _chunks(program, (early, body, late), rows, size, device)
    except (UnevenError, RuntimeError):  # the latter where shapes of the body do not fit each other for fewer rows
        return None


def _parts(program: Program, cores: Iterable[Register]) -> tuple[list[Step], list[Step], list[Step]]:
    """Tell which steps come before the body, which are the body, and which come after."""
    needed = {core.index for core in cores}
    for step in reversed(program.steps):
        if step.target in needed:
            needed |= _reads([step])
    early, body, late = [], [], []
    whole = {register for register, given in program.given.items() if not has_rows(given.shape)}
    prepared = {*program.given}
    for step in program.steps:
        reads = _reads([step])
        if step.target not in needed:
            late.append(step)
        elif (reads <= whole and not has_rows(step.args)) or (
            reads <= prepared and (isinstance(step.function, Call) or step.function in (getitem, *_MAKERS))
        ):
            early.append(step)
            prepared.add(step.target)
            shape, _ = program.shapes.get(step.target, ((), None))
            if (reads <= whole or step.function in _MAKERS) and not has_rows(tuple(shape)):
                whole.add(step.target)
        else:
            body.append(step)
    return early, body, late


def _chunks(
    program: Program, parts: tuple[list[Step], list[Step], list[Step]], rows: int, size: int, device: torch.device
) -> Chunks:
    early, body, late = parts
    inside = {step.target for step in body}
    wanted_late = (_reads(late) | {*program.outputs}) - {step.target for step in late}
    results = sorted(wanted_late & inside)
    taken = sorted((_reads(body) | wanted_late) - inside)
    before = finished(program.given, program.shapes, early, [Register(register) for register in taken])
    metas = traced(resized(program, rows)).values
    shapes = {
        **{r: given.shape for r, given in program.given.items()},
        **{r: s for r, (s, _) in program.shapes.items()},
    }
    marked = {register: shapes.get(register, metas[register].shape) for register in taken}
    given = _given(taken, {register: (marked[register], metas[register].dtype) for register in taken})
    whole = finished(given, program.shapes, body, [Register(result) for result in results])
    sizes = (size,) * (rows // size) + ((rows % size,) if rows % size else ())
    bodies = {count: resized(whole, count) for count in dict.fromkeys(sizes)}
    other = _unlike(rows)
    part = traced(resized(whole, other)).values
    dims = {step.target: _row_dim(metas[step.target].shape, part[step.target].shape, rows, other) for step in body}
    given = _given([*results, *taken], {r: (tuple(metas[r].shape), metas[r].dtype) for r in (*results, *taken)})
    after = resized(finished(given, {}, late, [Register(output) for output in program.outputs]), rows)
    chunks = Chunks(
        resized(before, rows),
        tuple(_marked_dim(marked[register]) for register in taken),
        bodies,
        tuple(dims[result] for result in results),
        after,
        sizes,
        Cost((), 0),
    )
    return chunks._replace(cost=cost_of_chunks(chunks, device))


def cost_of_chunks(chunks: Chunks, device: torch.device) -> Cost:
    """Return what all parts cost, as they are run in turn.

    What comes before the body is held until all chunks are done, and from the end of the first so is what they are
    written to.
    """
    before = traced(chunks.before)
    outside = memory_of(before.of(chunks.before.given))
    held = before.of(chunks.before.outputs)
    traces = {size: traced(body, _placed(body, _rows(chunks, held, size))) for size, body in chunks.bodies.items()}
    bodies = {size: cost_of(body, device, traces[size]) for size, body in chunks.bodies.items()}
    first, *others = chunks.sizes
    parts = traces[first].of(chunks.bodies[first].outputs)
    rows = sum(chunks.sizes)
    joint = [
        Held.fresh(_joint_shape(p.shape, dim, first, rows), p.dtype)
        for p, dim in zip(parts, chunks.joints, strict=True)
    ]
    after = traced(chunks.after, _placed(chunks.after, [*joint, *held]))
    later = max([bytes_of(parts), *(bodies[size].peak_bytes for size in others)])
    peak = max(
        peak_of(chunks.before, before, outside),
        bytes_of(held, outside) + max(bodies[first].peak_bytes, bytes_of(joint) + later),
        peak_of(chunks.after, after, outside),
    )
    costs = [cost_of(chunks.before, device, before), *(bodies[size] for size in chunks.sizes)]
    costs.append(cost_of(chunks.after, device, after))
    return Cost(tuple(step for cost in costs for step in cost.steps), peak)


def _rows(chunks: Chunks, held: Sequence[Held], size: int) -> list[Held]:
    """Return the first rows of what the body takes."""
    return [one if dim is None else one.narrowed(dim, size) for one, dim in zip(held, chunks.dims, strict=False)]


def joint_of(part: torch.Tensor, dim: int, size: int, rows: int) -> torch.Tensor:
    """Return a new tensor for all rows, as a chunk of some rows has one for these."""
    return part.new_empty(_joint_shape(tuple(part.shape), dim, size, rows))


def _joint_shape(shape: tuple[int, ...], dim: int, size: int, rows: int) -> tuple[int, ...]:
    return (*shape[:dim], shape[dim] // size * rows, *shape[dim + 1 :])


def _placed(program: Program, values: Sequence[Held]) -> dict[int, Held]:
    """Return what the given registers of a program hold."""
    return {register: values[given.origin] for register, given in program.given.items() if type(given.origin) is int}


def _reads(steps: Iterable[Step]) -> set[int]:
    return {arg.index for step in steps for arg in step.args if isinstance(arg, Register)}


def _given(registers: Sequence[int], metas: dict[int, tuple[tuple[int, ...], torch.dtype]]) -> dict[int, Given]:
    return {register: Given(place, *metas[register]) for place, register in enumerate(registers)}


def resized(program: Program, rows: int) -> Program:
    """Return the program for another number of rows.

    Raises:
        UnevenError: A shape in it is not proportional to the number of rows.
    """
    return program._replace(
        given={register: given._replace(shape=sized(given.shape, rows)) for register, given in program.given.items()},
        shapes={register: (sized(shape, rows), dtype) for register, (shape, dtype) in program.shapes.items()},
        steps=sized(program.steps, rows),
    )


def _marked_dim(shape: Sequence[int]) -> int | None:
    """Return the axis of rows of a shape in which it is marked."""
    dims = {dim: size.factor for dim, size in enumerate(shape) if isinstance(size, Rows)}
    if len(dims) > 1 or any(factor != 1 for factor in dims.values()):
        raise UnevenError
    return next(iter(dims), None)


def _unlike(rows: int) -> int:
    """Return a number of rows that no other size is likely to be equal to.

    Where steps of the body put rows beside another axis, as a diagonal of both does, their shapes do not fit then.
    """
    return rows + 7919


def _row_dim(whole: Sequence[int], part: Sequence[int], rows: int, size: int) -> int:
    """Return the axis of rows of a result, told from its shapes for all rows and for some."""
    dims = [dim for dim, (all_of_it, some) in enumerate(zip(whole, part, strict=True)) if all_of_it != some]
    if len(dims) != 1 or whole[dims[0]] * size != part[dims[0]] * rows:
        raise UnevenError
    return dims[0]
