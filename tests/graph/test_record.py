"""Recording leaves torch as it was, also when the function fails, and a recording can be replayed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._C._functorch as functorch
from torch import Tensor

import hofunc
from hofunc.graph.recording import replay
from hofunc.rules.lower import lower
from tests.cases import mixed, rand
from tests.graph.recordings import check_replay, recorded, replayed
from verification.oracles import nested_reverse, relative_error

vmap, grad = torch.func.vmap, torch.func.grad


class FailureError(Exception):
    """Raised inside recorded functions."""


def state() -> tuple[Any, ...]:
    """Return what recording must leave as it was."""
    level = functorch.maybe_current_level()
    stack: Any = functorch.get_interpreter_stack()
    return (
        torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(),
        None if stack is None else [(frame.key(), frame.level()) for frame in stack],
        level,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
    )


def fails(x: Tensor) -> Tensor:
    x.sin()
    raise FailureError


def fails_inside_transforms(x: Tensor) -> Tensor:
    return vmap(grad(lambda row: fails(row).sum()))(x)


def fails_without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        return fails(x)


def fails_inside_hod(x: Tensor) -> Tensor:
    return hofunc.hod(fails, 1)(x)


FAILURES = [fails, fails_inside_transforms, fails_without_gradients, fails_inside_hod]
OUTER: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = [
    lambda f: f,
    vmap,
    lambda f: grad(lambda x: f(x).sum()),
    lambda f: vmap(grad(lambda x: f(x).sum())),
    lambda f: lambda x: torch.func.jvp(f, (x,), (x,)),
    torch.no_grad(),
]


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("f", FAILURES)
def test_nothing_is_left_behind_when_the_function_fails(
    f: Callable[[Tensor], Tensor], outer: Callable[..., Any], device: torch.device
) -> None:
    before = state()
    seen: list[bool] = []

    def g(x: Tensor) -> Tensor:
        inside = state()
        try:
            recorded(f, x)
        except FailureError:
            seen.append(state() == inside)
        return x * 1

    outer(g)(rand(device, 2, 2, 3))
    assert seen == [True]
    assert state() == before


@pytest.mark.parametrize("outer", OUTER)
def test_nothing_is_left_behind_when_it_succeeds(outer: Callable[..., Any], device: torch.device) -> None:
    before = state()
    seen: list[bool] = []

    def g(x: Tensor) -> Tensor:
        inside = state()
        result = hofunc.hod(mixed, 1)(x)
        seen.append(state() == inside)
        return result

    outer(g)(rand(device, 2, 3))
    assert seen == [True]
    assert state() == before


def test_an_error_of_torch_reaches_the_caller(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        recorded(lambda x: x @ x, rand(device, 2, 3))


def test_gradients_are_on_while_recording(device: torch.device) -> None:
    seen: list[bool] = []

    def f(x: Tensor) -> Tensor:
        seen.append(torch.is_grad_enabled())
        return x

    with torch.no_grad():
        recorded(f, rand(device, 3))
    assert seen == [True]


def test_the_function_sees_the_layout_of_its_inputs(device: torch.device) -> None:
    seen: list[tuple[int, ...]] = []

    def f(x: Tensor) -> Tensor:
        seen.append(x.stride())
        return torch.kron(x.mT.contiguous(), constant)  # which fails in torch for other strides of axes of one element

    x, constant = rand(device, 1, 2, 1).mT, rand(device, 2, 2, 2)
    recorded(f, x)
    hofunc.hessian(f).plan(x)
    assert {*seen} == {x.stride()}


# Replay.


def _several(x: Tensor) -> tuple[Tensor, ...]:
    top, bottom = x.split(1)
    values, indices = x.sort(1)
    return top * bottom, values, x.gather(1, indices), torch.cat([x, x.t().reshape(2, 3)], 1), x.sum()


REPLAYS = [mixed, _several, lambda x: (x @ x.t()).tanh() * 0.5, lambda x: torch.linalg.inv(x @ x.t()), lambda x: x]


@pytest.mark.parametrize("f", REPLAYS)
def test_a_replay_is_the_function_at_other_inputs(f: Callable[..., Any], device: torch.device) -> None:
    check_replay(f, [rand(device, 2, 3)], [rand(device, 2, 3, seed=1)])


@pytest.mark.parametrize("f", REPLAYS[:1] + REPLAYS[2:])
def test_a_replay_can_be_mapped_and_differentiated(f: Callable[..., Any], device: torch.device) -> None:
    recording = recorded(f, rand(device, 2, 3))
    batch = rand(device, 4, 2, 3, seed=1)

    def again(x: Tensor) -> Tensor:
        return replayed(recording, x)[0]

    assert relative_error(vmap(again)(batch), vmap(f)(batch)) < 1e-12
    assert relative_error(vmap(nested_reverse(again, 2))(batch), vmap(nested_reverse(f, 2))(batch)) < 1e-12


def test_an_op_with_several_results_is_replayed_once(device: torch.device) -> None:
    recording = recorded(lambda x: x.split(1)[0] * x.split(1)[2], rand(device, 3, 2))
    calls: list[str] = []
    other = rand(device, 3, 2, seed=1)

    class Count(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            calls.append(str(func))
            return func(*args, **(kwargs or {}))

    with Count():
        replay(recording.graph, [other], {})
    assert calls == ["aten.split.Tensor", "aten.split.Tensor", "aten.mul.Tensor"]


def test_random_numbers_drawn_twice_by_one_op_stay_apart(device: torch.device) -> None:
    """Two calls that are alike are two calls, not two results of one."""

    def f(x: Tensor) -> Tensor:
        first, _ = torch.native_dropout(x, 0.5, True)
        second, _ = torch.native_dropout(x, 0.5, True)
        return first - second

    (got,) = replayed(recorded(f, rand(device, 200)), rand(device, 200))
    assert got.any()


def test_a_parameter_that_f_makes_hides_nothing_from_a_recording_around(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.nn.Parameter(torch.full_like(x, 2.0)) * x**3

    x = rand(device, 3)
    got = hofunc.hod(hofunc.hod(f, 1), 1)(x)
    assert relative_error(got, hofunc.hod(lambda x: 2 * x**3)(x)) < 1e-14
    assert not got.requires_grad


@pytest.mark.parametrize("length", [3000])  # three times what Python allows calls to nest
def test_a_long_chain_takes_no_recursion(length: int, device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        for _ in range(length):
            x = x.sin()
        return x

    recording, again = (recorded(f, rand(device, 2)) for _ in range(2))
    assert len(recording.graph.nodes) == length + 1
    assert recording.graph == again.graph
    assert hash(recording.graph) == hash(again.graph)
    assert len(lower(recording.graph, recording.values, 2).graph.nodes) == length + 1
    (got,) = replayed(recording, rand(device, 2))
    assert torch.equal(got, recording.outputs[0])


@pytest.mark.parametrize("count", [1000])
def test_many_leaves_take_no_recursion(count: int, device: torch.device) -> None:
    leaves = [rand(device, seed=number) for number in range(count)]
    recording = recorded(lambda *leaves: sum(leaf.sin() for leaf in leaves), *leaves)
    assert len(lower(recording.graph, recording.values, 2).graph.inputs) == count
