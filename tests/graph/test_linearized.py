"""Linear functions that the recorded function makes by torch.func.linearize."""

from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from verification.oracles import nested_reverse, relative_error

pytestmark = pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")  # of torch's own linear functions


def _parts(x: Tensor) -> dict[str, Tensor]:
    return {"a": x.sin() * x, "b": x.prod() + 0 * x[0], "c": torch.ones(2, dtype=x.dtype, device=x.device)}


def linearized(x: Tensor) -> Tensor:
    """Return what a linear function makes of a constant and of what depends on the point, times the value there."""
    y, linear = torch.func.linearize(_parts, x)
    return _sums(y, linear(torch.ones_like(x)), linear(x.cos()))


def pushed(x: Tensor) -> Tensor:
    """Return the same by jvp."""
    pairs = [torch.func.jvp(_parts, (x,), (tangent,)) for tangent in (torch.ones_like(x), x.cos())]
    return _sums(pairs[0][0], pairs[0][1], pairs[1][1])


def _sums(*parts: dict[str, Tensor]) -> Tensor:
    return sum((y["a"].sum() * y["b"] + y["c"].sum() for y in parts), torch.zeros((), dtype=parts[0]["a"].dtype)) ** 2


def test_a_linear_function_depends_on_its_point(device: torch.device) -> None:
    x = rand(device, 3)
    assert torch.allclose(linearized(x), pushed(x))
    for order in (1, 2, 3):
        expected = nested_reverse(pushed, order)(x)
        assert relative_error(hofunc.hod(linearized, order)(x), expected) < 1e-12
    plan: Any = hofunc.hessian(linearized).plan(rand(device, 3, seed=1))
    expected = nested_reverse(pushed, 2)(x)
    assert relative_error(plan(x), expected) < 1e-12
    assert relative_error(torch.func.vmap(hofunc.hessian(linearized))(x[None])[0], expected) < 1e-12


def test_of_several_arguments(device: torch.device) -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        _, linear = torch.func.linearize(lambda x, y: (x * y.exp()).sum() ** 2, x, y)
        return linear(y, x)

    def by_hand(x: Tensor, y: Tensor) -> Tensor:
        return 2 * (x * y.exp()).sum() * (y * y.exp() + x * x * y.exp()).sum()

    x, y = rand(device, 3), rand(device, 3, seed=1)
    got = hofunc.hessian(f, argnums=(0, 1))(x, y)
    expected = torch.func.hessian(by_hand, argnums=(0, 1))(x, y)
    assert all(relative_error(got[i][j], expected[i][j]) < 1e-12 for i in (0, 1) for j in (0, 1))


def test_outside_of_recordings_it_is_that_of_torch(device: torch.device) -> None:
    x = rand(device, 3)
    _, linear = torch.func.linearize(torch.sin, x)
    assert torch.allclose(linear(x), x * x.cos())
