"""Programs as functions of plain calls."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hofunc.graph.node import Call, Ref
from hofunc.plan.program import Given, Program, Register, Step
from hofunc.run.asked import runner
from hofunc.run.executor import OFTEN, Runner, compiled, interpreted, warming_up
from tests.cases import mixed, rand
from tests.graph.recordings import recorded
from tests.plan.plans import lowered_plan

Made = Callable[[Program], Runner]


@pytest.fixture(params=[compiled, interpreted, warming_up])
def made(request: pytest.FixtureRequest) -> Made:
    made: Made = request.param
    return made


def program(*steps: Step, inputs: dict[int, int], outputs: tuple[int, ...]) -> Program:
    """Return a program that frees nothing."""
    given = {register: Given(origin, (), torch.float32) for register, origin in inputs.items()}
    return Program(given, {}, steps, ((),) * len(steps), outputs)


def test_steps_are_called_in_order(made: Made, device: torch.device) -> None:
    x, y = rand(device, 2, 3), rand(device, 3, 2, seed=1)
    r0, r1, r2 = (Register(number) for number in range(3))
    steps = (Step(2, torch.mm, (r0, r1)), Step(3, torch.transpose, (r2, -2, -1)), Step(4, torch.sum, (r2, (0,), True)))
    got = made(program(*steps, inputs={0: 1, 1: 0}, outputs=(4, 2, 3, 2)))([y, x])
    expected = [(x @ y).sum(0, True), x @ y, (x @ y).t(), x @ y]
    assert all(map(torch.equal, got, expected))
    assert got[1] is got[3]


def test_calls_fill_in_registers_wherever_refs_stand(made: Made, device: torch.device) -> None:
    x = rand(device, 3)
    call = Call(torch.cat, ((Ref(5), Ref(9), Ref(5)),), (("dim", 0),))
    steps = (Step(2, call, (Register(0), Register(1), Register(0))),)
    (got,) = made(program(*steps, inputs={0: 0, 1: 1}, outputs=(2,)))([x, 2 * x])
    assert torch.equal(got, torch.cat([x, 2 * x, x]))


@pytest.mark.parametrize(
    "value", [0.1, -0.0, float("inf"), float("nan"), -3, True, None, "mean", torch.float32, (1, (2.5, None)), ()]
)
def test_constants_arrive_as_they_are(made: Made, value: object) -> None:
    seen: list[object] = []

    def keep(tensor: Tensor, plain: object, *, named: object) -> Tensor:
        seen.extend([plain, named])
        return tensor

    call = Call(keep, (Ref(0), value), (("named", value),))
    made(program(Step(1, call, (Register(0),)), inputs={0: 0}, outputs=(1,)))([torch.zeros(1)])
    assert [repr(item) for item in seen] == [repr(value)] * 2
    assert {type(item) for item in seen} == {type(value)}


def test_constants_of_the_plan(made: Made, device: torch.device) -> None:
    x = rand(device, 3)
    run = made(
        Program({7: Given(x, tuple(x.shape), x.dtype)}, {}, (Step(8, torch.mul, (Register(7), 2)),), ((),), (8, 7))
    )
    got = run([])
    assert torch.equal(got[0], 2 * x)
    assert got[1] is x


def test_a_freed_register_is_gone_when_the_next_step_runs(made: Made, device: torch.device) -> None:
    references: list[weakref.ref] = []
    alive: list[bool] = []

    def make(tensor: Tensor) -> Tensor:
        made = tensor * 2
        references.append(weakref.ref(made))
        return made

    def look(tensor: Tensor) -> Tensor:
        gc.collect()
        alive.append(references[0]() is not None)
        return tensor + 1

    steps = (Step(1, make, (Register(0),)), Step(2, torch.neg, (Register(1),)), Step(3, look, (Register(2),)))
    for frees, expected in ((((), (1,), (2,)), False), (((), (), (1, 2)), True)):
        references.clear()
        made(Program({0: Given(0, (3,), torch.float64)}, {}, steps, frees, (3,)))([rand(device, 3)])
        assert alive.pop() is expected


def test_an_empty_program(made: Made) -> None:
    assert made(Program({}, {}, (), (), ()))([]) == []


def test_a_program_can_be_mapped(made: Made, device: torch.device) -> None:
    plan = lowered_plan(mixed, rand(device, 3), orders=(1,))
    run = made(plan.program)
    x = rand(device, 4, 3, seed=1)

    def gradient(x: Tensor) -> Tensor:
        values = [x, x * x, x.sin(), x * x * x.sin()]
        return run([*values, values[-1].sum()])[0]

    expected = 2 * x * x.sin() + x * x * x.cos()
    assert torch.allclose(torch.func.vmap(gradient)(x), expected)


def test_calls_before_and_after_it_is_compiled_return_the_same(device: torch.device) -> None:
    x = rand(device, 3)
    steps = (Step(1, torch.mul, (Register(0), 2)), Step(2, torch.add, (Register(1), Register(0))))
    run = warming_up(Program({0: Given(0, (3,), torch.float64)}, {}, steps, ((), (0, 1)), (2,)))
    assert all(torch.equal(run([x])[0], 3 * x) for _ in range(OFTEN + 2))


def test_a_long_program_that_runs_once_is_not_compiled(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError

    plan = lowered_plan(lambda x: sum(torch.sin(k * x).prod() for k in range(60)), rand(device, 3))
    assert len(plan.program.steps) > 500
    x = rand(device, 3)
    recording = recorded(lambda x: sum(torch.sin(k * x).prod() for k in range(60)), x)
    expected = compiled(plan.program)(recording.values)
    run = runner(plan)
    with monkeypatch.context() as patched:
        patched.setattr("builtins.compile", refused)
        assert all(map(torch.equal, run([*recording.values]), expected))
    assert all(map(torch.equal, run([*recording.values]), expected))
