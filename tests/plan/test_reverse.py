"""The reverse strategy: which blocks there are, and what they cost, counted by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import hofunc
from hofunc.plan.blueprint import Blueprint
from hofunc.run.executor import compiled
from tests.cases import rand
from tests.checks import check_hod
from tests.graph.recordings import recorded
from tests.plan.plans import is_product, lowered_plan, names

VIEWS = {"transpose", "permute", "unsqueeze", "reshape", "diagonal", "select", "narrow", "expand"}


def work(plan: Blueprint) -> list[str]:
    """Return the names of the steps that are no views, sorted; those of derivatives as f."""
    return sorted("f" if "lambda" in name else name for name in names(plan.program) if name not in VIEWS)


@pytest.fixture
def weight(device: torch.device) -> Tensor:
    return rand(device, 3, 5, seed=1)


# Counted by hand.


def test_the_hessian_of_a_sum_of_squares_is_two_and_takes_no_step(device: torch.device) -> None:
    plan = lowered_plan(lambda x: (x * x).sum(), rand(device, 2, 3), compact=True)
    ((block, (term,)),) = plan.terms.items()
    assert block == (2, (0, 0))
    assert term.coefficient == 2
    assert not term.factors
    assert term.slots[0] == term.slots[1]
    assert work(plan) == []


def test_the_jacobian_of_a_linear_layer_is_its_weight(weight: Tensor, device: torch.device) -> None:
    plan = lowered_plan(lambda x: x @ weight + 1, rand(device, 4, 3), orders=(1,), compact=True)
    (((term,)),) = plan.terms.values()
    assert names(plan.program) == []
    assert [given.origin for given in plan.program.given.values()] == [1], "the weight"
    assert term.out[0] == term.slots[0][0], "rows are independent"


def test_the_hessian_of_a_linear_layer_is_not_there(weight: Tensor, device: torch.device) -> None:
    plan = lowered_plan(lambda x: x @ weight + 1, rand(device, 4, 3), orders=(2,), compact=True)
    assert plan.terms == {}
    assert names(plan.program) == []
    assert lowered_plan(lambda x: x @ weight, rand(device, 4, 3), orders=(2,)).dense == {}


def test_the_cross_derivative_of_a_product_is_labels_only(weight: Tensor, device: torch.device) -> None:
    plan = lowered_plan(torch.mm, rand(device, 4, 3), weight, compact=True)
    assert [key for _, key in plan.terms] == [(0, 1)]
    assert work(plan) == []


def test_a_composition_of_two_functions(device: torch.device) -> None:
    """f'' g' g' + f' g'': three products and a difference; all but the cosine are values of f and g."""
    plan = lowered_plan(lambda x: x.sin().exp().sum(), rand(device, 3), compact=True)
    assert work(plan) == ["add_scaled", "cos", "mul", "mul", "mul"]


def test_what_two_orders_have_in_common_is_computed_once(device: torch.device) -> None:
    """f' g' and (f' g') g' + f' g'': the second order takes no more than it takes alone."""
    plan = lowered_plan(lambda x: x.sin().exp().sum(), rand(device, 3), orders=(1, 2), compact=True)
    assert work(plan) == ["add_scaled", "cos", "mul", "mul", "mul"]


def test_a_quadratic_form_is_one_matrix_product(weight: Tensor, device: torch.device) -> None:
    """The Hessian of |x W|^2 is 2 W W^T for every row, whatever the rows are."""

    def f(x: Tensor) -> Tensor:
        y = x @ weight
        return (y * y).sum()

    plan = lowered_plan(f, rand(device, 4, 3), compact=True)
    assert [name for name in work(plan) if name != "add"] == ["mm"]
    assert hofunc.hessian(f, layout="compact")(rand(device, 4, 3)).nbytes == 3 * 3 * 8


def test_a_hidden_layer_is_one_matrix_product_for_each_of_its_weights(weight: Tensor, device: torch.device) -> None:
    """The Jacobian of tanh(x W) V by x, for every row: W diag(tanh') V."""
    other = rand(device, 5, 2, seed=2)
    plan = lowered_plan(lambda x: (x @ weight).tanh() @ other, rand(device, 4, 3), orders=(1,), compact=True)
    assert [name for name in work(plan) if is_product(name) or name == "mul"] == ["folded", "mul"]


# What does not depend on sizes, and what is linear in them.


def _network(weight: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: (((x @ weight).tanh() @ weight.t()).sin() @ weight).tanh().sum()


@pytest.mark.parametrize("orders", [(1,), (2,), (3,)])
def test_the_steps_do_not_depend_on_the_size_of_a_large_batch(
    weight: Tensor, orders: tuple[int, ...], device: torch.device
) -> None:
    plans = [lowered_plan(_network(weight), rand(device, n, 3), orders=orders, compact=True) for n in (128, 129, 512)]
    steps = [sorted(map(str, names(plan.program))) for plan in plans]  # of which the order is that which holds least
    assert sorted(steps[0]) == sorted(steps[1]) == sorted(steps[2])
    assert steps[0]


@pytest.mark.parametrize("f", [_network(torch.ones(3, 5, dtype=torch.float64)), lambda x: x.cumsum(1).exp().sum()])
def test_nothing_is_an_einsum(f: Callable[..., Any]) -> None:
    plan = lowered_plan(f, torch.ones(2, 3, dtype=torch.float64), orders=(2, 3))
    assert not any("einsum" in name for name in names(plan.program))


@pytest.mark.parametrize(
    ("f", "pattern", "floats"),
    [
        (lambda x: x.sin().sum(), "(), b c, b c", 3),
        (lambda x: x.sin().sum(1), "b, b c, b c", 3),
        (lambda x: x.sin().exp(), "b c, b c, b c", 3),
        (lambda x: x.sin().prod(1), "b, b i, b j", 9),
        (lambda x: (x @ x.new_ones(3, 3)).tanh().sum(1), "b, b i, b j", 9),
        (lambda x: (x @ x.new_ones(3, 2)).tanh(), "b i, b j, b k", 18),
        (lambda x: (x @ x.new_ones(3, 2)).tanh().sum(), "(), b i, b j", 9),
    ],
)
@pytest.mark.parametrize("batch", [4, 8])
def test_the_batch_is_kept_and_memory_is_linear_in_it(
    f: Callable[..., Any], pattern: str, floats: int, batch: int, device: torch.device
) -> None:
    derivative = hofunc.hessian(f, layout="compact")(rand(device, batch, 3))
    assert derivative.pattern == pattern
    assert derivative.nbytes == batch * floats * 8


class Largest(TorchDispatchMode):
    """Notes the size of the largest storage that an op allocates."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.nbytes = max(self.nbytes, out.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize("orders", [(2,), (3,)])
def test_no_intermediate_is_more_than_linear_in_the_batch(
    weight: Tensor, orders: tuple[int, ...], device: torch.device
) -> None:
    largest = []
    for batch in (8, 16, 32):
        recording = recorded(_network(weight), rand(device, batch, 3))
        plan = lowered_plan(_network(weight), rand(device, batch, 3), orders=orders, compact=True)
        with Largest() as mode:
            compiled(plan.program)(recording.values)
        largest.append(mode.nbytes)
    assert largest[1] == 2 * largest[0]
    assert largest[2] == 4 * largest[0]


# Blocks.


def test_one_block_for_each_multiset_of_inputs(device: torch.device) -> None:
    plan = lowered_plan(lambda x, y: (x * y).exp().sum(), rand(device, 3), rand(device, 3), orders=(1, 3), compact=True)
    assert {key for _, key in plan.terms} == {(0,), (1,), (0, 0, 0), (0, 0, 1), (0, 1, 1), (1, 1, 1)}


def test_blocks_that_vanish_are_not_there(device: torch.device) -> None:
    plan = lowered_plan(lambda x, y: x.exp().sum() + (x * y).sum(), rand(device, 3), rand(device, 3), orders=(2, 3))
    assert {key for _, key in plan.dense} == {(0, 0), (0, 1), (0, 0, 0)}


def test_several_outputs_have_blocks_of_their_own(device: torch.device) -> None:
    plan = lowered_plan(lambda x: (x.exp(), x.exp() * x, x), rand(device, 3), orders=(1,))
    outputs = plan.lowered.graph.outputs
    assert {output for output, _ in plan.dense} == {*outputs}
    assert len({*outputs}) == 3


# The traps of design.md, section 6, and what the tests of the engine found.


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * x,
        lambda x: (x.tanh() * x).sum(),
        lambda x: (x @ x.t()).exp().sum(),
        lambda x: (x[:, :1] * x + x.sum(0, keepdim=True)).exp(),
        lambda x: x.sum().expand(3).sum() * x.sum(),
        lambda x: (x.new_ones(4, 2, 3) + x).exp().sum() + (x.new_ones(5, 2, 3) + x).sum(),
        lambda x: x.exp().expand(4, 2, 3).sum((0, 1)),
    ],
)
def test_traps(f: Callable[..., Any], order: int, device: torch.device) -> None:
    check_hod(f, (rand(device, 2, 3),), order)


def test_the_gradient_by_a_bias_counts_the_rows(device: torch.device) -> None:
    x, w = rand(device, 5, 3), rand(device, 3, 2)
    got = hofunc.jacobian(lambda b: (x @ w + b).sum())(rand(device, 2))
    assert got.tolist() == [5, 5]


@pytest.mark.parametrize("strategy", ["auto", "forward", "reverse", "mixed"])
def test_of_slots_that_are_alike_there_are_no_more_terms_at_higher_orders(strategy: str) -> None:
    """exp(exp(x)) has at zero Bell numbers times e, coefficients of which do not fit into 64 bits."""
    x = torch.zeros((), dtype=torch.float64)
    for order, bell in ((12, 4213597), (30, 846749014511809332450147)):
        found = hofunc.hod(lambda x: x.exp().exp(), order, strategy=strategy)(x)
        torch.testing.assert_close(found, float(bell) * x.exp().exp())


@pytest.mark.parametrize("f", [torch.atan, torch.lgamma, torch.digamma, torch.i0, torch.asin, torch.special.i1])
def test_rules_have_numbers_of_any_size(f: Callable[[Tensor], Tensor]) -> None:
    x = torch.tensor(0.3, dtype=torch.float64)
    for order in (20, 24, 30):
        found, below = hofunc.hod(f, order)(x), hofunc.hod(f, order - 1)
        slope = (below(x + 1e-6) - below(x - 1e-6)) / 2e-6
        torch.testing.assert_close(found, slope, rtol=1e-6, atol=0)
