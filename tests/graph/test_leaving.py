"""Numbers that leave torch while f runs: an error if they have a derivative, constants if they have none."""

import copy
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

import hofunc

X = torch.linspace(0.1, 1, 3, dtype=torch.float64)
LEAVING: dict[str, Callable] = {
    "numpy": lambda x: x.numpy(),
    "by force": lambda x: x.numpy(force=True),
    "asarray": np.asarray,
    "ufunc": np.sin,
    "dlpack": lambda x: np.from_dlpack(x),
    "tolist": lambda x: np.array(x.tolist()),
    "deepcopy": copy.deepcopy,
    "apply_": lambda x: x.clone().apply_(lambda number: number),
    "map_": lambda x: x.clone().map_(x, lambda number, _: number),
    "map2_": lambda x: x.clone().map2_(x, x, lambda number, *_: number),
}
WAYS: dict[str, Callable] = {
    "call": lambda f: hofunc.hessian(f)(X),
    "again": lambda f: [hofunc.hessian(f)(X) for _ in range(3)],
    "plan": lambda f: hofunc.hessian(f).plan(X),
    "jit": lambda f: hofunc.jit(hofunc.hessian(f))(X),
    "laplacian": lambda f: hofunc.laplacian(f)(X),
}


def scaled(leave: Callable, prepare: Callable, x: Tensor) -> Tensor:
    """Multiply a sum by one of numbers that have left torch."""
    return x.square().sum() * float(leave(prepare(x)).sum())


@pytest.mark.filterwarnings("ignore:__array_wrap__", "ignore:.*has no plan")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("leave", LEAVING)
@pytest.mark.parametrize("prepare", [lambda x: x, lambda x: x.exp(), lambda x: (x * x.detach())[1:]])
def test_what_has_a_derivative_may_not_leave(prepare: Callable, leave: str, way: str) -> None:
    with pytest.raises(
        hofunc.UntracedError, match=r"computes outside of torch, .* test_leaving.py:\d+\).* x.detach\(\) first"
    ):
        WAYS[way](partial(scaled, LEAVING[leave], prepare))


def without_grad(x: Tensor) -> Tensor:
    """Compute where autograd is off."""
    with torch.no_grad():
        return x.exp()


@pytest.mark.parametrize("leave", [name for name in LEAVING if name != "ufunc"])
@pytest.mark.parametrize(
    "prepare", [Tensor.detach, lambda x: x.detach().exp(), lambda x: (x > 0.2).int(), torch.ones_like, without_grad]
)
def test_what_has_none_is_constant(prepare: Callable, leave: str) -> None:
    f = partial(scaled, LEAVING[leave], prepare)
    expected = 2 * torch.eye(3, dtype=torch.float64) * float(prepare(X).sum())
    torch.testing.assert_close(hofunc.hessian(f)(X), expected)
    torch.testing.assert_close(hofunc.hessian(f).plan(X)(X), expected)


def test_single_numbers_and_what_is_printed_leave(capsys: pytest.CaptureFixture) -> None:
    def f(x: Tensor) -> Tensor:
        print(x, x.exp(), f"{x[0]:.1f}")  # noqa: T201
        return x.square().sum() * (2 if x.sum().item() > 0 else 1)

    torch.testing.assert_close(hofunc.hessian(f)(X), 4 * torch.eye(3, dtype=torch.float64))
    hofunc.hessian(f).plan(X)
    assert "0.1000" in capsys.readouterr().out
