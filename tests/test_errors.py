"""Exceptions and warnings: their four parts, their classes, and the line that they name."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import hofunc
from hofunc.errors import calling_line, warn

ERRORS = [
    hofunc.ArgumentError,
    hofunc.MutationError,
    hofunc.BranchError,
    hofunc.UntracedError,
    hofunc.UnsupportedOpError,
    hofunc.HodcheckError,
    hofunc.GoldenError,
]


def here() -> str:
    """Name the line from which this is called."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"test_errors.py:{frame.f_back.f_lineno}"


@pytest.mark.parametrize("kind", [hofunc.HofuncError, *ERRORS])
def test_the_four_parts_of_a_message(kind: type[hofunc.HofuncError]) -> None:
    error, line = kind("hod: x", got="2", expected="3", remedy="Add one."), here()
    assert str(error) == f"hod: x: got 2, expected 3 (called at {line}). Add one."


def test_an_internal_error_asks_for_a_report() -> None:
    error, line = hofunc.InternalError("plan: a step", got="2", expected="3"), here()
    expected = "got 2, expected 3"
    assert str(error) == f"plan: a step: {expected} (called at {line}). Please report this, with the function."


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (hofunc.ArgumentError, ValueError),
        (hofunc.MutationError, RuntimeError),
        (hofunc.BranchError, RuntimeError),
        (hofunc.UntracedError, RuntimeError),
        (hofunc.UnsupportedOpError, RuntimeError),
        (hofunc.HodcheckError, AssertionError),
        (hofunc.GoldenError, AssertionError),
        (hofunc.InternalError, AssertionError),
    ],
)
def test_every_error_is_one_of_hofunc_and_a_builtin_one(kind: type, builtin: type) -> None:
    assert issubclass(kind, hofunc.HofuncError)
    assert issubclass(kind, builtin)


def test_warnings_are_warnings_of_the_user() -> None:
    assert issubclass(hofunc.FallbackWarning, UserWarning)
    assert issubclass(hofunc.PlanningWarning, UserWarning)


def test_the_line_is_the_innermost_one_outside_hofunc_and_torch() -> None:
    lines: list[str] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        lines.extend([calling_line(), here()])
        return x

    hofunc.hod(f)(torch.ones(2))
    torch.func.vmap(hofunc.hod(f))(torch.ones(2, 2))
    assert lines[0] == lines[1]
    assert lines[2] == lines[3]


def test_an_error_names_the_line_of_the_call() -> None:
    transform = hofunc.hod(torch.sum)
    with pytest.raises(hofunc.ArgumentError) as caught:
        transform(torch.ones(2, dtype=torch.int64))
    line = caught.traceback[0].lineno + 1
    assert f"(called at test_errors.py:{line})" in str(caught.value)


def test_an_error_names_the_line_of_f_that_was_at_fault() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x

    with pytest.raises(hofunc.MutationError) as caught:
        hofunc.hod(f)(torch.ones(2))
    assert f"(called at test_errors.py:{f.__code__.co_firstlineno + 1})" in str(caught.value)


def test_a_line_that_nobody_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hofunc.errors._LIBRARIES", ("",))
    assert calling_line() == "an unknown line"
    assert "(called at an unknown line)" in str(hofunc.HofuncError("x", got="a", expected="b", remedy="c"))


def test_a_warning_points_at_the_line_of_the_call() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn("slow", hofunc.FallbackWarning)
        line = here()
    (warning,) = caught
    assert warning.category is hofunc.FallbackWarning
    assert str(warning.message) == "slow"
    assert warning.filename == __file__
    assert f"test_errors.py:{warning.lineno + 1}" == line


def test_a_warning_from_within_torch_points_at_the_line_outside() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        warn("slow", hofunc.FallbackWarning)
        return x

    def summed(x: torch.Tensor) -> torch.Tensor:
        return f(x).sum()

    through: list[Callable[..., Any]] = [torch.func.grad(summed), torch.func.vmap(f), hofunc.hod(f)]
    for g in through:
        with pytest.warns(hofunc.FallbackWarning) as caught:
            g(torch.ones(2))
        assert caught[0].filename == __file__
        assert caught[0].lineno == f.__code__.co_firstlineno + 1
