"""Regions of a graph, each compiled by itself, and equal ones once, to be run one after the other."""

from collections.abc import Callable, Hashable, Sequence
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from hofunc.graph.layout import layout_of
from hofunc.internals import FakeTensorMode
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
        is_ahead: Whether graphs are to be compiled before any of them runs, for tensors like those that they will take:
            where what runs one may still be waited for when it is called.
    """

    def __init__(
        self,
        compile: Callable[[GraphModule, Tensors], Function],  # noqa: A002 - it is what it does
        *,
        is_ahead: bool = False,
    ):
        self._compile, self.is_ahead = compile, is_ahead
        self._known: dict[Hashable, Function] = {}
        self._ahead: dict[Hashable, Function] = {}  # of which none has run yet

    def prepare(self, region: Region, tensors: Tensors) -> None:
        """Compile a region that is to run on tensors like given ones."""
        key = region.key, *map(_kind, tensors)
        if key not in self._known and key not in self._ahead:
            self._ahead[key] = self._compile(region.module, tensors)

    def __call__(self, region: Region, tensors: Tensors) -> tuple[Function, Any]:
        """Return what runs a region, and what it returns for some tensors."""
        key = region.key, *map(_kind, tensors)
        known = self._known.get(key)
        function = self._ahead.get(key) if known is None else known
        if function is None:
            function = self._compile(region.module, tensors)
        results = function(*tensors)
        wanted = [node.meta["val"] for node in region.outputs]
        if known is None and not all(map(_lies_like, results, wanted)):
            plain, results = function, [*map(_laid_like, results, wanted)]
            function = lambda *tensors: [*map(_laid_like, plain(*tensors), wanted)]  # noqa: E731
        self._known[key] = function
        self._ahead.pop(key, None)
        return function, results


def _kind(tensor: Tensor) -> Hashable:
    """Return what a region is compiled for; the steps of axes of size one lead nowhere."""
    size, stride, offset = layout_of(tensor)
    steps = tuple([step for length, step in zip(size, stride, strict=True) if length != 1])
    return size, steps, offset, tensor.dtype, tensor.device, needs_gradient(tensor)


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
        done: What is called with the number of regions that are compiled, but for what is waited for as they run.
    """
    functions, count = list[Function](), len(regions) if compiler.is_ahead else 0
    if compiler.is_ahead:
        likely = _likely(module, tensors)
        for number, region in enumerate(sorted(regions, key=_size, reverse=True), 1):  # little is waited for at the end
            compiler.prepare(region, likely(region))
            done(number)

    def first(region: Region) -> Function:
        def run(*taken: Tensor) -> Any:
            function, results = compiler(region, taken)
            functions.append(function)
            if len(functions) > count:
                done(len(functions))
            return results

        return run

    results = compiled(_program(module, regions, [*map(first, regions)]))(tensors)
    return compiled(_program(module, regions, functions)), results


def _size(region: Region) -> int:
    return len(region.module.graph.nodes)


def _likely(module: GraphModule, tensors: Tensors) -> Callable[[Region], Tensors]:
    """Return what makes tensors like those that a region will take; if others come it is compiled as it runs."""
    takes = [node for node in module.graph.nodes if node.op == "placeholder"]
    given, followed = dict(zip(takes, tensors, strict=True)), _followed(module, tensors)
    return lambda region: [
        given[node] if node in given else _like(node.meta["val"], node in followed) for node in region.inputs
    ]


def _like(value: Tensor, is_followed: bool) -> Tensor:
    """Return a tensor without values that lies in memory as another one."""
    like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return like.requires_grad_(is_followed)


class _Following(Interpreter):
    """Runs a graph, and notes the nodes that autograd follows."""

    def __init__(self, module: GraphModule):
        super().__init__(module)
        self.followed = set[Node]()

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor) and result.requires_grad:
            self.followed.add(n)
        return result


def _followed(module: GraphModule, tensors: Tensors) -> set[Node]:
    """Return the nodes of a graph that autograd follows, if it takes given tensors."""
    if not any(map(needs_gradient, tensors)):
        return set()
    run = _Following(module)
    with FakeTensorMode():
        run.run(*[_like(tensor, tensor.requires_grad) for tensor in tensors])
    return run.followed


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
