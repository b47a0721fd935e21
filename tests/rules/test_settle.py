"""Functions with a singularity behind functions that are constant somewhere: no zero is multiplied by infinity."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

import hofunc
from hofunc.arguments import STRATEGIES
from hofunc.plan import planner
from hofunc.plan.blocks import local_blocks
from hofunc.plan.blueprint import Limits
from hofunc.plan.strategies import STRATEGIES as BY_NAME
from hofunc.rules.lower import lower
from hofunc.rules.registry import RULES
from hofunc.rules.settle import Settlings, settling
from tests.graph.recordings import recorded
from verification.oracles import nested_forward, nested_reverse, relative_error

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
    "one by one": lambda y: (2 * y + 1).log(),
    "floored again": lambda y: F.relu6(y) * 3,
    "moved": lambda y: y.reshape(2, 2).t()[:, 1:].unsqueeze(0),
    "padded": lambda y: F.pad(y, (1, 2)),
    "added up": lambda y: y.expand(3, 4).mean(0),
}
SINGULAR: dict[str, Function] = {
    "acos": lambda y: (1 - y / 8).acos(),
    "entropy": torch.special.entr,
    "polygamma": lambda y: torch.special.polygamma(2, y + 1),
    "logarithm": lambda y: torch.where(y > 0, y.log(), 0),
    "power": lambda y: y**1.5,
    "root": torch.sqrt,
}
# What is constant somewhere as a whole: functions of the floored elements of a matrix, of which a row is zero.
KINDS: dict[str, Function] = {
    "product with a vector": lambda y: (y @ torch.ones_like(y[0])).sqrt(),
    "product of matrices": lambda y: (y @ y.t()).sqrt(),
    "product with itself": lambda y: (y * y.flip(0)).sqrt(),
    "einsum": lambda y: torch.einsum("ij,ij->i", y, y).sqrt(),
    "product of a row": lambda y: y.prod(1).sqrt(),
    "running product": lambda y: y.cumprod(1).sqrt(),
    "running sum": lambda y: y.flip(1).cumsum(1).sqrt(),
    "running logarithm": lambda y: torch.logcumsumexp(y.flip(1), 1).sqrt(),
    "cat": lambda y: torch.cat([y, y + 1]).sqrt(),
    "stack": lambda y: torch.stack([y, y.exp() - 1], 1).log1p().sqrt(),
    "cat with constants": lambda y: torch.cat([y.exp(), torch.zeros_like(y)]).sqrt(),
    "diagonal of a matrix": lambda y: torch.diag_embed(y[0]).sqrt(),
    "triangle": lambda y: y.t().exp().tril().sqrt(),
    "indices": lambda y: y[torch.tensor([1, 1, 0])].sqrt(),
    "added at indices": lambda y: y.new_zeros(3, 4).index_add(0, torch.tensor([0, 2]), y.exp()).sqrt(),
    "written": lambda y: y.exp().index_fill(1, torch.tensor([2]), 0).sqrt(),
    "sorted": lambda y: y.sort(1).values.sqrt(),
    "windows": lambda y: F.max_pool1d(y, 2).sqrt(),
    "convolution": lambda y: F.conv1d(y[:, None], y.new_tensor([[[1.0, -1.0]]])).square().sqrt(),
    "Fourier": lambda y: torch.fft.rfft(y).abs().square().sum(1).sqrt(),
    "moments": lambda y: y.var(1).sqrt(),
    "power with a tensor": lambda y: y ** y.new_tensor([0.5, 1.5, 2.5, 0.7]),
    "power of itself": lambda y: y ** (y + 0.5),
}
MASK = torch.tensor([[True, True, False, True], [False] * 4])
HIDDEN = torch.tensor(-torch.inf, dtype=torch.float64)
UNDEFINED = torch.where(MASK, 0.0, torch.nan).double()
IDIOMS: dict[str, Function] = {
    "safe norm": lambda x: safe_root(torch.where(MASK, x, 0).square().sum(1)),
    "norms": lambda x: torch.where(MASK, x, 0).norm(dim=1),
    "masked softmax": lambda x: torch.where(MASK.any(1, keepdim=True), hidden(x).softmax(1), 0) ** 2,
    "softmax without nan": lambda x: hidden(x).softmax(1).nan_to_num() ** 2,
    "masked softmax of what a captured tensor hides": lambda x: (
        torch.where(MASK.any(1, keepdim=True), torch.where(MASK, x, HIDDEN).softmax(1), 0) ** 2
    ),
    "what overflows between masks": lambda x: (
        torch.where(MASK.any(1), torch.where(MASK.any(1, keepdim=True), x, 400).sum(1).exp().square(), 0) ** 2
    ),
    "what is not defined between masks": lambda x: (
        torch.where(MASK, (torch.where(MASK, x, 0) + UNDEFINED).square().exp().tanh(), 0) ** 2
    ),
    "masked log_softmax": lambda x: torch.where(MASK, hidden(x).log_softmax(1), 0) ** 2,
    "masked logsumexp": lambda x: torch.where(MASK.any(1), hidden(x).logsumexp(1), 0) ** 2,
    "shares": lambda x: torch.where(
        MASK, torch.where(MASK, x.exp(), 0) / torch.where(MASK, x.exp(), 0).sum(1)[:, None], 0
    ),
    "masked mean": lambda x: torch.where(MASK.any(1), torch.where(MASK, x, 0).sum(1) / MASK.sum(1), 0) ** 2,
    "masked moment": lambda x: torch.where(MASK.any(1), (torch.where(MASK, x**2, 0).sum(1) / MASK.sum(1)).sqrt(), 0),
    "distances": lambda x: ((x[:, None] - x) ** 2).sum(2).masked_fill(torch.eye(2, dtype=torch.bool), 0).sqrt(),
    "inverse distances": lambda x: (
        (1 / (x[0, :, None] - x[0]).masked_fill(torch.eye(4, dtype=torch.bool), torch.inf)) ** 3
    ),
    "logarithm of a clamped number": lambda x: x.clamp(1e-30, 1).log(),
    "degrees": lambda x: safe_inverse(x.new_zeros(4).index_add(0, torch.tensor([0, 2]), x.exp().sum(1))),
    "entropy of shares": lambda x: torch.special.entr(x.relu() / (x.relu().sum(1, keepdim=True) + 1)),
    "what is undefined elsewhere": lambda x: (x.relu() @ x.new_tensor([[1.0], [-2.0], [1.0], [-1.0]])).sqrt(),
}


def safe_root(n: Tensor) -> Tensor:
    """Return a root as it is written by hand."""
    return torch.where(n > 0, torch.where(n > 0, n, 1).sqrt(), 0)


def safe_inverse(degree: Tensor) -> Tensor:
    """Return one over the root of numbers of neighbours, as it is written for graphs."""
    return degree.pow(-0.5).masked_fill(degree == 0, 0)


def hidden(x: Tensor) -> Tensor:
    """Return scores of which some, and all of a row, do not count."""
    return x.masked_fill(~MASK, -torch.inf)


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return torch.tensor([-3.0, 0.4, -0.2, 0.7], dtype=torch.float64, device=device)


@pytest.fixture
def rows(x: Tensor) -> Tensor:
    return torch.stack([x, -x.abs()])


def expected(f: Function, x: Tensor) -> list[Tensor]:
    """Differentiate by torch what depends on positive elements only, each by itself, at orders 1 to 3."""
    derivatives, derivative = [], lambda x: f(x).sum()
    for order in range(1, 4):
        derivative = torch.func.jacrev(derivative)
        result = derivative(x.abs())
        for dim in range(order):
            result = result * (x > 0).reshape(-1, *[1] * dim)
        derivatives.append(result)
    return derivatives


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("floored", FLOORED)
def test_what_is_constant_has_no_derivative(floored: str, strategy: str, x: Tensor) -> None:
    _, *got = hofunc.derivatives(lambda x: FLOORED[floored](x).sqrt().sum(), 3, strategy=strategy)(x)
    torch.testing.assert_close(got, expected(torch.sqrt, x))


@pytest.mark.parametrize("singular", SINGULAR)
@pytest.mark.parametrize("followed", FOLLOWED)
def test_what_follows_keeps_to_it(followed: str, singular: str, x: Tensor) -> None:
    def f(y: Tensor) -> Tensor:
        return SINGULAR[singular](FOLLOWED[followed](y))

    strategy = STRATEGIES[(len(followed) + len(singular)) % len(STRATEGIES)]
    _, *got = hofunc.derivatives(lambda x: f(x.relu()).sum(), 3, strategy=strategy)(x)
    torch.testing.assert_close(got, expected(f, x))


def assert_finite_where_torch_is(f: Function, x: Tensor, order: int, strategies: Sequence[str]) -> None:
    def total(x: Tensor) -> Tensor:
        y = f(x)
        return (y * torch.arange(1, y.numel() + 1, device=x.device).reshape(y.shape)).sum()

    truth = nested_reverse(total, order)(x)
    finite = truth.isfinite()
    assert finite.any()
    for strategy in strategies:
        got = hofunc.hod(total, order, strategy=strategy)(x)
        torch.testing.assert_close(got[finite], truth[finite], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_op_keeps_to_it(kind: str, order: int, rows: Tensor) -> None:
    assert_finite_where_torch_is(lambda x: KINDS[kind](x.relu()), rows, order, STRATEGIES)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("idiom", IDIOMS)
def test_idioms(idiom: str, order: int, rows: Tensor) -> None:
    by_directions = [] if idiom == "what is undefined elsewhere" else ["forward", "mixed"]
    assert_finite_where_torch_is(IDIOMS[idiom], rows, order, ["auto", "reverse", *by_directions])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_order_three(strategy: str, rows: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.where(MASK.any(1), hidden(x).softmax(1).square().sum(1), 0) + (x.relu() @ x.relu()[0]).sqrt()

    assert_finite_where_torch_is(f, rows, 3, [strategy])


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
@pytest.mark.parametrize("order", [1, 2])
def test_an_op_without_a_rule_keeps_to_it(order: int, rows: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RULES, torch.ops.aten.exp.default)
    assert_finite_where_torch_is(lambda x: (x.relu().exp() - 1).sqrt(), rows[1], order, STRATEGIES)


def test_numbers_that_cancel_vary(x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        second_differences = F.conv1d(x.relu()[None, None], x.new_tensor([[[1.0, -2.0, 1.0]]]))
        return second_differences.sqrt().sum()

    even = x.new_ones(4)  # of which the second differences are zero, and vary
    assert not hofunc.jacobian(f)(even).isfinite().any()
    of_two = hofunc.jacobian(lambda x: (x.relu() - x.relu().flip(0)).sqrt())(even)
    assert not of_two[(torch.eye(4) + torch.eye(4).flip(0)) > 0].isfinite().any()  # by what each depends on


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


@pytest.mark.parametrize("f", [F.leaky_relu, lambda x: F.leaky_relu(x, 0.2), lambda x: x.frac(), lambda x: x % 0.7])
def test_what_is_level_nowhere_is_no_mask(f: Function, x: Tensor) -> None:
    """So that products with vectors go by directions, whatever singularities follow."""

    def divided(x: Tensor) -> Tensor:
        y = f(x).exp()
        return (y / y.sum()).log().sum().square()

    product = hofunc.hvp(divided)
    assert "left out" not in product.plan(x, vector=x).explain()
    torch.testing.assert_close(product(x, vector=x), torch.func.jvp(torch.func.grad(divided), (x,), (x,))[1])
    level = hofunc.hvp(lambda x: F.leaky_relu(x, 0.0).sqrt().sum())
    assert level.plan(x, vector=x)(x, vector=x).isfinite().all()


def test_a_sum_with_what_varies_is_not_constant(x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        return (x.relu() + x**2).sqrt().sum()  # two paths, of which one is constant somewhere

    torch.testing.assert_close(hofunc.hessian(f)(x), torch.func.hessian(f)(x))


# What keeps away from a singularity what would come to it, as users write it.
KEPT_AWAY: dict[str, Function] = {
    "where": lambda y: torch.where(y > 0, y, 1.0).sqrt(),
    "where around it too": lambda y: torch.where(y > 0, torch.where(y > 0, y, 1.0).log(), 0.0),
    "masked_fill": lambda y: y.masked_fill(y <= 0, 2.0).sqrt(),
    "squares": lambda y: (y * y).masked_fill(y * y == 0, 1.0).sqrt(),
    "both conditions": lambda y: 1 / torch.where((y > 0) & (y < 9), y, 1.0),
    "x log x": lambda y: torch.where(y > 0, y * torch.where(y > 0, y, 1.0).log(), 0.0),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kept_away", KEPT_AWAY)
def test_what_is_kept_away_is_right_by_every_strategy(kept_away: str, strategy: str, x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        return KEPT_AWAY[kept_away](torch.stack([x[0] - x[0], x[1] * x[2], x[2].sin(), x[3] - 3 * x[1]])).sum()

    for order in (2, 3):
        found = hofunc.hod(f, order, strategy=strategy)(x)
        assert relative_error(found, nested_reverse(f, order)(x)) < 1e-12


@pytest.mark.parametrize(
    ("f", "is_settled"),
    [
        (lambda x: x.relu().sqrt(), True),
        (lambda x: x.relu() ** -1, True),
        (lambda x: x.relu() ** 2, False),
        (lambda x: x.relu().exp(), False),
        (lambda x: x.tanh().sqrt(), False),
        (lambda x: x.abs().sqrt(), False),
        (lambda x: x.cumsum(0).sqrt(), False),
        (lambda x: x[1:].log(), False),
        (lambda x: (x - x.amax()).exp().sum().log(), False),
        (lambda x: F.max_pool1d(x[None], 2).log(), False),
        (lambda x: F.pad(x, (0, 1)).sqrt(), True),
        (lambda x: torch.cat([x, x * x]).log(), False),
        (lambda x: (x + x.relu()).log(), False),
        (lambda x: torch.cat([x, x.relu()]).log(), True),
        (lambda x: F.layer_norm(x.relu(), (4,)), False),
        (lambda x: x.relu().cumsum(0).sqrt(), True),
    ],
)
def test_only_singularities_behind_constants_are_settled(f: Function, is_settled: bool, x: Tensor) -> None:
    recording = recorded(f, x)
    lowered = lower(recording.graph, recording.values, 2)
    local = local_blocks(lowered, 2)
    found = settling(lowered.graph, lowered.rules, local, masks_come_last=True)
    assert found.settled == ({max(local)} if is_settled else set())


@pytest.mark.parametrize(
    ("f", "are_finite"),
    [
        (lambda x: torch.where(x.abs() != torch.inf, x, 0.0).sin(), True),
        (lambda x: x.sin() * (x < torch.nan), True),
        (lambda x: x.masked_fill(x > 1, -torch.inf).exp(), False),
        (lambda x: x.nan_to_num(0.0, torch.inf, 0.0).sin(), False),
    ],
    ids=["unlike infinity", "below nan", "filled", "replaced"],
)
def test_what_is_only_compared_with_infinity_is_finite(f: Function, are_finite: bool, x: Tensor) -> None:
    recording = recorded(f, x)
    lowered = lower(recording.graph, recording.values, 2)
    assert Settlings(lowered.graph, lowered.rules, local_blocks(lowered, 2)).are_finite is are_finite


def rooted(x: Tensor) -> Tensor:
    return (x.relu() @ x.relu()).sqrt() * x.tanh().sum() + (x.relu() ** 1.5).sum()


def test_the_planner_takes_masks_last_where_something_may_be_undefined(x: Tensor) -> None:
    assert hofunc.hessian(rooted, layout="compact").plan(x).strategy == "reverse"
    assert admitted(rooted, x) == ("reverse",)
    assert admitted(lambda x: x.relu().add(1e-9).log().sum(), x) == BY_NAME
    assert admitted(lambda x: torch.where(x > 0, x, -torch.inf).softmax(0).square().sum(), x) == BY_NAME
    assert admitted(rooted, x, compact=False) == BY_NAME


def admitted(f: Function, x: Tensor, *, compact: bool = True) -> Sequence[str]:
    """Return the strategies that the planner chooses from at order two, by default where nobody looks at results."""
    recording = recorded(f, x)
    return planner.admitted(lower(recording.graph, recording.values, 2), (2,), compact=compact, limits=Limits())


@pytest.mark.parametrize("order", [2, 3])
def test_whoever_looks_at_results_takes_any_strategy_and_masks_last_where_something_is_undefined(order: int) -> None:
    hod, jitted = hofunc.hod(rooted, order), hofunc.jit(hofunc.hod(rooted, order))
    x = torch.linspace(-1, 1, 12, dtype=torch.float64)
    plan = hod.plan(x)
    assert plan.strategy != "reverse"
    for point in (x, -x.abs(), x.flip(0), x.clamp(max=0)):  # the root of zero has no derivative, behind a mask or not
        expected = hofunc.hod(rooted, order, strategy="reverse")(point)
        for call in (hod, plan, jitted):
            torch.testing.assert_close(call(point), expected, rtol=1e-10, atol=1e-10, equal_nan=True)
        leaf = point.clone().requires_grad_()
        (got,) = torch.autograd.grad(hod(leaf).sum(), leaf)
        (expected,) = torch.autograd.grad(hofunc.hod(rooted, order, strategy="reverse")(leaf).sum(), leaf)
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10, equal_nan=True)


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_pairs_of_two_dtypes_where_one_is_constant_in_places(order: int, strategy: str, device: torch.device) -> None:
    powers, scales = torch.arange(4, device=device), torch.tensor([1.0, 2.0, 0.5, 1.5], device=device)

    def f(x: Tensor) -> Tensor:
        base = torch.where(x > 1, x, torch.ones_like(x))
        return (base**powers).sum() + torch.atan2(base, scales).sum() + torch.hypot(base, scales).sum()

    x = torch.tensor([0.5, 1.3, 0.9, 1.7], dtype=torch.float64, device=device)
    got = hofunc.hod(f, order, strategy=strategy)(x)
    assert relative_error(got, nested_reverse(f, order)(x)) < 1e-10


# What is not used: a singularity, or what is not defined, in a branch that is not taken.
BRANCHES: dict[str, Function] = {
    "logarithm": lambda x: torch.where(x > 0, x.log(), 0) ** 3,
    "both": lambda x: torch.where(x > 0, x.sqrt(), (2 - x).sqrt()) ** 3,
    "two inputs": lambda x: torch.where(MASK[0, :2], x[:2].clamp(min=0.1).log(), x[2:].relu().sqrt()) ** 2,
    "swapped": lambda x: torch.where(x > 0, x.sqrt(), x.flip(0)) ** 2,
    "filled": lambda x: x.log().masked_fill(x <= 0, 1).exp(),
    "a quotient": lambda x: torch.where(x != 0, x.sin() / x, 1) ** 2,
    "moved": lambda x: torch.where(x.reshape(2, 2).t() > 0, (3 * x.reshape(2, 2).t()).sqrt().exp(), 0),
    "rectified": lambda x: x.abs().log().relu() ** 2,
    "twice": lambda x: torch.where(x > 0, torch.where(x > 0, x.log(), 0).exp() * x.sqrt(), 1 + x),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("branch", BRANCHES)
def test_what_is_not_used_does_not_matter(branch: str, strategy: str, x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        return BRANCHES[branch](x).sum()

    for point in (x, x.new_tensor([0.0, 0.0, 2.0, -1.0])):
        _, *got = hofunc.derivatives(f, 3, strategy=strategy)(point)
        for order, derivative in enumerate(got, 1):
            truth = nested_forward(f, order)(point)
            finite = truth.isfinite()
            assert finite.any()
            torch.testing.assert_close(derivative[finite], truth[finite])
