"""Calls of other shapes than the usual: vmap over other axes, batch axes in another order, and integers first."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import hofunc
from hofunc import Derivative
from tests.cases import rand
from tests.checks import check_hod
from verification.oracles import nested_reverse, relative_error

vmap = torch.func.vmap


def _weight(x: Tensor) -> Tensor:
    return torch.arange(1.0, 2 * x.shape[-1] + 1).to(x).reshape(x.shape[-1], 2).sin()


def _written(x: Tensor) -> Tensor:
    y = x.sin()
    y[0].mul_(x[1])
    return y


SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: (x @ _weight(x)).tanh(),
    "rows, transposed": lambda x: (x @ _weight(x)).tanh().T,
    "a number a row": lambda x: (x @ _weight(x)).sin().prod(-1),
    "columns": lambda x: x.softmax(0).T,
    "a number": lambda x: x.exp().log_softmax(-1).prod(),
    "flattened": lambda x: (x.T**2).reshape(-1),
    "an outer product": lambda x: (x[:, None] * x[None]).permute(2, 1, 0),
    "a write": _written,
    "indices": lambda x: x[torch.tensor([0, 2, 2], device=x.device)] ** 2,
}
Way = Callable[[Callable[[Tensor], Tensor], Tensor, int, int], Tensor]


def _plan(f: Callable[[Tensor], Tensor], x: Tensor, axis: int, out: int) -> Any:
    return vmap(hofunc.hessian(f).plan(x.select(axis, 0)), in_dims=axis, out_dims=out)(x)


def _compact(f: Callable[[Tensor], Tensor], x: Tensor, axis: int, out: int) -> Any:
    return vmap(hofunc.hod(f, 2, layout="compact"), in_dims=axis)(x).dense().movedim(0, out)


WAYS: dict[str, Way] = {
    "hod": lambda f, x, axis, out: vmap(hofunc.hod(f), in_dims=axis, out_dims=out)(x),
    "hessian": lambda f, x, axis, out: vmap(hofunc.hessian(f, strategy="forward"), in_dims=axis, out_dims=out)(x),
    "jacobian": lambda f, x, axis, out: vmap(hofunc.jacobian(hofunc.jacobian(f)), in_dims=axis, out_dims=out)(x),
    "derivatives": lambda f, x, axis, out: vmap(hofunc.derivatives(f), in_dims=axis, out_dims=out)(x)[2],
    "dense inside": lambda f, x, axis, out: vmap(
        lambda row: hofunc.hod(f, layout="compact")(row).dense(), in_dims=axis, out_dims=out
    )(x),
    "compact": _compact,
    "a plan": _plan,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SHAPES)
def test_vmap_over_any_axis_of_what_is_not_square(name: str, way: str, device: torch.device) -> None:
    f, x = SHAPES[name], rand(device, 3, 2, 4)
    # from vmap, torch returns what does not depend on the row, here a sum of deltas, for out_dims=0 only
    front_only = name in ("an outer product", "flattened") and way == "dense inside"
    for axis, out in ((1, 0), (-1, 0)) if front_only else ((1, 0), (1, 1 if name != "a number" else -1), (-1, -1)):
        expected = torch.stack([nested_reverse(f, 2)(row) for row in x.unbind(axis)], out)
        assert relative_error(WAYS[way](f, x, axis, out), expected) < 1e-10


@pytest.mark.parametrize("name", SHAPES)
def test_f_may_map_over_any_axis(name: str, device: torch.device) -> None:
    for axes in ((1, 0), (1, -1)):
        check_hod(vmap(SHAPES[name], in_dims=axes[0], out_dims=axes[1]), [rand(device, 3, 2, 4)], 2)


# The order of batch axes.

ORDERS: dict[str, Callable[[Tensor], Tensor]] = {
    "as in the input": lambda y: y,
    "the other way round": lambda y: y.mT,
    "apart": lambda y: y[..., None].transpose(0, 2),
    "summed": lambda y: y.sum(0),
}


@pytest.mark.parametrize("layout", ["first", "last"])
@pytest.mark.parametrize("name", ORDERS)
def test_keep_batch_has_the_axes_in_the_order_of_the_first_input(name: str, layout: str, device: torch.device) -> None:
    """Whatever the order of the output's: the derivative of each row, stacked along the axes of the input."""

    def row(x: Tensor) -> Tensor:
        return (x @ _weight(x)).sin().prod(-1)

    def f(x: Tensor) -> Tensor:
        return ORDERS[name](row(x if layout == "first" else x.movedim(0, -1)))

    x = rand(device, 3, 5, 2)
    got = hofunc.hod(f, 2, layout="compact")(x if layout == "first" else x.movedim(-1, 0))
    assert isinstance(got, Derivative)
    expected = vmap(vmap(nested_reverse(row, 2)))(x)
    assert relative_error(got.dense(keep_batch=True).squeeze(), expected) < 1e-12


# Integers before the tensor by which is differentiated.


def _integers(x: Tensor, *numbers: int) -> Tensor:
    return torch.tensor(numbers, device=x.device)


INTEGERS: dict[str, Callable[[Tensor], Tensor]] = {
    "embedding": lambda x: functional.embedding(_integers(x, 0, 2, 2), x) ** 2,
    "one_hot": lambda x: (functional.one_hot(_integers(x, 0, 2), 3).to(x) @ x).sin(),
    "one_hot times": lambda x: functional.one_hot(_integers(x, 0, 1), 2) * x[:2] ** 2,
    "add": lambda x: _integers(x, 1, 2) + x**2,
    "sub": lambda x: _integers(x, 1, 2) - x**2,
    "mul": lambda x: _integers(x, 3, 2) * x**2,
    "div": lambda x: _integers(x, 1, 2) / x,
    "pow": lambda x: _integers(x, 2, 3) ** x,
    "pow by": lambda x: x.abs() ** _integers(x, 2, 3),
    "atan2": lambda x: torch.atan2(_integers(x, 2, 3), x),
    "ldexp": lambda x: torch.ldexp(_integers(x, 2, 3), x),
    "xlogy": lambda x: torch.xlogy(_integers(x, 2, 3), x * x),
    "xlogy of": lambda x: torch.xlogy(x, _integers(x, 2, 3)) * x,
    "xlog1py of": lambda x: torch.special.xlog1py(x, _integers(x, 2, 3)) * x,
    "float_power": lambda x: torch.float_power(_integers(x, 2, 3), x),
    "remainder": lambda x: torch.remainder(_integers(x, 7, 5), x),
    "where": lambda x: torch.where(_integers(x, 1, 0) > 0, x**2, x.exp()),
    "masked": lambda x: (_integers(x, 1, 0) > 0) * x**2,
    "of a mask": lambda x: _integers(x, 0, 1).bool().to(torch.uint8) * x**2,
    "gather": lambda x: torch.gather(x**2, 0, _integers(x, 0, 1, 2, 2).reshape(2, 2)),
    "index_add": lambda x: x.new_zeros(4, 2).index_add(0, _integers(x, 0, 1, 1), x**2),
    "bincount": lambda x: torch.bincount(_integers(x, 1, 1)) * x**3,
}


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", INTEGERS)
def test_an_integer_may_come_first(name: str, order: int, device: torch.device) -> None:
    """By differences of fourth order, of torch's values at order 1, and of what that was found to be at order 2."""
    f, x = INTEGERS[name], rand(device, 3, 2) * 0.5 + 2
    got = hofunc.hod(f, order)(x)
    lower = f if order == 1 else hofunc.jacobian(f)
    step, v = 1e-4, rand(device, 3, 2, seed=5)
    differences = (
        8 * (lower(x + step * v) - lower(x - step * v)) - lower(x + 2 * step * v) + lower(x - 2 * step * v)
    ) / (12 * step)
    assert relative_error(torch.tensordot(got, v, 2), differences) < 1e-10
    for strategy in ("forward", "mixed", "reverse"):
        assert relative_error(hofunc.hod(f, order, strategy=strategy)(x), got) < 1e-12
    assert relative_error(vmap(hofunc.hod(f, order), in_dims=1)(x[:, None])[0], got) < 1e-12
    assert relative_error(hofunc.hod(f, order).plan(x * 1.5)(x), got) < 1e-12


# What is asked of every operand, axis and transform.


def test_a_branch_on_the_second_operand_of_what_is_computed(device: torch.device) -> None:
    c, x = rand(device, 3), rand(device, 2, 3)
    with pytest.raises(hofunc.BranchError):
        torch.func.vmap(hofunc.hessian(lambda x: (x**3).sum() if (c * x).sum() > 0 else x.sum()))(x)


def test_native_dropout_scales_what_it_keeps(device: torch.device) -> None:
    slopes = hofunc.jacobian(lambda x: torch.native_dropout(x, 0.2, True)[0])(rand(device, 50)).diagonal()
    assert {round(float(slope), 10) for slope in slopes} == {0.0, 1.25}


def test_a_plan_of_axes_in_a_cycle_is_called_with_others(device: torch.device) -> None:
    cube, weight = rand(device, 3, 3, 3), rand(device, 3, 3, 3, seed=1)
    transform = hofunc.hessian(lambda x: (x.view(3, 3, 3) * weight).sin().sum())
    assert torch.allclose(transform.plan(cube.permute(1, 2, 0))(cube), transform(cube))


@pytest.mark.parametrize("transform", [hofunc.jacobian, hofunc.hessian, hofunc.hod, hofunc.derivatives])
def test_every_transform_keeps_to_its_limit_also_after_a_larger_one(
    transform: Callable[..., Any], device: torch.device
) -> None:
    x = rand(device, 30, 3)
    transform(torch.sin, max_bytes=1 << 30)(x)
    with pytest.raises(hofunc.ArgumentError):
        transform(torch.sin, max_bytes=1)(x)
