"""The cache of plans, keyed by the structure of the recorded graph.

A function is recorded at every call, so a branch that went the other way, or a tensor of another shape, is another
graph and finds another plan: what is cached can never be stale.
"""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakSet

import torch

from hofunc.graph.identity import is_fake
from hofunc.graph.node import Graph
from hofunc.options import fallback
from hofunc.plan.blueprint import Blueprint, Limits, zero_bytes
from hofunc.plan.memory import bytes_of, memory_of
from hofunc.plan.planner import plan
from hofunc.rules.lower import lower
from hofunc.rules.registry import RULES
from hofunc.run.executor import Runner, runner

MAX_PLANS = 512

_plans: OrderedDict[tuple, "Planned"] = OrderedDict()
_lock = Lock()
_checked: OrderedDict[Graph, WeakSet[Any]] = OrderedDict()


class Planned(NamedTuple):
    """A plan and the function that runs it, and the sources of functions of which its graph is known to be right."""

    plan: Blueprint
    run: Runner
    checked: WeakSet[Any]


def planned(
    graph: Graph,
    values: Sequence[torch.Tensor],
    orders: tuple[int, ...],
    *,
    compact: bool,
    replayed: bool,
    strategy: str = "auto",
    limits: Limits = Limits(),  # noqa: B008 - it is a tuple
) -> Planned:
    """Return the plan of a graph, made now or at an earlier call with a graph of the same structure.

    Args:
        graph: The recorded graph.
        values: The value of each of its nodes, used only to expand ops that have no rule of their own.
        orders: The orders wanted.
        compact: Whether the plan returns terms rather than dense tensors.
        strategy: One of the planner's strategies, or "auto".
        limits: Rows at a time, and memory.
        replayed: Whether the plan is run on the values of the lowered graph, rather than of the recorded one.
    """
    beside = 0 if limits.max_bytes is None else _beside(graph, values)
    key = (
        graph,
        orders,
        compact,
        strategy,
        limits,
        beside,
        replayed,
        len(RULES),  # a rule that is added later makes other plans
        fallback() == "error",  # what was planned with the fallback is refused
    )
    with _lock:
        found = _plans.get(key)
        if found is not None:
            _plans.move_to_end(key)
            return found
    lowered = lower(graph, values, max(orders))
    if replayed:
        origins = tuple(
            origin if isinstance(origin, torch.Tensor) else index for index, origin in enumerate(lowered.origins)
        )
        lowered = lowered._replace(origins=origins)

    def peak(made: Blueprint) -> int:
        return beside + made.run_cost.peak_bytes + (0 if compact else zero_bytes(made, orders))

    made, *_ = plan(lowered, orders, compact=compact, strategy=strategy, limits=limits, peak=peak)
    with _lock:
        checked = _checked.setdefault(graph, WeakSet())
        while len(_checked) > MAX_PLANS:
            _checked.popitem(last=False)
    result = Planned(made, runner(made), checked)
    if lowered.dynamic or any(map(is_fake, values)):  # of which a plan may hold some
        return result
    with _lock:
        _plans[key] = result
        while len(_plans) > MAX_PLANS:
            _plans.popitem(last=False)
    return result


def _beside(graph: Graph, values: Sequence[torch.Tensor]) -> int:
    """Return the bytes of what the function computed, which is held while its derivatives are."""
    given = [values[node.number] for node in graph.nodes if node.is_given]
    return bytes_of(list(values), memory_of(given))


def forget() -> None:
    """Drop all plans, so that the next call of any function plans anew."""
    with _lock:
        _plans.clear()
        _checked.clear()
