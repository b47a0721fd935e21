"""Exceptions and warnings of hofunc.

Every message has four parts: what is wrong, what was got against what was expected, where, and what to do next.
"""

import os
import sys
import warnings
from types import FrameType

import torch

_IMPORT = "<frozen importlib"  # whose frames `warnings` does not count
_LIBRARIES = tuple(os.path.dirname(os.path.abspath(path)) + os.sep for path in (__file__, torch.__file__))


def _calling_frame() -> tuple[FrameType | None, int]:
    """Return the innermost frame outside hofunc and torch, and how many above the caller's it is for `warnings`."""
    frame: FrameType | None = sys._getframe(1)
    depth = 0
    while frame is not None and frame.f_code.co_filename.startswith((*_LIBRARIES, _IMPORT)):
        depth += not frame.f_code.co_filename.startswith(_IMPORT)
        frame = frame.f_back
    return frame, depth


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
    """Planning takes long, or is done again and again: results are exact, but slow."""


class UntestedTorchWarning(UserWarning):
    """torch is of a release that hofunc was not tested with."""
