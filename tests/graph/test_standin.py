"""Recording under outer transforms: stand-ins of the logical shape, and captured wrappers that become inputs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._C._functorch as functorch
from torch import Tensor

import hofunc
from hofunc.errors import UntracedError
from hofunc.graph.node import CONSTANT, INPUT
from hofunc.graph.recording import Recording
from hofunc.graph.standin import in_transform, is_wrapper, outside_transforms, stand_in
from tests.cases import mixed, rand
from tests.graph.recordings import ops, recorded, recorded_under
from verification.oracles import nested_reverse, relative_error

vmap, grad = torch.func.vmap, torch.func.grad


@pytest.mark.parametrize(("outer", "shape"), [(vmap, (3,)), (grad, (4, 3)), (lambda f: vmap(grad(f)), (3,))])
def test_stand_ins_have_the_logical_shape(outer: Any, shape: tuple[int, ...], device: torch.device) -> None:
    seen: list[Any] = []

    def f(x: Tensor) -> Tensor:
        seen.append((tuple(x.shape), is_wrapper(x)))
        return x.sin()

    recording = recorded_under(outer, f, rand(device, 4, 3))
    assert seen == [(shape, False)]
    assert recording.graph.nodes[0].shape == shape
    assert recording.wrappers is not None
    assert is_wrapper(recording.wrappers[0])


def test_a_stand_in_is_the_first_member_of_every_batch(device: torch.device) -> None:
    x, seen = rand(device, 4, 3, 2), []

    def f(x: Tensor) -> Tensor:
        with outside_transforms():
            seen.append(stand_in(x))
        return x

    vmap(vmap(f), in_dims=1)(x)
    grad(lambda x: f(x).sum())(x)
    assert [batched for _, batched in seen] == [True, False]
    assert torch.equal(seen[0][0], x[0, 0])
    assert torch.equal(seen[1][0], x)
    assert not any(is_wrapper(plain) for plain, _ in seen)


def test_outside_transforms_there_is_nothing_to_stand_in_for(device: torch.device) -> None:
    assert not in_transform()
    assert recorded(torch.sin, rand(device, 3)).wrappers is None
    with outside_transforms() as depth:
        assert depth == 0
        assert not in_transform()


def test_the_stack_is_as_deep_outside_as_inside(device: torch.device) -> None:
    """See NOTE [neutral levels]."""
    levels: list[Any] = []

    def f(x: Tensor) -> Tensor:
        inside = functorch.maybe_current_level()
        with outside_transforms() as depth:
            levels.append((inside, depth, functorch.maybe_current_level()))
        return x.sum()

    vmap(grad(f))(rand(device, 4, 3))
    assert levels == [(2, 2, 2)]


def test_captured_wrappers_become_inputs_once(device: torch.device) -> None:
    recordings: list[Recording] = []
    weight = rand(device, 3)

    def g(x: Tensor, w: Tensor) -> Tensor:
        recordings.append(recorded(lambda x: (x * w).sin() * w + weight, x))
        return x

    vmap(g)(rand(device, 4, 3), rand(device, 4, 3))
    (recording,) = recordings
    assert [node.op for node in recording.graph.nodes if node.is_given] == [INPUT, INPUT, CONSTANT]
    assert [node.active for node in recording.graph.nodes if node.is_given] == [True, False, False]
    assert recording.graph.inputs == (0, 1)
    assert recording.wrappers is not None
    assert len(recording.wrappers) == 2
    assert ops(recording) == ["mul.Tensor", "sin.default", "mul.Tensor", "add.Tensor"]


def test_a_captured_wrapper_that_is_returned_is_an_input(device: torch.device) -> None:
    def g(x: Tensor, w: Tensor) -> Tensor:
        derivative, aux = hofunc.hod(lambda x: ((x * x).sum(), w), 1, has_aux=True)(x)
        return derivative + aux

    x, w = rand(device, 4, 3), rand(device, 4, 3, seed=1)
    assert torch.allclose(vmap(g)(x, w), 2 * x + w)


def test_captured_wrappers_of_several_levels(device: torch.device) -> None:
    def inner(derivative: Callable[..., Any]) -> Callable[..., Any]:
        return vmap(lambda a: vmap(lambda b: derivative(lambda x: mixed(x * a) * b.sum())(a * b))(a[None] * 2))

    x = rand(device, 4, 3)
    assert torch.allclose(inner(hofunc.jacobian)(x), inner(torch.func.jacrev)(x))


def test_a_wrapper_of_both_an_inner_and_an_outer_transform_is_refused(device: torch.device) -> None:
    def g(w: Tensor) -> Tensor:
        return hofunc.hod(lambda x: vmap(lambda a, b: a * b)(x, w).sum(), 1)(w * 1)

    with pytest.raises(UntracedError) as caught:
        vmap(g)(rand(device, 4, 3))
    for part in (
        "f maps a transform of its own over a captured tensor of an outer transform",
        "got a tensor wrapped by both",
        "expected captured tensors that f's own transforms do not wrap",
        "called at test_standin.py:",
        "Pass the captured tensor to f as an argument.",
    ):
        assert part in str(caught.value)


def test_what_is_captured_keeps_its_gradient(device: torch.device) -> None:
    """grad by a tensor that only the inner function sees."""
    x, w = rand(device, 3), rand(device, 3, seed=1)
    got = grad(lambda w: hofunc.hod(lambda x: (x * x * w).sum(), 1)(x).sin().sum())(w)
    assert torch.allclose(got, (2 * x * w).cos() * 2 * x)


# Transforms outside a vmap: what it maps is wrapped by levels on both sides of it.

Nested = Callable[[Callable[..., Any], int], Callable[..., Any]]
OUTSIDE: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "grad": grad,
    "jacrev": torch.func.jacrev,
    "jacfwd": torch.func.jacfwd,
    "vjp": lambda f: lambda x: torch.func.vjp(f, x)[1](x.new_ones(()))[0],
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (x * 2,))[1],
}


def _row(x: Tensor) -> Tensor:
    return (x.sin() * x.exp().sum()).prod()


MAPPED: dict[str, Callable[[Nested], Callable[[Tensor], Tensor]]] = {
    "hod": lambda d: vmap(d(_row, 2)),
    "hod over another axis": lambda d: vmap(d(_row, 2), in_dims=1, out_dims=1),
    "hod, with captured weights": lambda d: lambda x: vmap(d(lambda row: _row(row * x[0]) * x.sum(), 2))(x.detach()),
    "hod, with mapped weights": lambda d: lambda x: vmap(lambda row, w: d(lambda row: _row(row * w), 2)(row))(x, x * 2),
    "vmap of hod": lambda d: vmap(vmap(d(lambda x: x.sin() * x.exp(), 2))),
    "grad of hod": lambda d: vmap(grad(lambda x: d(_row, 1)(x).sum())),
    "hod of vmap of hod of grad": lambda d: d(lambda x: vmap(d(grad(_row), 1))(x).sum(), 1),
    "hod with a row of the result written": lambda d: vmap(d(lambda x: x * x[0], 2)),
    "hod of a write": lambda d: vmap(d(lambda x: ((x * 1).mul_(x.sin()) * x[0]).prod(), 2)),
}


@pytest.mark.parametrize("mapped", MAPPED)
@pytest.mark.parametrize("outside", OUTSIDE)
def test_a_vmap_may_stand_between_transforms(outside: str, mapped: str, device: torch.device) -> None:
    def derivative(nested: Nested) -> Callable[[Tensor], Tensor]:
        return OUTSIDE[outside](lambda x: MAPPED[mapped](nested)(x).square().sum())

    x = rand(device, 2, 3)
    assert relative_error(derivative(hofunc.hod)(x), derivative(nested_reverse)(x)) < 1e-10
    batch = torch.stack([x, x.cos()])
    assert relative_error(vmap(derivative(hofunc.hod))(batch), vmap(derivative(nested_reverse))(batch)) < 1e-10


def test_a_row_that_f_writes_has_its_gradient_behind_vmap(device: torch.device) -> None:
    """torch counts that of select_scatter several times."""

    def written(x: Tensor) -> Tensor:
        return torch.select_scatter(x.diag() + 1, x * x, 1, -1).prod(0)

    def joined(x: Tensor) -> Tensor:
        return torch.cat([(x.diag() + 1)[:, :-1], (x * x)[:, None]], 1).prod(0)

    x = rand(device, 2, 3)
    expected = grad(lambda x: vmap(nested_reverse(joined, 1))(x).sin().sum())(x)
    assert relative_error(grad(lambda x: vmap(hofunc.jacobian(written))(x).sin().sum())(x), expected) < 1e-12
    plan = hofunc.jacobian(written).plan(x[0])
    assert relative_error(grad(lambda x: vmap(plan)(x).sin().sum())(x), expected) < 1e-12
