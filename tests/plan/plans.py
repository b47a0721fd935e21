"""Plans of plain functions of tensors, and what their steps are called."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hofunc.graph.node import Call
from hofunc.graph.recording import Recording
from hofunc.plan.blueprint import Blueprint, Limits
from hofunc.plan.builder import Builder
from hofunc.plan.planner import plan
from hofunc.plan.program import Program
from hofunc.rules.lower import lower
from tests.graph.recordings import recorded


def lowered_plan(
    f: Callable[..., Any],
    *inputs: Tensor,
    orders: tuple[int, ...] = (2,),
    compact: bool = False,
    strategy: str = "reverse",
    **limits: int,
) -> Blueprint:
    """Plan the derivatives of f by all its inputs."""
    recording = recorded(f, *inputs)
    return plan(
        lower(recording.graph, recording.values, max(orders)),
        orders,
        compact=compact,
        strategy=strategy,
        limits=Limits(**limits),  # type: ignore[arg-type]
    )[0]


def builder_of(recording: Recording) -> Builder:
    """Return an empty builder over a recording."""
    return Builder(lower(recording.graph, recording.values, 1), torch.float64)


def names(program: Program) -> list[str]:
    """Return what the steps of a program call, in order; the rules' own functions by their names."""
    functions = [step.function.op if isinstance(step.function, Call) else step.function for step in program.steps]
    return [getattr(function, "__name__", str(function)) for function in functions]


def is_product(name: str) -> bool:
    """Tell whether the step of a name is a matrix product."""
    return "mm" in name or name in ("matmul", "folded")
