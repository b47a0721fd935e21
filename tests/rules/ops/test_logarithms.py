"""Logarithms of sigmoids, in single precision against logarithms in many digits."""

from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from verification.oracles import nested_reverse, relative_error

POINTS = (-40.0, -17.0, -3.0, -0.1, 0.0, 0.5, 2.0, 10.8, 17.0, 40.0)
LIMIT = float(torch.logit(torch.tensor(1e-3, dtype=torch.float64)))


def _log(x: Any) -> Any:
    return -mpmath.log(1 + mpmath.exp(-x))


FORMS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Any], Any]]] = {
    "of the sigmoid": (lambda x: x.sigmoid().log(), _log),
    "of one less it": (lambda x: (1 - x.sigmoid()).log(), lambda x: _log(-x)),
    "of one less it, by log1p": (lambda x: torch.log1p(-x.sigmoid()), lambda x: _log(-x)),
    "of the odds": (lambda x: torch.logit(x.sigmoid()), lambda x: x),
    "of the odds, limited": (
        lambda x: torch.logit(x.sigmoid(), 1e-3),
        lambda x: x if abs(x) < -LIMIT else mpmath.mpf(0),
    ),
}


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("form", FORMS)
def test_logarithms_of_sigmoids_have_all_digits(form: str, order: int, strategy: str, device: torch.device) -> None:
    f, exactly = FORMS[form]
    x = torch.tensor(POINTS, device=device)
    got = hofunc.hod(lambda x: f(x).sum(), order, strategy=strategy)(x)
    for _ in range(order - 1):
        got = got.diagonal(dim1=0, dim2=1)
    with mpmath.workdps(60):
        expected = torch.tensor([float(mpmath.diff(exactly, mpmath.mpf(number), order)) for number in POINTS])
    torch.testing.assert_close(got.cpu(), expected, rtol=2e-6, atol=1e-30)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_other_logarithms_stay_as_they_are(order: int, device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        y = x.sigmoid()
        return (
            y.log() * y + (2 - y).log() + torch.rsub(y, 1, alpha=2).exp() + (-x).exp().log1p() + y.logit().sin()
        ).sum()

    x = rand(device, 3)
    assert relative_error(hofunc.hod(f, order)(x), nested_reverse(f, order)(x)) < 1e-10
