"""Chunks: a program taken apart so that its body runs on some rows at a time.

What rules compute from the values of nodes is prepared for all rows, since a mask may depend on which row it is for.
The contractions that follow are the body, which is the same for any number of rows; their results are laid together
along the rows, and what a dense layout makes of them comes after. A chunk that fits into a cache is faster than the
whole, and its intermediates take as much less memory.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from operator import getitem
from typing import Any, NamedTuple

import torch

from hofunc.algebra.extents import Rows, UnevenError, has_rows, sized
from hofunc.graph.node import Call
from hofunc.plan.cost import Cost
from hofunc.plan.lean import Lean, lean
from hofunc.plan.memory import Held, bytes_of, memory_of
from hofunc.plan.operators import eye_like, one_like, rows_read, unit_rows
from hofunc.plan.peak import peak_of
from hofunc.plan.program import Given, Program, Register, Step, finished
from hofunc.plan.tracing import Trace, traced
from hofunc.scatter import range_like

_BY_ROW = (unit_rows, rows_read)  # of which there is as much for all rows as what is computed for each
_MAKERS = (eye_like, one_like, range_like)  # what they take gives them a dtype and a device only

BY_COORDINATES = "coordinates"

Looks = tuple[tuple[int, ...], torch.dtype]


class Body(NamedTuple):
    """What is run on some rows at a time.

    Attributes:
        programs: It by the number of rows, from what is computed before.
        joints: For each of its outputs, the axis along which those of all chunks are laid together, None if they are
            added up.
        sizes: The number of rows of every chunk.
        start: The first of its rows.
        places: The place of each of its outputs among the results of the program that was taken apart, where the parts
            of these are handed over one by one.
    """

    programs: dict[int, Program]
    joints: tuple[int | None, ...]
    sizes: tuple[int, ...]
    start: int = 0
    places: tuple[int, ...] = ()


class Chunks(NamedTuple):
    """A program in parts.

    Attributes:
        before: From the values of recorded nodes to what the other parts take.
        dims: For each output of ``before``, the axis of its rows, None if it has none.
        bodies: What is run in chunks, from the outputs of ``before``.
        after: From the joint outputs of all bodies, and then those of ``before``, to the results.
        cost: What all of it costs.
        along: What the rows are: rows of the input, or its coordinates.
        in_pieces: Whether what bodies return is handed over and not held, so that nothing comes after.
        places: The output of ``before`` in place of which a chunk takes the places of its rows; None if there is none.
        handed_over: How many bytes are held at once where what bodies return is handed over.
    """

    before: Program
    dims: tuple[int | None, ...]
    bodies: tuple[Body, ...]
    after: Program
    cost: Cost
    along: str = "rows"
    in_pieces: bool = False
    places: int | None = None
    handed_over: int = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of rows of every chunk."""
        return tuple([size for body in self.bodies for size in body.sizes])

    @property
    def is_by_one_slot(self) -> bool:
        """Whether it is by coordinates of one slot, so that results can be handed over as they are computed."""
        return self.along == BY_COORDINATES

    @property
    def programs(self) -> list[Program]:
        """All programs that it is made of."""
        return [self.before, *(program for body in self.bodies for program in body.programs.values()), self.after]

    def taken(self, held: Sequence[Any], narrow: Callable[[Any, int, int, int], Any], start: int, size: int) -> list:
        """Return what a chunk takes of what was computed before, given how to narrow that along an axis."""
        pairs = zip(held, self.dims, strict=False)
        found = [one if dim is None else narrow(one, dim, start, size) for one, dim in pairs]
        if self.places is not None:
            found[self.places] = _places(found[self.places], start, size)
        return found

    def split(self, held: Sequence[torch.Tensor], body: Body) -> list[list[torch.Tensor]]:
        """Return what every chunk of a body takes, as parts of tensors that autograd takes together at once."""
        rows, found = sum(body.sizes), [list[torch.Tensor]() for _ in body.sizes]
        for one, dim in zip(held, self.dims, strict=False):
            is_part = dim is not None and one.shape[dim] != rows
            own = torch.narrow(one, dim, body.start, rows) if dim is not None and is_part else one
            parts = [one for _ in body.sizes] if dim is None else own.split(body.sizes, dim)
            for each, part in zip(found, parts, strict=True):
                each.append(part)
        if self.places is not None:
            for each, size, end in zip(found, body.sizes, accumulate(body.sizes, initial=body.start), strict=False):
                each[self.places] = _places(each[self.places], end, size)
        return found


def _places(like: Any, start: int, size: int) -> Any:
    """Return the places of some rows, with what stands for them."""
    if isinstance(like, Held):
        return Held.fresh((size,), torch.long)
    return torch.arange(start, start + size, device=like.device)


def chunked(program: Program, cores: Iterable[Register], rows: int, size: int, device: torch.device) -> Chunks | None:
    """Take a program apart for chunks of so many rows; None if its rows cannot be taken apart.

    Args:
        program: A program over a graph whose rows are marked.
        cores: The registers of contracted terms, from which the program makes its results.
        rows: The number of rows.
        size: How many of them a chunk has; the last may have fewer.
        device: Where it is to run.
    """
    try:
        plain = resized(program, rows)  # which is refused soon if it is at all
        parts = parts_of(program, cores)
        _, body, _ = parts
        return _chunks(program, plain, parts, rows, size, device) if body else None
    except (UnevenError, RuntimeError):  # the latter where shapes of the body do not fit each other for fewer rows
        return None


def parts_of(program: Program, cores: Iterable[Register]) -> tuple[list[Step], list[Step], list[Step]]:
    """Tell which steps come before the body, which are the body, and which come after."""
    needed = {core.index for core in cores}
    for step in reversed(program.steps):
        if step.target in needed:
            needed |= reads_of([step])
    early, body, late = [], [], []
    whole = {register for register, given in program.given.items() if not has_rows(given.shape)}
    ready = {*program.given}
    for step in program.steps:
        reads = reads_of([step])
        if step.target not in needed:
            late.append(step)
        elif (reads <= whole and not has_rows(step.args)) or (reads <= ready and _is_prepared(step.function)):
            early.append(step)
            ready.add(step.target)
            shape, _ = program.shapes.get(step.target, ((), None))
            if (reads <= whole or step.function in _MAKERS) and not has_rows(tuple(shape)):
                whole.add(step.target)
        else:
            body.append(step)
    return early, body, late


def _chunks(
    program: Program,
    plain: Program,
    parts: tuple[list[Step], list[Step], list[Step]],
    rows: int,
    size: int,
    device: torch.device,
) -> Chunks:
    """Take a program apart, given it for all rows too."""
    early, body, late = parts
    inside = {step.target for step in body}
    wanted_late = (reads_of(late) | {*program.outputs}) - {step.target for step in late}
    results = sorted(wanted_late & inside)
    taken = sorted((reads_of(body) | wanted_late) - inside)
    metas = traced(plain).values
    first = prepared(program, early, taken, rows)
    whole = finished(given_as(taken, first.looks), program.shapes, body, [Register(result) for result in results])
    other = _unlike(rows)
    some = resized(whole, other)
    part = traced(some).values
    _check_apart(some, metas, part)
    joints = tuple([_row_dim(metas[r].shape, part[r].shape, rows, other) for r in results])
    looks = {r: (tuple(metas[r].shape), metas[r].dtype) for r in (*results, *taken)}
    given = given_as([*results, *taken], looks)
    after = resized(finished(given, {}, late, [Register(output) for output in program.outputs]), rows)
    chunks = Chunks(first.program, first.dims, (body_of(whole, joints, rows, size),), after, Cost((), 0))
    return priced_chunks(chunks, device)


def _check_apart(body: Program, whole: Mapping[int, Any], part: Mapping[int, Any]) -> None:
    """Check that what a body makes of rows are rows, along one axis, of the shape that it is said to have.

    Nothing else tells where it adds rows up, or reads some at the places of others: of those of a chunk it can.

    Args:
        body: The body, for some number of rows.
        whole: What registers hold for all rows.
        part: What they hold for that number.

    Raises:
        UnevenError: It makes something else of them.
    """
    for step in body.steps:
        if step.function in _MAKERS or not any(_row_dims(whole[r], part[r]) for r in reads_of([step])):
            continue
        made, (shape, _) = part[step.target], body.shapes.get(step.target, (None, None))
        if len(_row_dims(whole[step.target], made)) != 1 or (shape is not None and tuple(made.shape) != tuple(shape)):
            raise UnevenError


def _row_dims(whole: Any, part: Any) -> list[int]:
    """Return the axes of rows of what a register holds, told from its shapes for all rows and for some."""
    if type(whole) is tuple:  # results of an op that has several, of rows along the axes of each
        return sorted({dim for each in zip(whole, part, strict=True) for dim in _row_dims(*each)})
    if whole is None:
        return []
    return [dim for dim, sizes in enumerate(zip(whole.shape, part.shape, strict=True)) if sizes[0] != sizes[1]]


def _is_prepared(function: Any) -> bool:
    """Tell whether a function is called for all rows at once, as what rules compute is, but for vectors of rows."""
    if isinstance(function, Call):
        return function.op not in _BY_ROW
    return function in (getitem, *_MAKERS)


class Prepared(NamedTuple):
    """What comes before a body.

    Attributes:
        program: From the values of recorded nodes to what is taken.
        looks: The shape and dtype of every register that is taken, in which rows are marked.
        dims: The axis of rows of each, None if it has none.
    """

    program: Program
    looks: dict[int, Looks]
    dims: tuple[int | None, ...]


def prepared(program: Program, early: Sequence[Step], taken: Sequence[int], rows: int) -> Prepared:
    """Return what computes some registers of a program, given the steps of which it does so."""
    before = resized(finished(program.given, program.shapes, early, [Register(register) for register in taken]), rows)
    metas = traced(before).values
    shapes = {
        **{r: given.shape for r, given in program.given.items()},
        **{r: s for r, (s, _) in program.shapes.items()},
    }
    unknown = [register for register in taken if register not in shapes]
    if unknown:
        some = finished(program.given, program.shapes, early, [Register(register) for register in unknown])
        other = traced(resized(some, _unlike(rows))).values
        shapes |= {register: _told(metas[register], other[register], rows) for register in unknown}
    looks = {register: (shapes[register], metas[register].dtype) for register in taken}
    return Prepared(before, looks, tuple([_marked_dim(shape) for shape, _ in looks.values()]))


def _told(whole: Any, part: Any, rows: int) -> tuple[int, ...]:
    """Return the shape of what a register holds, in which rows are marked, told from it for all rows and for some."""
    dims = _row_dims(whole, part)
    if any(whole.shape[dim] % rows for dim in dims):
        raise UnevenError
    return tuple([Rows(rows, size // rows) if dim in dims else size for dim, size in enumerate(whole.shape)])


def body_of(whole: Program, joints: tuple[int | None, ...], rows: int, size: int) -> Body:
    """Return the body that a program is which has rows, for chunks of so many of them."""
    sizes = (size,) * (rows // size) + ((rows % size,) if rows % size else ())
    return Body({count: resized(whole, count) for count in dict.fromkeys(sizes)}, joints, sizes)


def priced_chunks(chunks: Chunks, device: torch.device, most: int | None = None) -> Chunks:
    """Return parts that write over what they can, with what they cost as they are run in turn.

    What comes before the bodies is held until all chunks are done, and from the end of the first of a body so is what
    they are written to.

    Args:
        chunks: The parts.
        device: Where they are to run.
        most: How many bytes may be held; where what is held whatever is done is more, nobody looks for ways to hold
            less.
    """
    first_part = lean(chunks.before, traced(chunks.before), device)
    before = first_part.trace
    outside = memory_of(before.of(chunks.before.given))
    held = before.of(chunks.before.outputs)
    costs, peak = [first_part.cost(device)], peak_of(first_part.program, before, outside)
    handed_over = peak
    traces = [
        {
            size: traced(program, _placed(program, chunks.taken(held, Held.narrowed, body.start, size)))
            for size, program in body.programs.items()
        }
        for body in chunks.bodies
    ]
    joints = [[] if chunks.in_pieces else _joints(body, each) for body, each in zip(chunks.bodies, traces, strict=True)]
    every = [joint for each in joints for joint in each]
    is_futile = most is not None and bytes_of([*held, *every], outside) > most
    bodies = []
    joint: list[Held] = []
    for body, own_traces, own_joints in zip(chunks.bodies, traces, joints, strict=True):
        made = {
            size: Lean.of(program, own_traces[size]) if is_futile else lean(program, own_traces[size], device)
            for size, program in body.programs.items()
        }
        bodies.append(body._replace(programs={size: one.program for size, one in made.items()}))
        each = {size: one.cost(device) for size, one in made.items()}
        costs += [each[size] for size in body.sizes]
        first, *others = body.sizes
        own = 0 if chunks.places is None else torch.long.itemsize * max(body.sizes)
        parts = made[first].trace.of(body.programs[first].outputs)
        later = max([bytes_of(parts), *(each[size].peak_bytes for size in others)])
        before_it = bytes_of(joint)
        joint += own_joints
        highest = max(before_it + each[first].peak_bytes, bytes_of(joint) + later)
        peak = max(peak, bytes_of(held, outside) + own + highest)
        handed_over = max(handed_over, bytes_of(held, outside) + own + max(each[first].peak_bytes, later))
    after = traced(chunks.after, _placed(chunks.after, [*joint, *held]))
    last_part = lean(chunks.after, after, device)
    costs.append(last_part.cost(device))
    peak = max(peak, peak_of(last_part.program, last_part.trace, outside))
    steps = tuple([step for cost in costs for step in cost.steps])
    cost = Cost(steps, peak, apart=max(cost.apart for cost in costs), rates=costs[0].rates)
    return chunks._replace(
        before=first_part.program,
        bodies=tuple(bodies),
        after=last_part.program,
        cost=cost,
        handed_over=handed_over,
    )


def _joints(body: Body, traces: Mapping[int, Trace]) -> list[Held]:
    """Return the tensors that the results of a body are written to, for all of its rows."""
    first, rows = body.sizes[0], sum(body.sizes)
    parts = traces[first].of(body.programs[first].outputs)
    return [
        Held.fresh(_joint_shape(part.shape, dim, first, rows), part.dtype)
        for part, dim in zip(parts, body.joints, strict=True)
    ]


def joint_of(part: torch.Tensor, dim: int | None, size: int, rows: int) -> torch.Tensor:
    """Return a new tensor for all rows, or for their sum, as a chunk of some rows has one for these."""
    return part.new_empty(_joint_shape(tuple(part.shape), dim, size, rows))


def _joint_shape(shape: tuple[int, ...], dim: int | None, size: int, rows: int) -> tuple[int, ...]:
    return shape if dim is None else (*shape[:dim], shape[dim] // size * rows, *shape[dim + 1 :])


def _placed(program: Program, values: Sequence[Held]) -> dict[int, Held]:
    """Return what the given registers of a program hold."""
    return {register: values[given.origin] for register, given in program.given.items() if type(given.origin) is int}


def reads_of(steps: Iterable[Step]) -> set[int]:
    """Return the registers that steps read."""
    return {arg.index for step in steps for arg in step.args if type(arg) is Register}


def given_as(registers: Sequence[int], metas: Mapping[int, Looks]) -> dict[int, Given]:
    """Return what registers hold that are given in turn."""
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
    dims = [dim for dim, sizes in enumerate(zip(whole, part, strict=True)) if sizes[0] != sizes[1]]
    if len(dims) != 1 or whole[dims[0]] * size != part[dims[0]] * rows:
        raise UnevenError
    return dims[0]
