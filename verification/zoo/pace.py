"""How fast hofunc is on an entry, beside the best of torch: all nestings of jacrev and jacfwd, and torch.autograd."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import hofunc
from asv_benchmarks.benchmarks.nests import NESTS, differentiated, title
from asv_benchmarks.benchmarks.timing import interleaved
from hofunc.errors import HofuncError
from hofunc.run.cache import forget
from verification.conformance.limits import limited
from verification.conformance.sample import Sample

ROUNDS = 5
BURST = 5e-3  # seconds of a turn
SECONDS = 5.0  # for one call of a way of torch
FINALISTS = 2  # of torch's ways, how many are timed to the end
_CLOSE = 1e-5
_clock = time.process_time  # which others that use the same processors do not slow

Way = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of the processor that calls take at one order, nan or empty where there are none.

    Attributes:
        order: The order.
        first: Of the first call of hod, which plans.
        later: Of a later call.
        plan: Of a call of a plan.
        torch: Of the fastest of torch's ways that returns the same.
        way: Which that is.
        no_plan: Why there is no plan.
    """

    order: int
    first: float
    later: float
    plan: float | None
    torch: float | None
    way: str
    no_plan: str = ""


def pace(sample: Sample, order: int, *, tries_func: bool = True) -> Pace:
    """Time an entry at an order; hofunc is known to be right there."""
    argnums = tuple(range(len(sample.inputs)))
    hod = hofunc.hod(sample.f, order, argnums)
    forget()
    start = _clock()
    result = tree_leaves(hod(*sample.inputs))
    first = _clock() - start
    finalists = dict(sorted(_agreeing(sample, order, result, tries_func), key=lambda found: found[1][1])[:FINALISTS])
    ways: dict[str, Way] = {"later": lambda: hod(*sample.inputs), **{name: way for name, (way, _) in finalists.items()}}
    planned, no_plan = _planned(lambda: hod.plan(*sample.inputs), sample.inputs, [*ways.values()])
    ways |= planned
    medians = {name: median(seconds) for name, seconds in interleaved(ways, ROUNDS, BURST, _clock).items()}
    best = min(finalists, key=lambda name: medians[name], default="")
    return Pace(order, first, medians["later"], medians.get("plan"), medians.get(best), best, no_plan)


def _planned(
    make: Callable[[], Callable[..., Any]], inputs: Sequence[Tensor], others: Sequence[Way]
) -> tuple[dict[str, Way], str]:
    """Return the call of a plan, or why there is none: others may change what a function keeps and a plan relies on."""
    try:
        plan = make()
        for other in (*others, *others):
            other()
            plan(*inputs)
    except HofuncError as error:
        return {}, f"{type(error).__name__}: {error}"
    return {"plan": lambda: plan(*inputs)}, ""


def _agreeing(
    sample: Sample, order: int, expected: list[Tensor], tries_func: bool
) -> Iterator[tuple[str, tuple[Way, float]]]:
    """Yield the ways of torch that work and return the same, each with the seconds of a call."""
    f, vector = flat(sample)
    nests = NESTS[order] if tries_func else ()
    ways: dict[str, Way] = {title(nest, False): _call(differentiated(f, nest), vector) for nest in nests}
    ways["autograd"] = _call(rows(f, order), vector)
    for name, way in ways.items():
        with suppress(Exception), limited(SECONDS):  # a way may fail however it likes
            found = way()
            start = _clock()
            way()
            seconds = _clock() - start
            if same(found, expected):
                yield name, (way, seconds)


def _call(function: Callable[[Tensor], Tensor], vector: Tensor) -> Way:
    return lambda: function(vector)


def same(found: Tensor, expected: list[Tensor]) -> bool:
    """Tell whether the entries of a derivative by one vector are those of a derivative by several tensors."""
    entries = torch.cat([block.reshape(-1) for block in expected])
    scale = float(entries.norm()) + 1e-6
    return abs(float(found.norm() - entries.norm())) <= _CLOSE * scale and (
        abs(float(found.sum() - entries.sum())) <= _CLOSE * scale * entries.numel() ** 0.5
    )


def flat(sample: Sample) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """Return the function of one vector that holds all inputs, which returns one of all outputs, and that vector."""
    sizes, shapes = [x.numel() for x in sample.inputs], [x.shape for x in sample.inputs]

    def f(vector: Tensor) -> Tensor:
        parts = [part.view(shape) for part, shape in zip(vector.split(sizes), shapes, strict=True)]
        return torch.cat([output.reshape(-1) for output in sample.f(*parts)])

    return f, torch.cat([x.reshape(-1) for x in sample.inputs])


def rows(f: Callable[[Tensor], Tensor], order: int) -> Callable[[Tensor], Tensor]:
    """Return the derivative of an order by torch.autograd, of one entry after the other."""

    def derivative(vector: Tensor) -> Tensor:
        vector = vector.detach().requires_grad_()
        result = f(vector)
        for _ in range(order):
            entries = [
                torch.autograd.grad(entry, vector, create_graph=True, materialize_grads=True)[0]
                if entry.requires_grad
                else torch.zeros_like(vector)
                for entry in result.reshape(-1)
            ]
            result = torch.stack(entries).reshape(*result.shape, *vector.shape)
        return result.detach()

    return derivative
