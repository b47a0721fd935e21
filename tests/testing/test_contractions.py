"""hodcheck of contractions: it confirms those that are right, and finds those that are wrong."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc import hodcheck
from hofunc.contracted import STRATEGIES, Einsum
from hofunc.plan.contraction import STRATEGIES as PROPAGATING
from tests.cases import rand

CPU = torch.device("cpu")


def field(x: Tensor) -> Tensor:
    return x.sin().sum(-1) * x.sum(-1)


def model(parameters: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    return {"y": (x * parameters["w"]).sum(-1).sin(), "z": parameters["b"] ** 3}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_contractions_are_confirmed(strategy: str) -> None:
    x, v = rand(CPU, 2, 3), rand(CPU, 3, seed=1)
    assert hodcheck(field, x, pattern="b, b i, b i -> b", strategy=strategy)
    assert hodcheck(field, x, pattern="b, b 0, b i, i -> b", operands=(v,), strategy=strategy)
    parameters = {"w": v, "b": rand(CPU, seed=2)}
    directions = ({"b": rand(CPU, seed=3), "w": 2 * v},)
    assert hodcheck(model, (parameters, x), pattern="*o, *p, *q, *q -> *o *p", operands=directions, strategy=strategy)
    assert hodcheck(model, (parameters, x), pattern="*o, *p, *p -> *o", strategy=strategy)
    both = ((*directions, x),)
    assert hodcheck(
        model, (parameters, x), argnums=(0, 1), pattern="*o, *p, *p -> *o", operands=both, strategy=strategy
    )


def test_a_sum_that_vanishes_is_confirmed() -> None:
    x = rand(CPU, 3, 2)
    assert hodcheck(lambda x: 1e6 * x[:, 0].exp() * x[:, 1].sin(), x, pattern="b, b i, b i -> b")


def test_a_wrong_contraction_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right: Callable = Einsum.__call__

    def broken(self: Einsum, *args: Any, **kwargs: Any) -> Any:
        found = right(self, *args, **kwargs)
        return found + 1e-6 * torch.arange(2)

    monkeypatch.setattr(Einsum, "__call__", broken)
    with pytest.raises(hofunc.HodcheckError, match=r"entry \[1\] of 'b, b i, b i -> b' is 1e-06 off"):
        hodcheck(field, rand(CPU, 2, 3), pattern="b, b i, b i -> b")
    assert not hodcheck(field, rand(CPU, 2, 3), pattern="b, b i, b i -> b", raise_exception=False)


def test_what_is_refused() -> None:
    x = rand(CPU, 2, 3)
    with pytest.raises(hofunc.ArgumentError, match="hodcheck: the pattern"):
        hodcheck(field, x, pattern="b, b i")
    with pytest.raises(hofunc.ArgumentError, match="expected 2, the size of b"):
        hodcheck(field, x, pattern="b, i b -> i")
    with pytest.raises(hofunc.ArgumentError, match="strategy: got 'best'"):
        hodcheck(field, x, pattern="b, b i -> i", strategy="best")
    with pytest.raises(hofunc.ArgumentError, match=f"strategy: got '{PROPAGATING[-1]}'"):
        hodcheck(field, x, strategy=PROPAGATING[-1])
