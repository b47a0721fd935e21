"""Programs: subexpressions merged, dead steps dropped, registers freed at last use."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hofunc.algebra.extents import Rows
from hofunc.errors import InternalError
from hofunc.graph.node import Call, Ref
from hofunc.plan.builder import Builder, Memory, cut, memory_of
from hofunc.plan.program import Program, Register
from hofunc.run.executor import compiled
from tests.cases import mixed, rand
from tests.graph.recordings import recorded
from tests.plan.plans import builder_of, lowered_plan, names


@pytest.fixture
def builder(device: torch.device) -> Builder:
    """Over the graph of x -> x * w, with x as node 0 and w as node 1."""
    weight = rand(device, 3, 3, seed=1)
    return builder_of(recorded(lambda x: x * weight, rand(device, 3, 3)))


# Building.


def test_what_is_asked_for_twice_is_computed_once(builder: Builder) -> None:
    x = builder.value(0)
    assert builder.emit(torch.mm, x, x) is builder.emit(torch.mm, x, x)
    assert builder.emit(torch.mm, x, x) is not builder.emit(torch.bmm, x, x)
    assert builder.emit(torch.sum, x, (0,)) is not builder.emit(torch.sum, x, (1,))
    assert builder.value(0) is x


def test_what_is_reshaped_twice_is_reshaped_once(builder: Builder) -> None:
    x = builder.emit(torch.mm, builder.value(0), builder.value(1))
    flat = builder.emit(torch.reshape, x, (9,))
    assert names(builder.program([builder.emit(torch.reshape, flat, (1, 9))])) == ["mm", "reshape"]
    assert builder.emit(torch.unsqueeze, flat, 0) is builder.emit(torch.reshape, x, (1, 9))


def test_a_copy_that_is_reshaped_is_made_once(builder: Builder) -> None:
    turned = builder.emit(torch.permute, builder.value(0), (1, 0))
    copy = builder.emit(torch.reshape, turned, (9,))
    ends = [builder.emit(torch.reshape, copy, shape) for shape in ((1, 9), (9, 1))]
    assert names(builder.program(ends)).count("reshape") == 3


def test_an_extent_of_rows_is_unlike_one_that_is_as_large(builder: Builder) -> None:
    x = builder.value(0)
    one = builder.emit(torch.reshape, x, (Rows(3), 3))
    assert builder.emit(torch.reshape, x, (Rows(3), 3)) is one
    assert builder.emit(torch.reshape, x, (3, 3)) is not one
    assert builder.emit(torch.reshape, x, (Rows(1, 3), 3)) is not one
    called = builder.emit(Call(torch.reshape, (Ref(0), (Rows(3), 3))), x)
    assert builder.emit(Call(torch.reshape, (Ref(0), (3, 3))), x) is not called


def test_calls_are_merged_whatever_their_refs_are_called(builder: Builder) -> None:
    one = builder.call(Call(torch.add, (Ref(0), Ref(1)), (("alpha", 2),)))
    assert builder.call(Call(torch.add, (Ref(0), Ref(1)), (("alpha", 2),))) is one
    assert builder.call(Call(torch.add, (Ref(1), Ref(0)), (("alpha", 2),))) is not one
    assert builder.call(Call(torch.add, (Ref(0), Ref(1)), (("alpha", 3),))) is not one


def test_steps_that_no_output_needs_are_left_out(builder: Builder) -> None:
    x, w = builder.value(0), builder.value(1)
    kept = builder.emit(torch.exp, x)
    builder.emit(torch.mm, kept, w)
    program = builder.program([kept])
    assert names(program) == ["exp"]
    assert [given.origin for given in program.given.values()] == [0]


def test_registers_are_freed_after_their_last_use(builder: Builder) -> None:
    x, w = builder.value(0), builder.value(1)
    a = builder.emit(torch.mm, x, w)
    b = builder.emit(torch.mul, a, x)
    c = builder.emit(torch.add, a, b)
    program = builder.program([c, b])
    assert program.frees == ((w.index,), (x.index,), (a.index,))
    assert program.outputs == (c.index, b.index)


def test_a_register_that_is_an_output_is_not_freed(builder: Builder) -> None:
    x = builder.value(0)
    program = builder.program([x, builder.emit(torch.neg, x), x])
    assert program.frees == ((),)


def test_values_are_converted_to_the_dtype_of_the_program(device: torch.device) -> None:
    builder = builder_of(recorded(lambda x: x.float() * 2, rand(device, 3)))
    assert builder.step_of(builder.value(0)) is None
    step = builder.step_of(builder.value(1))
    assert step is not None
    assert step.function is torch.Tensor.to
    assert step.args[1] == torch.float64


def test_an_unknown_source_is_a_bug(builder: Builder) -> None:
    with pytest.raises(InternalError) as caught:
        builder.read("w", ())
    for part in ("hofunc.plan: unknown source w", "got <class 'str'>, expected a tensor", "Please report this"):
        assert part in str(caught.value)


def test_whose_memory_a_register_is(builder: Builder) -> None:
    x = builder.value(0)
    made = builder.emit(torch.mm, x, x)
    view = builder.emit(torch.select, builder.emit(torch.permute, made, (1, 0)), 0, 0)
    assert memory_of(builder, view) == memory_of(builder, made) == Memory(made, None)
    part = builder.emit(torch.permute, builder.emit(cut, made, 0, 1, (2,)), (1, 0))
    assert memory_of(builder, part) == Memory(made, (0, 1, 2))
    assert memory_of(builder, x) is None
    assert memory_of(builder, builder.emit(torch.permute, x, (1, 0))) is None
    assert memory_of(builder, builder.emit(torch.Tensor.expand, made, (2, 3, 3))) is None


def test_parts_of_a_memory_are_beside_each_other(builder: Builder) -> None:
    made = builder.value(0)
    whole, one = Memory(made, None), Memory(made, (0, 0, 1))
    assert whole.is_beside(())
    assert one.is_beside(())
    assert one.is_beside({(0, 1, 1)})
    assert not whole.is_beside({None})
    assert not whole.is_beside({(0, 1, 1)})
    assert not one.is_beside({None})
    assert not one.is_beside({(0, 0, 1)})


# Whole programs.


def _network(x: Tensor) -> Tensor:
    return ((x @ x.t()).tanh() @ x.sin()).exp().sum(0)


FUNCTIONS = [mixed, _network, lambda x: (x.reshape(-1)[1:] * x.sum()).exp(), lambda x: torch.cat([x, x.sin()]).exp()]


@pytest.mark.parametrize("f", FUNCTIONS)
@pytest.mark.parametrize("orders", [(1,), (2,), (1, 2, 3)])
@pytest.mark.parametrize("compact", [True, False])
def test_programs_are_tidy(f: Callable[..., Any], orders: tuple[int, ...], compact: bool, device: torch.device) -> None:
    check_tidy(lowered_plan(f, rand(device, 2, 3), orders=orders, compact=compact).program)


def check_tidy(program: Program) -> None:
    """Check that nothing is computed twice or in vain, used after it is freed, or kept after its last use."""
    live = {*program.given}
    calls = [(step.function, step.args) for step in program.steps]
    assert len(set(calls)) == len(calls)
    read = {arg.index for step in program.steps for arg in step.args if isinstance(arg, Register)}
    assert {step.target for step in program.steps} <= read | {*program.outputs}
    assert live <= read | {*program.outputs}
    for step, freed in zip(program.steps, program.frees, strict=True):
        assert {arg.index for arg in step.args if isinstance(arg, Register)} <= live
        assert step.target not in live
        live.add(step.target)
        assert {*freed} <= live
        live -= {*freed}
    assert live == {*program.outputs}


def test_equal_recordings_have_equal_programs(device: torch.device) -> None:
    one, other = (lowered_plan(_network, rand(device, 2, 3, seed=seed)).program for seed in range(2))
    assert names(one) == names(other)
    assert (one.frees, one.outputs, one.given) == (other.frees, other.outputs, other.given)


def test_a_program_runs_on_other_values(device: torch.device) -> None:
    plan = lowered_plan(torch.exp, rand(device, 3), orders=(1,))
    other = rand(device, 3, seed=1)
    (got,) = compiled(plan.program)([other, other.exp()])
    assert torch.equal(got, torch.diag(other.exp()))
