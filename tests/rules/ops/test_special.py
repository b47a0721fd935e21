"""Special functions far out, near zero and at the ends of their domains, in many digits."""

import math
from typing import Any

import mpmath
import pytest
import torch

from hofunc import hod
from tests.rules.ops.test_elementwise import Use, X, closed_form

aten = torch.ops.aten

FAR_OUT: dict[Any, tuple[float, ...]] = {
    aten.i0.default: (-20.0, -4.1, 0.0, 1e-9, 3.9, 4.1, 7.9, 8.1, 30.0),
    aten.special_i1.default: (-20.0, 0.0, 3.9, 7.9, 8.1, 9.1, 30.0),
    aten.special_i0e.default: (4.1, 7.9, 8.1, 15.0, 19.9, 20.1, 30.0, 1e3),
    aten.special_i1e.default: (-4.1, 7.9, 8.1, 15.0, 19.9, 20.1, 30.0, 1e3),
    aten.special_erfcx.default: (-5.0, 0.0, 1.49, 1.51, 3.0, 20.0, 1e4),
    aten.special_ndtri.default: (1e-12, 1e-3, 0.5, 0.999),
    aten.special_spherical_bessel_j0.default: (0.0, 1e-9, -2.9, 3.1, 7.9, 8.1, 40.0),
}


@pytest.mark.parametrize("op", FAR_OUT, ids=str)
def test_single_points_in_forty_digits(op: Any, device: torch.device) -> None:
    use = Use(op, (X,), {})
    function = closed_form(use)
    assert function is not None
    with mpmath.workdps(60):
        for point in FAR_OUT[op]:
            x = torch.tensor(point, dtype=torch.float64, device=device)
            for r in range(1, 5):
                expected = float(mpmath.diff(function, mpmath.mpf(point), r))
                assert use.derivative(x, r).item() == pytest.approx(expected, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("point", [-1e6, -40.0, -5.0, -1.0, -0.9, 0.0, 4.0, 30.0, 1e6])
def test_the_logarithm_of_the_normal_distribution(point: float, device: torch.device) -> None:
    x = torch.tensor(point, dtype=torch.float64, device=device)
    with mpmath.workdps(80):
        for r in range(1, 5):
            got = hod(torch.special.log_ndtr, r)(x).item()
            if abs(point) < 1e5:
                expected = float(mpmath.diff(lambda t: mpmath.log(mpmath.ncdf(t)), mpmath.mpf(point), r))
                assert got == pytest.approx(expected, rel=1e-9, abs=1e-13)
            assert not math.isnan(got)


def test_the_slope_of_that_logarithm_keeps_its_digits_if_autograd_differentiates_it(device: torch.device) -> None:
    x = torch.tensor([-1e30, -1e4, -20.0, 40.0, torch.inf], device=device, requires_grad=True)  # in single precision
    slopes = hod(torch.special.log_ndtr, 1)(x).diagonal()
    assert slopes.tolist() == pytest.approx([1e30, 1e4, 20.0497630, 0, 0], rel=1e-6)
    (second,) = torch.autograd.grad(slopes.sum(), x)
    assert second.tolist() == pytest.approx([-1, -1, -0.9975367, 0, 0], rel=1e-5)


def test_an_incomplete_gamma_function_at_zero(device: torch.device) -> None:
    a = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, device=device)
    zero = torch.zeros(3, dtype=torch.float64, device=device)
    third = hod(lambda x: torch.special.gammainc(a, x).sum(), 3)(zero)
    assert third.tolist() == torch.diag_embed(torch.diag_embed(torch.tensor([1.0, -2.0, 1.0]))).tolist()


def test_the_entropy_at_zero_and_below(device: torch.device) -> None:
    x = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64, device=device)
    orders = [hod(lambda x: torch.special.entr(x).sum(), 1)(x)]
    orders += [hod(torch.special.entr, r)(x[1]) for r in (2, 3)]
    assert orders[0].isnan().tolist() == [True, False, False]
    assert orders[0][1:].tolist() == [torch.inf, -1]
    assert [order.item() for order in orders[1:]] == [-torch.inf, torch.inf]


def test_an_angle_without_a_direction(device: torch.device) -> None:
    zero = torch.zeros((), dtype=torch.float64, device=device)
    by_both = hod(torch.atan2, 1, (0, 1))(zero, zero)
    assert [part.item() for part in by_both] == [0, 0]
