"""detect_anomaly: which op, which line, which order, and whether the value was finite there."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hofunc
from hofunc.graph.record import record

X = torch.tensor([1.0, 2.0], dtype=torch.float64)
INF = float("inf")


def root(x: Tensor) -> Tensor:
    return (x - 1).sqrt().sum()  # here: sqrt 1


def power(x: Tensor) -> Tensor:
    y = x - 1
    return (y**1.5).sum()  # here: pow 2


def two(x: Tensor) -> Tensor:
    masked = torch.where(x > 1, (x - 1).sqrt(), 0.0)  # whose slope is infinite, and not in the result
    return masked.sum() + (x - 1).abs().pow(0.5).exp().sum()  # here: pow 1


def chain(x: Tensor) -> Tensor:
    y = (x - 1).sqrt()
    return y.sqrt().sum()  # here: sqrt 1, from the output backwards


def logarithm(x: Tensor) -> Tensor:
    y = (x - 1).log()
    return (y * 0).sum()  # here: mul 0


def masked_rows(x: Tensor) -> Tensor:
    mask = torch.tensor([[True, False], [True, True]])
    scores = (torch.zeros(2, 2).double() + x).masked_fill(mask, -INF)
    return scores.softmax(-1).sum()  # here: softmax 0


def overflow(x: Tensor) -> Tensor:
    y = x * 1e200
    return (y * 1e200).mul(1e-200).sum()  # here: mul 0


def vectors(x: Tensor) -> Tensor:
    matrix = torch.diag(x * torch.tensor([2.0, 1.0], dtype=x.dtype))
    return torch.linalg.eigh(matrix)[1][0].sum()  # here: eigh 1, of two results


def singular(x: Tensor) -> Tensor:
    matrix = x.prod() * torch.eye(2, dtype=x.dtype)
    return torch.linalg.svd(matrix)[2].sum()  # here: svd 1, of three results


class Net(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.softplus(x).sum() + (x - 1).sqrt().sum()  # here: sqrt 1


def line_of(f: Any) -> int:
    code = (f.forward if isinstance(f, nn.Module) else f).__code__
    with open(code.co_filename, encoding="utf-8") as file:
        lines = file.readlines()
    return next(n for n in range(code.co_firstlineno, len(lines) + 1) if "# here" in lines[n - 1])


def anomaly(call: Callable[[], Any]) -> hofunc.AnomalyError:
    with hofunc.detect_anomaly(), pytest.raises(hofunc.AnomalyError) as caught:
        call()
    return caught.value


CASES = [
    (root, "sqrt", 1),
    (power, "pow", 2),
    (two, "pow", 1),
    (chain, "sqrt", 1),
    (logarithm, "mul", 0),
    (masked_rows, "softmax", 0),
    (overflow, "mul", 0),
    (vectors, "eigh", 1),
    (singular, "svd", 1),
    (Net(), "sqrt", 1),
]


@pytest.mark.parametrize(("f", "op", "order"), CASES)
def test_the_op_the_line_and_whether_the_value_is_finite(f: Any, op: str, order: int) -> None:
    error = anomaly(lambda: hofunc.hessian(f)(X))
    assert op in str(error.op)
    assert error.order == order
    assert error.is_value_finite == (order > 0)
    assert f"test_anomaly.py:{line_of(f)}" in str(error)
    assert f"line {line_of(f)}, in" in error.lines[-1]
    assert error.lines[-1] in error.__notes__[0]


@pytest.mark.parametrize("f", [power, two, logarithm, vectors])
def test_plans_tell_the_op_and_if_they_were_made_there_the_line(f: Any) -> None:
    outside = hofunc.hessian(f).plan(X + 1)
    assert outside(X).shape == (2, 2)
    error, eager = anomaly(lambda: outside(X)), anomaly(lambda: hofunc.hessian(f)(X))
    assert (error.op, error.order, error.lines) == (eager.op, eager.order, ())
    with hofunc.detect_anomaly():
        inside = hofunc.hessian(f).plan(X + 1)
        assert inside(X + 1).isfinite().all()
    assert anomaly(lambda: inside(X)).lines[-1] == eager.lines[-1]


def test_what_is_not_finite_and_does_not_reach_the_result_is_no_error() -> None:
    mask = torch.tensor([True, False])
    with hofunc.detect_anomaly():
        hofunc.hessian(lambda x: torch.where(x > 1, (x - 1).sqrt(), 0.0).sum())(X)
        hofunc.hessian(lambda x: x.masked_fill(mask, -INF).softmax(-1).square().sum())(X)
        hofunc.jacobian(power)(X)
        hofunc.jacobian(lambda x: ((x**2).sum(), (x - 1).log()), has_aux=True)(X)
    assert hofunc.hessian(power)(X)[0, 0] == INF


def test_where_the_inf_comes_from_that_a_nan_is_made_of() -> None:
    message = str(anomaly(lambda: hofunc.jacobian(logarithm)(X)))
    assert "nan in the value of aten.mul" in message
    assert f"which comes of inf in the value of aten.log.default at test_anomaly.py:{line_of(logarithm) - 1}" in message


def test_what_f_is_given() -> None:
    error = anomaly(lambda: hofunc.jacobian(root)(torch.tensor([INF, 2.0])))
    assert "inf in a tensor that f takes, of shape (2,)" in str(error)
    assert error.op is None


def test_overflow_in_products() -> None:
    def f(x: Tensor) -> Tensor:
        return (x * 1e200).sin().sum()

    error = anomaly(lambda: hofunc.hessian(f)(X * 1e-200))
    assert "that pass aten." in str(error)
    assert error.is_value_finite
    assert error.order == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.vmap(hofunc.jacobian(root))(torch.stack([X + 1, X])),
        lambda: torch.vmap(hofunc.jacobian(root).plan(X + 1))(torch.stack([X + 1, X])),
        lambda: hofunc.einsum(root, ", i, i ->")(X),
        lambda: hofunc.laplacian(root)(X),
        lambda: hofunc.jacobian(lambda x: hofunc.jacobian(root)(x).sum())(X),
        lambda: hofunc.jacobian(lambda x: torch.vmap(torch.sqrt)(x - 1))(X),
        lambda: hofunc.jacobian(lambda x: torch.func.grad(root)(x).sum())(X + 1e-300),
        lambda: hofunc.hessian(root, chunk_size=1)(X),
        lambda: hofunc.hessian(root, layout="compact")(X),
        lambda: hofunc.hessian(lambda x: {"a": x.sum(), "b": root(x)})(X),
        lambda: hofunc.jacobian(lambda x: hofunc.tap("h", x - 1).sqrt().sum(), wrt="h")(X),
        lambda: hofunc.jacobian(lambda z: (z - 1).log().real.sum())(X.to(torch.complex128)),
        lambda: hofunc.jacobian(lambda x: torch.complex(x, x - 1).real.sqrt().sum())(X - 1),
    ],
)
def test_everywhere(call: Callable[[], Any]) -> None:
    error = anomaly(call)
    assert "finite numbers" in str(error)


def test_it_ends_with_the_block_and_may_be_nested() -> None:
    detecting = hofunc.detect_anomaly()
    with detecting:
        with detecting:
            pass
        with pytest.raises(hofunc.AnomalyError):
            hofunc.jacobian(root)(X)
    assert hofunc.jacobian(root)(X)[0] == INF
    with pytest.raises(ArithmeticError), detecting:
        hofunc.jacobian(root)(X)
    assert hofunc.jacobian(root)(X)[0] == INF


def test_lines_are_noted_nowhere_else() -> None:
    assert record(lambda inputs, _: inputs[0].sin(), [X]).lines == {}
