"""Recordings along earlier ones: they come to what they come to without, whatever the function did before."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import hofunc
from hofunc.graph.ledger import Ledger
from hofunc.graph.record import record
from hofunc.graph.recording import Recording
from hofunc.graph.trail import NOTHING, Trail
from tests.cases import rand

aten = torch.ops.aten
CPU = torch.device("cpu")
A, B = rand(CPU, 3, seed=1), rand(CPU, 3, seed=2)
WIDE, SINGLE = rand(CPU, 2, 3, seed=3), rand(CPU, 3, seed=4).float()

Function = Callable[[Tensor, Tensor], Any]


def written(x: Tensor, y: Tensor) -> Tensor:
    z = x.exp()
    z[1:] *= y[1:]
    return z * A


def detached(x: Tensor, y: Tensor) -> Tensor:
    z = x.exp()
    return z.detach() * z * y


FUNCTIONS: dict[str, Function] = {
    "product": lambda x, y: x * y * A,
    "of the other": lambda x, y: y * x * A,
    "of itself": lambda x, y: x * x * A,
    "another constant": lambda x, y: x * y * B,
    "one constant twice": lambda x, y: x * A * A,
    "two constants": lambda x, y: x * A * B,
    "two constants in turn": lambda x, y: x * A * A * B,
    "two constants and the first again": lambda x, y: x * A * B * A,
    "two constants and the second again": lambda x, y: x * A * B * B,
    "two constants and a third": lambda x, y: x * A * B * (A + B),
    "copied": lambda x, y: (x * y).clone(memory_format=torch.contiguous_format) * A,
    "copied as it is": lambda x, y: (x * y).clone(memory_format=torch.preserve_format) * A,
    "copied without a word": lambda x, y: (x * y).clone() * A,
    "summed in single precision": lambda x, y: (x * y).sum(dtype=torch.float32) * A,
    "summed in double precision": lambda x, y: (x * y).sum(dtype=torch.float64) * A,
    "of an expression": lambda x, y: x * y * (A + B),
    "another shape": lambda x, y: x * y * WIDE,
    "another dtype": lambda x, y: x * y * SINGLE,
    "an integer": lambda x, y: x * 2 * y,
    "a number": lambda x, y: x * 2.5 * y,
    "negative zero": lambda x, y: x * -0.0 * y,
    "zero": lambda x, y: x * 0.0 * y,
    "sum": lambda x, y: (x * y * A).sum(),
    "sum along": lambda x, y: (x * y * A).sum(0, keepdim=True),
    "sum along the last": lambda x, y: (x * y * A).sum(-1, keepdim=True),
    "scaled sum": lambda x, y: torch.add(x * y, A, alpha=2),
    "list": lambda x, y: torch.cat([x * y, A]),
    "two": lambda x, y: (x * y * A, x),
    "a constant": lambda x, y: (x * y * A, B),
    "several": lambda x, y: torch.max(x * y * A, 0).values,
    "several others": lambda x, y: torch.min(x * y * A, 0).values,
    "several twice": lambda x, y: torch.max(x * y * A, 0).values + torch.max(x * y * A, 0).values,
    "parts": lambda x, y: (x * y * A).split(1)[1] * y,
    "other parts": lambda x, y: (x * y * A).split(2)[1] * y,
    "view": lambda x, y: (x * y).view(3, 1) * A,
    "another view": lambda x, y: (x * y).view(1, 3) * A,
    "more": lambda x, y: x * y * A * y,
    "less": lambda x, y: x * y,
    "nothing": lambda x, y: x,
    "written": written,
    "detached": detached,
    "number first": lambda x, y: aten.mul.Tensor(2.0, x) * y,
}


def recorded(f: Function, trail: Trail = NOTHING) -> Recording:
    """Record f at two vectors."""
    return record(lambda leaves, _: f(*leaves), [rand(CPU, 3, seed=5), rand(CPU, 3, seed=6)], trail=trail)


def trail_of(f: Function) -> Trail:
    """Return what was recorded of f as what to expect of calls that compare with it."""
    trail = Trail(recorded(f).graph)
    trail.met_again()
    return trail


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_does_the_same_comes_to_the_same_object(name: str) -> None:
    trail, alone = trail_of(FUNCTIONS[name]), recorded(FUNCTIONS[name])
    along = recorded(FUNCTIONS[name], trail)
    assert along.graph is trail.graph
    assert along.graph == alone.graph
    for value, expected in zip(along.values, alone.values, strict=True):
        assert torch.equal(value, expected)
    assert [id(leaf) for leaf in along.leaves] == [id(along.values[number]) for number in along.graph.outputs]


@pytest.mark.parametrize("before", FUNCTIONS)
def test_what_does_anything_else_is_recorded_as_without(before: str) -> None:
    trail = trail_of(FUNCTIONS[before])
    for name, f in FUNCTIONS.items():
        along, alone = recorded(f, trail), recorded(f)
        assert along.graph == alone.graph, name
        assert hash(along.graph) == hash(alone.graph)
        assert all(map(torch.equal, along.values, alone.values)), name
        assert (along.graph is trail.graph) == (along.graph == trail.graph)


def test_which_input_is_differentiated_by_is_not_taken_from_before() -> None:
    trail = trail_of(lambda x, y: x * y)
    x, y = rand(CPU, 3), rand(CPU, 2, 3)
    along = record(lambda leaves, _: leaves[0] * leaves[1], [x, y], trail=trail)
    assert [node.shape for node in along.graph.nodes] == [(3,), (2, 3), (2, 3)]


@pytest.mark.parametrize("name", ["several", "parts", "product", "two constants and the first again", "copied"])
def test_no_node_is_made_of_a_call_that_is_known(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trail = trail_of(FUNCTIONS[name])
    trail = Trail(trail.graph, are_known=True, are_plain=True)
    trail.met_again()
    monkeypatch.setattr(Ledger, "add", lambda *_: pytest.fail("a node is made"))
    assert recorded(FUNCTIONS[name], trail).graph is trail.graph


def test_what_a_function_captures_after_it_has_made_it_is_followed() -> None:
    kept: list[Tensor] = []

    def f(x: Tensor) -> Tensor:
        weight = kept[0] if kept else torch.nn.Parameter(torch.full((3,), 2.0, dtype=x.dtype))
        return (weight * x**3).sum()

    x, slopes = rand(CPU, 3), hofunc.gradient(f)
    for call in range(8):
        if call == 3:
            kept.append(torch.nn.Parameter(torch.full((3,), 2.0, dtype=x.dtype)))
        found = slopes(x).sum()
        assert found.requires_grad == (call >= 3), call
        if call >= 3:
            assert torch.allclose(torch.autograd.grad(found, kept[0])[0], 3 * x**2)


def test_derivatives_of_functions_with_the_same_code(device: torch.device) -> None:
    def powered(power: int, factor: Tensor) -> Callable[[Tensor], Tensor]:
        def f(x: Tensor) -> Tensor:
            y = x
            for _ in range(power - 1):
                y = y * x
            return (factor * y).sum()

        return f

    x, factors = rand(device, 3), [rand(device, 3, seed=7), rand(device, 1, seed=8)]
    for power, factor in [(2, factors[0]), (3, factors[0]), (2, factors[0]), (2, factors[1])] * 2:
        found = hofunc.hessian(powered(power, factor))(x)
        expected = torch.diag(power * (power - 1) * x ** (power - 2) * factor)
        torch.testing.assert_close(found, expected)


def test_a_hash_stays_where_it_was_made() -> None:
    graph = recorded(FUNCTIONS["list"]).graph._replace(nodes=())
    hash(graph)
    assert pickle.loads(pickle.dumps(graph)).__dict__ == {}  # noqa: S301 - of this test
    assert graph._replace(outputs=()).__dict__ == {}


def test_a_mode_of_functions_sees_no_op_twice() -> None:
    class Twice(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = func(*args, **(kwargs or {}))
            return 2 * out if func is torch.tanh else out

    x = rand(CPU, 3)
    traced: Any = torch.jit.trace(torch.tanh, x, check_trace=False)  # which calls ops with the mode on
    for _ in range(3):
        with Twice():
            value, _ = hofunc.derivatives(lambda x: traced(x).sum() + torch.tanh(x).sum(), 1)(x)
        assert value == 3 * torch.tanh(x).sum()
