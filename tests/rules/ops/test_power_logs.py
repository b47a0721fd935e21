"""Products of a logarithm, or a root, and powers of one number: no factor overflows where the derivative does not."""

from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.checks import check_hod
from verification.oracles import nested_reverse

FORMS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Any], Any]]] = {
    "times a logarithm": (lambda x: x * x.log(), lambda x: x * mpmath.log(x)),
    "a square times a logarithm": (lambda x: x.log() * x * x, lambda x: x**2 * mpmath.log(x)),
    "a power times a logarithm": (lambda x: x**1.5 * x.log2(), lambda x: x**1.5 * mpmath.log(x, 2)),
    "one over it times a logarithm": (lambda x: x.log10() * x**-1, lambda x: mpmath.log10(x) / x),
    "an entropy": (lambda x: -x * x.log(), lambda x: -x * mpmath.log(x)),
    "an entropy in bits": (lambda x: x * -(x.log() / 2), lambda x: -x * mpmath.log(x) / 2),
    "times a logarithm and a number": (lambda x: x * (x.log() - 1), lambda x: x * (mpmath.log(x) - 1)),
    "times a number less a logarithm": (lambda x: (2 - 3 * x.log()) * x, lambda x: (2 - 3 * mpmath.log(x)) * x),
    "times the logarithm of a multiple": (lambda x: 3 * x * (x / 8).log(), lambda x: 3 * x * mpmath.log(x / 8)),
    "times the logarithm of a ratio": (
        lambda x: x * (x / torch.full_like(x, 0.25)).log(),
        lambda x: x * mpmath.log(4 * x),
    ),
    "times a difference of logarithms": (
        lambda x: x * (x.log() - torch.full_like(x, 0.25).log()),
        lambda x: x * mpmath.log(4 * x),
    ),
    "times the ratio of itself": (lambda x: x * (x.log() - (2 * x).log()), lambda x: -x * mpmath.log(2)),
    "weighted": (lambda x: torch.full_like(x, 0.25) * x * x.log(), lambda x: x * mpmath.log(x) / 4),
    "times the logarithm of positive ones": (
        lambda x: -x * torch.where(x > 0, x, 1).log(),
        lambda x: -x * mpmath.log(x),
    ),
    "times the logarithm from a bound on": (
        lambda x: x * x.clamp(min=5e-324).log().square(),
        lambda x: x * mpmath.log(x) ** 2,
    ),
    "times the square of a logarithm": (lambda x: x * x.log() ** 2, lambda x: x * mpmath.log(x) ** 2),
    "times two logarithms": (
        lambda x: x * (x.log() - 1) * x.log(),
        lambda x: x * (mpmath.log(x) - 1) * mpmath.log(x),
    ),
    "a root times a logarithm": (lambda x: x.sqrt() * x.log(), lambda x: mpmath.sqrt(x) * mpmath.log(x)),
    "times a root": (lambda x: x * x.sqrt(), lambda x: x**1.5),
    "a square times a root": (lambda x: x.sqrt() * x.square(), lambda x: x**2.5),
}
SIZES = (1e-310, 1e-300, 1e-160, 1e-100, 0.3, 1.0, 7.0, 1e50, 1e100)


@pytest.mark.parametrize("form", FORMS)
def test_derivatives_are_right_at_all_sizes(form: str, device: torch.device) -> None:
    f, _ = FORMS[form]
    strategy = ("reverse", "forward", "mixed")[len(form) % 3]
    x = torch.tensor(SIZES, dtype=torch.float64, device=device)
    _, *got = hofunc.derivatives(f, 3, strategy=strategy)(x)
    for order, derivative in enumerate(got, 1):
        places = torch.arange(len(SIZES), device=device)
        got_here = derivative[(places,) * (order + 1)].cpu()
        torch.testing.assert_close(got_here, expected(form, order), rtol=1e-12, atol=1e-99)


def expected(form: str, order: int) -> Tensor:
    """Return the derivatives of a form at all sizes."""
    _, exactly = FORMS[form]
    with mpmath.workdps(250):
        exact = [
            mpmath.diff(exactly, mpmath.mpf(number), order, h=mpmath.mpf(number) * mpmath.mpf(10) ** -50)
            for number in SIZES
        ]
    return torch.tensor([float(number) for number in exact], dtype=torch.float64)


OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "of another number": lambda x: x * x.flip(0).log(),
    "an inverse root": lambda x: x.rsqrt() * x.square(),
    "two logarithms": lambda x: x.log() * x.log() * x,
    "of a sigmoid": lambda x: x.sigmoid().log() * x.sigmoid(),
    "a divergence of two": lambda x: x * (x / x.flip(0)).log(),
    "a divergence of two by their logarithms": lambda x: x * (x.log() - x.flip(0).log()),
    "a divergence the other way": lambda x: x * (x.flip(0) / x).log(),
    "a number between two": lambda x: x * (x * x.flip(0)).log(),
    "negative numbers": lambda x: -x * (-x / -x.flip(0)).log(),
    "a logarithm and itself": lambda x: x * (x.log() - x),
    "the square of a logarithm and another": lambda x: x.square() * (x.log() + x.flip(0)) ** 2,
    "weighted by itself": lambda x: (x.sin() * x) * (2 * x).log(),
    "rows": lambda x: x * (x / x[0]).log(),
    "a sum of rows": lambda x: x * (x[0] + x.log()),
    "a bound": lambda x: x**2 * (x.clamp(min=1.0).log() - 2) ** 2,
    "a condition": lambda x: x * torch.where(x.flip(0) > 0.9, x, 0.25).log(),
    "a choice of two": lambda x: x * torch.where(x > 0.9, x, x.flip(0)).log(),
    "a bound from above": lambda x: x * x.clamp(max=1.0).log(),
    "a row times a logarithm": lambda x: x * x[0].log(),
    "products of products": lambda x: ((x * x) * (x * x)) * ((x * x) * x.log()),
    "a power of a tensor": lambda x: x ** x.flip(0) * x.log(),
}


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("name", OTHERS)
def test_other_products_are_right(name: str, order: int, device: torch.device) -> None:
    check_hod(lambda x: OTHERS[name](x.abs() + 0.5).sum(), (rand(device, 2, 3),), order)


def test_what_is_not_defined_is_not_finite(device: torch.device) -> None:
    for value in (0.0, -1.0):
        x = torch.tensor(value, dtype=torch.float64, device=device)
        for f in (OTHERS["an inverse root"], *(f for f, _ in FORMS.values())):
            got, theirs = hofunc.jacobian(f)(x), nested_reverse(f, 1)(x)
            assert theirs.isfinite() or f(x).isfinite() or not got.isfinite()


def test_a_long_chain_of_products_takes_no_time(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        for _ in range(40):
            x = x * x
        return x.sum()

    assert hofunc.hod(f, 1)(torch.ones(2, device=device)).eq(2.0**40).all()
