"""The derivatives of all elementwise rules, one by one, at every order up to six.

Each order is compared with autograd of the order below, down to the op itself: a chain that leaves no order unproved.
Closed forms in 40 digits are a second, independent witness for the smooth functions.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import mpmath
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import hofunc
from hofunc import hod
from hofunc.internals import OpOverload
from hofunc.rules.kinds import Elementwise, ElementwisePair
from hofunc.rules.registry import RULES
from tests.checks import check_hod
from verification.oracles import FORTY_DIGITS, derivatives_of_numbers, relative_error

aten = torch.ops.aten

ORDERS = 6


class X:
    """Stands for the tensor in the arguments of an op."""


POLYNOMIALS = {
    aten.special_chebyshev_polynomial_t.n_scalar: mpmath.chebyt,
    aten.special_chebyshev_polynomial_u.n_scalar: mpmath.chebyu,
    aten.special_chebyshev_polynomial_v.n_scalar: lambda n, x: mpmath.chebyu(n, x) - _before(mpmath.chebyu, n, x),
    aten.special_chebyshev_polynomial_w.n_scalar: lambda n, x: mpmath.chebyu(n, x) + _before(mpmath.chebyu, n, x),
    aten.special_shifted_chebyshev_polynomial_t.n_scalar: lambda n, x: mpmath.chebyt(n, 2 * x - 1),
    aten.special_shifted_chebyshev_polynomial_u.n_scalar: lambda n, x: mpmath.chebyu(n, 2 * x - 1),
    aten.special_shifted_chebyshev_polynomial_v.n_scalar: lambda n, x: (
        mpmath.chebyu(n, 2 * x - 1) - _before(mpmath.chebyu, n, 2 * x - 1)
    ),
    aten.special_shifted_chebyshev_polynomial_w.n_scalar: lambda n, x: (
        mpmath.chebyu(n, 2 * x - 1) + _before(mpmath.chebyu, n, 2 * x - 1)
    ),
    aten.special_hermite_polynomial_h.n_scalar: mpmath.hermite,
    aten.special_hermite_polynomial_he.n_scalar: lambda n, x: (
        mpmath.mpf(2) ** (-mpmath.mpf(n) / 2) * mpmath.hermite(n, x / mpmath.sqrt(2))
    ),
    aten.special_laguerre_polynomial_l.n_scalar: lambda n, x: mpmath.laguerre(n, 0, x),
    aten.special_legendre_polynomial_p.n_scalar: mpmath.legendre,
}


def _before(polynomial: Callable, n: int, x: Any) -> Any:
    return polynomial(n - 1, x) if n else 0


# Torch has no derivative of these; mpmath judges the first order.
WITHOUT_A_DERIVATIVE_IN_TORCH = {
    *POLYNOMIALS,
    aten.special_modified_bessel_i0.default,
    aten.special_modified_bessel_i1.default,
    aten.special_spherical_bessel_j0.default,
}

# Arguments of the ops that take more than a tensor; several rows check several branches of a rule.
ARGUMENTS: dict[Any, list[tuple]] = {
    aten.pow.Tensor_Scalar: [(X, 3), (X, 2.0), (X, 2.5), (X, -2), (X, 0), (X, 1), (X, 0.5)],
    aten.pow.Scalar: [(2.5, X), (1, X), (0.5, X)],
    aten.polygamma.default: [(0, X), (1, X), (3, X)],
    aten.logit.default: [(X,), (X, 0.2)],
    aten.softplus.default: [(X,), (X, 3, 2)],
    aten.elu.default: [(X,), (X, 1.5, 1.1, 0.7)],
    aten.celu.default: [(X,), (X, 0.5)],
    aten.leaky_relu.default: [(X,), (X, 0.2)],
    aten.hardtanh.default: [(X,), (X, -0.5, 0.7)],
    aten.softshrink.default: [(X,), (X, 0.1)],
    aten.hardshrink.default: [(X,), (X, 0.1)],
    aten.threshold.default: [(X, 0.1, 20.0)],
    aten.clamp.default: [(X, -0.5, 0.7), (X, 0.1), (X, None, 0.1)],
    aten.clamp_min.default: [(X, 0.1)],
    aten.clamp_max.default: [(X, 0.1)],
    aten.fmod.Scalar: [(X, 0.3)],
    aten.remainder.Scalar: [(X, 0.3)],
    aten.nan_to_num.default: [(X,), (X, 1.0)],
    aten.special_zeta.self_scalar: [(2.0, X), (3.5, X)],
    **{op: [(X, 0), (X, 1), (X, 2), (X, 5)] for op in POLYNOMIALS},
}
KEYWORDS: dict[Any, list[dict[str, Any]]] = {aten.gelu.default: [{"approximate": "none"}, {"approximate": "tanh"}]}

# How far off torch's own first derivative is: it has the sixth of hardsigmoid, and trigamma, to some digits only.
INEXACT_IN_TORCH = {
    aten.hardsigmoid.default: 1e-7,
    aten.lgamma.default: 1e-9,
    aten.digamma.default: 1e-9,
    aten.polygamma.default: 1e-9,
}
INEXACT_FAR_OUT_IN_TORCH = {aten.special_log_ndtr.default: 1e-3}  # 1.0001e6 at -1e6, where it is 1e6


class Use(NamedTuple):
    """An op with arguments, as a function of one tensor."""

    op: Any
    args: tuple
    kwargs: dict[str, Any]

    @property
    def rule(self) -> Elementwise:
        rule = RULES[self.op]
        assert isinstance(rule, Elementwise)
        return rule

    @property
    def params(self) -> tuple:
        return tuple(arg for arg in self.args if arg is not X)

    @property
    def degree(self) -> int:
        degree = self.rule.degree(*self.params, **self.kwargs)
        return 99 if degree is None else degree

    def __call__(self, x: Tensor) -> Tensor:
        return self.op(*(x if arg is X else arg for arg in self.args), **self.kwargs)

    def derivative(self, x: Tensor, r: int) -> Tensor:
        """Return the r-th derivative by the rule, or the value."""
        return self.rule.derivative(x, self(x), r, *self.params, **self.kwargs) if r else self(x)

    def __str__(self) -> str:
        params = ", ".join([*map(str, self.params), *map(str, self.kwargs.values())])
        name = str(self.op) if isinstance(self.op, OpOverload) else self.op.__name__
        return name.removeprefix("aten.") + (f"({params})" if params else "")


USES = [
    Use(op, args, kwargs)
    for op, rule in RULES.items()
    if isinstance(rule, Elementwise)
    for args in ARGUMENTS.get(op, [(X,)])
    for kwargs in KEYWORDS.get(op, [{}])
]
BY_THE_SECOND_ONLY = {aten.igamma.default, aten.igammac.default, aten.special_zeta.default}
# Of torch: a power and a logarithm, which are one of hofunc's own, move together.
PAIRS = [op for op, rule in RULES.items() if isinstance(rule, ElementwisePair) and isinstance(op, OpOverload)]
each_use = pytest.mark.parametrize("use", USES, ids=str)


def points(use: Use, device: torch.device) -> Tensor:
    """Return points in the domain of a rule, none of them at a kink."""
    low, high = use.rule.domain
    return torch.linspace(low, high, 12, dtype=torch.float64, device=device) * 0.997 + 0.0013 * (low + high)


def slope(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Differentiate a function of one number at many points by autograd."""
    x = x.clone().requires_grad_()
    y = f(x)
    if not y.requires_grad:
        return torch.zeros_like(x)
    (result,) = torch.autograd.grad(y.sum(), x, materialize_grads=True)
    return result


@each_use
def test_every_order_is_the_slope_of_the_order_below(use: Use, device: torch.device) -> None:
    x = points(use, device)
    for r in range(int(use.op in WITHOUT_A_DERIVATIVE_IN_TORCH), min(use.degree + 1, ORDERS)):
        expected = slope(lambda x, r=r: use.derivative(x, r), x)  # type: ignore[misc]
        got = use.derivative(x, r + 1) if r < use.degree else torch.zeros_like(x)
        assert relative_error(got, expected) < INEXACT_IN_TORCH.get(use.op, 1e-12), f"order {r + 1}"


@each_use
def test_hod_follows_the_rule(use: Use, device: torch.device) -> None:
    x = points(use, device)[::4]
    first, second = (use.derivative(x, r) if r <= use.degree else torch.zeros_like(x) for r in (1, 2))
    expected = second * x.sin() + 2 * first * x.cos() - use(x) * x.sin()
    assert relative_error(hod(lambda x: (use(x) * x.sin()).sum(), 2)(x), expected.diag()) < 1e-13


@each_use
def test_single_precision_stays_single(use: Use, device: torch.device) -> None:
    x = points(use, device)
    for r in range(1, min(use.degree, 4) + 1):
        got = use.derivative(x.float(), r)
        assert got.dtype == torch.float32
        assert got.shape == x.shape
        expected = use.derivative(x.float().double(), r)
        assert relative_error(got.double(), expected) < 2e-4


# In 40 digits.


def closed_form(use: Use) -> Callable[[Any], Any] | None:
    """Return the function that a use of an op computes, if it is known in closed form."""
    if not isinstance(use.op, OpOverload):
        return None
    name = use.op._schema.name.removeprefix("aten::").removeprefix("special_")
    if use.kwargs.get("approximate") == "tanh":
        name += " by tanh"
    if use.op in POLYNOMIALS:
        return partial(POLYNOMIALS[use.op], *use.params)
    return FORTY_DIGITS.get(name) if len(use.args) == 1 else None


def test_closed_forms_are_those_of_rules() -> None:
    assert len([use for use in USES if closed_form(use)]) >= len(FORTY_DIGITS)


@pytest.mark.parametrize("use", [use for use in USES if closed_form(use)], ids=str)
def test_orders_one_to_six_in_forty_digits(use: Use) -> None:
    function = closed_form(use)
    assert function is not None
    x = points(use, torch.device("cpu"))[::3]
    for r in range(1, ORDERS + 1):
        got = use.derivative(x, r) if r <= use.degree else torch.zeros_like(x)
        assert relative_error(got, derivatives_of_numbers(function, x, r)) < 1e-11, f"order {r}"


# At kinks, at zero, and far out.

ANYWHERE = (-1e6, -100.0, -50.0, -3.0, -1.0, -0.5, -0.1, -0.0, 0.0, 0.1, 0.2, 0.5, 0.7, 0.8, 1.0, 3.0, 50.0, 100.0, 1e6)


@pytest.mark.parametrize("use", [use for use in USES if use.op not in WITHOUT_A_DERIVATIVE_IN_TORCH], ids=str)
def test_the_first_order_follows_torch_anywhere(use: Use, device: torch.device) -> None:
    x = torch.tensor(ANYWHERE, dtype=torch.float64, device=device)
    expected = slope(use.__call__, x)
    got = use.derivative(x, 1) if use.degree else torch.zeros_like(x)
    usable = expected.isfinite() & use(x).isfinite()
    tolerance = (INEXACT_IN_TORCH | INEXACT_FAR_OUT_IN_TORCH).get(use.op, 1e-11)
    assert torch.allclose(got[usable], expected[usable], rtol=tolerance, atol=1e-13)
    assert not got[expected.isinf()].isfinite().any()


@each_use
def test_higher_orders_are_finite_where_the_first_is(use: Use, device: torch.device) -> None:
    x = torch.tensor(ANYWHERE, dtype=torch.float64, device=device)
    x = x[use(x).isfinite() & use.derivative(x, 1).isfinite()] if use.degree else x
    for r in range(2, min(use.degree, 4) + 1):
        assert not use.derivative(x, r).isnan().any(), f"order {r}"


def test_powers_at_zero(device: torch.device) -> None:
    zero = torch.zeros(2, dtype=torch.float64, device=device)
    check_hod(lambda x: (x**3).sum(), (zero,), 3)
    check_hod(lambda x: (x**2.0 * 3).sum(), (zero,), 2)
    exponents = torch.tensor([2.0, 3.0], dtype=torch.float64, device=device)
    check_hod(lambda x: torch.pow(x, exponents).sum(), (zero,), 2)


def test_the_cardinal_sine_at_and_around_zero(device: torch.device) -> None:
    x = torch.tensor([0.0, 1e-12, -1e-8, 1e-3, 0.6, 1.2, 1.9, 2.6, 30.0], dtype=torch.float64, device=device)
    use = Use(aten.sinc.default, (X,), {})
    with mpmath.workdps(30):
        for r in range(1, ORDERS + 1):
            # by its integral from zero to one, since mpmath's own quotient is singular at zero
            expected = [_integral(point, r) for point in x.tolist()]
            assert relative_error(use.derivative(x, r).cpu(), torch.tensor(expected, dtype=x.dtype)) < 1e-12


def _integral(point: float, r: int) -> float:
    def cosine(t: Any) -> Any:
        return (mpmath.pi * t) ** r * mpmath.cos(mpmath.pi * t * mpmath.mpf(point) + r * mpmath.pi / 2)

    return float(mpmath.quad(cosine, mpmath.linspace(0, 1, 16), method="gauss-legendre"))


@pytest.mark.parametrize("point", [-80.0, -20.0, 20.0, 80.0])
def test_the_tails_of_the_sigmoid_keep_their_digits(point: float, device: torch.device) -> None:
    x = torch.tensor(point, dtype=torch.float64, device=device)
    with mpmath.workdps(80):
        for r in range(1, 5):
            expected = float(mpmath.diff(FORTY_DIGITS["sigmoid"], mpmath.mpf(point), r))
            assert hod(torch.sigmoid, r)(x).item() == pytest.approx(expected, rel=1e-13)
            assert hod(torch.nn.functional.logsigmoid, r + 1)(x).item() == pytest.approx(-expected, rel=1e-13)


# Functions of two numbers.


@pytest.mark.parametrize("op", PAIRS, ids=str)
def test_pairs_have_all_mixed_orders(op: Any, device: torch.device) -> None:
    rule = RULES[op]
    assert isinstance(rule, ElementwisePair)
    low, high = rule.domain
    x = torch.linspace(low, high, 5, dtype=torch.float64, device=device)
    z = x.flip(0) * 0.9 + 0.11
    by_first = op not in BY_THE_SECOND_ONLY
    x = x if by_first else x + 1.1

    def derivative(x: Tensor, z: Tensor, r: int, s: int) -> Tensor:
        if rule.degree is not None and r > rule.degree:
            return torch.zeros_like(x)
        return rule.derivative(x, z, r, s) if r + s else op(x, z)

    for r in range(4 if by_first else 1):
        for s in range(4 - r):
            by_z = slope(lambda z, r=r, s=s: derivative(x, z, r, s), z)  # type: ignore[misc]
            assert relative_error(derivative(x, z, r, s + 1), by_z) < 1e-12
            if by_first:
                by_x = slope(lambda x, r=r, s=s: derivative(x, z, r, s), x)  # type: ignore[misc]
                assert relative_error(derivative(x, z, r + 1, s), by_x) < 1e-12


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("op", sorted(BY_THE_SECOND_ONLY, key=str), ids=str)
def test_pairs_by_the_second_broadcast(op: Any, order: int, device: torch.device) -> None:
    x = torch.tensor([[1.5], [2.2]], dtype=torch.float64, device=device)
    z = torch.tensor([0.7, 1.5, 2.5], dtype=torch.float64, device=device)
    check_hod(lambda z: (op(x, z) * z).sum(1), (z,), order)
    with pytest.raises(hofunc.UnsupportedOpError, match="by its first argument: got a derivative that torch does not"):
        hofunc.hod(op, order)(x, z)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("op", [op for op in PAIRS if op not in BY_THE_SECOND_ONLY], ids=str)
def test_pairs_broadcast(op: Any, order: int, device: torch.device) -> None:
    x = torch.tensor([[0.5], [1.2]], dtype=torch.float64, device=device)
    z = torch.tensor([0.7, 1.5, 2.5], dtype=torch.float64, device=device)
    check_hod(lambda x, z: (op(x, z) * z).sum(1), (x, z), order, argnums=(0, 1))
    check_hod(lambda x: op(x, x).exp().sum(), (x,), order)


BY_TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "xlogy": torch.xlogy,
    "xlog1py": torch.special.xlog1py,
    "hypot": torch.hypot,
    "copysign": torch.copysign,
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "copysign of a number": lambda x, z: torch.copysign(x, -1.0) * z,
    "frexp": lambda x, z: torch.frexp(x).mantissa * z,
    "nextafter": lambda x, z: torch.nextafter(x, z) * z,
    "entr": lambda x, z: torch.special.entr(x) * z,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "floor division": lambda x, z: torch.div(x, z, rounding_mode="floor") * x * z,
    "division": lambda x, z: torch.div(x, z, rounding_mode=None),
    "prelu": lambda x, z: torch.nn.functional.prelu(x - 1, z[:1]),
    "glu": lambda x, z: torch.nn.functional.glu(torch.cat([x - 1, z])),
    "logsigmoid": lambda x, z: torch.nn.functional.logsigmoid(5 * (x - 1.0) * z),
    "the slope of logsigmoid": lambda x, z: torch.func.grad(lambda y: torch.nn.functional.logsigmoid(y * z).sum())(x),
}


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", BY_TWO)
def test_composites_of_two(name: str, order: int, device: torch.device) -> None:
    x = torch.tensor([0.5, 1.2, 2.9], dtype=torch.float64, device=device)
    z = torch.tensor([0.7, 0.5, -0.8], dtype=torch.float64, device=device).exp()
    check_hod(lambda x, z: BY_TWO[name](x * x, z).sum(), (x, z), order, argnums=(0, 1))


def test_a_product_with_a_logarithm_at_zero(device: torch.device) -> None:
    x = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64, device=device)
    z = torch.tensor([0.0, 2.0, 3.0], dtype=torch.float64, device=device)
    check_hod(lambda x: torch.xlogy(x, z).sum(), (x,), 1)
    check_hod(lambda x: torch.xlogy(x, z).sum(), (x,), 2)


# What orders have in common.

COMMON = {  # the ops that several orders need, and which are called once
    "gelu": (torch.nn.functional.gelu, {"exp", "erfc", "clamp"}),
    "gelu by tanh": (lambda x: torch.nn.functional.gelu(x, approximate="tanh"), {"clamp"}),
    "silu": (torch.nn.functional.silu, set()),
    "softplus": (torch.nn.functional.softplus, set()),
    "erf": (torch.erf, {"exp", "clamp"}),
    "layer_norm": (lambda x: torch.nn.functional.layer_norm(x, (3,)), {"linalg_vector_norm", "clamp_min"}),
    "norm": (lambda x: torch.linalg.vector_norm(x, 2, 1), {"clamp_min"}),
    "log_softmax": (lambda x: x.log_softmax(1), {"exp"}),
}


class Calls(TorchDispatchMode):
    """Counts the ops that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", COMMON)
def test_what_orders_have_in_common_is_computed_once(name: str, device: torch.device) -> None:
    function, once = COMMON[name]
    x = torch.linspace(-2, 2, 12, dtype=torch.float64, device=device).reshape(4, 3)
    plan = hofunc.derivatives(lambda x: (function(x) ** 3).sum(), 2, strategy="reverse").plan(x)
    with Calls() as calls:
        plan(x)
    assert {op: calls.names[op] for op in once} == dict.fromkeys(once, 1)
    assert calls.names["sigmoid"] <= 2  # of x, and of -x where one less that has no digits


def test_the_last_derivative_of_a_polynomial_is_a_number(device: torch.device) -> None:
    x = torch.linspace(-2, 2, 5, dtype=torch.float64, device=device)
    for function in (torch.square, lambda x: x**2):
        plan = hofunc.hod(lambda x, f=function: f(x).sum(), 2, layout="compact").plan(x)
        assert plan.steps == 0
        assert torch.equal(plan(x).dense(), 2 * torch.eye(5, dtype=torch.float64, device=device))
