"""Transforms inside functions that torch compiles: the steps of a plan in the place of a call.

The compiler, Dynamo, runs Python symbolically. It does not look into a transform, which would be to compile the
planner. It traces the function that is differentiated, as it would trace a call of that: so it knows all that this
reads, for which what is compiled holds, and takes as inputs the tensors that it captures. What it has traced, a graph,
is recorded and planned on tensors without elements, and the steps of the plan become part of its own graph, to which
they are ops like others: of them it makes a backward pass, and code.

What cannot be a graph ends the graph before the call, which runs as it does otherwise.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NoReturn, TypeVar

from torch.compiler import is_dynamo_compiling

from hofunc.errors import HofuncError, UntracedError
from hofunc.graph.standin import in_transform
from hofunc.graph.uncompiled import opaque, uncompiled
from hofunc.internals import (
    HigherOrderOperator,
    known_to_compiler,
    tree_flatten,
    tree_unflatten,
)
from hofunc.methods import Method
from hofunc.spelling import check_options

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
        from hofunc.traced_call import asked  # noqa: PLC0415 - likewise
    except ImportError:  # of a torch in which something has another name
        return False
    compile_by(_DERIVED, asked)
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
