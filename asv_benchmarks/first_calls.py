"""First and later calls of a program, and of nested torch.func: processor time of one thread, float64."""

import resource
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch.func import jacfwd, jacrev
from torch.utils._pytree import tree_leaves

import hofunc
from asv_benchmarks.benchmarks.nests import NESTS, TRANSFORMS, title
from asv_benchmarks.benchmarks.problem import Problem
from asv_benchmarks.benchmarks.programs import Program
from asv_benchmarks.benchmarks.timing import keep_memory
from hofunc.run.cache import forget

BYTES = 12 << 30  # of address space: what takes more fails rather than stop the machine
TURNS_SECONDS = 0.5  # for later calls of both
TURNS = 3, 15  # how many at least and at most


@dataclass(frozen=True)
class Nested:
    """What a nest of torch.func takes: seconds of its first evaluation and of a later one, and how far it is off."""

    name: str
    first: float
    later: float
    error: float


@dataclass(frozen=True)
class Row:
    """What was measured of a program at one size.

    Attributes:
        size: The size.
        effort: Steps of planning, of all strategies that were tried.
        first: Seconds of the first call, for which there is no plan.
        later: Seconds of a later one.
        strategy: That of the plan.
        steps: Steps of its program.
        peak_bytes: The most that it holds at once.
        nested: The same of the fastest nest of torch.func, and the largest difference over the largest entry.
    """

    size: int
    effort: int
    first: float
    later: float
    strategy: str
    steps: int
    peak_bytes: int
    nested: Nested | None


def measured(program: Program) -> Iterator[Row]:
    """Yield what a program takes at each of its sizes, in a process whose memory is limited from now on."""
    warnings.simplefilter("ignore")  # of vmap, which says where it loops
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    keep_memory()
    _prepare()
    for size in program.sizes:
        yield measured_at(program, size)


def _prepare() -> None:
    """Do what Python and torch do once a process."""
    x = torch.ones(3, dtype=torch.float64)
    for derivative in (hofunc.hessian, lambda f: jacrev(jacrev(f)), lambda f: jacfwd(jacrev(f))):
        derivative(lambda x: (x.sin() * x).sum())(x)


def measured_at(program: Program, size: int) -> Row:
    """Return what a program takes at a size."""
    problem = program.make(size)
    ours = hofunc.hod(problem.f, problem.order, problem.argnums)
    forget()
    result, first = _timed(ours, problem)
    found = list(_nests(program, size, result)) if size <= program.nested else []
    del result
    nested = min(found, key=lambda nest: nest.later, default=None)
    theirs = _nest(problem, nested.name) if nested else ours
    turns = _in_turn(problem, ours, theirs)
    later, other = (median(seconds) for seconds in zip(*turns, strict=True))
    quick = problem.planned()
    plan = quick.plan
    return Row(
        size,
        quick.effort,
        first,
        later,
        plan.strategy,
        len(plan.program.steps),
        plan.run_cost.peak_bytes,
        replace(nested, later=other) if nested else None,
    )


def _in_turn(problem: Problem, ours: Callable[..., Any], theirs: Callable[..., Any]) -> list[tuple[float, float]]:
    """Return the seconds of calls of both in turn, so that what else the machine does slows both."""
    least, most = TURNS
    turns: list[tuple[float, float]] = []
    while len(turns) < least or (len(turns) < most and sum(map(sum, turns)) < TURNS_SECONDS):
        turns.append((_timed(ours, problem)[1], _timed(theirs, problem)[1]))
    return turns


def _nests(program: Program, size: int, result: Any) -> Iterator[Nested]:
    """Yield what nests of torch.func take that work, and how far they are from a result."""
    for nest in NESTS[program.make(size).order]:
        if "jacrev" not in nest:
            continue
        problem = program.make(size)
        derivative = _nest(problem, title(nest, False))
        try:
            expected, first = _timed(derivative, problem)
            error = _error(result, expected)
            del expected
            yield Nested(title(nest, False), first, _timed(derivative, problem)[1], error)
        except RuntimeError:  # no memory, or no forward mode
            continue


def _nest(problem: Problem, name: str) -> Callable[..., Any]:
    """Return the derivative of a problem by a nest of a title, of ops of which torch is right."""
    derivative: Callable[..., Any] = problem.written_out or problem.f
    for transform in reversed(name.strip(")").split("(")):
        derivative = TRANSFORMS[transform](derivative, argnums=problem.argnums)
    return derivative


def _timed(derivative: Callable[..., Any], problem: Problem) -> tuple[Any, float]:
    start = time.process_time()
    result = derivative(*problem.args)
    return result, time.process_time() - start


def _error(got: Any, expected: Any) -> float:
    """Return the largest difference over the largest entry."""
    pairs = list(zip(tree_leaves(got), tree_leaves(expected), strict=True))
    largest = max(float(one.abs().max()) for _, one in pairs)
    return max(float((one - other).abs().max()) for one, other in pairs) / (largest or 1.0)
