"""A self-check: derivatives by every strategy and in every form, against closed forms written out by hand."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from math import factorial, prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from hofunc.callable_plan import load_plan
from hofunc.contracted import einsum
from hofunc.jitted import jit
from hofunc.operators.coordinates import biharmonic, laplacian
from hofunc.operators.products import hvp
from hofunc.plan.strategies import STRATEGIES
from hofunc.transform import Transform
from hofunc.transforms import hod

Function = Callable[[torch.Tensor], torch.Tensor]
Closed = Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]  # an entry of a derivative, by its indices

TOLERANCES = {torch.float64: 1e-11, torch.float32: 1e-4}  # rounding is a hundred times less than these


class Case(NamedTuple):
    """A function, and its derivatives in closed form.

    Attributes:
        name: What it is called.
        function: The function, of a vector.
        orders: How many orders are compared.
        entry: Given the vector and the index of every slot, returns an entry.
    """

    name: str
    function: Function
    orders: int
    entry: Closed


class Outcome(NamedTuple):
    """What a comparison came to.

    Attributes:
        what: What was compared.
        error: The largest difference, relative to the largest entry; infinite where there is no result.
        told: What was raised, if anything was.
        is_right: Whether it is within rounding.
    """

    what: str
    error: float
    told: str
    is_right: bool


def outcomes(device: torch.device, dtype: torch.dtype = torch.float64) -> Iterator[Outcome]:
    """Compare all that is compared.

    Args:
        device: Where to compute.
        dtype: The dtype to compute in.
    """
    x = torch.tensor([0.7, -0.4, 1.3], dtype=dtype, device=device)
    for what, transform, closed in (*_strategies(), *_forms(), *_contractions()):
        yield _compared(what, transform, x, closed)


def _compared(what: str, transform: Function, x: torch.Tensor, closed: Function) -> Outcome:
    """Compare a derivative with what it should be; whatever it raises is told and not raised."""
    expected = closed(x)
    try:
        got = transform(x)
    except Exception as error:
        return Outcome(what, float("inf"), f"{type(error).__name__}: {error}", False)
    if got.shape != expected.shape:
        return Outcome(what, float("inf"), f"shape {tuple(got.shape)} for {tuple(expected.shape)}", False)
    difference = float((got - expected).abs().max() / expected.abs().max().clamp(min=1))
    return Outcome(what, difference, "", difference <= TOLERANCES[x.dtype])  # nan is no less than anything


def whole(case: Case, order: int, x: torch.Tensor) -> torch.Tensor:
    """Return a derivative of a case, entry by entry."""
    entries = [case.entry(x, indices) for indices in product(range(len(x)), repeat=order)]
    return torch.stack(entries).reshape((len(x),) * order)


# The functions.

_WEIGHTS = (0.5, -1.5, 2.0)


def _weights(x: torch.Tensor) -> torch.Tensor:
    return x.new_tensor(_WEIGHTS)


def _exponential(x: torch.Tensor, indices: tuple[int, ...]) -> torch.Tensor:
    return (_weights(x) * x).sum().exp() * prod(_WEIGHTS[i] for i in indices)


def _power(x: torch.Tensor, indices: tuple[int, ...]) -> torch.Tensor:
    order = len(indices)
    return x[indices[0]] ** (5 - order) * (factorial(5) // factorial(5 - order) if len({*indices}) == 1 else 0)


def _product(x: torch.Tensor, indices: tuple[int, ...]) -> torch.Tensor:
    others = [x[i] for i in range(len(x)) if i not in indices]
    is_there = len({*indices}) == len(indices)
    return torch.stack([x.new_tensor(float(is_there)), *others]).prod()


def _logarithm(x: torch.Tensor, indices: tuple[int, ...]) -> torch.Tensor:
    """Return an entry of a derivative of log(1 + z**2), which is twice the real part of log(1 + i z), at z = w x."""
    order, z = len(indices), 1 + 1j * float((_weights(x) * x).sum())
    slope = 2 * (-1) ** (order - 1) * factorial(order - 1) * (1j / z) ** order
    return x.new_tensor(slope.real * prod(_WEIGHTS[i] for i in indices))


def _softmax(x: torch.Tensor, indices: tuple[int, ...]) -> torch.Tensor:
    """Return a joint cumulant of which of all indices is drawn, with the probabilities that softmax returns."""
    p = x.exp() / x.exp().sum()
    i, *others = indices
    if not others:
        return p[i]
    if len(others) == 1:
        return p[i] * float(i == others[0]) - p[i] * p[others[0]]
    j, k = others
    pairs = float(i == j) * p[i] * p[k] + float(i == k) * p[i] * p[j] + float(j == k) * p[i] * p[j]
    return p[i] * float(i == j == k) - pairs + 2 * p[i] * p[j] * p[k]


CASES = (
    Case("exp(w x)", lambda x: (x @ _weights(x)).exp(), 4, _exponential),
    Case("the sum of x**5", lambda x: (x**5).sum(), 4, _power),
    Case("the product of x", lambda x: x.prod(), 4, _product),
    Case("log(1 + (w x)**2)", lambda x: (1 + (x * _weights(x)).sum() ** 2).log(), 4, _logarithm),
    Case("logsumexp(x)", lambda x: x.logsumexp(0), 3, _softmax),
)
_FIRST = CASES[0]


# What is compared: by name, what computes it, and the closed form.

_Compared = Iterator[tuple[str, Function, Function]]


def _strategies() -> _Compared:
    for case in CASES:
        for order, strategy in product(range(1, case.orders + 1), STRATEGIES):
            transform = hod(case.function, order, strategy=strategy)
            yield f"{case.name}, order {order}, by {strategy}", transform, partial(whole, case, order)


def _forms() -> _Compared:
    for case, order in product((CASES[0], CASES[-1]), (2, 3)):
        closed, name = partial(whole, case, order), f"{case.name}, order {order}"
        dense, compact = hod(case.function, order), hod(case.function, order, layout="compact")
        yield f"{name}, compact", partial(_made_dense, compact), closed
        yield f"{name}, planned", partial(_planned, dense), closed
        yield f"{name}, by jit", jit(dense), closed
    yield "a plan that was saved", _saved, partial(whole, _FIRST, 2)


def _made_dense(compact: Transform, x: torch.Tensor) -> torch.Tensor:
    return compact(x).dense()


def _planned(transform: Transform, x: torch.Tensor) -> torch.Tensor:
    return transform.plan(torch.ones_like(x))(x)


def _saved(x: torch.Tensor) -> torch.Tensor:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "plan"
        hod(_FIRST.function, 2).plan(torch.ones_like(x)).save(path)
        return load_plan(path)(x)


def _contractions() -> _Compared:
    def value(x: torch.Tensor) -> torch.Tensor:
        return _exponential(x, ())

    square = sum(weight**2 for weight in _WEIGHTS)
    f = _FIRST.function
    yield "the Laplacian of exp(w x)", laplacian(f), lambda x: square * value(x)
    yield "the biharmonic of exp(w x)", biharmonic(f), lambda x: square**2 * value(x)
    third = einsum(f, ", i, i, j -> j")
    yield "the gradient of the Laplacian by einsum", third, lambda x: square * value(x) * _weights(x)
    along = sum(_WEIGHTS)
    times = hvp(f)
    yield "hvp of exp(w x)", lambda x: times(x, vector=torch.ones_like(x)), lambda x: along * value(x) * _weights(x)
