"""Activations of neural networks, at every order in closed form, with torch's conventions at kinks."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hofunc.graph.node import Call, Graph, Node, Ref
from hofunc.internals import TIES_ARE_SHARED
from hofunc.rules.kinds import Elementwise, Product, Rule
from hofunc.rules.ops.calculus import chained, differentiated, evaluated, plus, recurrence, times
from hofunc.rules.ops.elementwise import (
    Derivative,
    define_factored,
    multiples,
    sigmoid,
    slope_of_sigmoid,
    tanh,
)
from hofunc.rules.registry import (
    REAL,
    define_composite,
    define_elementwise,
    define_fusion,
    define_piecewise_linear,
)

aten = torch.ops.aten

Function = Callable[[Tensor, int], Tensor | float]  # (x, r): the r-th derivative at x, the value for r = 0


# Smooth ones.


_logistic = multiples((0, 1, -1))  # of the slope of the logistic function


def _up_to(x: Tensor, threshold: float, derivative: Tensor, above: float) -> Tensor:
    return torch.where(x > threshold, above, derivative)


def _softplus(x: Ref, y: Ref, r: int, beta: float = 1, threshold: float = 20) -> Product:
    """Differentiate log(1 + exp(beta x)) / beta, in place of which torch takes x above the threshold."""
    u = x if beta == 1 else Call(torch.mul, (x, beta))
    gate = Call(torch.sigmoid, (u,))
    if r == 1:
        return 1, [Call(_up_to, (u, threshold, gate, 1))]
    slope = Call(_up_to, (u, threshold, Call(slope_of_sigmoid, (u, gate)), 0))
    return beta ** (r - 1), [slope] if r == 2 else [slope, Call(evaluated, (_logistic(r - 1), gate))]


define_factored(aten.softplus.default, _softplus)
define_composite(
    aten.log_sigmoid_forward.default, lambda x: (-torch.nn.functional.softplus(-x, threshold=math.inf), None)
)
define_composite(aten.log_sigmoid_backward.default, lambda grad, x, buffer: grad * (-x).sigmoid())


# Gates: x times a function that goes from zero to one.


def gated(gate: Function) -> Derivative:
    """Differentiate x gate(x)."""
    return lambda x, y, r: x * gate(x, r) + r * gate(x, r - 1)


# x times the logistic function, of which the slope is a factor of all orders but the first


def _slope_of_silu(x: Tensor, gate: Tensor, slope: Tensor) -> Tensor:
    return torch.addcmul(gate, x, slope)


def _silu_over_slope(x: Tensor, gate: Tensor, r: int) -> Tensor:
    return x * evaluated(_logistic(r), gate) + r * evaluated(_logistic(r - 1), gate)


def _silu(x: Ref, y: Ref, r: int) -> Product:
    gate = Call(torch.sigmoid, (x,))
    slope = Call(slope_of_sigmoid, (x, gate))
    return 1, [Call(_slope_of_silu, (x, gate, slope))] if r == 1 else [slope, Call(_silu_over_slope, (x, gate, r))]


# x times the normal distribution function: from the second order on they are polynomials times its density

_over_density = recurrence((2, 0, -1), lambda p, r: plus(times(p, (0, -1)), differentiated(p)))


def _within_normal(x: Tensor) -> Tensor:
    return x.clamp(-43, 43)  # beyond which the density is zero in every dtype, whatever its polynomial


def _density(x: Tensor) -> Tensor:
    """Return exp(-x^2 / 2)."""
    return (x * x * -0.5).exp()


def _slope_of_gelu(x: Tensor, within: Tensor, density: Tensor) -> Tensor:
    """Return twice the slope."""
    return torch.addcmul((x * -math.sqrt(0.5)).erfc(), within, density, value=math.sqrt(2 / math.pi))


def _by_density(x: Ref, y: Ref, r: int) -> Product:
    within = Call(_within_normal, (x,))
    density = Call(_density, (within,))
    if r == 1:
        return 0.5, [Call(_slope_of_gelu, (x, within, density))]
    return 1 / math.sqrt(2 * math.pi), [density, Call(evaluated, (_over_density(r - 1), within))]


# x times the logistic function of twice a cubic polynomial, that GELU takes for the normal distribution function

_cubic = tuple(math.sqrt(2 / math.pi) * c for c in (0, 1, 0, 0.044715))
_of_tanh = multiples((1, 0, -1))  # which have all digits where it is small, as one less twice the gate has not


def _within_cubic(x: Tensor) -> Tensor:
    return x.clamp(-30, 30)  # beyond which the gate is one or zero, whatever the polynomial


def _gate(u: Tensor) -> Tensor:
    return (2 * u).sigmoid()


def _slope_of_gate(u: Tensor, gate: Tensor) -> Tensor:
    return 2 * gate * (-2 * u).sigmoid()


def _slope_by_cubic(x: Tensor, gate: Tensor, slope: Tensor) -> Tensor:
    return torch.addcmul(gate, x * evaluated(differentiated(_cubic), x), slope)


def _over_slope_by_cubic(x: Tensor, u: Tensor, r: int) -> Tensor:
    t = u.tanh()

    def of_gate(order: int) -> Tensor | float:
        return chained(lambda k: evaluated(_of_tanh(k), t), lambda k: evaluated(differentiated(_cubic, k), x), order)

    return x * of_gate(r) + r * of_gate(r - 1)


def _by_cubic(x: Ref, y: Ref, r: int) -> Product:
    within = Call(_within_cubic, (x,))
    u = Call(evaluated, (_cubic, within))
    gate = Call(_gate, (u,))
    slope = Call(_slope_of_gate, (u, gate))
    if r == 1:
        return 1, [Call(_slope_by_cubic, (within, gate, slope))]
    return 1, [slope, Call(_over_slope_by_cubic, (within, u, r))]


def _tanh_of_softplus(x: Tensor, r: int) -> Tensor | float:
    t = torch.nn.functional.softplus(x).tanh()
    gate = x.sigmoid()
    return chained(lambda k: tanh(x, t, k), lambda k: sigmoid(x, gate, k - 1) if k > 1 else gate, r) if r else t


_gelu = {"none": _by_density, "tanh": _by_cubic}

define_factored(aten.silu.default, _silu)
define_elementwise(aten.mish.default, gated(_tanh_of_softplus))
define_factored(aten.gelu.default, lambda x, y, r, approximate="none": _gelu[approximate](x, y, r))
define_composite(aten.glu.default, lambda x, dim=-1: x.chunk(2, dim)[0] * x.chunk(2, dim)[1].sigmoid())


# Ones with a kink. What holds at the kink itself, and at what is not a number, is what torch's first derivative has.


def elu(x: Tensor, y: Tensor, r: int, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    """Differentiate scale times x, or alpha (exp(input_scale x) - 1) up to zero."""
    curved = scale * alpha * input_scale**r * (input_scale * x.clamp(max=0)).exp()
    return torch.where(x <= 0, curved, scale if r == 1 else 0)


# torch.where branches at each entry on CPUs, which takes up to fifty times as long as a kernel that does not.


def step(where: Callable[..., Tensor], inside: float = 1) -> Callable[..., Tensor]:
    """Differentiate a function of straight pieces, of a slope where a condition holds and constant elsewhere."""

    def slope(x: Tensor, y: Tensor, *params: Any) -> Tensor:
        share = where(x, *params).to(x.dtype)
        return share if inside == 1 else share * inside

    return slope


def above(x: Tensor, y: Tensor, threshold: float = 0, *_: float) -> Tensor:
    """Differentiate x, or a number up to a threshold."""
    return aten.threshold_backward.default(x.new_ones(()).expand_as(x), x, threshold)


def leaky_relu(x: Tensor, y: Tensor, slope: float = 0.01) -> Tensor:
    """Differentiate x, or slope times x up to zero."""
    return aten.leaky_relu_backward.default(x.new_ones(()).expand_as(x), x, slope, False)


def hardswish(x: Tensor, y: Tensor, r: int) -> Tensor:
    """Differentiate x times a sixth of x + 3, limited to between zero and one."""
    inside = (2 * x + 3) / 6 if r == 1 else torch.full_like(x, 1 / 3)
    return torch.where(x <= -3, 0, torch.where(x < 3, inside, 1 if r == 1 else 0))


define_elementwise(aten.elu.default, elu)
define_elementwise(aten.celu.default, lambda x, y, r, alpha=1: elu(x, y, r, alpha, 1, 1 / alpha))
define_piecewise_linear(aten.relu.default, above)
define_piecewise_linear(aten.leaky_relu.default, leaky_relu)


@define_fusion(aten.leaky_relu.default)
def _never_level(_: Graph, node: Node) -> Rule | None:
    """Recognise what is constant nowhere, and no mask of what follows."""
    is_level = node.kwargs or (len(node.args) > 1 and node.args[1] == 0)
    return None if is_level else Elementwise(slope_of_leaky_relu, lambda *_, **__: 1, REAL)


def slope_of_leaky_relu(x: Tensor, y: Tensor, r: int, slope: float = 0.01) -> Tensor:
    """Differentiate x, or slope times x up to zero."""
    return leaky_relu(x, y, slope)


define_piecewise_linear(aten.hardtanh.default, step(lambda x, low=-1, high=1: ~((x <= low) | (x >= high))))
define_piecewise_linear(aten.hardsigmoid.default, step(lambda x: (x > -3) & (x < 3), inside=1 / 6))
define_elementwise(aten.hardswish.default, hardswish, degree=2)
define_piecewise_linear(aten.softshrink.default, step(lambda x, lambd=0.5: ~((x >= -lambd) & (x <= lambd))))
define_piecewise_linear(aten.hardshrink.default, step(lambda x, lambd=0.5: ~((x >= -lambd) & (x <= lambd))))
define_piecewise_linear(aten.threshold.default, above)
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
define_elementwise(aten.frac.default, lambda x, y, r: torch.ones_like(x), degree=1)
define_piecewise_linear(aten.nan_to_num.default, step(lambda x, *_: x.isfinite()))
