"""The tensors that a function reaches before it is called."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.graph.reached import MOST_OBJECTS, reached

ONE, TWO = torch.ones(1), torch.ones(2)


@dataclass
class Model:
    """Holds tensors in attributes, and computes others when it is asked."""

    weight: Tensor
    others: dict[str, Any]

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.weight

    def method(self, x: Tensor) -> Tensor:
        return self(x)

    @property
    def computed(self) -> Tensor:
        raise AssertionError("code ran")


def closure(weight: Any) -> Callable[[Tensor], Any]:
    return lambda x: (x, weight)


def defaults(x: Tensor, weight: Tensor = ONE, *, other: Tensor = TWO) -> tuple[Tensor, ...]:
    return x, weight, other


def module(weight: Tensor, other: Tensor) -> torch.nn.Module:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False))
    model[0]._parameters["weight"] = weight  # type: ignore[assignment]
    model.register_buffer("other", other)
    return model


REACHING = {
    "a closure": closure((ONE, [TWO])),
    "a closure of a closure": closure(closure({"a": ONE, "b": TWO})),
    "a partial function": partial(torch.add, ONE, other=TWO),
    "defaults": defaults,
    "an object": Model(ONE, {"a": {"b": TWO}}),
    "a method": Model(ONE, {"a": [TWO]}).method,
    "a transform": hofunc.hod(closure((ONE, TWO))),
    "a transform of a transform": hofunc.laplacian(hofunc.hod(closure((ONE, TWO)))),
    "a module": module(ONE, TWO),
}


@pytest.mark.parametrize("name", REACHING)
def test_tensors_that_are_reached(name: str) -> None:
    found = reached(REACHING[name])
    assert found == {id(ONE): ONE, id(TWO): TWO}


def test_a_variable_that_is_not_bound_as_yet() -> None:
    def f(x: Tensor) -> Tensor:
        return x * later

    assert not reached(f)
    later = ONE
    assert [*reached(f)] == [id(ONE)]


def test_what_holds_itself_or_very_much_ends() -> None:
    ring: list[Any] = [ONE]
    ring.append(ring)
    assert [*reached(closure(ring))] == [id(ONE)]
    assert len(reached([torch.ones(()) for _ in range(2 * MOST_OBJECTS)])) < MOST_OBJECTS
