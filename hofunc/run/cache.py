"""The cache of plans, keyed by the structure of the recorded graph.

A function is recorded at every call, so a branch that went the other way, or a tensor of another shape, is another
graph and finds another plan: what is cached can never be stale.
"""

from collections import OrderedDict
from collections.abc import Sequence
from math import inf
from threading import Lock
from typing import Any
from weakref import WeakSet

import torch

from hofunc.graph.identity import is_fake
from hofunc.graph.node import Graph
from hofunc.options import fallback, planning
from hofunc.plan.blueprint import Blueprint, Limits, zero_bytes
from hofunc.plan.memory import bytes_of, memory_of
from hofunc.plan.planner import STEP_SECONDS, plan, quickly
from hofunc.rules.lower import lower
from hofunc.rules.registry import RULES
from hofunc.run.executor import runner

MAX_PLANS = 512

_plans: OrderedDict[tuple, "Planned"] = OrderedDict()
_lock = Lock()
_checked: OrderedDict[Graph, WeakSet[Any]] = OrderedDict()


class Planned:
    """A plan and the function that runs it.

    Attributes:
        plan: The plan.
        run: Runs it.
        checked: The sources of functions of which its graph is known to be right.
        left: After how many calls it is planned in full.
    """

    __slots__ = ("checked", "left", "plan", "run")

    def __init__(self, plan: Blueprint, checked: WeakSet[Any], left: float):
        self.plan, self.run, self.checked, self.left = plan, runner(plan), checked, left


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
        planning(),
    )
    with _lock:
        found = _plans.get(key)
        if found is not None:
            _plans.move_to_end(key)
            found.left -= 1
            if found.left > 0:
                return found
    lowered = lower(graph, values, max(orders))
    if replayed:
        origins = tuple(
            origin if isinstance(origin, torch.Tensor) else index for index, origin in enumerate(lowered.origins)
        )
        lowered = lowered._replace(origins=origins)

    def peak(made: Blueprint) -> int:
        return beside + made.run_cost.peak_bytes + (0 if compact else zero_bytes(made, orders))

    quick = planning() == "quick" or (planning() == "auto" and found is None)
    if strategy == "auto" and quick:
        made, forgone = quickly(lowered, orders, compact=compact, limits=limits, peak=peak)
    else:
        (made, *_), forgone = plan(lowered, orders, compact=compact, strategy=strategy, limits=limits, peak=peak), 0
    left = inf if not forgone or planning() == "quick" else 1 + forgone * STEP_SECONDS / made.run_cost.seconds
    with _lock:
        checked = _checked.setdefault(graph, WeakSet())
        while len(_checked) > MAX_PLANS:
            _checked.popitem(last=False)
    result = Planned(made, checked, left)
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
