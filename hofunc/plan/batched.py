"""The derivatives of all steps of a recurrence by what they take, in one batch.

The function of a step is recorded under `torch.func.vmap`, and planned as any other function is. Its program is that of
all steps at once.
"""

import warnings
from collections.abc import Callable
from math import prod
from types import FunctionType
from typing import Any, NamedTuple, cast

import torch

from hofunc.graph.draws import draws
from hofunc.graph.layout import COMPUTED_AGAIN
from hofunc.graph.node import Call, Graph, call_of
from hofunc.internals import OpOverload
from hofunc.plan.accumulate import dense
from hofunc.plan.blocks import local_blocks
from hofunc.plan.program import Program, Register, device_of
from hofunc.plan.steps import Steps, following, form_of
from hofunc.plan.strategies import computing_dtype, propagated
from hofunc.plan.tracing import Trace, traced
from hofunc.rules.expansion import change_again, unchanged
from hofunc.rules.lower import Lowered, expansion, isolated

ENTRIES = 2048  # of the highest derivative of a node by all that a step takes, which takes no longer than some calls
ALL = 1 << 20  # entries of the highest derivatives of all steps at most

_AGAIN = {**COMPUTED_AGAIN, unchanged: change_again}


class Derived(NamedTuple):
    """Steps, and what computes their derivatives.

    Attributes:
        steps: The steps.
        program: Takes zeros, the unit matrix, what is active of all steps as vectors, and what is constant, stacked
            unless it is shared; returns their derivatives by the vectors, of every order.
        trace: What its registers hold.
    """

    steps: Steps
    program: Program
    trace: Trace


class Derivations:
    """Derivatives of steps, worked out once for recurrences whose steps are alike, as of both directions of a network.

    Args:
        lowered: The graph.
        order: The highest order that is wanted.
    """

    def __init__(self, lowered: Lowered, order: int):
        self._lowered, self._order = lowered, order
        self._known: dict[tuple, Derived | Lowered | None] = {}

    def derived(self, steps: Steps, order: int, varied: int, entries: int = ENTRIES) -> Derived | None:
        """Return what `derived` does."""
        key = order, varied, entries, form_of(self._lowered.graph, steps)
        if key not in self._known:
            self._known[key] = derived(self._lowered, steps, order, varied, entries)
        found = cast(Derived | None, self._known[key])
        return found and found._replace(steps=steps)

    def batched(self, steps: Steps, varied: int) -> Lowered | None:
        """Return what `batched` does."""
        key = varied, form_of(self._lowered.graph, steps)
        if key not in self._known:
            self._known[key] = batched(self._lowered.graph, steps, self._order, varied)
        return cast(Lowered | None, self._known[key])


def derived(lowered: Lowered, steps: Steps, order: int, varied: int, entries: int = ENTRIES) -> Derived | None:
    """Return what computes the derivatives of steps, None if they are better propagated node by node.

    Args:
        lowered: The graph.
        steps: The steps.
        order: The highest order.
        varied: By how many of what steps take, the first ones.
        entries: How many entries the highest derivative of a node may have.
    """
    nodes, first = lowered.graph.nodes, steps.nodes[0]
    if not all(isinstance(nodes[each].op, OpOverload | FunctionType) and not draws(nodes[each]) for each in first):
        return None
    width = sum(prod(nodes[each.nodes[0]].shape) for each in steps.taken[:varied])
    elements = sum(prod(nodes[first[place]].shape) for place in following(lowered.graph, steps, varied))
    height = sum(prod(nodes[first[place]].shape) for place in steps.given)
    of_each = elements * width**order
    dtypes = {nodes[number].dtype for number in (*first, *(each.nodes[0] for each in steps.active))}
    if not 0 < of_each <= entries * len(first) or height * width**order * len(steps.nodes) > ALL:
        return None
    if dtypes != {computing_dtype(lowered)}:
        return None
    try:
        return _planned(lowered.graph, steps, order, varied)
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
        return None  # torch cannot batch an op, or not that of other values


def _planned(graph: Graph, steps: Steps, order: int, varied: int) -> Derived | None:
    """Plan the derivatives of all steps in one batch, None if they cannot be told by a matrix for each step.

    Raises:
        RuntimeError: An op cannot be batched, or what else torch raises then.
    """
    inner = _changed(graph, steps, order, varied)
    if inner is None:
        return None
    orders = tuple(range(1, order + 1))
    builder, blocks = propagated(inner, local_blocks(inner, order), orders, "mixed")
    found: dict[int, Register] = {}
    for (_, key), terms in blocks.items():
        if any(axes[0] != term.out[0] for term in terms for axes in term.slots):
            return None
        of_each = [term._replace(slots=tuple([axes[1:] for axes in term.slots])) for term in terms]
        found[len(key)] = dense(builder, of_each)
    if sorted(found) != [*orders[: len(found)]]:
        return None
    program = builder.program([found[each] for each in sorted(found)])
    return Derived(steps, program, traced(program))


def _changed(graph: Graph, steps: Steps, order: int, varied: int) -> Lowered | None:
    """Return the graph of all steps in one batch, None if that would be another one than that of each.

    What it is differentiated by is a change of what the steps take, through a matrix that nothing is known of: so that
    derivatives are small dense matrices from the start, and not made of a block for each part of what is taken.
    """
    count, device = len(steps.nodes), device_of(graph)
    dtype = graph.nodes[steps.nodes[0][0]].dtype
    vector, *others = _examples(graph, steps, varied)
    width = vector.shape[1]
    values = [torch.ones(count, width, dtype=dtype, device=device), vector.new_ones(width, width), vector, *others]
    step = step_of(graph, steps, varied)

    def changed(
        change: torch.Tensor, matrix: torch.Tensor, vector: torch.Tensor, *others: torch.Tensor
    ) -> torch.Tensor:
        return step(vector + matrix @ change, *others)

    dims = 0, None, 0, *[None if each.is_shared else 0 for each in steps.taken[varied:]]
    return as_batch(torch.func.vmap(changed, dims), values, [True] + [False] * (len(values) - 1), order)


def batched(graph: Graph, steps: Steps, order: int, varied: int) -> Lowered | None:
    """Return the graph of all steps in one batch, None if that would be another one than that of each.

    Its inputs are the first of what steps take as one vector, and all else that they take, stacked unless it is shared.

    Raises:
        RuntimeError: An op cannot be batched, or what else torch raises then.
    """
    dims = 0, *[None if each.is_shared else 0 for each in steps.taken[varied:]]
    activity = [True, *[each.is_active for each in steps.taken[varied:]]]
    function = torch.func.vmap(step_of(graph, steps, varied), dims)
    return as_batch(function, _examples(graph, steps, varied), activity, order)


def _examples(graph: Graph, steps: Steps, varied: int) -> list[torch.Tensor]:
    """Return tensors such as all steps take: the first as one vector, and each of the others."""
    count, device = len(steps.nodes), device_of(graph)
    nodes = [graph.nodes[each.nodes[0]] for each in steps.taken]
    width = sum(prod(node.shape) for node in nodes[:varied])
    dtype = graph.nodes[steps.nodes[0][0]].dtype
    return [
        torch.ones(count, width, dtype=dtype, device=device),
        *[
            torch.ones(node.shape if each.is_shared else (count, *node.shape), dtype=node.dtype, device=device)
            for node, each in zip(nodes[varied:], steps.taken[varied:], strict=True)
        ],
    ]


def as_batch(function: Callable, values: list[torch.Tensor], activity: list[bool], order: int) -> Lowered | None:
    """Record and lower a function of all steps, None if it is another one than that of each."""
    with isolated(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        inner, (end,) = expansion(function, values, activity, order)
    if caught or inner.decided or not isinstance(end, int) or inner.graph.nodes[end].dtype != values[0].dtype:
        return None  # an op is batched one by one, or values decide something, or numbers have other dtypes in batches
    places = {number: place for place, number in enumerate(inner.graph.inputs)}
    origins = [
        origin if isinstance(origin, torch.Tensor) else places.get(number)
        for number, origin in enumerate(inner.origins)
    ]
    return inner._replace(origins=tuple(origins))


def step_of(graph: Graph, steps: Steps, varied: int) -> Callable[..., torch.Tensor]:
    """Return the function of a step, from the first of what it takes as one vector, and all else, to what it gives."""
    nodes = [graph.nodes[each.nodes[0]] for each in steps.taken]
    sizes = [prod(node.shape) for node in nodes[:varied]]

    def step(vector: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        parts = zip(vector.split(sizes), nodes, strict=False)
        taken = [*[part.reshape(node.shape) for part, node in parts], *others]
        found: dict[int, Any] = {}
        results: dict[Call, Any] = {}
        for place, number in enumerate(steps.nodes[0]):
            node = graph.nodes[number]
            call = call_of(node)
            call = call._replace(op=_AGAIN.get(call.op, call.op))
            if call not in results:
                results[call] = call(
                    *[
                        taken[steps.sources[place, slot]] if (place, slot) in steps.sources else found[operand]
                        for slot, operand in enumerate(node.operands)
                    ]
                )
            found[number] = results[call] if node.output is None else results[call][node.output]
        return torch.cat([found[steps.nodes[0][place]].reshape(-1) for place in steps.given])

    return step
