"""Taylor series through functions, against derivatives along a curve by nested torch.func."""

from collections.abc import Callable
from math import factorial
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc import ArgumentError
from tests.cases import rand
from tests.checks import assert_equal


def curve(t: Tensor, x: Tensor, series: list[Tensor]) -> Tensor:
    return x + sum(t**order * own / factorial(order) for order, own in enumerate(series, 1))


def derivative(g: Callable, order: int) -> Callable:
    for _ in range(order):
        g = torch.func.jacfwd(g)
    return g


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_derivatives_along_a_curve(order: int, device: torch.device) -> None:
    x, y = rand(device, 4, 3), rand(device, 3, 2, seed=1)
    of_x, of_y = ([rand(device, *z.shape, seed=10 * z.numel() + k) for k in range(order)] for z in (x, y))

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return (x @ y).sin(), {"norm": (x**2).sum()}

    value, series = hofunc.jet(f, (x, y), (of_x, of_y))
    assert_equal(value, f(x, y))
    zero = torch.zeros((), dtype=x.dtype, device=device)
    for number in range(1, order + 1):
        sine, others = derivative(lambda t: f(curve(t, x, of_x), curve(t, y, of_y)), number)(zero)
        assert_equal(series[0][number - 1], sine)
        assert_equal(series[1]["norm"][number - 1], others["norm"])
    assert [len(series[0]), len(series[1]["norm"])] == [order, order]


def test_pytrees_vmap_and_gradients(device: torch.device) -> None:
    x, v, w = rand(device, 3), rand(device, 3, seed=1), rand(device, 3, seed=2)

    def second(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        _, (_, found) = hofunc.jet(lambda p: (p["x"] ** 3).sum(), ({"x": x},), (({"x": v}, {"x": w}),))
        return found

    expected = (6 * x * v**2 + 3 * x**2 * w).sum()
    assert_equal(second(x, v, w), expected)
    assert_equal(torch.func.grad(second, (0, 1, 2))(x, v, w), (6 * v**2 + 6 * x * w, 12 * x * v, 3 * x**2))
    stacked = torch.func.vmap(second, (None, 0, None))(x, torch.stack([v, v]), w)
    assert_equal(stacked, torch.stack([expected, expected]))


def test_the_dtype_is_that_of_the_output(device: torch.device) -> None:
    x = rand(device, 3).float()
    value, (first, third) = hofunc.jet(lambda x: x.exp(), (x,), ((x, x),))
    assert (value.dtype, first.dtype, third.dtype) == (torch.float32,) * 3


@pytest.mark.parametrize(
    ("primals", "series", "got"),
    [
        ((torch.ones(2),), ((torch.ones(2),), (torch.ones(2),)), r"series: got 2 of lengths \[1, 1\]"),
        ((torch.ones(2),), ((),), r"series: got 1 of lengths \[0\]"),
        ((torch.ones(2),), torch.ones(2), "series: got Tensor"),
        ((torch.ones(2),), ((torch.ones(3),),), r"at order 1: got shapes \[\(3,\)\]"),
        (({"a": torch.ones(2)},), (({"b": torch.ones(2)},),), "the structure of the primals"),
        ((torch.ones(2, dtype=torch.int64),), ((torch.ones(2),),), "a primal: got dtype torch.int64"),
        (("a",), ((torch.ones(2),),), "a primal: got str"),
        ((), (), "primals: got none"),
        (torch.ones(2), (torch.ones(2),), "primals: got Tensor"),
        (1.0, ((torch.ones(2),),), "primals: got float"),
    ],
)
def test_what_is_refused(primals: Any, series: Any, got: str) -> None:
    with pytest.raises(hofunc.ArgumentError, match=got):
        hofunc.jet(lambda x: x, primals, series)


def _tapped(x: Tensor, weight: Tensor, power: int = 3) -> Tensor:
    return (hofunc.tap("h", (weight @ x).tanh()) ** power).sum() * x.sum()


@pytest.mark.parametrize("names", ["h", "x", ("x", "h"), ("h", "x"), ("weight", "h")])
def test_names_move_and_all_else_stays(names: str | tuple[str, ...], device: torch.device) -> None:
    x, weight, change = rand(device, 3), rand(device, 4, 3, seed=1), torch.zeros(4, dtype=torch.float64, device=device)
    start = {"x": x, "weight": weight, "h": change}
    listed = (names,) if isinstance(names, str) else names
    series = {name: [rand(device, *start[name].shape, seed=seed) for seed in range(3)] for name in start}

    def moved(*given: Tensor) -> Tensor:
        at = {**start, **dict(zip(listed, given, strict=True))}
        return (((at["weight"] @ at["x"]).tanh() + at["h"]) ** 3).sum() * at["x"].sum()

    chosen = tuple(series[name] for name in listed)
    expected = hofunc.jet(moved, tuple(start[name] for name in listed), chosen)
    assert_equal(hofunc.jet(_tapped, (x, weight, 3), chosen, wrt=names), expected)


@pytest.mark.parametrize(
    ("names", "count", "message"),
    [
        ("k", 4, "jet: wrt: got 'k'"),
        ("h", 3, "jet: series for what is tapped as h: got coefficients of another structure"),
        (("x", "h"), 4, "jet: series: got 1, expected a tuple of 2 series"),
        ("power", 4, "jet: primals: got 2 arguments, expected 3 at least"),
    ],
)
def test_names_that_do_not_fit(names: str | tuple[str, ...], count: int, message: str) -> None:
    cpu = torch.device("cpu")
    with pytest.raises(ArgumentError, match=message):
        hofunc.jet(_tapped, (rand(cpu, 3), rand(cpu, 4, 3)), ((rand(cpu, count),),), wrt=names)
