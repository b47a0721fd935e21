"""Reshapes that come after sums: what is left of them, counted by hand, and that results are what they were."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hofunc.plan.late_reshapes import with_late_reshapes
from hofunc.plan.program import Builder, Register
from hofunc.plan.tracing import traced
from hofunc.run.executor import compiled
from hofunc.views import add_scaled
from tests.cases import rand
from tests.graph.recordings import recorded
from tests.plan.plans import builder_of, names

CPU = torch.device("cpu")
Build = Callable[[Builder, Register, Register], list[Register]]


def product(builder: Builder, one: Register, other: Register, *shape: int) -> Register:
    """Return a product of matrices with axes of some shape."""
    return builder.emit(torch.reshape, builder.emit(torch.mm, one, other), shape)


def _sum(b: Builder, x: Register, y: Register) -> list[Register]:
    return [b.emit(torch.add, product(b, x, y, 2, 2, 4), product(b, y, x, 2, 2, 4))]


def _scaled(b: Builder, x: Register, y: Register) -> list[Register]:
    return [b.emit(add_scaled, product(b, x, y, 2, 2, 4), product(b, y, x, 2, 2, 4), 3.0)]


def _three(b: Builder, x: Register, y: Register) -> list[Register]:
    return [b.emit(torch.add, _sum(b, x, y)[0], product(b, x, x, 2, 2, 4))]


def _multiplied(b: Builder, x: Register, y: Register) -> list[Register]:
    return [b.emit(torch.mm, b.emit(torch.reshape, _sum(b, x, y)[0], (4, 4)), y)]


def _taken_again(b: Builder, x: Register, y: Register) -> list[Register]:
    one, other = product(b, x, y, 2, 2, 4), product(b, y, x, 2, 2, 4)
    return [b.emit(torch.add, one, other), b.emit(torch.neg, one)]


def _of_other_shapes(b: Builder, x: Register, y: Register) -> list[Register]:
    vector = b.emit(torch.mul, b.emit(torch.reshape, x, (16,)), 2.0)
    return [b.emit(torch.add, product(b, x, y, 2, 2, 4), b.emit(torch.reshape, vector, (2, 2, 4)))]


def _broadcast(b: Builder, x: Register, y: Register) -> list[Register]:
    return [b.emit(torch.add, product(b, x, y, 4, 1, 4), product(b, y, x, 1, 4, 4))]


def _turned(b: Builder, x: Register, y: Register) -> list[Register]:
    return [b.emit(torch.reshape, b.emit(torch.transpose, b.emit(torch.mm, x, y), 0, 1), (2, 8))]


def _returned(b: Builder, x: Register, y: Register) -> list[Register]:
    whole = b.emit(torch.mm, x, y)
    return [whole, b.emit(torch.reshape, whole, (4, 4))]


@pytest.mark.parametrize(
    ("build", "before", "after"),
    [
        (_sum, 2, 1),
        (_scaled, 2, 1),
        (_three, 3, 1),
        (_multiplied, 3, 0),
        (_taken_again, 2, 2),
        (_of_other_shapes, 3, 3),
        (_broadcast, 2, 2),
        (_turned, 1, 1),
        (_returned, 1, 1),
    ],
)
def test_reshapes_that_are_left(build: Build, before: int, after: int) -> None:
    x, y = rand(CPU, 4, 4, seed=1), rand(CPU, 4, 4, seed=2)
    recording = recorded(lambda x, y: x * y, x, y)
    builder = builder_of(recording)
    program = builder.program(build(builder, builder.value(0), builder.value(1)))
    late = with_late_reshapes(program, traced(program))
    assert [names(each).count("reshape") for each in (program, late)] == [before, after]
    values: list[Tensor] = list(recording.values)
    for one, other in zip(compiled(late)(values), compiled(program)(values), strict=True):
        assert torch.equal(one, other)
