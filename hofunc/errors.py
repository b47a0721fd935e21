"""Exceptions and warnings of hofunc.

Every message has four parts: what is wrong, what was got against what was expected, where, and what to do next.
"""

import copy
import os
import sys
import warnings
from collections.abc import Sequence
from types import FrameType

import torch

_IMPORT = "<frozen importlib"  # whose frames `warnings` does not count
_LIBRARIES = (
    *(os.path.dirname(os.path.abspath(path)) + os.sep for path in (__file__, torch.__file__)),
    os.path.abspath(copy.__file__),  # which calls tensors back
)


def _calling_frame() -> tuple[FrameType | None, int]:
    """Return the innermost frame outside hofunc and torch, and how many above the caller's it is for `warnings`."""
    frame: FrameType | None = sys._getframe(1)
    depth = 0
    while frame is not None and is_library(frame):
        depth += not frame.f_code.co_filename.startswith(_IMPORT)
        frame = frame.f_back
    return frame, depth


def is_library(frame: FrameType) -> bool:
    """Tell whether a frame is one of hofunc, of torch, or of an import."""
    return frame.f_code.co_filename.startswith((*_LIBRARIES, _IMPORT))


def calling_line() -> str:
    """Name the source line, outside hofunc and torch, that led here: ``model.py:12``."""
    frame, _ = _calling_frame()
    return "an unknown line" if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def warn(message: str, category: type[Warning]) -> None:
    """Issue a warning that names the source line, outside hofunc and torch, that led here."""
    warnings.warn(message, category, stacklevel=_calling_frame()[1] + 1)


class HofuncError(Exception):
    """Base of every exception that hofunc raises on purpose.

    Args:
        what: The operation, and what is wrong with it.
        got: What was found.
        expected: What would have been right.
        remedy: What to do next, in a sentence.
    """

    def __init__(self, what: str, *, got: str, expected: str, remedy: str):
        super().__init__(f"{what}: got {got}, expected {expected} (called at {calling_line()}). {remedy}")


class ArgumentError(HofuncError, ValueError):
    """An argument of a transform, or an input or output of f, is not what the transform takes."""


class OptionError(ArgumentError, TypeError):
    """A transform, or another function of hofunc, is given an option that it does not have, or too many by position.

    Example:
        >>> hofunc.hessian(torch.sin, argnum=1)
        Traceback (most recent call last):
        hofunc.errors.OptionError: hessian: an option: got argnum, expected one of argnums, ...
    """


class PlanMismatchError(ArgumentError):
    """A plan is called with what it was not made for, or something that it relies on has changed.

    Args:
        what: As for all errors, as are the next three.
        got: As there.
        expected: As there.
        remedy: As there.

    Attributes:
        difference: What does not fit, without what to do next.
    """

    def __init__(self, what: str, *, got: str, expected: str, remedy: str):
        super().__init__(what, got=got, expected=expected, remedy=remedy)
        self.difference = f"{what}: got {got}, expected {expected}"


class MutationError(HofuncError, RuntimeError):
    """f writes to one of its inputs or to a tensor that it captured, so it is not a pure function."""


class BranchError(HofuncError, RuntimeError):
    """f asks for a tensor's value where there is not one value but a batch of them."""


class UntracedError(HofuncError, RuntimeError):
    """f computes something in a way that recording cannot follow, so that its derivative would be lost."""


class UnsupportedOpError(HofuncError, RuntimeError):
    """f calls an op for which there is neither a rule nor a working fallback."""


class VersionError(HofuncError, ImportError):
    """torch is older than the releases that hofunc works with."""


class CompilerError(HofuncError, RuntimeError):
    """What torch.compile needs to generate code is missing."""


class AnomalyError(HofuncError, ArithmeticError):
    """A nan or an inf is in what f returns or in its derivatives, where `hofunc.detect_anomaly` looks for some.

    Args:
        what: As for all errors, as are the next three.
        got: As there.
        expected: As there.
        remedy: As there.
        op: The op in which it arose; None if that is not known.
        order: The order of the derivative of the op that is not finite, 0 for its value.
        lines: The lines of f that called it, the outermost first.

    Attributes:
        op: See above.
        order: See above.
        lines: See above.
        is_value_finite: Whether the value of the op is finite.
    """

    def __init__(
        self, what: str, *, got: str, expected: str, remedy: str, op: str | None, order: int, lines: Sequence[str]
    ):
        super().__init__(what, got=got, expected=expected, remedy=remedy)
        self.op, self.order, self.lines, self.is_value_finite = op, order, tuple(lines), order > 0
        if lines:
            self.add_note("\n".join(["Traceback of the op (most recent call last):", *lines]))


class PlanFileError(HofuncError, ValueError):
    """A plan cannot be saved, or what is to be loaded is no plan that this process can use."""


class HodcheckError(HofuncError, AssertionError):
    """A derivative is not what the oracles of hodcheck say, or they cannot tell."""


class GoldenError(HofuncError, AssertionError):
    """A derivative is not what its golden file says, or the file cannot be used."""


class InternalError(HofuncError, AssertionError):
    """An invariant of hofunc is broken: a bug, never the caller's fault."""

    def __init__(self, what: str, *, got: str, expected: str):
        super().__init__(what, got=got, expected=expected, remedy="Please report this, with the function.")


class FallbackWarning(UserWarning):
    """An op without a rule is differentiated by nested torch.func: exact, but slow."""


class PlanningWarning(UserWarning):
    """Planning takes long, or is done again where a plan could have served: results are exact, but come late."""


class UntestedTorchWarning(UserWarning):
    """torch is of a release that hofunc was not tested with."""
