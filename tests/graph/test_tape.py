"""What is recorded, and how it is wired."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hofunc.errors import UntracedError
from hofunc.graph.node import CONSTANT, INPUT, Ref
from tests.cases import mixed, rand
from tests.graph.recordings import check_replay, computed, ops, recorded


def test_ops_and_wiring(device: torch.device) -> None:
    weight = rand(device, 3, 2, seed=1)
    recording = recorded(lambda x: (x @ weight).tanh() * 2, rand(device, 4, 3))
    graph = recording.graph
    assert [node.op for node in graph.nodes[:2]] == [INPUT, CONSTANT]
    assert ops(recording) == ["mm.default", "tanh.default", "mul.Tensor"]
    assert [node.operands for node in computed(recording)] == [(0, 1), (2,), (3,)]
    assert [node.args for node in computed(recording)] == [(Ref(0), Ref(1)), (Ref(2),), (Ref(3), 2)]
    assert [node.number for node in graph.nodes] == list(range(5))
    assert [node.shape for node in graph.nodes] == [(4, 3), (3, 2), (4, 2), (4, 2), (4, 2)]
    assert (graph.inputs, graph.outputs) == ((0,), (4,))
    assert recording.values[1] is weight


def test_inputs_and_constants_know_their_device_and_activity(device: torch.device) -> None:
    graph = recorded(lambda x: x * rand(device, 3), rand(device, 3)).graph
    assert [node.device for node in graph.nodes] == [rand(device, 1).device] * 2 + [None]
    assert [node.active for node in graph.nodes] == [True, False, True]


def test_a_constant_used_twice_is_one_node(device: torch.device) -> None:
    weight = rand(device, 3)
    recording = recorded(lambda x: x * weight + weight, rand(device, 3))
    assert [node.op for node in recording.graph.nodes].count(CONSTANT) == 1
    assert [node.operands for node in computed(recording)] == [(0, 1), (2, 1)]


def test_ops_that_depend_on_no_input_are_not_recorded(device: torch.device) -> None:
    weight = rand(device, 3, 3)
    recording = recorded(lambda x: x @ weight.t().exp().tanh(), rand(device, 2, 3))
    assert ops(recording) == ["mm.default"]
    assert torch.equal(recording.values[1], weight.t().exp().tanh())


def test_an_input_is_not_taken_for_a_captured_tensor(device: torch.device) -> None:
    """The tensor that the caller holds may be captured too, and is a constant there."""
    x = rand(device, 3)
    graph = recorded(lambda y: x * y, x).graph
    assert [node.op for node in graph.nodes[:2]] == [INPUT, CONSTANT]


def test_two_inputs_that_are_one_tensor_are_two_nodes(device: torch.device) -> None:
    x = rand(device, 3)
    recording = recorded(lambda a, b: a * b, x, x)
    assert recording.graph.inputs == (0, 1)
    assert computed(recording)[0].operands == (0, 1)


@pytest.mark.parametrize(
    ("f", "outputs"),
    [(lambda x: x, (0,)), (lambda x: (x, x), (0, 0)), (lambda x: {"a": [x * 2, "text"], "b": x}, (1, 0))],
)
def test_outputs(f: Callable[[Tensor], Any], outputs: tuple[int, ...], device: torch.device) -> None:
    assert recorded(f, rand(device, 3)).graph.outputs == outputs


def test_an_output_that_depends_on_nothing_is_a_constant(device: torch.device) -> None:
    graph = recorded(lambda _: rand(device, 2), rand(device, 3)).graph
    assert (graph.inputs, graph.outputs) == ((0,), (1,))
    assert graph.nodes[1].op is CONSTANT


def test_views_are_recorded_as_ops(device: torch.device) -> None:
    recording = recorded(lambda x: (x.view(3, 2), x.t(), x[0], x[:, 1:]), rand(device, 2, 3))
    assert ops(recording) == ["view.default", "t.default", "select.int", "slice.Tensor"]
    assert {node.operands for node in computed(recording)} == {(0,)}


def test_several_results_of_one_op(device: torch.device) -> None:
    recording = recorded(lambda x: x.split(1)[1] * 2, rand(device, 3, 2))
    assert [node.output for node in computed(recording)] == [0, 1, 2, None]
    assert computed(recording)[-1].operands == (2,)


def test_lists_and_keywords_among_the_arguments(device: torch.device) -> None:
    weight = rand(device, 2)
    (cat, total) = computed(recorded(lambda x: torch.cat([x, weight, x]).sum(0, dtype=torch.float32), rand(device, 3)))
    assert cat.args == ((Ref(0), Ref(1), Ref(0)),)
    assert cat.operands == (0, 1, 0)
    assert total.args == (Ref(2), (0,))
    assert total.kwargs == (("dtype", torch.float32),)
    assert total.dtype == torch.float32


def test_the_graph_is_a_key(device: torch.device) -> None:
    """Equal structure, equal graph; another op, constant, shape, dtype or wiring, another one."""

    def graph(f: Callable[..., Any], *shape: int, dtype: torch.dtype = torch.float64) -> Any:
        return recorded(f, rand(device, *shape).to(dtype)).graph

    first = graph(lambda x: x.sin() * 2, 3)
    assert {graph(lambda x: torch.sin(x) * 2, 3)} == {first}
    others = [
        graph(lambda x: x.sin() * 3, 3),
        graph(lambda x: x.exp() * 2, 3),
        graph(lambda x: x.sin() * 2, 4),
        graph(lambda x: x.sin() * 2, 3, dtype=torch.float32),
        graph(lambda x: x.sin() * x, 3),
        graph(lambda x: x.sin() * x.sin(), 3),
        graph(lambda x: x.sin() / 0.0, 3),
        graph(lambda x: x.sin() / -0.0, 3),
    ]
    assert len({first, *others}) == 9


def test_values_carry_their_history(device: torch.device) -> None:
    x = rand(device, 3).requires_grad_()
    recording = recorded(lambda x: x.sin() * x, x)
    (got,) = torch.autograd.grad(recording.values[-1].sum(), x)
    assert torch.allclose(got, x.cos() * x + x.sin())


@pytest.mark.parametrize(
    "f",
    [
        torch.func.grad(mixed),
        torch.func.vmap(lambda row: mixed(row) * row),
        torch.func.hessian(mixed),
        lambda x: torch.func.jvp(torch.sin, (x,), (x * x,))[1],
        torch.func.vmap(torch.func.grad(mixed)),
        lambda x: torch.func.vmap(lambda row: (x * row).sum())(x * 2),
    ],
)
def test_transforms_inside_the_function_arrive_as_plain_ops(f: Callable[..., Any], device: torch.device) -> None:
    recording = check_replay(f, [rand(device, 2, 3)], [rand(device, 2, 3, seed=1)])
    assert not any(torch._C._functorch.is_functorch_wrapped_tensor(value) for value in recording.values)


def test_a_branch_is_taken(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return x.sin() if x.sum() > 0 else x.exp()

    x = rand(device, 3).abs()
    assert "sin.default" in ops(recorded(f, x))
    assert "exp.default" in ops(recorded(f, -x))
    assert "exp.default" not in ops(recorded(f, x))


def test_what_runs_without_gradients_is_cut_off(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            y = x * 2
        return x * y

    recording = recorded(f, rand(device, 3))
    assert ops(recording) == ["mul.Tensor", "detach.default", "mul.Tensor"]
    assert computed(recording)[-1].operands == (0, 2)


# Plain autograd inside the function.


def _gradient(x: Tensor, *, create_graph: bool) -> Tensor:
    return torch.autograd.grad((x * x * x).sum(), x, create_graph=create_graph)[0]


def test_autograd_grad_without_a_graph_is_refused(device: torch.device) -> None:
    x = rand(device, 3).requires_grad_()
    with pytest.raises(UntracedError) as caught:
        recorded(lambda x: _gradient(x, create_graph=False), x)
    for part in (
        "f calls torch.autograd.grad or backward",
        "got a backward pass that autograd does not record",
        "expected one of ops that can be differentiated again",
        "called at test_tape.py:",
        "Pass create_graph=True",
    ):
        assert part in str(caught.value)


def test_autograd_grad_of_saved_results_is_recorded(device: torch.device) -> None:
    """Autograd unpacks a result that it saved, as that of exp, as a detached copy."""
    x, y = rand(device, 3).requires_grad_(), rand(device, 3, seed=1).requires_grad_()
    check_replay(lambda x: torch.autograd.grad(x.exp().sum(), x, create_graph=True)[0], [x], [y])


def test_autograd_grad_that_detaches_nothing_is_recorded(device: torch.device) -> None:
    x, y = rand(device, 3).requires_grad_(), rand(device, 3, seed=1).requires_grad_()
    check_replay(lambda x: _gradient(x, create_graph=True), [x], [y])


def test_autograd_of_untracked_tensors_is_left_alone(device: torch.device) -> None:
    weight = rand(device, 3).requires_grad_()

    def f(x: Tensor) -> Tensor:
        return x * torch.autograd.grad(weight.exp().sum(), weight)[0]

    assert ops(recorded(f, rand(device, 3))) == ["mul.Tensor"]
