"""Regions of a graph, each compiled by itself, and equal ones once, to be run one after the other."""

from collections.abc import Callable, Hashable, Sequence
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from hofunc.graph.layout import layout_of
from hofunc.plan.program import Given, Program, Register, Step, frees_of
from hofunc.run.executor import compiled
from hofunc.run.regions import Region

Tensors = Sequence[Tensor]
Function = Callable[..., Any]


class RegionCompiler:
    """Compiles regions, but those that are equal, and take tensors that lie alike in memory, once.

    What a region returns lies in memory as the graph says, which those that take it may rely on.

    Args:
        compile: Returns what runs a graph for tensors like given ones.
    """

    def __init__(self, compile: Callable[[GraphModule, Tensors], Function]):  # noqa: A002 - it is what it does
        self._compile = compile
        self._known: dict[Hashable, Function] = {}

    def __call__(self, region: Region, tensors: Tensors) -> tuple[Function, Any]:
        """Return what runs a region, and what it returns for some tensors."""
        key = region.key, *map(_kind, tensors)
        known = self._known.get(key)
        function = self._compile(region.module, tensors) if known is None else known
        results = function(*tensors)
        wanted = [node.meta["val"] for node in region.outputs]
        if known is None and not all(map(_lies_like, results, wanted)):
            plain, results = function, [*map(_laid_like, results, wanted)]
            function = lambda *tensors: [*map(_laid_like, plain(*tensors), wanted)]  # noqa: E731
        self._known[key] = function
        return function, results


def _kind(tensor: Tensor) -> Hashable:
    """Return what a region is compiled for."""
    return layout_of(tensor), tensor.dtype, tensor.device, needs_gradient(tensor)


def needs_gradient(tensor: Tensor) -> bool:
    """Tell whether autograd follows what is done with a tensor."""
    return tensor.requires_grad and torch.is_grad_enabled()


def _lies_like(tensor: Tensor, other: Tensor) -> bool:
    steps = zip(tensor.shape, tensor.stride(), other.stride(), strict=True)
    return all(size == 1 or step == wanted for size, step, wanted in steps) or not tensor.numel()


def _laid_like(tensor: Tensor, other: Tensor) -> Tensor:
    """Return a tensor with the strides of another one."""
    if _lies_like(tensor, other):
        return tensor
    return torch.empty_strided(other.shape, other.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def compiled_piecewise(
    module: GraphModule,
    regions: Sequence[Region],
    compiler: RegionCompiler,
    tensors: Tensors,
    done: Callable[[int], Any],
) -> tuple[Callable[[Tensors], Any], Any]:
    """Return what runs a graph region by region, and what it returns for the tensors that it is compiled for.

    Args:
        module: The graph.
        regions: Its regions.
        compiler: What compiles them.
        tensors: What the graph takes.
        done: What is called with the number of regions that are compiled.
    """
    functions: list[Function] = []

    def first(region: Region) -> Function:
        def run(*taken: Tensor) -> Any:
            function, results = compiler(region, taken)
            functions.append(function)
            done(len(functions))
            return results

        return run

    results = compiled(_program(module, regions, [*map(first, regions)]))(tensors)
    return compiled(_program(module, regions, functions)), results


def _program(module: GraphModule, regions: Sequence[Region], functions: Sequence[Function]) -> Program:
    """Return the program that calls functions, one for each region; registers are numbered as nodes are."""
    numbers = {node: number for number, node in enumerate(module.graph.nodes)}
    steps: list[Step] = []
    for place, (region, function) in enumerate(zip(regions, functions, strict=True), len(numbers)):
        steps.append(Step(place, function, tuple(Register(numbers[node]) for node in region.inputs)))
        steps += [Step(numbers[node], getitem, (Register(place), number)) for number, node in enumerate(region.outputs)]
    outputs = tuple(numbers[node] for node in _returned(module))
    frees, live = frees_of(steps, outputs)
    takes = [node for node in module.graph.nodes if node.op == "placeholder"]
    given = {
        numbers[node]: Given(place, tuple(node.meta["val"].shape), node.meta["val"].dtype)
        for place, node in enumerate(takes)
        if numbers[node] in live
    }
    return Program(given, {}, tuple(steps), frees, outputs)


def _returned(module: GraphModule) -> list[Node]:
    """Return the nodes that a graph returns."""
    return list(module.graph.output_node().args[0])  # type: ignore[arg-type] # which are several
