"""Custom autograd Functions, and others, that have a rule: a call is recorded as one node, not as the ops inside."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch

from hofunc.graph.purity import refuse_function
from hofunc.graph.tape import Tape
from hofunc.internals import (
    current_dispatch_mode,
    has_setup_context,
    maybe_current_level,
    pop_mode_temporarily,
    temporarily_clear_interpreter_stack,
)
from hofunc.options import records_forward

_RULED: set[type] = set()


@dataclass(frozen=True, eq=False)
class FunctionOp:
    """A custom Function as an op of the graph.

    Attributes:
        apply: Its ``apply``, as it was.
        __name__: Its name.
    """

    apply: Callable[..., Any]
    __name__: str

    def __call__(self, *args: Any) -> Any:
        """Apply the Function."""
        return self.apply(*args)

    def __str__(self) -> str:
        return self.__name__


def as_op(function: type[torch.autograd.Function], *, has_rule: bool = False) -> FunctionOp:
    """Return the op that a Function is recorded as; from now on its ``apply`` is recorded whole.

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
    op = FunctionOp(function.apply, function.__name__)

    def apply(kind: Any, *args: Any) -> Any:
        if kind is not function:  # an heir, which is another Function
            return super(function, kind).apply(*args)
        tape = current_dispatch_mode()
        if not isinstance(tape, Tape) or maybe_current_level() != tape.level:
            return op(*args)
        if function not in _RULED and records_forward(function):
            with temporarily_clear_interpreter_stack():
                return op(*args)
        if function not in _RULED and not has_setup_context(function):
            refuse_function(function)
        with pop_mode_temporarily(), temporarily_clear_interpreter_stack():
            out = function.apply(*args)  # for the next tape, if there is one
        return tape.enter(op, args, out)

    function._hofunc_op = op  # type: ignore[attr-defined]
    function.apply = classmethod(apply)  # type: ignore[assignment, method-assign]
    return op


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
