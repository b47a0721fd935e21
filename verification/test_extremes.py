"""At the ends of the range of numbers, hofunc is finite wherever nested reverse mode is.

Claim: where a function of one or two numbers is finite, and so are torch's first and second derivatives by nested
reverse mode, hofunc's are.
Source: torch's, of which only that they are finite is taken: many of them are wrong there, see
docs/explanations/torch-errors.md.
Falsifier: a power or a square that overflows where the derivative does not; zero times an infinite factor.
Tolerance: none. What overflows in single factors of f itself, as 1 / x in x * (log(x) - 1) below 1e-308 or both slopes
of atan2(x, x) there, is left out.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

import hofunc
from verification.oracles import nested_reverse

SMALLEST = 5e-324
SIZES = (SMALLEST, 1e-310, 1e-300, 1e-160, 1e-20, 0.5, 1.0, 2.0, 21.0, 36.0, 100.0, 710.0, 1e8, 1e100, 1e160, 1.7e308)
POINTS = [0.0, -0.0, *SIZES, *(-size for size in SIZES), torch.inf, -torch.inf]


def _like(x: Tensor, value: float) -> Tensor:
    return torch.full_like(x, value)


OF_ONE: dict[str, Callable[[Tensor], Tensor]] = {
    **{
        name: getattr(torch, name)
        for name in (
            *("exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal", "square", "abs", "sin"),
            *("cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid"),
            *("erf", "erfc", "erfinv", "sinc", "relu", "i0", "frac", "nan_to_num", "digamma", "lgamma"),
        )
    },
    **{name: getattr(torch.special, name) for name in ("entr", "erfcx", "ndtri", "ndtr", "log_ndtr", "i0e", "i1e")},
    **{
        name: getattr(F, name)
        for name in (
            *("relu6", "hardtanh", "leaky_relu", "softshrink", "hardshrink", "hardswish", "elu", "celu", "selu"),
            *("silu", "mish", "gelu", "softplus", "logsigmoid", "tanhshrink", "softsign"),
        )
    },
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softmax": lambda x: torch.stack([x, -x]).softmax(0)[0],
    "log_softmax": lambda x: torch.stack([x, -x]).log_softmax(0)[0],
    "logsumexp": lambda x: torch.stack([x, -x]).logsumexp(0),
    "logcumsumexp": lambda x: torch.stack([x, -x]).logcumsumexp(0)[1],
    "norm": lambda x: torch.linalg.vector_norm(torch.stack([x, _like(x, 1)])),
    "norm of order three": lambda x: torch.linalg.vector_norm(torch.stack([x, _like(x, 1)]), 3),
    "huber": lambda x: F.huber_loss(x, _like(x, 0)),
    "smooth l1": lambda x: F.smooth_l1_loss(x, _like(x, 0)),
    "soft margin": lambda x: F.soft_margin_loss(x, _like(x, 1)),
    "binary cross entropy": lambda x: F.binary_cross_entropy_with_logits(x, _like(x, 0.3)),
    "times a logarithm": lambda x: x * x.log(),
    "a square times a logarithm": lambda x: x * x.log2() * x,
    "times a root": lambda x: x * x.sqrt(),
    "a square times a root": lambda x: x**2 * x.sqrt(),
    "powers": lambda x: torch.stack([x**2, x**-1, x**1.5, 2**x]).sum(),
}

OF_TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "hypot": torch.hypot,
    "xlogy": torch.xlogy,
    "xlog1py": torch.special.xlog1py,
    "power": torch.pow,
    "quotient": torch.div,
    "maximum": torch.maximum,
    "fmax": torch.fmax,
    "remainder": torch.remainder,
    "copysign": torch.copysign,
}
SECONDS = (0.0, 1.0, -1.0, 1e160, 1e-310, torch.inf, -torch.inf)


def check(f: Callable[[Tensor], Tensor]) -> None:
    """Compare at all points."""
    lost = []
    for value in POINTS:
        x = torch.tensor(value, dtype=torch.float64)
        theirs = [nested_reverse(f, order)(x) for order in (0, 1, 2)]
        for order in (1, 2):
            if all(part.isfinite() for part in theirs[: order + 1]):
                mine = hofunc.hod(f, order)(x)
                if not mine.isfinite():
                    lost.append(f"{value}, order {order}: {float(mine)} where torch has {float(theirs[order])}")
    assert not lost, "\n".join(lost)


@pytest.mark.parametrize("name", OF_ONE)
def test_functions_of_one_number(name: str) -> None:
    check(OF_ONE[name])


@pytest.mark.parametrize("second", SECONDS)
@pytest.mark.parametrize("name", OF_TWO)
def test_functions_of_two_numbers(name: str, second: float) -> None:
    check(lambda x: OF_TWO[name](x, _like(x, second)))
    check(lambda x: OF_TWO[name](_like(x, second), x))


@pytest.mark.parametrize("name", OF_TWO)
def test_both_at_once(name: str) -> None:
    check(lambda x: OF_TWO[name](x, x))
    check(lambda x: OF_TWO[name](x, -x))
