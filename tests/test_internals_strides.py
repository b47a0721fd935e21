"""Strides that the compiler is told are those that it finds by itself."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import sympy  # type: ignore[import-untyped]
from torch._inductor import sizevars
from torch._inductor.sizevars import SizeVarAllocator
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
    25 * X + 50 * FloorDiv(X, 25) - ModularIndexing(X, 1, 25),
    8 * FloorDiv(X, 48) + 3 * ModularIndexing(X, 16, 5) + Y,
    7 * ModularIndexing(X, 1, 48) + ModularIndexing(X, 2, 16) + FloorDiv(Y, 8),
    FloorDiv(X, S) + X,
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


JOINED = [
    ModularIndexing(X, 1, 4) + 4 * FloorDiv(X, 4) + Y,
    2 * ModularIndexing(X + Y, 2, 4) + 8 * ModularIndexing(X + Y, 8, 5) + 3,
    5 * ModularIndexing(3 * X + 6 * Y, 2, 3) + 15 * ModularIndexing(X + 2 * Y, 2, 4),
    8 * ModularIndexing(X, 1, 5) + 40 * ModularIndexing(X, 5, 2) + 80 * FloorDiv(X, 10) + ModularIndexing(Y, 1, 5) + 7,
    ModularIndexing(X, 1, 2) + 2 * ModularIndexing(X, 2, 2) + 4 * ModularIndexing(X, 4, 2) + 6 * FloorDiv(Y, 3),
    ModularIndexing(X, 1, 2) + 2 * ModularIndexing(X, 2, 2) + 2 * ModularIndexing(X, 2, 4) + 2 * FloorDiv(X, 2),
    3 * ModularIndexing(X, 2, 4) + 12 * ModularIndexing(X, 8, 2) + 12 * FloorDiv(X, 8) - ModularIndexing(X, 2, 4),
]
APART = [
    ModularIndexing(X, 1, 4) + 5 * FloorDiv(X, 4),
    2 * ModularIndexing(X + Y, 2, 4) + 8 * ModularIndexing(X + Y, 4, 5),
    ModularIndexing(X, 1, 4) + 4 * FloorDiv(Y, 4),
    ModularIndexing(X, 1, 32) + 5 * ModularIndexing(X, 16, 2) + 6 * FloorDiv(X, 32) + FloorDiv(Z, 2) + 3 * Y,
    ModularIndexing(Y, 8, 2) + 9 * FloorDiv(Y, 6) + 2 * ModularIndexing(Y, 1, 6) + ModularIndexing(S, 1, 4),
]


@pytest.mark.parametrize("index", [*SUMS, *OTHERS, *JOINED, *APART], ids=str)
def test_other_answers(index: sympy.Expr) -> None:
    tell_strides()
    told: Any = sizevars
    sizes: Any = SizeVarAllocator()
    ranges = {X: sympy.Integer(32), Y: sympy.Integer(6), Z: sympy.Integer(4)}
    assert told.join_dimensions(index) == told.join_dimensions.before(index)
    assert sizes._simplify_with_ranges(index, ranges) == SizeVarAllocator._simplify_with_ranges.before(  # type: ignore[attr-defined]
        sizes, index, ranges
    )
    for variables, others in (((X, Y), (X, Y)), ((X, sympy.S.Zero, Z), (X, Y, Z)), ((X, Z), (Y, Z))):
        got, own = (
            sizes._stride_vars(index, variables, others),
            sizes._stride_vars.before(sizes, index, variables, others),
        )
        assert all(sympy.expand(one - other) == 0 for one, other in zip(got, own, strict=True))


def test_what_is_joined() -> None:
    tell_strides()
    joined: Any = sizevars.join_dimensions
    assert all(joined(index) != index for index in JOINED[:2])
    assert all(joined(index) == index for index in APART)


@pytest.mark.parametrize("index", [*SUMS, *OTHERS, *JOINED, *APART, 2 * (X + 3 * (Y + Z)), X * (Y + Z)], ids=str)
def test_what_is_expanded(index: sympy.Expr) -> None:
    tell_strides()
    sizes: Any = SizeVarAllocator()
    before: Any = SizeVarAllocator.simplify.before  # type: ignore[attr-defined]
    assert sizes.simplify(index) == before(sizes, index)
    assert sizes.simplify(3) == before(sizes, 3)
    sizes.shape_env.replacements[S] = sympy.Integer(5)  # of which answers are no longer what they were
    assert sizes.simplify(index) == before(sizes, index)


LOOPS = [  # lengths of the loops, and indices; what is merged is by the same variable
    ((4, 8, 3), [24 * X + 3 * Y + Z]),
    ((4, 8, 3), [24 * X + 3 * Y + Z, 3 * X + 12 * Y + Z]),
    ((4, 8, 3), [24 * X + 3 * Y + Z, 8 * X + Y]),
    ((4, 8, 3), [X + 4 * Y + 32 * Z + 7]),
    ((1, 8, 3), [3 * Y + Z, sympy.Integer(0)]),
    ((1, 1, 1), [5 * X]),
    ((0, 8, 3), [24 * X + 3 * Y + Z]),
    ((4, 8, 3), [6 * (4 * X + FloorDiv(Y, 2)) + Z]),
    ((4, 8, 3), [24 * X + 3 * Y + Z, X < 3]),
    ((S, 8, 3), [24 * X + 3 * Y + Z]),
    ((4, 8, 3), [X * (8 * X + Y) + Z]),
]


@pytest.mark.parametrize(("lengths", "indices"), LOOPS)
def test_loops(lengths: tuple[Any, ...], indices: list[Any]) -> None:
    tell_strides()
    sizes: Any = SizeVarAllocator()
    given = [X, Y, Z], [sympy.sympify(length) for length in lengths], indices
    (got, variables, kept), own = (
        sizes._simplify_loops_impl(*given),
        sizes._simplify_loops_impl.before(sizes, *given),
    )
    assert got == own[0]
    merged = sympy.symbols("y0:3")[: len(got)]
    assert variables(merged) == own[1](merged)
    assert kept([X, Y, Z]) == own[2]([X, Y, Z])


def test_which_loops_are_merged() -> None:
    tell_strides()
    sizes: Any = SizeVarAllocator()
    merged = [sizes._simplify_loops_impl([X, Y, Z], [4, 8, 3], indices)[0] for _, indices in LOOPS[:4]]
    assert merged == [[96], [4, 8, 3], [32, 3], [96]]


@pytest.mark.parametrize("seed", range(40))
def test_random_sums(seed: int) -> None:
    tell_strides()
    random, told, sizes = Random(seed), sizevars, SizeVarAllocator()  # noqa: S311 - no secrets
    numbers = [1, 2, 3, 4, 8, 16]

    def term() -> sympy.Expr:
        var, divisor = random.choice([X, X, Y]), random.choice(numbers)
        remainder = ModularIndexing(var, divisor, random.choice(numbers[1:]))
        return random.choice(numbers) * random.choice([var, FloorDiv(var, divisor), remainder, remainder])

    index = sum(term() for _ in range(random.randint(2, 5)))
    ranges = {X: sympy.Integer(random.choice([4, 16, 32])), Y: sympy.Integer(random.choice([2, 6, 24]))}
    functions: list[tuple[Any, tuple[Any, ...]]] = [
        (told.join_dimensions, (index,)),
        (SizeVarAllocator._simplify_with_ranges, (sizes, index, ranges)),
        (told.simplify_index_in_vec_range, (index, X, 8)),
        (told.stride_at, (index, X)),
    ]
    for function, args in functions:
        got, own = function(*args), function.before(*args)
        if function is told.simplify_index_in_vec_range:  # of which only that is asked
            got, own = told.stride_at(got, X), told.stride_at(own, X)
        assert sympy.expand(got - own) == 0
