"""Verdicts: who is right where a derivative and an oracle disagree."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, find, settings
from torch import Tensor
from torch.nn import functional

import hofunc
from verification.oracles import nested_autograd, nested_forward, nested_reverse, nested_written_out
from verification.oracles.measure import error_over_all
from verification.programs import Program, programs
from verification.verdict import AGREED, ORACLE_WRONG, UNDECIDED, WRONG, Question, judge

# torch's forward mode compiles a helper with what it deprecates itself

X = torch.tensor([0.3, -0.8, 1.1], dtype=torch.float64)


def cube(x: Tensor) -> Tensor:
    return (x.sin() * x * x).sum()


def off_by(factor: float) -> Callable[..., Any]:
    def oracle(f: Callable[..., Any], order: int, argnums: Any) -> Callable[..., Any]:
        return lambda *args: nested_reverse(f, order, argnums)(*args) * factor

    return oracle


def tells_apart(right: Tensor, wrong: Tensor, f: Callable[..., Any], x: Tensor, order: int) -> bool:
    """Tell whether differences are near the one and not near the other."""
    questions = [Question(got, f, [x], order, 0, 1e-9) for got in (right, wrong)]
    distances = [question.distance(question.got) for question in questions]
    return any(distances[0] <= bound < distances[1] for bound in questions[0].bounds)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("factor", [-1, 2, 1 + 1e-6])
def test_a_third_decides(order: int, factor: float) -> None:
    right = nested_reverse(cube, order)(X)
    assert judge(right, cube, [X], order, tolerance=1e-9).kind == AGREED
    assert judge(factor * right, cube, [X], order, tolerance=1e-9).kind == WRONG
    assert judge(right, cube, [X], order, tolerance=1e-9, oracles=[off_by(factor)]).kind == ORACLE_WRONG
    assert judge(5 * right, cube, [X], order, tolerance=1e-9, oracles=[off_by(-3)]).kind == UNDECIDED


def test_torch_is_wrong_about_layer_norm() -> None:
    def f(x: Tensor) -> Tensor:
        return functional.layer_norm(x, (3,)).tanh()

    def written_out(x: Tensor) -> Tensor:
        centred = x - x.mean()
        return (centred / ((centred**2).mean() + 1e-5).sqrt()).tanh()

    right, wrong = nested_reverse(written_out, 3)(X), nested_reverse(f, 3)(X)
    assert judge(right, f, [X], 3, tolerance=1e-9)[::3] == (ORACLE_WRONG, "nested_written_out")
    assert tells_apart(right, wrong, f, X, 3)


def test_differences_judge_where_no_oracle_can() -> None:
    zeta = torch.special.zeta
    got = torch.zeros(3, 3, 3, dtype=torch.float64)
    got[range(3), range(3), range(3)] = 2.5 * 3.5 * zeta(torch.tensor(4.5, dtype=torch.float64), X + 2)
    verdict = judge(got, lambda x: zeta(2.5, x + 2), [X], 2, tolerance=1e-9, oracles=[nested_forward])
    assert (verdict.kind, verdict.oracle) == (AGREED, "differences")
    verdict = judge(-got, lambda x: zeta(2.5, x + 2), [X], 2, tolerance=1e-9, oracles=[nested_forward])
    assert verdict.kind == UNDECIDED


def wrong_tanh(program: Program) -> bool:
    """Tell whether hofunc would fail, if its tanh were wrong: a planted bug."""
    broken = torch.nn.functional.tanhshrink

    class Planted(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return (broken if function is Tensor.tanh else function)(*args, **(kwargs or {}))

    with Planted():
        got = nested_autograd(program, 1, program.argnums)(*program.inputs)
    return error_over_all(got, nested_autograd(program, 1, program.argnums)(*program.inputs)) > 1e-9


def test_a_planted_bug_shrinks_to_few_statements() -> None:
    found = find(
        programs(),
        wrong_tanh,
        settings=settings(
            max_examples=2000,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        ),
    )
    assert len(found.statements) <= 3
    assert sum(x.numel() for x in found.inputs) <= 4
    assert "tanh" in str(found)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_differences_take_what_is_detached_for_constant(order: int) -> None:
    right = X.sum() * nested_reverse(cube, order)(X)
    assert tells_apart(right, 1.001 * right, lambda x: (x.detach() * cube(x)).sum(), X, order)


def test_a_smaller_step_decides_where_f_varies_fast() -> None:
    """The error is relative to another output, of which the derivative is 3,000 times as large."""

    def f(x: Tensor) -> Tensor:
        v = torch.special.erfcx(x) * 0.25
        batch = 0.1 * torch.cat([v, x]).sin() + torch.arange(8, dtype=x.dtype).reshape(4, 2) * 0.3
        mixed = functional.poisson_nll_loss(torch.linalg.cholesky(v @ v.mT + 2 * torch.eye(2).to(v)), v.exp())
        return torch.cat([functional.batch_norm(batch, None, None, training=True).flatten(), mixed[None]])

    x = torch.tensor([[0.18, -1.3], [-1.29, -1.17]], dtype=torch.float64)
    assert tells_apart(hofunc.hod(f, 3)(x), nested_reverse(f, 3)(x), f, x, 3)


def test_a_smaller_step_decides_where_the_largest_leaves_the_domain() -> None:
    """To the fourth order torch cannot differentiate zeta forward, and at zero it is infinite."""

    def f(x: Tensor) -> Tensor:
        return torch.special.zeta(2.5, x * x.trunc())

    x = torch.tensor(-1.06, dtype=torch.float64)
    assert judge(hofunc.hod(f, 4)(x), f, [x], 4, tolerance=1e-9, oracles=[nested_forward]).kind == AGREED


def test_differences_tell_two_apart_that_are_far_from_each_other_where_f_cancels_digits() -> None:
    c = torch.tensor([[[0.86]], [[1.34]]], dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        return functional.batch_norm(torch.baddbmm(c, x, x.mT) * 0.5, None, None, training=True)

    x = torch.tensor([[[-1.4, -1.29]], [[1.14, -1.08]]], dtype=torch.float64)
    right = hofunc.hod(f, 3)(x)
    assert tells_apart(right, nested_reverse(f, 3)(x), f, x, 3)
    assert judge(1.001 * right, f, [x], 3, tolerance=1e-9).kind == UNDECIDED


@pytest.mark.parametrize(
    "f",
    [
        lambda x: functional.layer_norm(x, (2, 3), x.cos(), x.sin()),
        lambda x: functional.batch_norm(x, None, None, x[0].cos(), x[0], training=True),
        lambda x: functional.batch_norm(x, x[0].detach(), x[1].detach().abs(), x[0].cos(), x[0]),
        lambda x: functional.instance_norm(x[None]),
        lambda x: x.logcumsumexp(1) * torch.logcumsumexp(x, dim=0),
    ],
)
def test_ops_are_written_out_as_torch_computes_them(f: Callable[..., Any]) -> None:
    x = torch.tensor([[0.3, -0.8, 1.1], [0.7, 0.2, -0.4]], dtype=torch.float64)
    value, slope = nested_written_out(f, 0)(x), nested_written_out(f, 1)(x)
    assert error_over_all(value, f(x)) < 1e-14
    assert error_over_all(slope, nested_reverse(f, 1)(x)) < 1e-12


def test_written_out_the_fourth_derivative_of_a_norm_is_exact() -> None:
    def f(x: Tensor) -> Tensor:
        return functional.layer_norm(x, (3,)).cos().mean() * x.exp()

    verdict = judge(hofunc.hod(f, 4)(X), f, [X], 4, tolerance=1e-9, oracles=[nested_forward])
    assert verdict[::3] == (ORACLE_WRONG, "nested_written_out")


def test_rounding_is_how_far_two_oracles_are_from_each_other() -> None:
    right = nested_reverse(cube, 4)(X)
    near, far = (1 + 3e-9) * right, (1 + 1e-6) * right
    pair = [nested_reverse, off_by(1 + 1e-9)]
    assert judge(near, cube, [X], 4, tolerance=1e-10, oracles=pair).kind == AGREED
    assert judge(near, cube, [X], 4, tolerance=1e-10, oracles=pair[:1]).kind != AGREED
    assert judge(far, cube, [X], 4, tolerance=1e-10, oracles=pair).kind != AGREED
    assert judge(-right, cube, [X], 4, tolerance=1e-10, oracles=[nested_reverse, off_by(5)]).kind == WRONG
