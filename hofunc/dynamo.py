"""Transforms inside functions that torch compiles: the steps of a plan in the place of a call.

The compiler, Dynamo, runs Python symbolically. It does not look into a transform, which would be to compile the
planner. It traces the function that is differentiated, as it would trace a call of that: so it knows all that this
reads, for which what is compiled holds, and takes as inputs the tensors that it captures. What it has traced, a graph,
is recorded and planned on tensors without elements, and the steps of the plan become part of its own graph, to which
they are ops like others: of them it makes a backward pass, and code.

What cannot be a graph ends the graph before the call, which runs as it does otherwise.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import chain, count
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch
from torch.compiler import is_dynamo_compiling

from hofunc.callable_plan import PLACE, Plan, in_graph
from hofunc.errors import HofuncError, UntracedError
from hofunc.graph.draws import is_random
from hofunc.graph.identity import check_elements, is_fake, tensors_in
from hofunc.graph.lines import is_detecting
from hofunc.graph.node import Graph
from hofunc.graph.standin import in_transform, is_wrapper
from hofunc.graph.uncompiled import opaque, uncompiled
from hofunc.internals import (
    FakeTensorMode,
    HigherOrderOperator,
    TorchDispatchMode,
    TreeSpec,
    disable_current_modes,
    known_to_compiler,
    temporarily_clear_interpreter_stack,
    tree_flatten,
    tree_leaves,
    tree_unflatten,
)
from hofunc.methods import Method
from hofunc.run.all_sizes import LEAST, Made, Subject, made_for_all
from hofunc.spelling import check_options

if TYPE_CHECKING:
    from hofunc.internals_compiler import Asked, Lowered, Traced, Tree
    from hofunc.internals_symbols import Symbols

MOST_SIZES = 3  # that are tried to be others together
MOST_BYTES = 1 << 28  # of a plan that is run to compare with

Function = Callable[..., Any]
_F = TypeVar("_F", bound=Function)


class _Derived(HigherOrderOperator):
    """What stands for a call of a transform until the compiler puts the steps of a plan in its place."""

    def __init__(self) -> None:
        super().__init__("hofunc_derived")

    def __call__(self, *_: Any) -> Any:
        raise NotImplementedError


_DERIVED = _Derived()


@known_to_compiler
def _prepare() -> bool:
    """Tell the compiler about transforms, if it is one that is known: it calls this itself where it meets one."""
    try:
        from hofunc.internals_compiler import compile_by  # noqa: PLC0415 - imports the compiler, which is here by then
    except ImportError:  # of a torch in which something has another name
        return False
    compile_by(_DERIVED, _asked)
    return True


@opaque
def _as_it_is(make: Function, options: tuple[tuple, dict], f: Function, args: tuple, kwargs: dict) -> Any:
    """Return a derivative outside of what is compiled."""
    positional, others = options
    return make(f, *positional, **others)(*args, **kwargs)


@uncompiled
def derived(make: Function, options: tuple[tuple, dict], f: Function, args: tuple, kwargs: dict) -> Any:
    """Return a derivative, in a function that is being compiled.

    Args:
        make: Called with a function and the options, returns the transform of that.
        options: Positional and keyword options, constants.
        f: The function.
        args: Positional arguments of the transform.
        kwargs: Its keyword arguments.
    """
    if not _prepare():
        return _as_it_is(make, options, f, args, kwargs)
    leaves, spec = tree_flatten((args, kwargs))

    def function(keywords: Sequence[str], *leaves: Any) -> Any:
        args, kwargs = tree_unflatten([*leaves], spec)
        return tree_flatten(f(*args, **{name: each for name, each in kwargs.items() if name not in keywords}))

    return tree_unflatten(*_DERIVED(tree_flatten((make, options)), function, leaves, spec))


@uncompiled
def exported(transform: Function, args: tuple, kwargs: dict) -> Any:
    """Return a derivative where torch notes the ops that it comes by, to export them, without compiling functions.

    It would note those of the planner, on tensors without elements. So this call is compiled, and its steps are noted.

    Raises:
        UntracedError: It is no graph.
        HofuncError: As the transform raises it.
    """
    if in_transform():
        _refuse_export("a call under torch.func", "one with plain tensors", "Pass strict=True to torch.export.export.")
    if not _prepare():
        _refuse_export(
            "a release of torch that is not known", "one that hofunc is tested with", "Install one of these."
        )
    from hofunc.internals_compiler import NoGraph, called_compiled  # noqa: PLC0415 - imports the compiler

    def called(*args: Any, **kwargs: Any) -> Any:
        return transform(*args, **kwargs)

    try:
        return called_compiled(called, args, kwargs)
    except NoGraph as error:
        if isinstance(error.__cause__, HofuncError):
            raise error.__cause__ from None
        _refuse_export(str(error), "what torch.compile makes one graph of", "Call it outside of the module.")


def _refuse_export(got: str, expected: str, remedy: str) -> NoReturn:
    what = "hofunc: a transform in a module that torch.export runs with strict=False"
    raise UntracedError(what, got=got, expected=expected, remedy=remedy)


def compilable(make: _F) -> _F:
    """Let what makes transforms make those that are compiled where it is called in a function that is compiled."""

    @uncompiled
    @wraps(make)
    def made(f: Function, *args: Any, **options: Any) -> Any:
        if is_dynamo_compiling():
            return Within(make, f, args, options)
        returned = f"{make.__name__}(f)"
        remedy = f"Pass arguments of f to the function that is returned: {returned}(x)."
        check_options(make, (f, *args), options, remedy, returned=returned)
        return make(f, *args, **options)

    return made  # type: ignore[return-value]


class Within(Method):
    """A transform that was made inside a function that is compiled.

    Args:
        make: What makes it.
        f: The function.
        args: Positional options.
        options: Those by keyword.
    """

    __name__ = "transform"  # for which torch.vmap looks

    def __init__(self, make: Function, f: Function, args: tuple, options: dict):
        self._make, self._f, self._args, self._options = make, f, args, options

    @uncompiled
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the derivative, as the transform does."""
        if is_dynamo_compiling():
            return derived(self._make, (self._args, self._options), self._f, args, kwargs)
        return self._made()(*args, **kwargs)

    def followed_by(self, args: tuple, kwargs: dict, given: Callable[[Any], tuple[Any, dict[str, Any]]]) -> Any:
        """Return what another transform of f returns, each of which traces f; see `hofunc.transform.Transform`."""
        other, others = given(self(*args, **kwargs))
        return other(*args, **others)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._made(), name)

    @opaque
    def _made(self) -> Any:
        """Return the transform itself, where nothing is compiled."""
        return self._make(self._f, *self._args, **self._options)


def _asked(given: "Tree", spec: TreeSpec) -> "Asked":
    """Return what is asked for by what makes a transform, for arguments of a structure."""
    from hofunc.internals_compiler import Asked  # noqa: PLC0415 - as above

    make, (positional, options) = tree_unflatten(given.leaves, given.spec)

    def made(f: Function) -> Any:
        return make(f, *positional, **options)

    args, _ = tree_unflatten(range(spec.num_leaves), spec)
    keywords, variables, is_limited = made(_anything).in_graph(len(args))
    followed = frozenset(tree_leaves([args[place] for place in variables]))
    return Asked(keywords, followed, lambda traced: _lowered(made, traced, for_all=not is_limited))


def _anything(*_: Any, **__: Any) -> Any:
    """Stand for a function."""


def _lowered(made: Callable[[Function], Any], traced: "Traced", *, for_all: bool) -> "Lowered":
    """Return the steps of the plan of a transform of a function that was traced, for all sizes if that is possible."""
    from hofunc.internals_compiler import Lowered, Size  # noqa: PLC0415 - as above
    from hofunc.internals_symbols import Symbols, fix, tie  # noqa: PLC0415 - as above

    if is_detecting():
        _refuse("hofunc.detect_anomaly()", "results that nobody looks at")
    if "autograd_function_apply" in traced.operators:
        _refuse("a custom Function in f", "ops")
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
        self, made: Callable[[Function], Any], traced: "Traced", symbols: "Symbols", free: Sequence[Sequence[int]]
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
        from hofunc.internals_compiler import Place, Tree  # noqa: PLC0415 - as above

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
        from hofunc.internals_compiler import Place  # noqa: PLC0415 - as above

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
        if is_random(func) and not any(map(is_fake, tensors_in((args, kwargs)))):
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


def _refuse(got: str, expected: str) -> NoReturn:
    raise UntracedError(
        "hofunc: a transform in a function that torch compiles",
        got=got,
        expected=expected,
        remedy="Call it outside, or compile without fullgraph=True: it then runs as it is, between two graphs.",
    )
