"""What hofunc changes in inductor so that what is added at indices is added by one thread, without atomic operations.

Where there are several threads, inductor has each number that is added up at an index read from a tensor added by an
atomic operation, in loops that threads share and in loops that they do not. One takes 5 nanoseconds, a sum of vectors a
tenth of one for a number: what symmetric derivatives of third order of a small network are collected by took 170
microseconds on two threads and 7 on one. Sums in another order at each call are not the same to the last digit, either.
It imports the compiler, which takes seconds, and so is imported where something is compiled.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch._inductor import ir, lowering  # noqa: F401 - the next one would import the latter in a circle
from torch._inductor.codegen.cpp import CppKernel, CppVecKernel, OuterLoopFusedKernel, ParallelDepth

from hofunc.replacing import replace


def add_in_turn(is_ours: Callable[[], bool]) -> None:
    """Have loops that add at indices be of one thread, wherever what is compiled is found to be of hofunc."""
    for kernel, name, replacement in (
        (CppKernel, "store", _stored),
        (CppVecKernel, "store", _stored),
        (CppKernel, "decide_parallel_depth", _shared),
        (OuterLoopFusedKernel, "decide_parallel_depth", _shared),
    ):
        replace(kernel, name, partial(_if_ours, is_ours, replacement))


def _if_ours(
    is_ours: Callable[[], bool], replacement: Callable[..., Any], before: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    return replacement(before, *args, **kwargs) if is_ours() else before(*args, **kwargs)


def _stored(before: Callable[..., Any], kernel: Any, name: str, index: Any, value: Any, mode: Any = None) -> Any:
    """Write what a kernel stores; what it adds at an index as the kernel of one thread."""
    if mode != "atomic_add":
        return before(kernel, name, index, value, mode)
    kernel.is_of_one_thread = True
    threads, kernel.num_threads = kernel.num_threads, 1
    try:
        return before(kernel, name, index, value, mode)
    finally:
        kernel.num_threads = threads


def _shared(before: Callable[..., Any], kernel: Any, most: ParallelDepth, threads: int) -> ParallelDepth:
    """Return how many of the outer loops threads share."""
    if any(getattr(each, "is_of_one_thread", False) for each in _parts(kernel)):
        return ParallelDepth(parallel_depth=0, start_depth=most.start_depth)
    return before(kernel, most, threads)


def _parts(kernel: Any) -> Iterable[Any]:
    """Return the kernels that write the loops of one: with and without vectors, of each loop inside."""
    if isinstance(kernel, OuterLoopFusedKernel):
        return [part for nest in kernel.inner for part in _parts(nest.get_kernel())]
    return getattr(kernel, "kernels", ())
