"""Activations of neural networks, at every order in closed form, with torch's conventions at kinks."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from hofunc.internals import TIES_ARE_SHARED
from hofunc.rules.ops.calculus import chained, differentiated, evaluated
from hofunc.rules.ops.elementwise import Derivative, autonomous, sigmoid, tanh
from hofunc.rules.ops.special import gaussian
from hofunc.rules.registry import define_composite, define_elementwise, define_piecewise_linear

aten = torch.ops.aten

Function = Callable[[Tensor, int], Tensor]  # (x, r): the r-th derivative at x, the value for r = 0


# Smooth ones.


def _sigmoid(x: Tensor, r: int) -> Tensor:
    y = x.sigmoid()
    return sigmoid(x, y, r) if r else y


def softplus(x: Tensor, y: Tensor, r: int, beta: float = 1, threshold: float = 20) -> Tensor:
    """Differentiate log(1 + exp(beta x)) / beta, in place of which torch takes x above the threshold."""
    derivative = beta ** (r - 1) * _sigmoid(beta * x, r - 1)
    return torch.where(beta * x > threshold, 1 if r == 1 else 0, derivative)


define_elementwise(aten.softplus.default, softplus)
define_composite(
    aten.log_sigmoid_forward.default, lambda x: (-torch.nn.functional.softplus(-x, threshold=math.inf), None)
)
define_composite(aten.log_sigmoid_backward.default, lambda grad, x, buffer: grad * (-x).sigmoid())


# Gates: x times a function that goes from zero to one.


def gated(gate: Function) -> Derivative:
    """Differentiate x gate(x)."""
    return lambda x, y, r: x * gate(x, r) + r * gate(x, r - 1)


def _normal(x: Tensor, r: int) -> Tensor:
    """Differentiate the standard normal distribution function."""
    x = x * math.sqrt(0.5)
    return 0.5 * torch.erfc(-x) if r == 0 else math.sqrt(0.5) ** r / math.sqrt(math.pi) * gaussian(x, r - 1)


def _about_normal(x: Tensor, r: int) -> Tensor:
    """Differentiate what GELU takes for the normal distribution function where it approximates by tanh."""
    cubic = tuple(math.sqrt(2 / math.pi) * c for c in (0, 1, 0, 0.044715))
    x = x.clamp(-30, 30)  # beyond which it is one or zero, whatever the polynomial
    u = torch.as_tensor(evaluated(cubic, x))
    if r == 0:
        return (2 * u).sigmoid()
    t = u.tanh()
    return 0.5 * chained(lambda k: _far_tanh(u, t, k), lambda k: evaluated(differentiated(cubic, k), x), r)


# 1 - y * y has no digits left where y is near one
_far_tanh, _ = autonomous((1, 0, -1), lambda x, y, r: 4 * (2 * x).sigmoid() * (-2 * x).sigmoid())


def _tanh_of_softplus(x: Tensor, r: int) -> Tensor:
    t = torch.nn.functional.softplus(x).tanh()
    return chained(lambda k: tanh(x, t, k), lambda k: _sigmoid(x, k - 1), r) if r else t


_gelu = {"none": gated(_normal), "tanh": gated(_about_normal)}

define_elementwise(aten.silu.default, gated(_sigmoid))
define_elementwise(aten.mish.default, gated(_tanh_of_softplus))
define_elementwise(aten.gelu.default, lambda x, y, r, approximate="none": _gelu[approximate](x, y, r))
define_composite(aten.glu.default, lambda x, dim=-1: x.chunk(2, dim)[0] * x.chunk(2, dim)[1].sigmoid())


# Ones with a kink. What holds at the kink itself, and at what is not a number, is what torch's first derivative has.


def elu(x: Tensor, y: Tensor, r: int, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    """Differentiate scale times x, or alpha (exp(input_scale x) - 1) up to zero."""
    curved = scale * alpha * input_scale**r * (input_scale * x.clamp(max=0)).exp()
    return torch.where(x <= 0, curved, scale if r == 1 else 0)


def step(where: Callable[..., Tensor], inside: float = 1, outside: float = 0) -> Callable[..., Tensor]:
    """Differentiate a function of straight pieces, of the one slope where a condition holds and the other elsewhere."""
    return lambda x, y, *params: torch.where(where(x, *params), torch.full_like(x, inside), outside)


def leaky_relu(x: Tensor, y: Tensor, slope: float = 0.01) -> Tensor:
    """Differentiate x, or slope times x up to zero."""
    return torch.where(x > 0, torch.ones_like(x), slope)


def hardswish(x: Tensor, y: Tensor, r: int) -> Tensor:
    """Differentiate x times a sixth of x + 3, limited to between zero and one."""
    inside = (2 * x + 3) / 6 if r == 1 else torch.full_like(x, 1 / 3)
    return torch.where(x <= -3, 0, torch.where(x < 3, inside, 1 if r == 1 else 0))


define_elementwise(aten.elu.default, elu)
define_elementwise(aten.celu.default, lambda x, y, r, alpha=1: elu(x, y, r, alpha, 1, 1 / alpha))
define_piecewise_linear(aten.relu.default, step(lambda x: ~(x <= 0)))
define_piecewise_linear(aten.leaky_relu.default, leaky_relu)
define_piecewise_linear(aten.hardtanh.default, step(lambda x, low=-1, high=1: ~((x <= low) | (x >= high))))
define_piecewise_linear(aten.hardsigmoid.default, step(lambda x: (x > -3) & (x < 3), inside=1 / 6))
define_elementwise(aten.hardswish.default, hardswish, degree=2)
define_piecewise_linear(aten.softshrink.default, step(lambda x, lambd=0.5: ~((x >= -lambd) & (x <= lambd))))
define_piecewise_linear(aten.hardshrink.default, step(lambda x, lambd=0.5: ~((x >= -lambd) & (x <= lambd))))
define_piecewise_linear(aten.threshold.default, step(lambda x, threshold, value: ~(x <= threshold)))
define_composite(aten._prelu_kernel.default, lambda x, weight: torch.where(x > 0, x, weight * x))


# Limits to a range, and parts of numbers.


_above, _below = (torch.gt, torch.lt) if TIES_ARE_SHARED else (torch.ge, torch.le)  # at a bound, what is its part


def _within(x: Tensor, low: float | None = None, high: float | None = None) -> Tensor:
    above = torch.ones_like(x, dtype=torch.bool) if low is None else _above(x, low)
    return above if high is None else above & _below(x, high)


define_piecewise_linear(aten.clamp.default, step(_within))
define_piecewise_linear(aten.clamp_min.default, step(_above))
define_piecewise_linear(aten.clamp_max.default, step(_below))
define_elementwise(aten.abs.default, lambda x, y, r: x.sign(), degree=1)
define_piecewise_linear(aten.frac.default, lambda x, y: torch.ones_like(x))
define_piecewise_linear(aten.nan_to_num.default, step(lambda x, *_: x.isfinite()))
