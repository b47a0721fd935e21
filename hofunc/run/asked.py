"""Running a program without what is seldom asked for: history, and care for what is not finite.

NOTE [asked for]: two things take as long as all the rest, and are mostly not needed.

History. Where a captured parameter requires gradients, autograd would follow every step, though most derivatives are
not differentiated again. So the steps run unfollowed, and what they return has one node of history, which runs them
again, followed, when a backward pass gets there. Who asks once asks again, as in training: from then on the steps are
followed as they run, or their backward pass is planned, see NOTE [learning] in `hofunc.run.backward`. What the node
takes is saved as autograd saves it, so that a write to it is noticed; all values of the call that what is returned
needs, as long as nobody planned what would take fewer.

Care. Where what an op takes is constant, its slope, which may be infinite, is multiplied by zero. To leave it out takes
marks of what is constant, see NOTE [what varies] in `hofunc.rules.settle`, which are a program of their own. But where
all slopes are finite the product is zero either way, and one that is not makes nan, which goes on to the end unless a
mask selects what it stands beside, as it should. So what is finite at the end is right, and only where something is not
are the marks computed; from then on, always.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import isfinite
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hofunc.graph.followed import is_followed
from hofunc.graph.identity import PLAIN
from hofunc.graph.saving import is_hooked
from hofunc.internals import current_dispatch_mode
from hofunc.plan.blueprint import Blueprint
from hofunc.plan.chunks import Chunks
from hofunc.plan.program import Program, device_of, is_drawn
from hofunc.plan.tracing import traced
from hofunc.plan.wanted import Contractions, Wanted
from hofunc.run.again import History
from hofunc.run.chunkwise import in_chunks
from hofunc.run.executor import MANY, Runner, compiled, warming_up
from hofunc.run.learning import Learning
from hofunc.run.origins import taking_own


class Way(NamedTuple):
    """One of several ways to compute the same.

    Attributes:
        run: What computes it; it may empty what it is given.
        takes: The numbers of the values that it reads.
    """

    run: Callable[[Any], list[Tensor]]
    takes: frozenset[int]


def runner(plan: Blueprint, wanted: Wanted = (), learning: Learning | None = None) -> Runner:
    """Return a function from the list of the values of the recorded nodes, which it empties, to the results of a plan.

    So what is not needed any more is given up as it runs, if nobody else holds it.

    Args:
        plan: The plan.
        wanted: What it computes; derivatives if left out.
        learning: Plans its backward pass.
    """
    careful = plan.careful
    return as_asked(
        _way_of(plan),
        careful and (lambda: _in_order(plan, careful(), wanted)),
        plan.program,
        learning=learning,
        needed=frozenset(plan.lowered.numbers),
    )


def _way_of(plan: Blueprint) -> Way:
    if plan.chunks is not None:
        return Way(in_chunks(plan.chunks, takes_over=True), _taken(plan.chunks.before))
    make = warming_up if len(plan.program.steps) >= MANY else compiled
    return Way(make(plan.program, takes_over=True), _taken(plan.program))


def _in_order(plan: Blueprint, careful: Blueprint, wanted: Wanted) -> Way:
    """Return the way of a careful plan, with results in the order of the other one; what vanishes by it is zero."""
    ours, theirs = plan.lowered.graph, careful.lowered.graph
    names = dict(zip((*ours.inputs, *ours.outputs), (*theirs.inputs, *theirs.outputs), strict=True))
    way = _way_of(careful)
    if isinstance(wanted, Contractions):  # which have numbers of their own
        order = [careful.dense.get((names[output], key)) for output, key in plan.dense]
    else:
        order = [careful.dense.get((names[output], tuple([names[n] for n in key]))) for output, key in plan.dense]
    if order == [*range(len(careful.dense))]:
        return way
    kinds = [held.kind for held in traced(plan.program).of(plan.program.outputs)]

    def run(values: Any) -> list[Tensor]:
        results = way.run(values)
        return [
            torch.zeros(kind.shape, dtype=kind.dtype, device=device_of(ours)) if place is None else results[place]
            for place, kind in zip(order, kinds, strict=True)
        ]

    return way._replace(run=run)


def of_plan(program: Program, chunks: Chunks | None, quick: Program | None, learning: Learning | None = None) -> Runner:
    """Return a function from the tensors of a call to what a frozen plan returns.

    Args:
        program: Its steps.
        chunks: They in chunks, if that is how they run.
        quick: What returns the same as long as that is finite.
        learning: Plans its backward pass.
    """
    opened, own = taking_own(program)
    if chunks is not None:
        run = in_chunks(chunks)
        return run if learning is None else _learning_first(run, learning, [*own.values()])
    if any(type(tensor) not in PLAIN for tensor in own.values()):
        return compiled(program)
    if quick is None:
        return as_asked(_compiled(opened), None, opened, own, learning)
    first, others = taking_own(quick)
    needed = _taken(opened) - own.keys()
    return as_asked(_compiled(first), lambda: _compiled(opened), first, own | others, learning, needed)


def _learning_first(run: Runner, learning: Learning, own: Sequence[Tensor]) -> Runner:
    """Return what runs a plan, with its backward pass where that is planned, given the tensors that the plan holds."""

    def running(values: Sequence[Tensor]) -> list[Tensor]:
        tensors = (*values, *own)
        is_wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        is_seen = not is_wanted or current_dispatch_mode() is not None or is_followed(()) or is_hooked()
        found = None if is_seen or not PLAIN.issuperset(map(type, tensors)) else learning.results(values)
        return run(values) if found is None else found

    return running


def _compiled(program: Program) -> Way:
    return Way(compiled(program), _taken(program))


def _taken(program: Program) -> frozenset[int]:
    return frozenset(given.origin for given in program.given.values() if isinstance(given.origin, int))


def as_asked(
    quick: Way,
    careful: Callable[[], Way] | None,
    program: Program,
    own: Mapping[int, Tensor] = MappingProxyType({}),
    learning: Learning | None = None,
    needed: frozenset[int] | None = None,
) -> Runner:
    """Return a function that runs a program without what is not asked for; see NOTE [asked for].

    Args:
        quick: Computes it.
        careful: Makes what computes it where that is not finite; None if it is right everywhere.
        program: What is computed. If it draws random numbers, it is run once and in full.
        own: What it takes beside the values of a call, by number.
        learning: Plans the backward pass of what is asked for.
        needed: Which of the values of a call any way may take, all if left out.
    """
    whole = cache(careful or (lambda: quick))
    are_drawn = any(map(is_drawn, program.steps))
    is_finite, history = not are_drawn, History(lambda values: whole().run(values), program, is_asked=are_drawn)

    def in_full(values: Any) -> list[Tensor]:
        return whole().run(_held(whole(), values, own) if own else values)

    def run(values: Any) -> Any:
        nonlocal is_finite
        if (careful is None and not torch.is_grad_enabled()) or current_dispatch_mode() is not None or is_followed(()):
            return in_full(values)
        way = quick if is_finite else whole()
        held = _held(way, values, own)
        if any(type(tensor) not in PLAIN for tensor in held.values()):
            return in_full(values)
        is_wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in held.values())
        if (history.is_asked or is_hooked()) if is_wanted else careful is None or way is not quick:
            del held
            learns = learning is not None and is_wanted and not is_hooked()
            found = learning.results(values) if learning is not None and learns else None
            return in_full(values) if found is None else found
        if is_wanted:
            is_unplanned = careful is not None and not whole.cache_info().currsize
            every = needed if needed is not None else range(len(values))
            held |= (
                {**{number: values[number] for number in every}, **own} if is_unplanned else _held(whole(), values, own)
            )
            if any(type(tensor) not in PLAIN for tensor in held.values()):
                return in_full(values)
        with torch.no_grad():
            results = way.run(held.copy())
            if careful is not None and way is quick and not _are_finite(results):
                is_finite = False
                results = whole().run(_held(whole(), values, own))
        return history.of(results, held) if is_wanted else results

    return run


def _held(way: Way, values: Any, own: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Return what a way takes, by number."""
    return {number: own[number] if number in own else values[number] for number in way.takes}


def _are_finite(results: Sequence[Tensor]) -> bool:
    """Tell whether all entries of some tensors are finite; of very large ones the sum is not, as if they were not."""
    return all(isfinite(abs(result.sum().item())) for result in results)
