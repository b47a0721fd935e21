"""Exceptions and warnings of hofunc.

Every message has four parts: what is wrong, what was got against what was expected, where, and what to do next.
"""

import os
import sys
from types import FrameType

import torch

_LIBRARIES = tuple(os.path.dirname(os.path.abspath(path)) + os.sep for path in (__file__, torch.__file__))


def calling_line() -> str:
    """Name the source line, outside hofunc and torch, that led here: ``model.py:12``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_LIBRARIES):
            return f"{os.path.basename(path)}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown line"


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


class InternalError(HofuncError, AssertionError):
    """An invariant of hofunc is broken: a bug, never the caller's fault."""

    def __init__(self, what: str, *, got: str, expected: str):
        super().__init__(what, got=got, expected=expected, remedy="Please report this, with the function.")


class FallbackWarning(UserWarning):
    """An op without a rule is differentiated by nested torch.func: exact, but slow."""
