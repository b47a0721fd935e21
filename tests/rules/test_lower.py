"""Lowering: which rule an op gets, and what becomes of composites."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor
from torch._decomp import decomposition_table

import hofunc
from hofunc.graph.node import CONSTANT, Node
from hofunc.graph.record import record
from hofunc.graph.recording import Recording
from hofunc.rules.choice import rule_of
from hofunc.rules.kinds import Composite, Constant, Linear, Opaque
from hofunc.rules.lower import Lowered, lower
from hofunc.rules.registry import RULES
from tests.cases import rand
from tests.rules.opcase import ORACLE_WARNINGS, between
from verification.oracles import nested_reverse, relative_error

aten = torch.ops.aten
pytestmark = ORACLE_WARNINGS


@pytest.fixture(autouse=True)
def _no_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hofunc.rules.opaque._WARNED", set())
    monkeypatch.setattr("hofunc.run.cache._plans", OrderedDict())


def lowered(f: Callable[..., Any], *inputs: Tensor) -> tuple[Recording, Lowered]:
    recording = record(lambda leaves, _: f(*leaves), inputs)
    return recording, lower(recording.graph, recording.values, 1)


def ops(nodes: Sequence[Node]) -> list[Any]:
    return [node.op for node in nodes if not node.is_given]


# What is kept, and what becomes of it.


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the functions that are recorded as expansions, in order."""
    found: list[Any] = []
    whole = hofunc.rules.lower.expansion

    def counting(function: Callable[..., Any], *given: Any) -> Any:
        found.append(function)
        return whole(function, *given)

    monkeypatch.setattr("hofunc.rules.lower.expansion", counting)
    return found


def test_a_composite_is_recorded_once_for_calls_of_the_same_looks(recorded: list[Any], device: torch.device) -> None:
    bias, weight = rand(device, 3), rand(device, 3, 3)

    def steps(x: Tensor) -> Tensor:
        for _ in range(4):
            x = torch.addmm(bias, x.tanh(), weight)
        return x

    _, result = lowered(steps, rand(device, 2, 3))
    assert len(recorded) == 1
    assert ops(result.graph.nodes).count(aten.mm.default) == 4


def test_factorisations_and_solutions_are_recorded_once_for_calls_of_the_same_looks(
    recorded: list[Any], device: torch.device
) -> None:
    """An identity that they are made with is no operand, and the same for all of them."""

    def steps(x: Tensor, count: int) -> Tensor:
        for _ in range(count):
            factor = torch.linalg.cholesky(x @ x.mT + torch.eye(2, dtype=x.dtype, device=device))
            x = torch.cholesky_solve(x, factor) + torch.linalg.solve_triangular(factor, x, upper=False)
        return x

    counts = []
    for count in (2, 6):
        recorded.clear()
        lowered(lambda x, count=count: steps(x, count), rand(device, 2, 2))
        counts.append(len(recorded))
    assert counts[0] == counts[1]
    x = rand(device, 2, 2)
    torch.testing.assert_close(
        hofunc.hessian(lambda x: steps(x, 2))(x), nested_reverse(lambda x: steps(x, 2), 2)(x), rtol=1e-9, atol=1e-9
    )


def test_a_composite_that_goes_by_values_is_recorded_for_each_of_them(device: torch.device) -> None:
    masks = [torch.tensor(mask, device=device) for mask in ([True, False], [False, True])]
    x = rand(device, 2, 3)

    def f(x: Tensor) -> Tensor:
        return x[masks[0]] * x[masks[1]].exp()

    _, result = lowered(f, x)
    assert len(result.decided) == 2
    torch.testing.assert_close(hofunc.hessian(f)(x), nested_reverse(f, 2)(x))


def test_what_no_output_needs_is_dropped(device: torch.device) -> None:
    recording, result = lowered(lambda x: (x.exp(), x.sin())[1], rand(device, 3))
    assert ops(recording.graph.nodes) == [aten.exp.default, aten.sin.default]
    assert ops(result.graph.nodes) == [aten.sin.default]


def test_a_composite_gives_way_to_ops_with_rules(device: torch.device) -> None:
    recording, result = lowered(lambda x: x.sin().var(0), rand(device, 3, 2))
    assert aten.var.correction in ops(recording.graph.nodes)
    assert aten.var.correction not in ops(result.graph.nodes)
    active = [node for node in result.graph.nodes if node.active and not node.is_given]
    assert {node.number for node in active} == result.rules.keys()
    assert not any(isinstance(rule, Composite | Constant) for rule in result.rules.values())


def test_the_value_of_a_composite_is_the_recorded_one(device: torch.device) -> None:
    recording, result = lowered(lambda x: x.sin().var(0), rand(device, 3, 2))
    (output,) = result.graph.outputs
    assert result.origins[output] == recording.graph.outputs[0]
    inner = [result.origins[node.number] for node in result.graph.nodes if node.op is aten.mul.Tensor]
    assert inner
    assert set(inner) == {None}


def test_the_outputs_of_one_op_are_expanded_together(device: torch.device) -> None:
    x = rand(device, 3, 2)
    _, both = lowered(lambda x: torch.var_mean(x, 0), x)
    _, one = lowered(lambda x: torch.var_mean(x, 0)[0], x)
    assert ops(both.graph.nodes).count(aten.sum.dim_IntList) == ops(one.graph.nodes).count(aten.sum.dim_IntList)
    assert len(set(both.graph.outputs)) == 2


def test_a_composite_of_constants_stays_as_it_is(device: torch.device) -> None:
    _, result = lowered(lambda x: x * x.detach().var(), rand(device, 3))
    assert aten.var.correction in ops(result.graph.nodes)
    (variance,) = [node for node in result.graph.nodes if node.op is aten.var.correction]
    assert not variance.active


def test_integers_need_no_rule(device: torch.device) -> None:
    _, result = lowered(lambda x: x.index_select(0, x.argsort()), rand(device, 3))
    (argsort,) = [node for node in result.graph.nodes if node.dtype == torch.int64]
    assert not argsort.active
    assert argsort.number not in result.rules


def test_tensors_that_a_composite_makes_become_literal(device: torch.device) -> None:
    index = torch.tensor([2, 0], device=device)
    _, result = lowered(lambda x: x[index], rand(device, 3))
    literal = [result.origins[node.number] for node in result.graph.nodes if node.op is CONSTANT]
    assert literal
    assert all(isinstance(origin, Tensor | int) for origin in literal)


def test_only_shapes_that_depend_on_values_make_a_plan_good_for_one_call(device: torch.device) -> None:
    mask = torch.tensor([True, False, True], device=device)
    assert lowered(lambda x: x[x > 0], rand(device, 3))[1].decided
    assert not lowered(lambda x: x[torch.where(mask, 1, 0)], rand(device, 3))[1].decided
    assert not lowered(torch.var, rand(device, 3))[1].decided


def test_the_plan_of_a_weighted_loss_is_kept(device: torch.device) -> None:
    target, weight = torch.tensor([2, 0], device=device), rand(device, 3).exp()
    assert not lowered(lambda x: F.cross_entropy(x, target, weight=weight), rand(device, 2, 3))[1].decided


# The choice of a rule.


def rule_in(f: Callable[..., Any], op: Any, *inputs: Tensor) -> Any:
    """Return the rule that an op gets where f calls it."""
    recording = record(lambda leaves, _: f(*leaves), inputs)
    (node,) = [node for node in recording.graph.nodes if node.op is op][:1]
    return rule_of(node, recording.values)


DECOMPOSED = [
    (aten.pixel_shuffle.default, lambda x: F.pixel_shuffle(x, 2), (1, 4, 1, 1)),
    (aten.reflection_pad1d.default, lambda x: F.pad(x, (1, 1), mode="reflect"), (1, 3)),
    (aten.glu.default, lambda x: F.glu(x, 0), (4,)),
    (aten.renorm.default, lambda x: torch.renorm(x, 2, 0, 0.5), (2, 2)),
]


@pytest.mark.parametrize(("op", "f", "shape"), DECOMPOSED, ids=[str(op) for op, _, _ in DECOMPOSED])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_torchs_own_decomposition_is_used_without_a_warning(
    op: Any,
    f: Callable[..., Any],
    shape: tuple[int, ...],
    order: int,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(RULES, op, raising=False)
    x = rand(device, *shape)
    assert isinstance(rule_in(f, op, x), Composite)
    assert relative_error(hofunc.hod(between(f), order)(x), nested_reverse(between(f), order)(x)) < 1e-10


def test_a_decomposition_is_used_where_the_value_is_rounding_errors(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(RULES, aten.linalg_cross.default, raising=False)
    x = torch.tensor([0.1, 0.7, -0.3], dtype=torch.float64, device=device)
    assert isinstance(rule_in(lambda x: torch.linalg.cross(x, x.mul(0.3)), aten.linalg_cross.default, x), Composite)


def test_a_rule_comes_before_a_decomposition(device: torch.device) -> None:
    assert aten.flip.default in RULES
    assert isinstance(rule_in(lambda x: x.flip(0), aten.flip.default, rand(device, 3)), Linear)


def _wrong(x: Tensor, _: int) -> Tensor:
    return x * 2


def _of_another_shape(x: Tensor, _: int) -> Tensor:
    return x.cumsum(0)[:1]


def _declining(*_: Any) -> Any:
    return NotImplemented


def _of_inner_ops(x: Tensor, dim: int) -> Tensor:
    return torch.ops.prims.mul.default(x.exp().log().cumsum(dim).exp(), 1.0)


@pytest.mark.parametrize("decomposition", [_wrong, _of_another_shape, _declining, _of_inner_ops])
def test_a_decomposition_that_will_not_do_is_passed_over(
    decomposition: Callable[..., Any], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(RULES, aten.cumprod.default, raising=False)
    monkeypatch.setitem(decomposition_table, aten.cumprod.default, decomposition)
    x = rand(device, 3).exp()
    with pytest.warns(hofunc.FallbackWarning, match="cumprod"):
        assert isinstance(rule_in(lambda x: x.cumprod(0), aten.cumprod.default, x), Opaque)


def test_a_decomposition_that_declines_one_output_is_passed_over(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(RULES, aten.adaptive_max_pool2d.default)
    x = rand(device, 1, 3, 3)

    def f(x: Tensor) -> Tensor:
        return (F.adaptive_max_pool2d(x, 2) ** 3).sum()

    with pytest.warns(hofunc.FallbackWarning, match="adaptive_max_pool2d"):
        got = hofunc.hessian(f)(x)
    assert relative_error(got, nested_reverse(f, 2)(x)) < 1e-10
