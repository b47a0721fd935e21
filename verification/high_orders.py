"""Functions of one number, in torch and in mpmath, through every rule that has a closed form or a series.

The last coefficient of such a rule first enters at some order: a sum over pairs of slots has its third pair at order
six, a polynomial of degree three its square of third derivatives at order six. So derivatives by t of f(x + t v) are
compared at orders six to eight, where all coefficients that are there are seen.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mpmath
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

import hofunc
from verification.oracles import FORTY_DIGITS, derivatives_by_differences

Numbers = Sequence[Any]


@dataclass(frozen=True)
class Curve:
    """A function of the numbers x + t v, in torch and in mpmath.

    Attributes:
        name: What it shows.
        f: Function of a tensor.
        g: The same of a list of mpmath's numbers, which returns a list of them.
        x: Where it starts.
        v: Where it goes.
        tolerance: Largest error relative to the largest element of a derivative.
    """

    name: str
    f: Callable[[Tensor], Tensor]
    g: Callable[[Numbers], Numbers]
    x: tuple[float, ...]
    v: tuple[float, ...]
    tolerance: float

    def along(self, t: Tensor) -> Tensor:
        """Return the function at x + t v."""
        x, v = (torch.tensor(numbers, dtype=t.dtype, device=t.device) for numbers in (self.x, self.v))
        return self.f(x + t * v).reshape(-1)

    def exact(self, order: int) -> list[list[float]]:
        """Return all derivatives up to an order at t = 0."""

        def g(t: Any) -> Numbers:
            return self.g([mpmath.mpf(x) + t * mpmath.mpf(v) for x, v in zip(self.x, self.v, strict=True)])

        return derivatives_by_differences(g, order)

    def errors(self, order: int, strategy: str = "forward") -> list[float]:
        """Return the error of every order from 1 on, relative to its largest element, or to 1e-9 of f."""
        t = torch.zeros((), dtype=torch.float64)
        got = hofunc.derivatives(self.along, order, strategy=strategy)(t)
        value, *expected = (torch.tensor(numbers, dtype=t.dtype) for numbers in self.exact(order))
        scales = [max(float(one.abs().max()), 1e-9 * float(value.abs().max())) for one in expected]
        pairs = zip(got[1:], expected, scales, strict=True)
        return [float((mine - other).abs().max()) / scale for mine, other, scale in pairs]


def curve(
    name: str,
    f: Callable[[Tensor], Tensor],
    g: Callable[[Numbers], Numbers],
    x: Sequence[float],
    v: Sequence[float] = (),
    tolerance: float = 1e-10,
) -> Curve:
    """Return a row of the table; see `Curve`."""
    directions = (0.7, -0.4, 0.9, 0.3, -0.8, 0.5, 0.6, -0.2, 0.35, -0.55, 0.45, 0.25, -0.65, 0.75, 0.15, -0.35)
    return Curve(name, f, g, tuple(x), tuple(v) or directions[: len(x)], tolerance)


# Vectors.

VECTOR = (0.8, -1.7, 1.2, 0.5)


def norm(p: float) -> Callable[[Numbers], Numbers]:
    """Return the norm of order p."""
    return lambda x: [mpmath.fsum(abs(element) ** p for element in x) ** (1 / mpmath.mpf(p))]


def centred(x: Numbers) -> Numbers:
    """Return numbers less their mean."""
    return [element - mpmath.fsum(x) / len(x) for element in x]


def normalised(x: Numbers, eps: float) -> Numbers:
    """Return numbers less their mean, over the root of the variance and eps."""
    rest = centred(x)
    scale = mpmath.sqrt(mpmath.fsum(element**2 for element in rest) / len(x) + mpmath.mpf(eps))
    return [element / scale for element in rest]


def softmax(x: Numbers) -> Numbers:
    """Return the softmax."""
    powers = [mpmath.exp(element) for element in x]
    return [power / mpmath.fsum(powers) for power in powers]


def logsumexp(x: Numbers) -> Any:
    """Return the logarithm of the sum of exponentials."""
    return mpmath.log(mpmath.fsum(map(mpmath.exp, x)))


VECTORS = [
    *(
        curve(f"norm of order {p}", lambda x, p=p: torch.linalg.vector_norm(x, p), norm(p), VECTOR)  # type: ignore[misc]
        for p in (2, 3, 4, 2.5, 0.5, -1, -2.5)
    ),
    curve(
        "standard deviation",
        torch.std,
        lambda x: [mpmath.sqrt(mpmath.fsum(element**2 for element in centred(x)) / (len(x) - 1))],
        VECTOR,
    ),
    curve("layer_norm", lambda x: F.layer_norm(x, (4,), eps=0.1), partial(normalised, eps=0.1), VECTOR),
    curve("softmax", lambda x: x.softmax(0), softmax, VECTOR),
    curve("log_softmax", lambda x: x.log_softmax(0), lambda x: [element - logsumexp(x) for element in x], VECTOR),
    curve("logsumexp", lambda x: x.logsumexp(0), lambda x: [logsumexp(x)], VECTOR),
    curve("logcumsumexp", lambda x: x.logcumsumexp(0), lambda x: [logsumexp(x[: k + 1]) for k in range(4)], VECTOR),
    curve("product", torch.prod, lambda x: [mpmath.fprod(x)], (0.8, -1.7, 1.2, 0.5, 1.1, -0.9)),
    curve(
        "running product",
        lambda x: x.cumprod(0),
        lambda x: [mpmath.fprod(x[: k + 1]) for k in range(len(x))],
        (0.8, -1.7, 1.2, 0.5, 1.1),
    ),
]


# Functions of two numbers.

PAIR = (0.8, 1.3)

PAIRS = [
    curve("hypot", lambda x: torch.hypot(*x), lambda x: [mpmath.hypot(*x)], PAIR),
    curve("atan2", lambda x: torch.atan2(*x), lambda x: [mpmath.atan2(*x)], PAIR),
    curve("power", lambda x: x[0] ** x[1], lambda x: [x[0] ** x[1]], PAIR),
    curve("power of a large exponent", lambda x: x[0] ** x[1], lambda x: [x[0] ** x[1]], (0.8, 6.3)),
    curve("logaddexp", lambda x: torch.logaddexp(*x), lambda x: [logsumexp(x)], PAIR),
    curve(
        "logaddexp2",
        lambda x: torch.logaddexp2(*x),
        lambda x: [mpmath.log(mpmath.mpf(2) ** x[0] + mpmath.mpf(2) ** x[1], 2)],
        PAIR,
    ),
    curve("xlogy", lambda x: torch.xlogy(*x), lambda x: [x[0] * mpmath.log(x[1])], PAIR),
    curve("xlog1py", lambda x: torch.special.xlog1py(*x), lambda x: [x[0] * mpmath.log1p(x[1])], PAIR),
    curve("quotient", lambda x: x[0] / x[1], lambda x: [x[0] / x[1]], PAIR),
    curve(
        "incomplete gamma function",
        lambda x: torch.special.gammainc(torch.full_like(x, 1.7), x),
        lambda x: [mpmath.gammainc(mpmath.mpf(1.7), 0, x[0], regularized=True)],
        (1.3,),
    ),
    curve(
        "zeta",
        lambda x: torch.special.zeta(torch.full_like(x, 2.5), x),
        lambda x: [mpmath.zeta(mpmath.mpf(2.5), x[0])],
        (1.3,),
    ),
]


# Functions of one number, on either side of where a rule turns from one form to another.

BRANCHES: dict[str, tuple[Callable[[Tensor], Tensor], tuple[float, ...]]] = {
    "sinc": (torch.sinc, (0.3, 1.9, 2.7, 3.3, 5.1)),
    "spherical_bessel_j0": (torch.special.spherical_bessel_j0, (0.3, 4.1, 9.9, 10.1)),
    "i0": (torch.special.i0, (0.3, 4.9, 9.9, 10.1)),
    "i1": (torch.special.i1, (0.3, 4.9, 9.9, 11.1)),
    "i0e": (torch.special.i0e, (0.3, 7.9, 12.1, 20.5)),
    "i1e": (torch.special.i1e, (0.3, 7.9, 12.1, 20.5)),
    "erfcx": (torch.special.erfcx, (-0.5, 1.4, 1.6, 4.0)),
    "erf": (torch.erf, (0.3, 2.1)),
    "erfinv": (torch.erfinv, (0.3, -0.8)),
    "ndtri": (torch.special.ndtri, (0.3, 0.85)),
    "gelu": (F.gelu, (-1.3, 0.4, 2.2)),
    "gelu by tanh": (partial(F.gelu, approximate="tanh"), (-1.3, 0.4, 1.7)),
    "mish": (F.mish, (-1.3, 0.4, 2.2)),
    "silu": (F.silu, (-1.3, 0.4, 2.2)),
    "tanh": (torch.tanh, (-1.3, 0.4)),
    "tan": (torch.tan, (-0.7, 0.4)),
    "sigmoid": (torch.sigmoid, (-1.3, 0.4)),
    "softplus": (F.softplus, (-1.3, 0.4)),
    "asin": (torch.asin, (-0.6, 0.3)),
    "atan": (torch.atan, (-1.6, 0.3)),
    "asinh": (torch.asinh, (-1.6, 0.3)),
    "acosh": (torch.acosh, (1.6, 2.3)),
    "atanh": (torch.atanh, (-0.6, 0.3)),
    "logit": (torch.logit, (0.2, 0.6)),
    "lgamma": (torch.lgamma, (0.7, 3.1)),
    "digamma": (torch.digamma, (0.7, 3.1)),
    "entr": (torch.special.entr, (0.7, 3.1)),
}

OF_NUMBERS = [
    curve(f"{name} at {point}", f, lambda x, g=FORTY_DIGITS[name]: [g(*x)], (point,), (1,), 1e-9)  # type: ignore[misc]
    for name, (f, points) in BRANCHES.items()
    for point in points
]


# Matrices, as lists of their elements row by row.

MATRIX = (2.1, 0.3, 0.4, 1.3)
TALL = (2.1, 0.3, -0.5, 1.4, 0.7, 0.6)


def _matrix(x: Numbers, columns: int = 2) -> Any:
    return mpmath.matrix([list(x[start : start + columns]) for start in range(0, len(x), columns)])


def _elements(*matrices: Any) -> Numbers:
    return [element for matrix in matrices for element in matrix]


def _symmetric(x: Any) -> Any:
    return x @ x.mT if isinstance(x, Tensor) else x * x.T


def _eigenvalues(x: Numbers) -> Numbers:
    return _elements(mpmath.eigsy(_symmetric(_matrix(x)), eigvals_only=True))


def _projections(vectors: Tensor) -> Tensor:
    """Return what eigenvectors determine up to their sign."""
    return vectors.mT.unsqueeze(-1) * vectors.mT.unsqueeze(-2)


def _eigenprojections(x: Numbers) -> Numbers:
    _, vectors = mpmath.eigsy(_symmetric(_matrix(x)))
    size = vectors.rows
    places = [(k, i, j) for k in range(size) for i in range(size) for j in range(size)]
    return [vectors[i, k] * vectors[j, k] for k, i, j in places]


def _absolute_r(x: Numbers, columns: int) -> Numbers:
    """Return the factor R of a QR decomposition by the Cholesky factor of R^T R."""
    matrix = _matrix(x, columns)
    return _elements(mpmath.cholesky(matrix.T * matrix).T)


def _signed(r: Tensor) -> Tensor:
    return r * r.detach().diagonal().sign().unsqueeze(-1)


def _lu(x: Numbers) -> Numbers:
    """Eliminate without pivots, of which a dominant diagonal needs none."""
    rows = _matrix(x)
    rows[1, 0] = rows[1, 0] / rows[0, 0]
    rows[1, 1] -= rows[1, 0] * rows[0, 1]
    return _elements(rows)


def _pseudo_inverse(x: Numbers) -> Numbers:
    matrix = _matrix(x)
    return _elements(mpmath.inverse(matrix.T * matrix) * matrix.T)


def _determinant_of(size: int) -> Curve:
    base = (0.9, -0.3, 0.5, 1.4, 0.2, -0.7, 1.1, 0.6, -0.45, 0.8, 0.15, -1.2)
    x = [base[(3 * k + k // size) % len(base)] + (2 if k % (size + 1) == 0 else 0) for k in range(size * size)]
    v = [math.sin(1.7 * k * k + 0.3) for k in range(size * size)]
    return curve(
        f"determinant of {size} rows",
        lambda x: torch.linalg.det(x.reshape(size, size)),
        lambda x: [mpmath.det(_matrix(x, size))],
        x,
        v,
    )


MATRICES = [
    *(_determinant_of(size) for size in (4, 5, 6)),
    curve(
        "slogdet", lambda x: torch.linalg.slogdet(_square(x))[1], lambda x: [mpmath.log(mpmath.det(_matrix(x)))], MATRIX
    ),
    curve("inverse", lambda x: torch.linalg.inv(_square(x)), lambda x: _elements(mpmath.inverse(_matrix(x))), MATRIX),
    curve(
        "solve",
        lambda x: torch.linalg.solve(_square(x), x[:2]),
        lambda x: _elements(mpmath.inverse(_matrix(x)) * mpmath.matrix(x[:2])),
        MATRIX,
    ),
    curve(
        "cholesky",
        lambda x: torch.linalg.cholesky(_symmetric(_square(x))),
        lambda x: _elements(mpmath.cholesky(_symmetric(_matrix(x)))),
        MATRIX,
    ),
    curve("qr", lambda x: _signed(torch.linalg.qr(_square(x))[1]), lambda x: _absolute_r(x, 2), MATRIX),
    curve("lu", lambda x: torch.linalg.lu_factor(_square(x))[0], _lu, MATRIX),
    curve(
        "matrix exponential",
        lambda x: torch.matrix_exp(_square(x) / 2),
        lambda x: _elements(mpmath.expm(_matrix(x) / 2)),
        MATRIX,
        tolerance=1e-9,
    ),
    curve("eigenvalues", lambda x: torch.linalg.eigvalsh(_symmetric(_square(x))), _eigenvalues, MATRIX),
    curve(
        "eigenvectors",
        lambda x: _projections(torch.linalg.eigh(_symmetric(_square(x)))[1]),
        _eigenprojections,
        MATRIX,
    ),
    curve(
        "singular values",
        lambda x: torch.linalg.svdvals(_square(x)).flip(0),
        lambda x: [mpmath.sqrt(value) for value in _eigenvalues(x)],
        MATRIX,
    ),
    curve(
        "left singular vectors",
        lambda x: _projections(torch.linalg.svd(_square(x))[0].flip(1)),
        _eigenprojections,
        MATRIX,
    ),
    curve("pseudo-inverse", lambda x: torch.linalg.pinv(x.reshape(3, 2)), _pseudo_inverse, TALL),
]


def _square(x: Tensor) -> Tensor:
    return x.reshape(2, 2)


CURVES = [*VECTORS, *PAIRS, *OF_NUMBERS, *MATRICES]
