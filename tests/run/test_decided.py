"""Shapes that values decide: a plan is found for any mask that holds as often, and for no other."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.plan.planner import quickly
from hofunc.run import cache
from tests.cases import mixed, rand
from verification.oracles import nested_reverse, relative_error

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def plans() -> Iterator[OrderedDict]:
    """Start every test with an empty cache."""
    cache.forget()
    yield cache._plans
    cache.forget()


def masks(device: torch.device, *rows: str) -> list[Tensor]:
    return [torch.tensor([char == "x" for char in row], device=device) for row in rows]


def written(x: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    y = x * x
    y[mask] = values
    return (y**3).sum()


def chosen(x: Tensor, mask: Tensor) -> Tensor:
    """Keep what a mask selects, in order, by another way than hofunc's: a matrix of zeros and ones."""
    places = torch.tensor([place for place, holds in enumerate(mask.tolist()) if holds], dtype=torch.long)
    return torch.eye(len(mask), dtype=x.dtype, device=x.device)[places.to(x.device)] @ x


WEIGHT = torch.arange(1.0, 7.0, dtype=torch.float64)

# f(x, mask), and the same without an index by a mask.
INDEXED: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "index": (lambda x, m: mixed(x[m]), lambda x, m: mixed(chosen(x, m))),
    "masked_select": (lambda x, m: mixed(x.masked_select(m)), lambda x, m: mixed(chosen(x, m))),
    "where of one argument": (lambda x, m: mixed(x[torch.where(m)]), lambda x, m: mixed(chosen(x, m))),
    "index of a product": (lambda x, m: (x.outer(x)[m] ** 2).sum(), lambda x, m: (chosen(x.outer(x), m) ** 2).sum()),
    "in order": (
        lambda x, m: (x[m].exp() * WEIGHT.to(x)[: int(m.sum())]).sum(),
        lambda x, m: (chosen(x, m).exp() * WEIGHT.to(x)[: int(m.sum())]).sum(),
    ),
    "index_put of a number": (
        lambda x, m: written(x, m, x.sum()),
        lambda x, m: (torch.where(m, x.sum(), x * x) ** 3).sum(),
    ),
    "index_put of one element": (
        lambda x, m: written(x, m, x.sum()[None]),
        lambda x, m: (torch.where(m, x.sum(), x * x) ** 3).sum(),
    ),
    "index_put of two indices": (
        lambda x, m: (x.outer(x).index_put((m, m), x.sum()[None]) ** 3).sum(),
        lambda x, m: (torch.where(m.diag(), x.sum(), x.outer(x)) ** 3).sum(),
    ),
    "added": (
        lambda x, m: (torch.index_put(x * x, (m,), x.sum(), accumulate=True) ** 3).sum(),
        lambda x, m: ((x * x + m * x.sum()) ** 3).sum(),
    ),
    "masked_scatter": (
        lambda x, m: ((x * x).masked_scatter(m, x.exp()) ** 3).sum(),
        lambda x, m: ((torch.where(m, 0, x * x) + chosen(torch.eye(len(m), dtype=x.dtype).to(x), m).mT
                       @ x.exp()[: int(m.sum())]) ** 3).sum(),
    ),
}  # fmt: skip
SERIES = ("xx..x.", "x.x.x.", "...xxx", "......", "x.....", "xxxxxx", ".x....", "......", "xx..x.")


@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.parametrize("strategy", ["mixed", "reverse"])
def test_masks_of_one_count_share_a_plan_and_no_others(name: str, strategy: str, device: torch.device) -> None:
    f, same = INDEXED[name]
    for seed, mask in enumerate(masks(device, *SERIES)):
        x = rand(device, 6, seed=seed)
        got = hofunc.hod(f, 2, strategy=strategy)(x, mask)
        assert relative_error(got, torch.func.hessian(same)(x, mask)) < 1e-12


@pytest.mark.parametrize("name", INDEXED)
def test_a_plan_is_made_once_for_a_count(name: str, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(*args: Any, **options: Any) -> Any:
        made.append(args)
        return quickly(*args, **options)

    monkeypatch.setattr(cache, "quickly", counted)
    for seed, mask in enumerate(masks(device, "xx..x.", "...xxx", "x.x.x.", ".xxx..")):
        hofunc.hessian(INDEXED[name][0])(rand(device, 6, seed=seed), mask)
    assert len(made) == 1


@pytest.mark.parametrize("name", [name for name in INDEXED if name != "masked_select"])  # of which no rows are mapped
def test_masks_under_transforms(name: str, device: torch.device) -> None:
    f, same = INDEXED[name]
    for mask in masks(device, "xx..x.", "...xxx", "......", "x.x..."):
        x = rand(device, 6)
        got = torch.func.grad(lambda x: hofunc.hessian(f)(x, mask).sum())(x)  # noqa: B023
        assert relative_error(got, torch.func.grad(lambda x: torch.func.hessian(same)(x, mask).sum())(x)) < 1e-12  # noqa: B023
        got = torch.func.vmap(lambda x: hofunc.hessian(f)(x, mask))(torch.stack([x, 2 * x]))  # noqa: B023
        assert relative_error(got[1], torch.func.hessian(same)(2 * x, mask)) < 1e-12


def test_masks_that_the_function_makes(device: torch.device) -> None:
    for seed in range(6):
        x = rand(device, 6, seed=seed)
        expected = torch.func.hessian(lambda x: mixed(torch.where(x > 0, x, 0)))(x)
        assert relative_error(hofunc.hessian(lambda x: mixed(x[x > 0]))(x), expected) < 1e-12


def test_counts_that_follow_from_one_another(device: torch.device) -> None:
    """Two masks of which the second is as long as the first selects, inside one expansion."""

    @torch.library.custom_op("tests::twice_masked", mutates_args=())
    def twice_masked(x: Tensor, m: Tensor, n: Tensor) -> Tensor:
        return _twice(x, m, n)

    def _twice(x: Tensor, m: Tensor, n: Tensor) -> Tensor:
        first = x[m]
        return first[n[: len(first)]].square().sum()

    hofunc.rules.define_composite(twice_masked, _twice)
    ones, others = (masks(device, *rows) for rows in (("xx..x.", "xxxx..", "x....."), ("x.x...", ".xx...", "......")))
    for mask in ones:
        for other in others:
            x = rand(device, 6)
            expected = torch.zeros(6, 6, dtype=x.dtype, device=device)
            for place in chosen(torch.arange(6.0, device=device, dtype=x.dtype), mask)[other[: int(mask.sum())]].long():
                expected[place, place] = 2
            assert torch.equal(hofunc.hessian(lambda x: twice_masked(x, mask, other))(x), expected)  # noqa: B023


# What rules read.


def _scaled(x: Tensor, n: Tensor) -> Tensor:
    return x * x * n.max().item()


def _powers(x: Tensor, n: Tensor) -> Tensor:
    return torch.stack([x**power for power in n.tolist()]).sum(0)


def _kept(x: Tensor, n: Tensor) -> Tensor:
    return x**3 if bool((n > 1).any()) else x**2


def _repeated(x: Tensor, n: Tensor) -> Tensor:
    return x.repeat_interleave(n.long()).exp().cumsum(0).sum() * x


READING = {"item": _scaled, "tolist": _powers, "bool": _kept, "repeats": _repeated}


def op_that_reads(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return an op that has a composite that reads values."""
    op = torch.library.custom_op(
        f"tests::reads_{name}", READING[name], mutates_args=(), schema="(Tensor x, Tensor n) -> Tensor"
    )
    hofunc.rules.define_composite(op, READING[name])
    return op


OPS = {name: op_that_reads(name) for name in READING}
READ = ([1.0, 2.0, 1.0], [1.0, 1.0, 2.0], [3.0, 1.0, 1.0], [1.0, 1.0, 1.0], [2.0, 1.0, 1.0], [1.0, 2.0, 1.0])


@pytest.mark.parametrize("name", READING)
def test_a_rule_may_read_values(name: str, device: torch.device) -> None:
    x = rand(device, 3)
    for numbers in READ:
        n = torch.tensor(numbers, dtype=x.dtype, device=device)
        got = hofunc.hessian(lambda x: OPS[name](x, n).sum())(x)  # noqa: B023
        expected = nested_reverse(lambda x: READING[name](x, n).sum(), 2)(x)  # noqa: B023
        assert relative_error(got, expected) < 1e-12


@pytest.mark.parametrize("name", READING)
def test_plans_refuse_other_values_that_a_rule_reads(name: str, device: torch.device) -> None:
    x, n = rand(device, 3), torch.tensor(READ[0], device=device, dtype=torch.float64)
    transform = hofunc.hessian(lambda x, n: OPS[name](x, n).sum())
    plan = transform.plan(x, n)
    assert torch.equal(plan(x, n), transform(x, n))
    for numbers in READ[1:]:
        other = torch.tensor(numbers, device=device, dtype=torch.float64)
        try:
            got = plan(x, other)
        except hofunc.ArgumentError as error:
            assert "as planned" in str(error)  # noqa: PT017
        else:
            assert relative_error(got, nested_reverse(lambda x: READING[name](x, other).sum(), 2)(x)) < 1e-12  # noqa: B023


@pytest.mark.parametrize("name", INDEXED)
def test_plans_refuse_another_count(name: str, device: torch.device) -> None:
    f, same = INDEXED[name]
    x = rand(device, 6)
    for first in masks(device, "......", "xx..x."):
        plan = hofunc.hessian(f).plan(x, first)
        for mask in masks(device, *SERIES):
            try:
                got = plan(x, mask)
            except hofunc.ArgumentError as error:
                assert "as planned" in str(error)  # noqa: PT017
                assert mask.sum() != first.sum()
            else:
                assert relative_error(got, torch.func.hessian(same)(x, mask)) < 1e-12
