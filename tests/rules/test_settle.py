"""Functions with a singularity behind functions that are constant somewhere: no zero is multiplied by infinity."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

import hofunc
from hofunc.arguments import STRATEGIES
from hofunc.rules.lower import lower
from hofunc.rules.settle import Settled, settle
from tests.graph.recordings import recorded

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")

Function = Callable[[Tensor], Tensor]

# Of numbers up to zero: zero, at which functions below have infinite slopes; of others: themselves.
FLOORED: dict[str, Function] = {
    "clamp": lambda x: x.clamp(min=0),
    "clamp on both sides": lambda x: x.clamp(0, 5),
    "hardtanh": lambda x: F.hardtanh(x, 0, 5),
    "masked_fill": lambda x: x.masked_fill(x < 0, 0),
    "maximum": lambda x: torch.maximum(x, torch.zeros_like(x)),
    "minimum": lambda x: -torch.minimum(-x, torch.zeros_like(x)),
    "relu": torch.relu,
    "threshold": lambda x: F.threshold(x, 0.1, 0),
    "where": lambda x: torch.where(x > 0, x, 0),
}
FOLLOWED: dict[str, Function] = {
    "at once": lambda y: y,
    "one by one": lambda y: (2 * y + 1).log(),
    "floored again": lambda y: F.relu6(y) * 3,
    "moved": lambda y: y.reshape(2, 2).t()[:, 1:].unsqueeze(0),
    "padded": lambda y: F.pad(y, (1, 2)),
    "repeated": lambda y: y.expand(3, 4),
    "added up": lambda y: y.expand(3, 4).mean(0),
}
SINGULAR: dict[str, Function] = {
    "acos": lambda y: (1 - y / 8).acos(),
    "entropy": torch.special.entr,
    "polygamma": lambda y: torch.special.polygamma(2, y + 1),
    "logarithm": lambda y: torch.where(y > 0, y.log(), 0),
    "power": lambda y: y**1.5,
    "sqrt": torch.sqrt,
}


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return torch.tensor([-3.0, 0.4, -0.2, 0.7], dtype=torch.float64, device=device)


def expected(f: Function, x: Tensor, order: int) -> Tensor:
    """Differentiate by torch what depends on positive elements only, each by itself."""

    def derivative(x: Tensor) -> Tensor:
        return f(x).sum()

    for _ in range(order):
        derivative = torch.func.jacrev(derivative)
    result = derivative(x.abs())
    for dim in range(order):
        result = result * (x > 0).reshape(-1, *[1] * dim)
    return result


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("floored", FLOORED)
def test_what_is_constant_has_no_derivative(floored: str, order: int, strategy: str, x: Tensor) -> None:
    got = hofunc.hod(lambda x: FLOORED[floored](x).sqrt().sum(), order, strategy=strategy)(x)
    torch.testing.assert_close(got, expected(torch.sqrt, x, order))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("singular", SINGULAR)
@pytest.mark.parametrize("followed", FOLLOWED)
def test_what_follows_keeps_to_it(followed: str, singular: str, order: int, strategy: str, x: Tensor) -> None:
    def f(y: Tensor) -> Tensor:
        return SINGULAR[singular](FOLLOWED[followed](y))

    got = hofunc.hod(lambda x: f(x.relu()).sum(), order, strategy=strategy)(x)
    torch.testing.assert_close(got, expected(f, x, order))


def test_a_sum_is_constant_only_if_all_its_elements_are(x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        return x.relu().reshape(2, 2).sum(1).sqrt().sum()

    torch.testing.assert_close(hofunc.hessian(f)(x), torch.func.jacrev(torch.func.jacrev(f))(x))
    assert not hofunc.hessian(f)(-x.abs()).any()


def test_the_derivative_can_be_differentiated_by_torch(x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        return x.clamp(-0.5, 0.5).mul(2).acos().sum()

    second = hofunc.hessian(f)(x)
    assert second.isfinite().all()
    for nested in (torch.func.jacrev, torch.func.jacfwd, hofunc.jacobian):
        torch.testing.assert_close(nested(hofunc.jacobian(f))(x), second)


def test_the_rows_of_a_batch_are_constant_in_different_places(x: Tensor) -> None:
    rows = torch.stack([x, -x, x.flip(0)])

    def g(x: Tensor) -> Tensor:
        return x.relu().reshape(2, 2).sum(0).sqrt().sum()

    by_row = torch.stack([hofunc.hessian(g)(row) for row in rows])
    torch.testing.assert_close(torch.func.vmap(hofunc.hessian(g))(rows), by_row)
    for chunk_size in (1, 2, 3):
        compact = hofunc.hod(torch.func.vmap(g), 2, layout="compact", chunk_size=chunk_size)(rows)
        of_row = torch.stack([compact.dense()[row, row, :, row] for row in range(3)])
        torch.testing.assert_close(of_row, by_row)


def test_a_plan_sees_where_each_input_is_constant(x: Tensor) -> None:
    hessian = hofunc.hessian(lambda x: x.relu().sqrt().sum())
    plan = hessian.plan(x)
    module = plan.to_fx()
    for other in (x, -x, x.abs(), -x.abs()):
        torch.testing.assert_close(plan(other), hofunc.hessian(lambda y: y.relu().sqrt().sum())(other))
        torch.testing.assert_close(module(other)[0], plan(other))
        assert plan(other).isfinite().all()


def test_a_kink_is_no_place_where_a_function_is_constant(device: torch.device) -> None:
    zero = torch.zeros((), dtype=torch.float64, device=device)
    assert not hofunc.jacobian(lambda x: x.abs().sqrt())(zero).isfinite()
    assert not hofunc.jacobian(lambda x: F.leaky_relu(x).sqrt())(zero).isfinite()


def test_a_sum_with_what_varies_is_not_constant(x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        return (x.relu() + x**2).sqrt().sum()  # two paths, of which one is constant somewhere

    torch.testing.assert_close(hofunc.hessian(f)(x), torch.func.hessian(f)(x))


@pytest.mark.parametrize(
    ("f", "is_settled"),
    [
        (lambda x: x.relu().sqrt(), True),
        (lambda x: x.relu() ** -1, True),
        (lambda x: x.relu() ** 2, False),
        (lambda x: x.relu().exp(), False),
        (lambda x: x.tanh().sqrt(), False),
        (lambda x: x.abs().sqrt(), False),
        (lambda x: x.relu().cumsum(0).sqrt(), False),
    ],
)
def test_only_singularities_behind_constants_are_settled(f: Function, is_settled: bool, x: Tensor) -> None:
    recording = recorded(f, x)
    lowered = lower(recording.graph, recording.values, 2)
    rules = settle(lowered.graph, lowered.rules)
    assert any(isinstance(rule, Settled) for rule in rules.values()) == is_settled
    assert {number for number, rule in rules.items() if rule is not lowered.rules[number]} <= {max(rules)}
