"""Kinks, ends of domains, infinities and shapes at the edge.

Where a function has no derivative, the first one is torch's, and what multiplies an infinite slope by zero does not
spoil a derivative that torch finds finite. Higher orders are finite where the first is, or infinite, but never not a
number.
"""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

import hofunc
from hofunc.releases import RELEASE
from tests.cases import rand
from tests.checks import check_hod
from tests.rules.opcase import ORACLE_WARNINGS

pytestmark = ORACLE_WARNINGS

INF = torch.inf
POINTS = (-INF, -2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0, INF)


def numbers(device: torch.device, *values: float) -> Tensor:
    """Return numbers in double precision."""
    return torch.tensor(values, dtype=torch.float64, device=device)


def like(x: Tensor, *values: float) -> Tensor:
    """Return numbers like those of a tensor."""
    return torch.tensor(values, dtype=x.dtype, device=x.device)


# Functions of single numbers, at every point of POINTS at which torch's slope is finite.

OF_NUMBERS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "elu": F.elu,
    "hardtanh": F.hardtanh,
    "hardswish": F.hardswish,
    "softshrink": F.softshrink,
    "leaky relu": F.leaky_relu,
    "abs": torch.abs,
    "x times abs": lambda x: x * x.abs(),
    "sign": torch.sign,
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp from above": lambda x: x.clamp(max=0),
    "clamp between tensors": lambda x: x.clamp(torch.full_like(x, -1), torch.full_like(x, 1)),
    "clamp by itself": lambda x: like(x, 0).clamp(min=x),
    "maximum with a constant": lambda x: torch.maximum(x, like(x, 0)),
    "minimum with itself": lambda x: torch.minimum(x, x),
    "fmax with a constant": lambda x: torch.fmax(x, like(x, 0.5)),
    "fmin with a constant": lambda x: torch.fmin(like(x, 0.5), x),
    "floor, round and trunc": lambda x: x.floor() + x.round() * x.trunc(),
    "remainder": lambda x: torch.remainder(x, like(x, 0.5)),
    "fmod": lambda x: torch.fmod(x, 0.5),
    "copysign": lambda x: torch.copysign(x, like(x, -1)),
    "nan_to_num": torch.nan_to_num,
    "power of zero": lambda x: x**0,
    "power of one": lambda x: x**1,
    "power of two, as a tensor": lambda x: x ** like(x, 2),
    "power of zero, as a tensor": lambda x: x ** like(x, 0),
    "power of three halves": lambda x: x**1.5,
    "zero to a power": lambda x: like(x, 0) ** x,
    "xlogy of zero": lambda x: torch.xlogy(x, like(x, 2)),
    "xlogy of zero and zero": lambda x: torch.xlogy(like(x, 0), x),
    "xlogy with a logarithm of zero": lambda x: torch.xlogy(x, like(x, 0)),
    "xlog1py": lambda x: torch.special.xlog1py(x, like(x, -1)),
    "x log x": torch.special.entr,
    "a guarded logarithm": lambda x: torch.where(x > 0, torch.where(x > 0, x, 1).log(), 0),
    "a guarded quotient": lambda x: torch.where(x == 0, 1, x.sin() / torch.where(x == 0, 1, x)),
    "sinc": torch.sinc,
    "norm of one": lambda x: torch.linalg.vector_norm(x),
    "hypot with one": lambda x: torch.hypot(x, like(x, 1)),
    "atan2": lambda x: torch.atan2(x, like(x, 0)),
    "logit, clamped": lambda x: torch.logit(x, 1e-3),
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
    "logaddexp": lambda x: torch.logaddexp(x, like(x, 0)),
    "logaddexp with nothing": lambda x: torch.logaddexp(x, like(x, -INF)),
    "log_ndtr": torch.special.log_ndtr,
    "gelu": F.gelu,
    "silu": F.silu,
    "huber": lambda x: F.huber_loss(x, like(x, 0)[0], reduction="none"),
    "smooth l1": lambda x: F.smooth_l1_loss(x, like(x, 1)[0], reduction="none"),
    "cross-entropy of a probability of zero": lambda x: F.binary_cross_entropy(x, like(x, 0)[0], reduction="none"),
    "cross-entropy of a probability of one": lambda x: F.binary_cross_entropy(x, like(x, 1)[0], reduction="none"),
    "lerp": lambda x: torch.lerp(x, like(x, 2)[0], 0.0),
}


def _defined(f: Callable[[Tensor], Tensor], point: Tensor) -> bool:
    """Tell whether a function and torch's slope of it are finite at a point."""
    try:
        value, slope = f(point), torch.func.jacrev(f)(point)
    except RuntimeError:  # some check what they get
        return False
    return bool(value.isfinite().all() and slope.isfinite().all())


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_functions_of_numbers(name: str, device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return OF_NUMBERS[name](x).sum()

    points = [point for value in POINTS if _defined(f, point := numbers(device, value)[0])]
    assert len(points) >= 2
    for point in points:
        torch.testing.assert_close(hofunc.jacobian(f)(point), torch.func.jacrev(f)(point), rtol=1e-8, atol=1e-14)
        for order in (2, 3):
            if point.isfinite():
                assert not hofunc.hod(f, order)(point).isnan(), (point, order)


# Ends of the range, where squares and powers are not finite but the derivatives are: first and second ones.

AT_ENDS: dict[str, tuple[Callable[[Tensor], Tensor], dict[float, tuple[float, float]]]] = {
    "logaddexp of opposites": (lambda x: torch.logaddexp(x, -x), {INF: (1, 0), -INF: (-1, 0), 0.0: (0, 1)}),
    "logaddexp2 of opposites": (lambda x: torch.logaddexp2(x, -x), {INF: (1, 0), -INF: (-1, 0)}),
    "logaddexp with infinity": (lambda x: torch.logaddexp(x, like(x, INF)[0]), {1.0: (0, 0), -INF: (0, 0)}),
    "logsumexp of opposites": (lambda x: torch.stack([x, -x]).logsumexp(0), {800.0: (1, 0), 1e300: (1, 0)}),
    "hypot with one": (lambda x: torch.hypot(x, like(x, 1)[0]), {1e160: (1, 0), 1e300: (1, 0), 0.0: (0, 1)}),
    "hypot of a small number": (lambda x: torch.hypot(x, like(x, 0)[0]), {1e-310: (1, 0), 5e-324: (1, 0)}),
    "hypot of large ones": (lambda x: torch.hypot(x, like(x, 1e160)[0]), {1e160: (0.5**0.5, 0.5**1.5 * 1e-160)}),
    "angle of a large one": (lambda x: torch.atan2(like(x, 1)[0], x), {1e160: (0, 0), 1e100: (-1e-200, 2e-300)}),
    "x log x": (
        lambda x: torch.xlogy(x, x),
        {size: (math.log(size) + 1, 1 / size) for size in (1e-160, 1e-300)},
    ),
    "zero times a logarithm": (lambda x: torch.xlogy(like(x, 0)[0], x), {5e-324: (0, 0), 1e-160: (0, 0)}),
    "zero over a small number": (lambda x: like(x, 0)[0] / x, {1e-310: (0, 0), 1e-160: (0, 0)}),
    "power of one": (lambda x: x ** like(x, 1)[0], {1e-310: (1, 0), 5e-324: (1, 0)}),
    "a large power": (lambda x: x ** like(x, 1e160)[0], {0.5: (0, 0), 0.0: (0, 0)}),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), {1e100: (1, 0), -1e100: (0, 0)}),
    "soft margin": (lambda x: F.soft_margin_loss(x, like(x, 1)[0]), {-800.0: (-1, 0), 800.0: (0, 0)}),
    "huber at its target": (lambda x: F.huber_loss(x, like(x, 0)[0]), {0.0: (0, 1)}),
    "smooth l1 at its target": (lambda x: F.smooth_l1_loss(x, like(x, 0)[0], beta=0.5), {0.0: (0, 2)}),
}


@pytest.mark.parametrize("name", AT_ENDS)
def test_ends_of_the_range(name: str, device: torch.device) -> None:
    f, points = AT_ENDS[name]
    for value, expected in points.items():
        x = numbers(device, value)[0]
        got = [hofunc.hod(f, order)(x).item() for order in (1, 2)]
        assert got == pytest.approx(expected, rel=1e-12, abs=1e-320), value


PIECEWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "leaky relu": F.leaky_relu,
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp from below": lambda x: x.clamp(min=0),
    "clamp between tensors": lambda x: x.clamp(torch.full_like(x, -1), torch.full_like(x, 1)),
    "clamp between tensors that are equal": lambda x: x.clamp(torch.ones_like(x), torch.ones_like(x)),
    "clamp between tensors of which the low one is above": lambda x: x.clamp(torch.ones_like(x), -torch.ones_like(x)),
    "clamp from below by a tensor": lambda x: x.clamp(min=torch.zeros_like(x)),
    "clamp from above by a tensor": lambda x: torch.clamp_max(x, torch.zeros_like(x)),
    "clamp of a number by a low bound": lambda x: torch.zeros_like(x).clamp(x, torch.full_like(x, 7)),
    "clamp of a number by a high bound": lambda x: torch.ones_like(x).clamp(torch.full_like(x, -7), x),
    "threshold": lambda x: F.threshold(x, 0.5, 20.0),
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "hardswish": F.hardswish,
    "elu": F.elu,
    "celu": F.celu,
    "selu": F.selu,
    "abs": torch.abs,
    "sign": torch.sign,
    "maximum": lambda x: torch.maximum(x, torch.zeros_like(x)),
    "minimum": lambda x: torch.minimum(torch.zeros_like(x), x),
    "maximum with nan": lambda x: torch.maximum(x, torch.full_like(x, torch.nan)),
    "fmax": lambda x: torch.fmax(x, torch.zeros_like(x)),
    "fmin with nan": lambda x: torch.fmin(torch.full_like(x, torch.nan), x),
    "prelu": lambda x: F.prelu(x, like(x, 0.25)),
    "huber": lambda x: F.huber_loss(x, torch.zeros_like(x), reduction="none"),
    "smooth l1": lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none"),
    "nan_to_num": torch.nan_to_num,
}


@pytest.mark.parametrize("name", PIECEWISE)
def test_slopes_of_pieces_at_nan_at_infinity_and_at_kinks(name: str, device: torch.device) -> None:
    f = PIECEWISE[name]
    x = numbers(device, torch.nan, INF, -INF, 0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 6.0, 20.0)
    if name.startswith("fm") and RELEASE == (2, 14):
        x = x[1:]  # this torch alone has a slope by nan, which fmax and fmin leave out
    for point in x:
        got, expected = (
            hofunc.jacobian(lambda x: f(x[None])[0])(point),
            torch.func.jacrev(lambda x: f(x[None])[0])(point),
        )
        torch.testing.assert_close(got, expected, rtol=1e-14, atol=0, equal_nan=True, msg=f"{name} at {point}")


# Functions of several numbers: what they are, a point, and the highest order at which nested torch.func is right.

OF_ROWS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[float, ...], int]] = {
    "norm of zeros": (torch.linalg.vector_norm, (0, 0), 1),
    "norm of order one": (lambda x: torch.linalg.vector_norm(x, 1), (0, 0, 1), 3),
    "norm of order one half": (lambda x: torch.linalg.vector_norm(x, 0.5), (0, 2, 1), 1),
    "norm of order three": (lambda x: torch.linalg.vector_norm(x, 3), (0, 0, 0), 1),
    "norm of order infinity": (lambda x: torch.linalg.vector_norm(x, INF), (1, -1, 0), 2),
    "square of the norm of zeros": (lambda x: torch.linalg.vector_norm(x) ** 2, (0, 0), 1),
    "normalisation of zeros": (lambda x: F.normalize(x, dim=0), (0, 0), 1),
    "cosine similarity with zeros": (lambda x: F.cosine_similarity(x, like(x, 1, 2), dim=0), (0, 0), 1),
    "distance of a row to itself": (lambda x: F.pairwise_distance(x, x.detach()), (1, 2), 1),
    "deviation of a constant": (torch.std, (2, 2, 2), 3),
    "variance of a constant": (torch.var, (2, 2, 2), 3),
    "product with a zero": (torch.prod, (0, 2, 3), 3),
    "product with zeros": (torch.prod, (0, 0, 3), 3),
    "running product with zeros": (lambda x: x.cumprod(0), (2, 0, 3, 0), 3),
    "maximum at ties": (torch.amax, (2, 2, 1), 3),
    "maximum over a dim at ties": (lambda x: x.max(0).values, (2, 2, 1), 3),
    "running maximum at ties": (lambda x: x.cummax(0).values, (2, 2, 1), 3),
    "sorting ties": (lambda x: x.sort().values, (2, 2, 1), 3),
    "logsumexp with nothing": (lambda x: x.logsumexp(0), (-INF, 0, 1), 3),
    "softmax with nothing": (lambda x: x.softmax(0), (-INF, 0, 1), 3),
    "softmax of masked rows": (lambda x: torch.ops.aten._safe_softmax(x, 0), (-INF, -INF), 3),
    "softmax with one that is far above": (lambda x: x.softmax(0), (1000, 0), 3),
    "logarithm of a softmax": (lambda x: F.log_softmax(x, 0)[1:], (-1000, 0, 1), 3),
    "masked softmax": (lambda x: x.masked_fill(like(x, 1, 0, 0) > 0, -INF).softmax(0), (5, 0, 1), 3),
    "cross-entropy of probabilities at the ends": (
        lambda x: F.binary_cross_entropy(x, like(x, 0, 1, 1, 0.5)),
        (0, 1, 0.25, 0.5),
        2,
    ),
}


@pytest.mark.parametrize("name", OF_ROWS)
def test_functions_of_rows(name: str, device: torch.device) -> None:
    f, values, highest = OF_ROWS[name]
    x = numbers(device, *values)
    for order in range(1, 4):
        if order <= highest:
            check_hod(f, (x,), order)
        assert not hofunc.hod(f, order)(x).isnan().any()


# Shapes at the edge.

SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "elementwise": lambda x: (x.exp() * x).sin(),
    "a sum": lambda x: (x * x).sum(),
    "a norm": torch.linalg.norm,
    "a mean over a dim": lambda x: (x**3).mean(0) + x.sum(),
    "a softmax": lambda x: x.softmax(-1) * x,
    "a matrix product": lambda x: (x.reshape(-1, 1) @ x.reshape(1, -1)).sin(),
    "a concatenation": lambda x: torch.cat([x.reshape(-1), x.reshape(-1).exp()]),
    "a variance": lambda x: x.var(correction=0) * x,
    "a running sum": lambda x: x.cumsum(-1) * x,
    "a running product": lambda x: x.cumprod(-1).sin(),
    "a selection": lambda x: x.reshape(-1)[:0].sum() + x * x,
    "an expansion": lambda x: x.expand(2, *x.shape) * x,
}
OF_SHAPE = ((), (1,), (0,), (1, 1), (2, 0), (2, 1))


@pytest.mark.filterwarnings("ignore:var.*degrees of freedom:UserWarning")
@pytest.mark.parametrize("shape", OF_SHAPE, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_tensors_of_few_elements(name: str, shape: tuple[int, ...], device: torch.device) -> None:
    x = rand(device, *shape)
    for order in (1, 2, 3) if x.numel() else (1, 2):
        got = hofunc.hod(SHAPES[name], order)(x)
        assert got.shape == (*SHAPES[name](x).shape, *shape * order)
        if x.numel():
            check_hod(SHAPES[name], (x,), order)


# Batches without rows, of ops that look at shapes: the op, and the shape of a row.

OF_NO_ROWS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "linear": (lambda x: F.linear(x, x.new_ones(4, 3)).tanh(), (3,)),
    "layer norm": (lambda x: F.layer_norm(x, (3,)), (3,)),
    "group norm": (lambda x: F.group_norm(x, 2), (4, 3)),
    "instance norm": (F.instance_norm, (2, 5)),
    "convolution": (lambda x: F.conv1d(x, x.new_ones(2, 4, 2)), (4, 5)),
    "maximum over windows": (lambda x: F.max_pool1d(x, 2), (4, 6)),
    "mean over windows": (lambda x: F.avg_pool1d(x, 2), (4, 6)),
    "windows": (lambda x: F.unfold(x, 2), (2, 4, 4)),
    "interpolation": (lambda x: F.interpolate(x, scale_factor=2), (2, 4)),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x), (2, 4, 3)),
    "cross-entropy": (lambda x: F.cross_entropy(x, x.new_zeros(0, dtype=torch.long), reduction="sum"), (3,)),
    "inverse": (torch.linalg.inv, (3, 3)),
    "determinant": (torch.linalg.det, (3, 3)),
    "factors": (torch.linalg.cholesky, (3, 3)),
    "eigenvalues": (torch.linalg.eigvalsh, (3, 3)),
    "exponential of matrices": (torch.matrix_exp, (3, 3)),
    "distances": (lambda x: torch.cdist(x, x.sin()), (3,)),
    "the largest": (lambda x: x.topk(2)[0], (3,)),
}


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
@pytest.mark.parametrize("name", OF_NO_ROWS)
def test_batches_without_rows(name: str, strategy: str, device: torch.device) -> None:
    f, row = OF_NO_ROWS[name]
    x = rand(device, 0, *row)
    for order in (1, 2):
        assert hofunc.hod(f, order, strategy=strategy)(x).shape == (*f(x).shape, *x.shape * order)


# Layouts in memory.

LAYOUTS: dict[str, Callable[[torch.device], Tensor]] = {
    "transposed": lambda device: rand(device, 3, 2).t(),
    "expanded": lambda device: rand(device, 3).expand(2, 3),
    "expanded from one": lambda device: rand(device, 1, 1).expand(2, 3),
    "strided": lambda device: rand(device, 4, 6)[::2, ::2],
    "from the middle": lambda device: rand(device, 4, 5)[1:3, 2:],
    "flipped and permuted": lambda device: rand(device, 3, 2, 1).permute(2, 1, 0).flip(1)[0],
}


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_views_of_any_layout(name: str, strategy: str, device: torch.device) -> None:
    x = LAYOUTS[name](device)

    def f(x: Tensor) -> Tensor:
        return (x.reshape(-1).sin() * x.t().reshape(-1)).cumprod(0).sum() + (x[1:] * x[:, :1]).exp()

    for order in (1, 2):
        check_hod(f, (x,), order, strategies=(strategy,))


# Arguments and results.


def test_one_tensor_for_two_arguments(device: torch.device) -> None:
    x = rand(device, 3)
    for order in (1, 2, 3):
        check_hod(lambda x, y: (x * y.sin()).sum(), (x, x), order, argnums=(0, 1))


def test_outputs_that_are_inputs_or_views_of_them(device: torch.device) -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        return x, x.t(), x[0], x.detach(), torch.ones_like(x), x.reshape(-1) * 1

    for order in (1, 2):
        check_hod(f, (rand(device, 2, 2),), order)


def test_one_output_twice(device: torch.device) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.exp()
        return y, y

    first, second = hofunc.hessian(f)(rand(device, 2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("order", [1, 2])
def test_random_numbers_are_the_same_within_a_call(order: int, device: torch.device) -> None:
    x = rand(device, 3)
    drawn: list[Tensor] = []

    def f(x: Tensor) -> Tensor:
        noise = torch.randn_like(x)
        drawn.append(noise)
        return noise * F.dropout(x**3, 0.5)

    torch.manual_seed(0)
    got = hofunc.derivatives(f, order)(x)
    (noise,) = drawn
    mask = got[0] / (noise * x**3)
    diagonal = {1: noise * mask * 3 * x**2, 2: noise * mask * 6 * x}[order]
    expected = torch.diag(diagonal) if order == 1 else torch.diag_embed(torch.diag(diagonal))
    torch.testing.assert_close(got[order], expected)
