"""Functions of several numbers of all scales, in single precision, and how far off their derivatives may be."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mpmath
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

import hofunc
from verification.high_orders import centred, logsumexp, norm, normalised, softmax
from verification.oracles import FORTY_DIGITS, nested_reverse, partial_derivatives

Numbers = Sequence[Any]

TIMES = 4.0  # how far off hofunc may be, beside torch
ULPS = 8.0  # or beside the rounding of the largest element
BASE = (0.8, -1.7, 1.2)
TARGETS = (0.0, 1.0, 0.25)
OTHER = (0.7, -1.3, 0.4)
UNIFORM = (1e-6, 1e-3, 1.0, 30.0, 1e3, 1e6)
MIXED = ((1e-4, 1.0, 1e4), (1e-6, 1e3, 1e6), (1e4, 1e-4, 1e4), (1e6, 1.0, 1.0), (1e-6, 1.0, 1.0), (1e-2, 1.0, 1e2))
OFFSETS = (10.0, 1e3, 1e5)


@dataclass(frozen=True)
class Point:
    """A point in single precision, and what its elements are multiplied by inside of the function."""

    x: tuple[float, ...]
    scales: tuple[float, ...] = (1.0, 1.0, 1.0)

    def tensor(self) -> Tensor:
        """Return it as a tensor."""
        return torch.tensor(self.x)


def points() -> Iterator[Point]:
    """Yield points of uniform and of mixed scales, and far from zero."""
    for scale in UNIFORM:
        yield Point(tuple(x * scale for x in BASE))
    for scales in MIXED:
        yield Point(tuple(x * scale for x, scale in zip(BASE, scales, strict=True)))
        yield Point(BASE, scales)
    for offset in OFFSETS:
        yield Point(tuple(x + offset for x in BASE))


def _other(x: Tensor) -> Tensor:
    return torch.tensor(OTHER, dtype=x.dtype)


def _cosine(x: Numbers) -> Numbers:
    dot = mpmath.fsum(a * mpmath.mpf(float(b)) for a, b in zip(x, torch.tensor(OTHER).tolist(), strict=True))
    return [dot / norm(2)(x)[0] / norm(2)([mpmath.mpf(float(b)) for b in torch.tensor(OTHER).tolist()])[0]]


def _distance(x: Numbers) -> Numbers:
    return norm(2)([a - mpmath.mpf(float(b)) for a, b in zip(x, torch.tensor(OTHER).tolist(), strict=True)])


def _correlations(x: Numbers) -> Numbers:
    rows = centred(x), centred([mpmath.mpf(float(b)) for b in torch.tensor(OTHER).tolist()])
    units = [[a / norm(2)(row)[0] for a in row] for row in rows]
    return [mpmath.fsum(a * b for a, b in zip(one, other, strict=True)) for one in units for other in units]


def _renorm(x: Numbers) -> Numbers:
    length = norm(2)(x)[0]
    return x if length < 0.5 else [element / (length + mpmath.mpf(1e-7)) / 2 for element in x]


def _matrix(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_tensor([0.5])]).reshape(2, 2)


def _sum_of_singular_values(x: Numbers) -> Numbers:
    """Return that of a matrix of two rows, of which the squares and the product of the two are known."""
    a, b, c, d = (*x, mpmath.mpf(0.5))
    return [mpmath.sqrt(mpmath.fsum(e**2 for e in (a, b, c, d)) + 2 * abs(a * d - b * c))]


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Numbers], Numbers]]] = {
    "norm": (torch.linalg.vector_norm, norm(2)),
    "norm of order three": (lambda x: torch.linalg.vector_norm(x, 3), norm(3)),
    "norm of order one and a half": (lambda x: torch.linalg.vector_norm(x, 1.5), norm(1.5)),
    "norm of a negative order": (lambda x: torch.linalg.vector_norm(x, -1), norm(-1)),
    "norm of a matrix": (lambda x: torch.linalg.matrix_norm(x[None]), norm(2)),
    "pairwise distance": (lambda x: F.pairwise_distance(x, _other(x), eps=0.0), _distance),
    "variance": (torch.var, lambda x: [mpmath.fsum(a**2 for a in centred(x)) / 2]),
    "deviation": (torch.std, lambda x: [mpmath.sqrt(mpmath.fsum(a**2 for a in centred(x)) / 2)]),
    "layer_norm": (lambda x: F.layer_norm(x, (3,)), partial(normalised, eps=1e-5)),
    "group_norm": (lambda x: F.group_norm(x[None, :, None], 1)[0], partial(normalised, eps=1e-5)),
    "instance_norm": (lambda x: F.instance_norm(x[None, None])[0], partial(normalised, eps=1e-5)),
    "batch_norm": (
        lambda x: F.batch_norm(x[:, None], None, None, training=True),
        partial(normalised, eps=1e-5),
    ),
    "rms_norm": (
        lambda x: F.rms_norm(x, (3,), eps=1e-5),
        lambda x: [a / mpmath.sqrt(mpmath.fsum(b**2 for b in x) / 3 + mpmath.mpf(1e-5)) for a in x],
    ),
    "normalize": (lambda x: F.normalize(x, dim=0), lambda x: [a / norm(2)(x)[0] for a in x]),
    "cosine similarity": (lambda x: F.cosine_similarity(x, _other(x), dim=0), _cosine),
    "loss by cosines": (
        lambda x: F.cosine_embedding_loss(x[None], _other(x)[None], torch.ones(1)),
        lambda x: [1 - _cosine(x)[0]],
    ),
    "correlations": (lambda x: torch.corrcoef(torch.stack([x, _other(x)])), _correlations),
    "logsumexp": (lambda x: x.logsumexp(0), lambda x: [logsumexp(x)]),
    "softmax": (lambda x: x.softmax(0), softmax),
    "log_softmax": (lambda x: x.log_softmax(0), lambda x: [a - logsumexp(x) for a in x]),
    "cross entropy": (
        lambda x: F.cross_entropy(x[None], torch.tensor([1])),
        lambda x: [logsumexp(x) - x[1]],
    ),
    "logaddexp": (lambda x: torch.logaddexp(x[:2], x[1:]), lambda x: [logsumexp(x[:2]), logsumexp(x[1:])]),
    "hypot": (lambda x: torch.hypot(x[:2], x[1:]), lambda x: [mpmath.hypot(*x[:2]), mpmath.hypot(*x[1:])]),
    "atan2": (lambda x: torch.atan2(x[:2], x[1:]), lambda x: [mpmath.atan2(*x[:2]), mpmath.atan2(*x[1:])]),
    "product": (torch.prod, lambda x: [mpmath.fprod(x)]),
    "running product": (lambda x: x.cumprod(0), lambda x: [mpmath.fprod(x[: k + 1]) for k in range(3)]),
    "gelu by tanh": (partial(F.gelu, approximate="tanh"), lambda x: list(map(FORTY_DIGITS["gelu by tanh"], x))),
    "renorm": (lambda x: torch.renorm(x[None], 2, 0, 0.5), _renorm),
    "cross-entropy of sigmoid": (
        lambda x: F.binary_cross_entropy(x.sigmoid(), torch.tensor(TARGETS, dtype=x.dtype)),
        lambda x: [mpmath.fsum(mpmath.log1p(mpmath.exp(a)) - t * a for a, t in zip(x, TARGETS, strict=True)) / 3],
    ),
    "nuclear norm": (lambda x: torch.linalg.matrix_norm(_matrix(x), "nuc"), _sum_of_singular_values),
    "quotient": (lambda x: x[:2] / x[1:], lambda x: [x[0] / x[1], x[1] / x[2]]),
}


def complaints(name: str, point: Point, order: int, strategies: Sequence[str]) -> Iterator[str]:
    """Yield where hofunc in single precision is farther from the truth than torch is, by more than TIMES."""
    f, g = FUNCTIONS[name]
    scales = torch.tensor(point.scales)
    x = point.tensor()

    def scaled(x: Tensor) -> Tensor:
        return f(x * scales).reshape(-1)

    def exactly(x: Numbers) -> Numbers:
        return g([a * mpmath.mpf(scale) for a, scale in zip(x, scales.tolist(), strict=True)])

    exact = partial_derivatives(exactly, x.double(), order)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's own, of what it has no batching rule for
        theirs = nested_reverse(scaled, order)(x).double()
    weights = torch.ones_like(exact)  # of elements, in units of the variables
    for slot in range(order):
        weights = weights * x.double().abs().reshape([-1 if dim == slot + 1 else 1 for dim in range(order + 1)])
    for strategy in strategies:
        mine = hofunc.hod(scaled, order, strategy=strategy)(x).double()
        for unit, weight in (("largest", torch.ones_like(exact)), ("natural", weights)):
            error, theirs_off, scale = ((part * weight).abs().max() for part in (mine - exact, theirs - exact, exact))
            allowed = TIMES * theirs_off + ULPS * torch.finfo(torch.float32).eps * scale
            if scale > LEAST and not error <= allowed and not theirs_off.isnan():
                yield f"{strategy}, {unit}: off by {error / scale:.1e}, torch by {theirs_off / scale:.1e}"


LEAST = 1e-30  # below which single precision has no digits
