"""Running a program in chunks, and backward passes through it.

Where autograd follows what is computed, it would keep what every chunk computes, which is as much as without chunks.
So each chunk is one node of history, that keeps what the chunk takes: the rows of what was computed before for all.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from hofunc.graph.followed import is_followed
from hofunc.graph.identity import PLAIN
from hofunc.graph.saving import is_hooked
from hofunc.graph.standin import in_transform
from hofunc.graph.tape import is_recording
from hofunc.internals import current_dispatch_mode, has_forward_level
from hofunc.plan.chunks import Body, Chunks, joint_of
from hofunc.plan.program import Program, is_drawn
from hofunc.progress import display
from hofunc.run.again import History
from hofunc.run.executor import Runner, compiled
from hofunc.run.origins import taking_own


def in_chunks(chunks: Chunks, *, takes_over: bool = False) -> Runner:
    """Return a function that runs the parts of a program; what runs before the body may return more than it takes.

    What chunks return is written into tensors for all rows. Where something else follows what is computed, it is laid
    together once all are there, which takes memory twice.

    Args:
        chunks: The parts.
        takes_over: As of `compiled`.
    """
    before, after = compiled(chunks.before, takes_over=takes_over), compiled(chunks.after, takes_over=True)
    bodies = [{size: _Body(program) for size, program in body.programs.items()} for body in chunks.bodies]
    needed = {given.origin for given in chunks.after.given.values()}
    firsts = [*accumulate((len(body.sizes) for body in chunks.bodies), initial=1)]

    def parts(held: Sequence[torch.Tensor], number: int, show: Callable[[int], None]) -> Iterator[Any]:
        start = chunks.bodies[number].start
        for place, size in enumerate(chunks.bodies[number].sizes, firsts[number]):
            part = bodies[number][size].run(chunks.taken(held, torch.narrow, start, size))
            show(place)
            yield part
            del part
            start += size

    def followed_parts(held: Sequence[torch.Tensor], number: int, show: Callable[[int], None]) -> Iterator[Any]:
        body = chunks.bodies[number]
        for place, (size, taken) in enumerate(zip(body.sizes, chunks.split(held, body), strict=True), firsts[number]):
            part = bodies[number][size].opened.of(taken)
            show(place)
            yield part

    def run(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        held = before(values)
        lay, of_each = _written, parts
        if is_followed(held):
            lay, of_each = _laid_together, followed_parts if _is_by_autograd(held, bodies) else parts
        taken: list[Any] = []
        with display(None, "hofunc: chunks")(len(chunks.sizes), "chunk") as show:
            for number, body in enumerate(chunks.bodies):
                taken += lay(body, of_each(held, number, show))
        taken += held
        del held
        for place in range(len(taken)):
            if place not in needed:
                taken[place] = None
        return after(taken)

    return run


class _Body:
    """What is run of a chunk.

    Args:
        program: The program.

    Attributes:
        run: Runs it.
    """

    def __init__(self, program: Program):
        self.run, self._program = compiled(program), program

    @cached_property
    def opened(self) -> "_Opened":
        """The same, of which autograd follows what it returns, and not how."""
        program, own = taking_own(self._program)
        run = compiled(program)
        return _Opened(run, own, History(run, program, is_asked=any(map(is_drawn, program.steps)), learns=True))


class _Opened(NamedTuple):
    """A program that takes the tensors that it held, too.

    Attributes:
        run: Runs it.
        own: These tensors, by number.
        history: What is known of backward passes through it.
    """

    run: Runner
    own: Mapping[int, torch.Tensor]
    history: History

    def of(self, taken: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return the results with one node of history."""
        held: Any = {**dict(enumerate(taken)), **self.own}
        with torch.no_grad():
            results = self.run(held)
        return self.history.of(results, held)


def _is_by_autograd(held: Sequence[torch.Tensor], bodies: Sequence[Mapping[int, _Body]]) -> bool:
    """Tell whether autograd alone follows what chunks do, and nobody sees more of it than what they return."""
    if in_transform() or has_forward_level() or is_recording() or current_dispatch_mode() is not None or is_hooked():
        return False
    every = [body.opened for sizes in bodies for body in sizes.values()]
    own = [tensor for each in every for tensor in each.own.values()]
    return PLAIN.issuperset(map(type, (*held, *own))) and not any(each.history.is_asked for each in every)


def _laid_together(body: Body, parts: Iterator[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    pairs = zip(*parts, body.joints, strict=True)
    return [reduce(torch.add, pieces) if dim is None else torch.cat(pieces, dim) for *pieces, dim in pairs]


def _written(body: Body, parts: Iterator[Any]) -> list[torch.Tensor]:
    """Write what every chunk returns to its place, or add it up, and hold it no longer."""
    joint: list[torch.Tensor] = []
    rows, start = sum(body.sizes), 0
    for size in body.sizes:
        part = next(parts)
        joint = joint or [joint_of(piece, dim, size, rows) for piece, dim in zip(part, body.joints, strict=True)]
        while part:
            dim, place = body.joints[len(part) - 1], joint[len(part) - 1]
            piece = part.pop()
            if dim is None:
                place.add_(piece) if start else place.copy_(piece)
            else:
                each = piece.shape[dim] // size
                place.narrow(dim, start * each, size * each).copy_(piece)
            del piece
        start += size
    return joint
