"""Strides that the compiler is told are those that it finds by itself."""

from collections.abc import Callable
from typing import Any

import pytest
import sympy  # type: ignore[import-untyped]
from torch._inductor import sizevars
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from hofunc.internals_strides import factor, tell_strides

X, Y, Z = sympy.symbols("x0 x1 x2", integer=True, nonnegative=True)
S = sympy.Symbol("s0", integer=True, positive=True)

SUMS = [
    sympy.Integer(7),
    X,
    12 * X,
    X + 3 * Y,
    16 * X + 4 * Y + Z + 5,
    -X + 9,
    Y + 8 * FloorDiv(Z, 4),
    X + ModularIndexing(Y, 2, 8),
    3 * X + sympy.Max(Y, 2) * Z,
    S * Y + X,
]
OTHERS = [
    FloorDiv(X, 4) + X,
    8 * FloorDiv(X, 16) + ModularIndexing(X, 1, 16),
    ModularIndexing(X + 3 * Y, 2, 8) + Y,
    S * X + Y,
    X * Y,
    (X + 1) ** 2,
    32 * FloorDiv(X, 3) + 4 * X,
]


@pytest.fixture
def own() -> Callable[..., Any]:
    """What the compiler does by itself."""
    tell_strides()
    replaced: Any = sizevars
    told = {name: getattr(replaced, name) for name in ("simplify_index_in_vec_range", "stride_at")}

    def stride(index: sympy.Expr, var: sympy.Symbol, length: int | None) -> Any:
        for name, function in told.items():
            setattr(replaced, name, function.before)
        try:
            return sizevars.stride_at_vec_range.__wrapped__(index, var, length)
        finally:
            for name, function in told.items():
                setattr(replaced, name, function)

    return stride


@pytest.mark.parametrize("index", SUMS + OTHERS, ids=str)
@pytest.mark.parametrize("length", [None, 8, 16])
def test_strides(index: sympy.Expr, length: int | None, own: Callable[..., Any]) -> None:
    for var in (X, Y):
        got = sizevars.stride_at_vec_range.__wrapped__(index, var, length)
        assert sympy.expand(got - own(index, var, length)) == 0


def test_what_is_told() -> None:
    assert [factor(index, X) for index in SUMS] == [0, 1, 12, 1, 16, -1, 0, 1, 3, 1]
    assert all(factor(index, X) is None for index in OTHERS)


def test_once() -> None:
    tell_strides()
    compiler: Any = sizevars
    told = compiler.stride_at
    tell_strides()
    assert compiler.stride_at is told
    assert not hasattr(told.before, "before")
