"""Options that there are not, and points where there are options: errors say what there is, the nearest first."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import hofunc as library

hofunc: Any = library  # which is called as it should not be
X = torch.ones(3)
f: Any = torch.sum


@pytest.mark.parametrize(
    ("call", "expected", "remedy"),
    [
        (
            lambda: hofunc.options(falback="error"),
            "options: an option: got falback, expected one of fallback, ",
            "fallback=",
        ),
        (
            lambda: hofunc.hessian(f, stratgy="auto"),
            "hessian: an option: got stratgy, expected one of strategy, ",
            "strategy=",
        ),
        (lambda: hofunc.laplacian(f, chunksize=3), "laplacian: an option: got chunksize, ", "chunk_size="),
        (lambda: hofunc.laplacian(f, sample=3), "laplacian: an option: got sample, ", "samples="),
        (lambda: hofunc.divergence(f, max_byte=3), "divergence: an option: got max_byte, ", "max_bytes="),
        (lambda: hofunc.jit(f, max_plan=2), "jit: an option: got max_plan, expected one of max_plans, ", "max_plans="),
        (lambda: hofunc.ggnvp(f, f, arg_nums=1), "ggnvp: an option: got arg_nums, ", "argnums="),
        (lambda: hofunc.hodcheck(f, (X,), ordr=2), "hodcheck: an option: got ordr, expected one of order, ", "order="),
        (
            lambda: hofunc.hod(f, vectorize=True),
            "hod: an option: got vectorize, expected one of argnums, ",
            "help(hofunc.hod)",
        ),
        (lambda: hofunc.laplacian(f, weight=X), "laplacian: an option: got weight, ", "laplacian(f)(x, weight=...)"),
        (lambda: hofunc.hvp(f, vector={"a": X}), "hvp: an option: got vector, ", "hvp(f)(x, vector=...)"),
        (lambda: hofunc.options("error"), "options: arguments by position: got 1, expected at most 0", "by name"),
        (lambda: hofunc.hvp(f, X, X), "hvp: arguments by position: got 3, expected at most 2", "hvp(f)(x)"),
    ],
)
def test_options_that_there_are_not(call: Callable[[], Any], expected: str, remedy: str) -> None:
    with pytest.raises(library.OptionError) as caught:
        call()
    assert str(caught.value).startswith(expected)
    assert remedy in str(caught.value)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    "call",
    [
        lambda: hofunc.hessian(f, X),
        lambda: hofunc.jacobian(f, (X,)),
        lambda: hofunc.hod(f, X),
        lambda: hofunc.hod(f, 2, X),
        lambda: hofunc.derivatives(f, X.numpy()),
        lambda: hofunc.hvp(f, X),
    ],
)
def test_a_point_where_there_is_an_option(call: Callable[[], Any]) -> None:
    with pytest.raises(
        library.ArgumentError, match=r"of shape \(3,\).* to the function that is returned: \w+\(f\)\(x\)"
    ):
        call()


def test_names_in_argnums() -> None:
    with pytest.raises(library.ArgumentError, match=r"argnums: got 'x', .* Names go into wrt='x'."):
        hofunc.hessian(f, "x")


def test_python_finds_the_nearest_name() -> None:
    with pytest.raises(AttributeError, match="module 'hofunc' has no attribute 'hesian'") as raised:
        _ = hofunc.hesian
    assert (raised.value.name, raised.value.obj) == ("hesian", library)  # which is what it compares
