"""Custom autograd Functions, and others, that have a rule: a call is recorded as one node, not as the ops inside."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch

from hofunc.graph.tape import Tape
from hofunc.internals import (
    current_dispatch_mode,
    maybe_current_level,
    pop_mode_temporarily,
    temporarily_clear_interpreter_stack,
)


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


def as_op(function: type[torch.autograd.Function]) -> FunctionOp:
    """Return the op that a Function is recorded as; from now on its ``apply`` is recorded whole.

    Where f itself runs a transform of torch.func, this is torch's, and takes the Function's own backward.

    Args:
        function: The Function.
    """
    known = vars(function).get("_hofunc_op")
    if known is not None:
        return known
    op = FunctionOp(function.apply, function.__name__)

    def apply(*args: Any) -> Any:
        tape = current_dispatch_mode()
        if not isinstance(tape, Tape) or maybe_current_level() != tape.level:
            return op(*args)
        with pop_mode_temporarily(), temporarily_clear_interpreter_stack():
            out = apply(*args)  # for the next tape, if there is one
        return tape.enter(op, args, out)

    function._hofunc_op = op  # type: ignore[attr-defined]
    function.apply = staticmethod(apply)  # type: ignore[method-assign]
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
