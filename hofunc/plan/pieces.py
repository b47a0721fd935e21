"""Pieces: what is made for all entries of an axis, only to be added to few places, is made and added some at a time.

Of edges that meet there are many more pairs than edges. What is read, multiplied and laid out for each pair is many
times as large as what it is added to. So the steps that lead to an addition along an axis, and to nothing else, are run
for some of its entries after the other, and what they make is never held as a whole.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import prod
from typing import Any, NamedTuple

import torch

from hofunc.graph.node import Call, Ref
from hofunc.plan.adding import Body, Made, Summed, Work, added_in_pieces
from hofunc.plan.lookups import LEAST, elements, multiplied, piece_beside
from hofunc.plan.memory import Held
from hofunc.plan.program import Program, Register, Step, depth_first, frees_of
from hofunc.plan.relations import read_last
from hofunc.plan.slicing import RULES, Axes, Rule
from hofunc.plan.tracing import Trace, retraced
from hofunc.scatter import added, flat_places

Looks = Mapping[int, Any]  # by register, what it holds
Taken = list[tuple[int, int | None]]  # registers, each with the axis along which some entries are taken, or as a whole


def in_pieces(program: Program, trace: Trace) -> tuple[Program, Trace]:
    """Return a program and its trace in which additions of much that nothing else takes are done in pieces.

    Args:
        program: The program.
        trace: What its registers hold.
    """
    if not any(step.function is added and _bytes(trace.values, step.args) >= LEAST for step in program.steps):
        return program, trace
    users: dict[int, set[int]] = defaultdict(set)
    for step in program.steps:
        for register in _reads(step):
            users[register].add(step.target)
    for output in program.outputs:
        users[output].add(-1)
    gone: set[int] = set()
    instead: dict[int, list[Step]] = {}
    fresh = 1 + max((*program.given, *(step.target for step in program.steps)), default=0)
    places = {step.target: place for place, step in enumerate(program.steps)}
    for step in program.steps:
        if step.function is added:
            groups = [*_groups(program.steps, places, step, trace.values, users)]
            if groups:
                instead[step.target] = _steps(step, groups, fresh)
                fresh += len(groups) + 1
                gone |= {target for group in groups for target in group.gone}
    if not instead:
        return program, trace
    steps = [new for step in program.steps for new in instead.get(step.target, [step])]
    steps = _without(steps, gone, program.outputs)
    made = program._replace(steps=tuple(steps), frees=frees_of(steps, program.outputs)[0])
    return made, retraced(made, program, trace)


def _without(steps: Sequence[Step], gone: Collection[int], outputs: Sequence[int]) -> list[Step]:
    """Return steps without those among some that no other one takes."""
    needed = {*outputs}
    kept: list[Step] = []
    for step in reversed(steps):
        if step.target in needed or step.target not in gone:
            kept.append(step)
            needed.update(_reads(step))
    return kept[::-1]


class _Group(NamedTuple):
    """Terms of an addition that are made in pieces.

    Attributes:
        terms: Their places among those of the addition.
        gone: The registers that are no longer computed as a whole, unless others take them.
        args: What the pieces are made of: how, and the registers that are taken.
    """

    terms: tuple[int, ...]
    gone: set[int]
    args: tuple


def _groups(
    steps: Sequence[Step], places: Mapping[int, int], step: Step, looks: Looks, users: Mapping[int, set[int]]
) -> Iterator[_Group]:
    """Yield groups of the terms of an addition, of those that run over as many entries."""
    coefficients = step.args[2]
    count = len(coefficients)
    pairs = [*zip(step.args[3 : 3 + count], step.args[3 + count :], strict=True)]
    by_rows: dict[int, list[int]] = defaultdict(list)
    for place, (where, rows) in enumerate(pairs):
        if looks[where.index].shape[:1] == looks[rows.index].shape[:1]:
            by_rows[looks[where.index].shape[0]].append(place)
    for entries, terms in by_rows.items():
        ends = [register.index for place in terms for register in pairs[place]]
        others = {r.index for place, pair in enumerate(pairs) if place not in terms for r in pair}
        inside, axes, whole = _inside(steps, places, step.target, ends, others, looks, users)
        saved = sum(looks[each.target].kind.nbytes for each in inside if not _is_view(each))
        if saved < LEAST or entries < 2:
            continue
        targets = {each.target for each in inside}
        slots: list[tuple[int, int | None]] = [
            (register, axis) for register, axis in axes.items() if register not in targets
        ]
        slots += [(register, None) for register in whole]
        numbers = {register: number for number, (register, _) in enumerate(slots)}
        makers = {each.target: each for each in inside}
        body: list[Made | Summed] = []
        order: list[Step] = []
        for place in terms:
            where, rows = (register.index for register in pairs[place])
            for each in depth_first(makers, [where, rows]):
                if each.target not in numbers:
                    body.append(Made(each.function, _template(each, numbers, axes)))  # type: ignore[arg-type] # a Call is called too
                    numbers[each.target] = len(numbers)
                    order.append(each)
            body.append(Summed(coefficients[place], numbers[where], numbers[rows]))
        freeing = _freeing(body)
        work = _work(order, freeing, entries, len(slots), looks, looks[step.target])
        size = max(1, piece_beside(looks[step.target].kind.nbytes) // work.held)
        dims = tuple([axis for _, axis in slots])
        args = (entries, size, dims, freeing, work, *[Register(register) for register, _ in slots])
        dtypes = (looks[r].dtype for r, _ in slots if type(looks[r]) is Held)
        if next((dtype for dtype in dtypes if dtype.is_floating_point), None) is looks[step.target].dtype:
            yield _Group(tuple(terms), targets, args)


def _inside(
    steps: Sequence[Step],
    places: Mapping[int, int],
    target: int,
    ends: Sequence[int],
    others: Collection[int],
    looks: Looks,
    users: Mapping[int, set[int]],
) -> tuple[list[Step], dict[int, int], dict[int, None]]:
    """Return the steps that lead to registers alone, the axes of what is on the way, and what is taken as a whole.

    What is read at indices, and views of it, may lead to others too: they are made anew for these.
    """
    axes = dict.fromkeys(ends, 0)
    whole: dict[int, None] = {}
    inside: list[Step] = []
    allowed = {target}
    waiting = [-places[register] for register in axes if register in places]  # so that the last step comes first
    heapify(waiting)
    while waiting:
        step = steps[-heappop(waiting)]
        axis = axes[step.target]
        is_own = users[step.target] <= allowed or _is_read_anew(step)
        if step.target in whole or step.target in others or not is_own:
            continue
        taken = _taken(step, axis, looks)
        if taken is None or any(axes.get(register, each) != each for register, each in taken if each is not None):
            continue
        if any(
            (each is None and register in axes) or (each is not None and register in whole) for register, each in taken
        ):
            continue
        for register in {register for register, each in taken if each is not None} - axes.keys():
            if register in places:
                heappush(waiting, -places[register])
        axes |= {register: each for register, each in taken if each is not None}
        whole |= {register: None for register, each in taken if each is None}
        inside.append(step)
        allowed.add(step.target)
    return inside[::-1], axes, whole


def _steps(step: Step, groups: Sequence[_Group], fresh: int) -> list[Step]:
    """Return the steps that do what an addition does, some of its terms in pieces."""
    size, width, coefficients = step.args[:3]
    count = len(coefficients)
    done = {place for group in groups for place in group.terms}
    left = [place for place in range(count) if place not in done]
    steps: list[Step] = []
    if left:
        args = [step.args[3 + offset + place] for offset in (0, count) for place in left]
        steps = [Step(fresh, added, (size, width, tuple([coefficients[place] for place in left]), *args))]
    for number, group in enumerate(groups):
        last = number == len(groups) - 1
        made = step.target if last else fresh + number + 1
        total = Register(steps[-1].target) if steps else (size, width)
        steps.append(Step(made, added_in_pieces, (total, *group.args)))
    return steps


def _reads(step: Step) -> Iterator[int]:
    return (arg.index for arg in step.args if type(arg) is Register)


def _bytes(looks: Looks, args: Sequence[Any]) -> int:
    return sum(looks[arg.index].kind.nbytes for arg in args if type(arg) is Register and type(looks[arg.index]) is Held)


def _is_read_anew(step: Step) -> bool:
    """Tell whether a step takes as long to make some of as to read that from memory."""
    return step.function is elements or _is_view(step)


def _is_view(step: Step) -> bool:
    return step.function in (torch.permute, torch.transpose, torch.unsqueeze, torch.reshape)


_PRODUCTS: dict[Any, int] = {torch.bmm: 0, multiplied: 1}  # the place of a factor whose last axis is summed


def _freeing(body: Sequence[Made | Summed]) -> Body:
    """Return the steps of a body with the numbers of what is not read after each."""
    last = {number: place for place, step in enumerate(body) for number in _numbers_of(step)}
    return tuple(
        [
            step._replace(frees=tuple(sorted(number for number in _numbers_of(step) if last[number] == place)))
            for place, step in enumerate(body)
        ]
    )


def _numbers_of(step: Made | Summed) -> set[int]:
    """Return the numbers of what a step of a body reads."""
    return {arg.node for arg in step.args if type(arg) is Ref} if isinstance(step, Made) else {step.where, step.rows}


def _work(inside: Sequence[Step], body: Body, entries: int, given: int, looks: Looks, total: Held) -> Work:
    """Return what the steps of a body do, given how many tensors they start from, and what they add to."""
    flops, written, calls = 0, 0, 0
    for step in inside:
        made = looks[step.target].kind
        if not _is_view(step):
            depth = _PRODUCTS.get(step.function)
            flops += made.numel if depth is None else 2 * made.numel * looks[step.args[depth].index].shape[-1]
            written += made.nbytes
            calls += 1
    sums = len(body) - len(inside)
    held = _held(inside, body, entries, given, looks, total)
    return Work(flops, written, calls + 2 * sums, held)


def _held(inside: Sequence[Step], body: Body, entries: int, given: int, looks: Looks, total: Held) -> int:
    """Return how many bytes are held at once for each entry: what is made, and rows that are laid out anew."""
    row = total.shape[1] * total.dtype.itemsize
    sizes: dict[int, int] = {}
    holders = {number: {number} for number in range(given)}  # what each holds, a view what it is a view of as well
    steps, held, most = iter(inside), 0, 1
    living: dict[int, int] = {}  # how many hold each
    for step in body:
        scratch = 0
        if isinstance(step, Made):
            number, own = len(holders), next(steps)
            kind = looks[own.target].kind
            is_new = not _is_view(own) or own.function is torch.reshape  # which may be a copy
            sizes[number] = -(-kind.numel * kind.dtype.itemsize // entries) if is_new else 0
            held += sizes[number]
            bases = [holders[arg.node] for arg in step.args if type(arg) is Ref] if _is_view(own) else []
            holders[number] = {number}.union(*bases)
            for each in holders[number]:
                living[each] = living.get(each, 0) + 1
        else:
            scratch = row + torch.long.itemsize + (step.weight != 1) * row  # both may be laid out anew
        most = max(most, held + scratch)
        for number in step.frees:
            for each in holders[number] if number >= given else ():
                living[each] -= 1
                held -= 0 if living[each] else sizes.get(each, 0)
    return most


# Along which axis a step takes entries of what it takes, for entries along an axis of what it makes.


def _taken(step: Step, axis: int, looks: Looks) -> Taken | None:
    """Return what a step takes for some entries along an axis of its result; None if it cannot do so."""
    name = step.function.op if isinstance(step.function, Call) else step.function
    rule = _RULES.get(name)
    if rule is None or any(type(looks[register]) is not Held for register in (step.target, *_reads(step))):
        return None
    shapes = [looks[arg.index].shape if type(arg) is Register else arg for arg in step.args]
    found = rule(looks[step.target].shape, axis, *shapes)
    if found is None:
        return None
    return [(a.index, each) for a, each in zip(step.args, found, strict=True) if type(a) is Register]


def _reshaped(shape: Sequence[int], axis: int, before: Sequence[int], _: Any) -> Axes:
    ahead = prod(shape[:axis])
    found = [d for d, size in enumerate(before) if size == shape[axis] and prod(before[:d]) == ahead]
    return [found[0], None] if found else None


def _read_elements(_: Sequence[int], axis: int, __: Any, *indices: Sequence[int]) -> Axes:
    return [None, *[0 for _ in indices]] if axis == 0 and all(len(each) == 1 for each in indices) else None


def _read_last(shape: Sequence[int], axis: int, *args: Any) -> Axes:
    return [None, 0] if axis == len(shape) - 1 and len(args) == 2 and len(args[1]) == 1 else None


def _batch(_: Sequence[int], axis: int, *__: Any) -> Axes:
    return None if axis else [0, 0]


# Rows are taken as a whole, and pieces of no other axis than that of entries.
_ALIKE = (
    *(torch.mul, torch.add, torch.neg, torch.permute, torch.transpose, torch.unsqueeze, torch.sum, torch.index_select),
    *(torch.Tensor.contiguous, multiplied, flat_places),
)
_RULES: dict[Any, Rule] = {
    **{function: RULES[function] for function in _ALIKE},
    torch.reshape: _reshaped,
    elements: _read_elements,
    read_last: _read_last,
    torch.bmm: _batch,
}


def _template(step: Step, numbers: Mapping[int, int], axes: Mapping[int, int]) -> tuple:
    """Return what a step takes, with Refs for registers, and sizes that do not tell how many entries there are."""
    args = [Ref(numbers[arg.index]) if type(arg) is Register else arg for arg in step.args]
    if step.function is torch.reshape:
        axis = axes[step.target]
        args[1] = tuple([-1 if place == axis else size for place, size in enumerate(args[1])])
    elif step.function is flat_places:
        args[0] = (-1,)
    return tuple(args)
