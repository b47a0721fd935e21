"""What hofunc changes in inductor so that loops which it makes one read what others of them have written.

NOTE [rows]: inductor puts loops over the same rows into one over these, and what one makes of a row for another is then
in a buffer of the size of one row. If both take several rows at a time, as where they read columns that lie side by
side, all of these rows are in the place of one, of which the last is left. A derivative through two layer
normalisations, with a sum of rows between them, was wrong by orders of magnitude.

NOTE [indices]: it makes one loop of what adds rows at indices, and of what reads the sums, if the latter adds rows at
the same indices to another tensor: a row is read before others are added to it.

Both are so in torch 2.13, and docs/explanations/torch-errors.md has how to see it. Nothing else is compiled otherwise:
the change refuses to make one of these loops. It imports the compiler, which takes seconds, and so is imported where
something is compiled.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch._inductor import ir, lowering  # noqa: F401 - the next one would import the latter in a circle
from torch._inductor.codegen.cpp import OuterLoopFusedSchedulerNode
from torch._inductor.dependencies import MemoryDep
from torch._inductor.scheduler import Scheduler
from torch._inductor.virtualized import V

from hofunc.replacing import replace

_FOUND = "written_at_indices_of_hofunc"


def fuse_rightly() -> None:
    """Have inductor leave loops apart that would not read what others have written."""
    replace(OuterLoopFusedSchedulerNode, "check_outer_fusion_loop_level_attr", partial(_if, _has_whole_rows))
    replace(Scheduler, "can_fuse", partial(_if, _has_sums))


def _if(condition: Callable[..., bool], before: Callable[..., bool], *args: Any, **kwargs: Any) -> bool:
    """Return what a function that allows something does, under a condition."""
    return condition(*args) and before(*args, **kwargs)


def _has_whole_rows(_: Any, kernels: Sequence[Any], depth: int) -> bool:
    """Tell whether loops have place for all rows that they hand on, see NOTE [rows]."""
    has_buffers = bool(getattr(V.local_buffer_context, "local_buffers", None))
    outer = (loop for kernel in kernels for loop in (kernel.loop_nest.loops or ())[:depth])
    return not has_buffers or all(loop.steps == 1 for loop in outer)


def _has_sums(scheduler: Any, one: Any, other: Any, *_: Any) -> bool:
    """Tell whether neither of two loops reads what the other writes at indices, see NOTE [indices]."""
    real = scheduler.mutation_real_name
    for writing, reading in ((one, other), (other, one)):
        written = {_real(name, real) for name in _written_at_indices(writing)}
        if written and not written.isdisjoint(_real(each.name, real) for each in reading.read_writes.reads):
            return False
    return True


def _written_at_indices(node: Any) -> frozenset[str]:
    """Return the names of what a loop writes at indices that are read from a tensor; it is asked for many times."""
    found: frozenset[str] | None = getattr(node, _FOUND, None)
    if found is None:
        writes = (each for each in node.read_writes.writes if isinstance(each, MemoryDep) and each.is_indirect())
        found = frozenset([each.name for each in writes])
        setattr(node, _FOUND, found)
    return found


def _real(name: str, real: dict[str, str]) -> str:
    """Return the name of the memory of a buffer, if that is written in place."""
    while name in real:
        name = real[name]
    return name
