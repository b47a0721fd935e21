"""Custom autograd Functions, and others, that have a rule: a call is recorded as one node, not as the ops inside."""

from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import Any, NoReturn

import torch

from hofunc.errors import MutationError, UntracedError
from hofunc.graph.effects import effects
from hofunc.graph.identity import storage_key
from hofunc.graph.parts import executed
from hofunc.graph.purity import Applied, FunctionMet, check_written, is_in_recorded_forward, refuse_function
from hofunc.graph.tape import Tape
from hofunc.graph.uncompiled import UncompiledMode
from hofunc.internals import (
    current_dispatch_mode,
    disable_current_modes,
    has_setup_context,
    maybe_current_level,
    pop_mode_temporarily,
    temporarily_clear_interpreter_stack,
    tree_leaves,
    tree_map_only,
    watch_functions,
)
from hofunc.options import records_forward

_RULED: set[type] = set()


@dataclass(frozen=True, eq=False)
class FunctionOp:
    """A custom Function as an op of the graph.

    Attributes:
        apply: Its ``apply``, as it was.
        is_transformed: Whether torch.func's transforms take it; else only torch.autograd differentiates it.
        __name__: Its name.
    """

    apply: Callable[..., Any]
    is_transformed: bool
    __name__: str

    def __call__(self, *args: Any) -> Any:
        """Apply the Function, which a tape records as one node.

        Raises:
            UntracedError: A transform of torch.func is running, and does not take it.
        """
        if not self.is_transformed and maybe_current_level() is not None:
            refuse_function(self)
        return self.apply(*args)

    def __str__(self) -> str:
        return self.__name__


class _Inside(UncompiledMode):
    """Watches what a Function that is recorded as one node computes: its arguments and what it returns have to be all.

    Attributes:
        tape: The tape that records it.
        name: Its name.
    """

    def __init__(self, tape: Tape, name: str, args: Sequence[Any]):
        super().__init__()
        self.tape, self.name = tape, name
        self._known = _by_storage(args)  # kept, so that no other storage gets the key of one
        self._made: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        taken = _by_storage((args, kwargs))
        if any(key not in self._known and self.tape.has_computed(tensor) for key, tensor in taken.items()):
            self._refuse("takes what depends on an input from elsewhere than its arguments")
        if effects(func).writes:
            try:
                check_written(func, args, kwargs, lambda tensor: self._made.get(storage_key(tensor)))
            except MutationError as error:
                self._refuse("writes to what it did not make itself", error)
        out = executed(func, args, kwargs)
        if not effects(func).aliases:
            made = _by_storage(out)
            self._made |= made
            self._known |= made
        return out

    def _refuse(self, reason: str, cause: Exception | None = None) -> NoReturn:
        raise UntracedError(
            "hofunc: f uses a custom torch.autograd.Function",
            got=f"{self.name}.apply, which {reason}",
            expected="a function of its arguments, whose backward is used",
            remedy="Pass it all that it takes. Or, if its backward is the derivative of its forward, have the forward "
            "recorded by hofunc.options(functions=[...]) with its class.",
        ) from cause


def _by_storage(tree: Any) -> dict[int, torch.Tensor]:
    """Return the tensors of a pytree, one of each storage."""
    return {storage_key(leaf): leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)}


def as_op(function: type[torch.autograd.Function], *, has_rule: bool = False) -> FunctionOp:
    """Return the op that a Function is recorded as; from now on a call of it is recorded whole.

    Where f itself runs a transform of torch.func, this is torch's, and takes the Function's own backward.

    Args:
        function: The Function.
        has_rule: Whether it has a rule; else its forward is recorded where options say so.
    """
    if has_rule:
        _RULED.add(function)
    known = vars(function).get("_hofunc_op")
    if known is not None:
        return known
    op = FunctionOp(function.apply, has_setup_context(function), function.__name__)

    def apply(kind: Any, *args: Any) -> Any:
        if kind is not function:  # an heir, which is another Function
            return super(function, kind).apply(*args)
        tape = current_dispatch_mode()
        if not isinstance(tape, Tape) or maybe_current_level() != tape.level:
            return op.apply(*args)
        with temporarily_clear_interpreter_stack():
            return op.apply(*args)

    function._hofunc_op = op  # type: ignore[attr-defined]
    function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]
    function.forward = staticmethod(_recorded_forward(function, op))  # type: ignore[method-assign]
    if op.is_transformed:
        function.setup_context = staticmethod(_unrecorded_context(function))  # type: ignore[method-assign]
    return op


def _recorded_forward(function: type[torch.autograd.Function], op: FunctionOp) -> Callable[..., Any]:
    """Return a forward that a tape records as one node: whoever kept ``apply`` from before calls it as well."""
    original = _original(function.forward)

    @wraps(original)
    def forward(*args: Any) -> Any:
        applied, _Latest.function = _Latest.function, None
        tape = _recorder_of(function)
        if applied is not function or tape is None:  # an heir may call it, or have none of its own
            return original(*args)
        is_followed = _Latest.is_followed
        given = args if op.is_transformed else args[1:]  # without the context
        with pop_mode_temporarily():
            if isinstance(current_dispatch_mode(), Tape):
                _Latest.function = function
                out = forward(*args)
            else:
                with _Inside(tape, op.__name__, given):
                    out = _other_than(given, original(*args))
        _check_keyed(op, given)
        with torch.set_grad_enabled(is_followed):
            return tape.enter(op, given, out)

    forward._hofunc_original = original  # type: ignore[attr-defined]
    return forward


def _check_keyed(op: FunctionOp, args: Sequence[Any]) -> None:
    """Check that what a node is given beside tensors can be compared with what others are given.

    Raises:
        UntracedError: It cannot.
    """
    for arg in args:
        if isinstance(arg, list | tuple):
            _check_keyed(op, arg)
        elif not isinstance(arg, Hashable):
            raise UntracedError(
                "hofunc: f uses a custom torch.autograd.Function",
                got=f"{op}.apply with a {type(arg).__name__} for an argument, which may change from call to call",
                expected="arguments that are tensors, numbers, or others that can be hashed",
                remedy="If its backward is the derivative of its forward, set hofunc.options(functions='forward').",
            )


def _unrecorded_context(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return a setup_context that no tape sees, as it belongs to the node of the Function."""
    original = _original(function.setup_context)

    @wraps(original)
    def setup_context(*args: Any, **kwargs: Any) -> None:
        with disable_current_modes() if _recorder_of(function) is not None else nullcontext():
            original(*args, **kwargs)

    setup_context._hofunc_original = original  # type: ignore[attr-defined]
    return setup_context


def _original(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a Function as it was; an heir may have that of its parent."""
    return getattr(method, "_hofunc_original", method)


def _recorder_of(function: type) -> Tape | None:
    """Return the tape that records a call of a Function as one node, if there is one."""
    tape = current_dispatch_mode()
    if not isinstance(tape, Tape) or maybe_current_level() not in {None, tape.level}:
        return None
    return tape if function in _RULED or not records_forward(function) else None


def _other_than(given: Sequence[Any], out: Any) -> Any:
    """Return what a forward returned, but other tensors where autograd would put others in their place.

    It does for what was given, which is another node, and for what was made in inference mode.
    """
    known = {id(leaf) for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)}

    def other(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_inference():
            return tensor.clone()
        return tensor.view_as(tensor) if id(tensor) in known else tensor

    return tree_map_only(torch.Tensor, other, out)


class _Latest:
    """The Function that was applied last, and whether gradients were on, which they never are in its forward."""

    function: type | None = None
    is_followed = True


def _meet(function: Any) -> None:
    """Have a Function recorded as one op that is about to run its forward, if a tape is running.

    Raises:
        FunctionMet: It is of the old form, which may ask what autograd follows, and that is not followed yet.
    """
    Applied.latest = _Latest.function = function
    _Latest.is_followed = (
        torch.is_grad_enabled() or is_in_recorded_forward()
    )  # where it means nothing that they are off
    tape = _recorder_of(function)
    if tape is None or "_hofunc_op" in vars(function) or function.__module__.startswith("torch."):
        return
    if not tape.is_followed and not has_setup_context(function):
        raise FunctionMet(function)
    as_op(function)


watch_functions(_meet)


def recorded_whole(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a function that computes the same and is recorded as one node, the op of which is the function given."""

    @wraps(function)
    def call(*args: Any) -> torch.Tensor:
        tape = current_dispatch_mode()
        if not isinstance(tape, Tape):
            return function(*args)
        with pop_mode_temporarily():
            out = function(*args)
        return tape.enter(function, args, out)

    return call
