"""The plan of a call that torch.compile traces: its steps, which become part of what is compiled.

It imports the compiler, which is here by then.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any, NoReturn

import torch

from hofunc.callable_plan import PLACE, Plan, in_graph
from hofunc.errors import UntracedError
from hofunc.graph.draws import is_random
from hofunc.graph.identity import check_elements, is_fake, tensors_in
from hofunc.graph.lines import is_detecting
from hofunc.graph.node import Graph
from hofunc.graph.standin import is_wrapper
from hofunc.graph.uncompiled import uncompiled
from hofunc.internals import (
    FakeTensorMode,
    TorchDispatchMode,
    TreeSpec,
    disable_current_modes,
    temporarily_clear_interpreter_stack,
    tree_leaves,
    tree_unflatten,
)
from hofunc.internals_compiler import Asked, Lowered, Place, Size, Traced, Tree
from hofunc.internals_symbols import Symbols, fix, tie
from hofunc.run.all_sizes import LEAST, Made, Subject, made_for_all

MOST_SIZES = 3  # that are tried to be others together
MOST_BYTES = 1 << 28  # of a plan that is run to compare with

_REMEDY = "Call it outside, or compile without fullgraph=True: it then runs as it is, between two graphs."

Function = Callable[..., Any]


def asked(given: Tree, spec: TreeSpec) -> Asked:
    """Return what is asked for by what makes a transform, for arguments of a structure."""
    make, (positional, options) = tree_unflatten(given.leaves, given.spec)

    def made(f: Function) -> Any:
        return make(f, *positional, **options)

    args, _ = tree_unflatten(range(spec.num_leaves), spec)
    keywords, variables, is_limited = made(_anything).in_graph(len(args))
    followed = frozenset(tree_leaves([args[place] for place in variables]))
    return Asked(keywords, followed, lambda traced: _lowered(made, traced, for_all=not is_limited))


def _anything(*_: Any, **__: Any) -> Any:
    """Stand for a function."""


def _lowered(made: Callable[[Function], Any], traced: Traced, *, for_all: bool) -> Lowered:
    """Return the steps of the plan of a transform of a function that was traced, for all sizes if that is possible."""
    if is_detecting():
        _refuse("hofunc.detect_anomaly()", "results that nobody looks at")
    if "autograd_function_apply" in traced.operators:
        _refuse(
            "a custom Function in f, of which the compiler hands on a forward and a backward pass, and a graph has no "
            "op that runs the one and is differentiated by the other",
            "ops",
            f"Write it by torch.library.custom_op with register_fake and register_autograd, which is one. {_REMEDY}",
        )
    values = [*traced.tensors, *traced.captured]
    symbols = Symbols(values)
    bent = symbols.bent([*values, *traced.values])
    for free in _choices(symbols.hints) if for_all else ():
        if bent.intersection(chain.from_iterable(free)):
            continue
        found = made_for_all(_Derivative(made, traced, symbols, free).subject())
        if found is not None:
            for group in free:
                tie([symbols.numbers[number] for number in group], LEAST)
            fix([each for number, each in enumerate(symbols.numbers) if not any(number in group for group in free)])
            sizes = [Size(*symbols.places[first]) for first, *_ in free]
            return Lowered(found.graph, [*found.inputs, *sizes], found.returned)
    fix(values)
    found = _Derivative(made, traced, symbols, ()).at(())
    return Lowered(found.graph, found.inputs, found.returned)


def _choices(hints: Sequence[int]) -> Iterator[Sequence[Sequence[int]]]:
    """Yield which of some sizes may be others, in groups of those that are one: all, if they are few, or one alone."""
    alone = [[number] for number in range(len(hints))]
    equal = [[number for number, hint in enumerate(hints) if hint == each] for each in dict.fromkeys(hints)]
    for groups in (alone, equal) if len(equal) < len(alone) else (alone,):
        if 1 < len(groups) <= MOST_SIZES:
            yield groups
    yield from ([group] for group in equal)
    yield from ([group] for group in alone if group not in equal)


class _Derivative:
    """A derivative of a function that was traced, for sizes of which some may be others.

    Args:
        made: Makes the transform of a function.
        traced: The function.
        symbols: The sizes.
        free: Which of them may be others, in groups of those that are one.
    """

    def __init__(
        self, made: Callable[[Function], Any], traced: Traced, symbols: Symbols, free: Sequence[Sequence[int]]
    ):
        self._made, self._traced, self._symbols, self._free = made, traced, symbols, free

    def subject(self) -> Subject:
        """Return what is to be made for all sizes."""
        hints, bounds = self._symbols.hints, self._symbols.bounds()
        others = {hint for number, hint in enumerate(hints) if not self._is_free(number)}
        return Subject(
            tuple(hints[first] for first, *_ in self._free),
            [bounds[first] for first, *_ in self._free],
            self._symbols.fixed | others,
            lambda sizes: self._symbols.allow(self._all(sizes)),
            self.at,
            self._graph,
            self._agrees,
        )

    def at(self, sizes: Sequence[int]) -> Made:
        """Return the steps of its plan for some sizes."""
        return self._steps(*self._plan(sizes))

    def _plan(self, sizes: Sequence[int]) -> tuple[Plan, Sequence[Any]]:
        """Return its plan for some sizes, and what is captured."""
        given, captured = self._stand_ins(sizes)
        with temporarily_clear_interpreter_stack():
            return self._transform(captured).planned(*self._arguments(given)), captured

    def _steps(self, plan: Plan, captured: Sequence[Any]) -> Made:
        """Return the steps of its plan."""
        with temporarily_clear_interpreter_stack():
            graph, own, result = in_graph(plan)
        start = len(self._traced.tensors)
        places = {id(tensor): number for number, tensor in enumerate(captured, start)}
        inputs = [*range(start), *(places.get(id(tensor), tensor) for tensor in own)]
        numbers = count()
        returned = [Place(next(numbers)) if leaf is PLACE else leaf for leaf in result.leaves]
        return Made(graph, inputs, Tree(returned, result.spec))

    def _graph(self, sizes: Sequence[int]) -> Graph:
        """Return the graph that is planned for some sizes."""
        given, captured = self._stand_ins(sizes)
        with temporarily_clear_interpreter_stack():
            graph: Graph = self._transform(captured).graph(*self._arguments(given))
        return graph

    def _agrees(self, made: Made, sizes: Sequence[int]) -> bool:
        """Run what was made for all sizes on numbers of some sizes, and tell whether it returns what their plan does.

        Where that takes much memory it is run on tensors without elements.
        """
        plan, captured = self._plan(sizes)
        if plan.peak_bytes > MOST_BYTES:
            self._run(made, sizes)
            return True
        own, numbers = self._steps(plan, captured), torch.Generator().manual_seed(0)
        with temporarily_clear_interpreter_stack(), disable_current_modes(), torch.no_grad():
            taken = [_filled(each, numbers) if isinstance(each, torch.Tensor) else each for each in self._taken(sizes)]
            expected, got = _called(own, taken), _called(made, taken, *sizes)
        return all(map(_are_near, got, expected))

    def _run(self, made: Made, sizes: Sequence[int]) -> None:
        """Run what was made for all sizes on tensors without elements of some sizes."""
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        with temporarily_clear_interpreter_stack(), mode, torch.no_grad():
            _called(made, self._taken(sizes, mode), *sizes)

    def _taken(self, sizes: Sequence[int], mode: FakeTensorMode | None = None) -> list[Any]:
        """Return what graphs take for some sizes: the tensors that are given, and what is captured."""
        given, captured = self._stand_ins(sizes, mode)
        return [*(each for each in given if isinstance(each, torch.Tensor)), *captured]

    def _all(self, sizes: Sequence[int]) -> list[int]:
        """Return all sizes, given those that are free."""
        every = [*self._symbols.hints]
        for group, size in zip(self._free, sizes, strict=True):
            for number in group:
                every[number] = size
        return every

    def _is_free(self, number: int) -> bool:
        return any(number in group for group in self._free)

    def _stand_ins(self, sizes: Sequence[int], mode: FakeTensorMode | None = None) -> tuple[list[Any], list[Any]]:
        """Return what is given, and what is captured, for some sizes."""
        every, mode = self._all(sizes), mode or FakeTensorMode(allow_non_fake_inputs=True)

        def known(number: Any) -> Any:
            return self._symbols.value(number, every)

        leaves, captured = self._traced.arguments.leaves, self._traced.captured
        given, others = ([_stand_in(each, mode, known) for each in several] for several in (leaves, captured))
        return given, others

    def _arguments(self, given: Sequence[Any]) -> tuple[tuple, dict]:
        args, kwargs = tree_unflatten([*given], self._traced.arguments.spec)
        return args, kwargs

    def _transform(self, captured: Sequence[Any]) -> Any:
        """Return the transform of the function, which calls what was traced."""
        (leaves, spec), traced = self._traced.arguments, self._traced
        numbered = tree_unflatten(range(len(leaves)), spec)

        def function(*args: Any, **kwargs: Any) -> Any:
            places = tree_leaves((numbered[0], {name: numbered[1][name] for name in kwargs}))
            passed = dict(zip(places, tree_leaves((args, kwargs)), strict=True))
            _check_tensors(passed, leaves)
            tensors = [passed.get(place) for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
            with _Undrawn():
                found = traced.call([*tensors, *captured])
            returned = [found[each.number] if isinstance(each, Place) else each for each in traced.returned.leaves]
            return tree_unflatten(returned, traced.returned.spec)

        return self._made(function)


def _called(made: Made, taken: Sequence[Any], *sizes: int) -> Any:
    """Return what was made of what is taken, and of sizes if it is for all."""
    return made.graph(*[taken[each] if isinstance(each, int) else each for each in made.inputs], *sizes)


def _are_near(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether tensors are equal but for rounding."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not other.numel() or not (other.is_floating_point() or other.is_complex()):
        return torch.equal(one, other)
    eps, scale = torch.finfo(other.dtype).eps ** 0.75, other.abs().nan_to_num(posinf=0).max().item()
    return torch.allclose(one, other, rtol=eps, atol=eps * scale, equal_nan=True)


def _filled(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a tensor with elements like one without: numbers from 1/2 to 3/2, and zeros in place of integers."""
    filled = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device).zero_()
    if like.is_floating_point() or like.is_complex():
        filled += (torch.rand(like.shape, generator=generator, dtype=torch.float64) + 0.5).to(filled)
    return filled


class _Undrawn(TorchDispatchMode):
    """Refuses random numbers that are drawn for no tensor that is given: a plan would have them once for all."""

    @uncompiled
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if is_random(func, args, kwargs or {}) and not any(map(is_fake, tensors_in((args, kwargs)))):
            _refuse(f"{func}, which draws random numbers for no tensor", "those of ops like dropout and rand_like")
        return func(*args, **(kwargs or {}))


def _stand_in(value: Any, mode: FakeTensorMode, known: Callable[[Any], Any]) -> Any:
    """Return a tensor without elements like one that is traced, or a number, given what tells numbers from symbols."""
    if not isinstance(value, torch.Tensor):
        return known(value)
    if not is_fake(value) and not is_wrapper(value):
        _refuse(f"a tensor of {type(value).__name__}", "plain tensors")
    check_elements(value)
    shape = [known(size) for size in value.shape]
    with temporarily_clear_interpreter_stack(), mode:
        if is_wrapper(value):
            return torch.empty(shape, dtype=value.dtype, device=value.device)
        like: Any = {"dtype": value.dtype, "device": value.device, "requires_grad": value.requires_grad}
        return torch.empty_strided(shape, [known(stride) for stride in value.stride()], **like)


def _check_tensors(passed: Mapping[int, Any], traced: Sequence[Any]) -> None:
    """Refuse a tensor in the place of what was none when the function was traced: a number to differentiate by."""
    for place, value in passed.items():
        if isinstance(value, torch.Tensor) and not isinstance(traced[place], torch.Tensor):
            _refuse(f"a {type(traced[place]).__name__} to differentiate by", "a tensor")


def _refuse(got: str, expected: str, remedy: str = _REMEDY) -> NoReturn:
    raise UntracedError(
        "hofunc: a transform in a function that torch compiles", got=got, expected=expected, remedy=remedy
    )
