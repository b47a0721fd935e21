"""Under hooks for what autograd saves, as of activation checkpointing, gradients are those of torch without them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import hofunc
from tests.cases import rand
from tests.checks import assert_equal

Step = Callable[[nn.Module, Tensor], Tensor]


def _summed(network: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: network(x).square().sum()


def _written(network: nn.Module) -> Callable[[Tensor], Tensor]:
    def f(x: Tensor) -> Tensor:
        out = torch.zeros(3, dtype=x.dtype, device=x.device)
        for place in range(3):
            out[place] = x[place].sin().prod() * network(x)[place, 0]
        return out.square().sum()

    return f


def _slope(network: nn.Module) -> Callable[[Tensor], Tensor]:
    def f(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(_summed(network)(x), x, create_graph=True)
        return slope.square().sum()

    return f


STEPS: dict[str, Step] = {
    "contraction": lambda network, x: hofunc.laplacian(lambda y: network(y).squeeze(-1))(x),
    "tensor": lambda network, x: hofunc.hessian(_summed(network))(x),
    "several orders": lambda network, x: torch.stack(
        [result.square().sum() for result in hofunc.derivatives(_summed(network), 2)(x)]
    ),
    "product": lambda network, x: hofunc.hvp(_summed(network))(x, vector=torch.ones_like(x)),
    "terms": lambda network, x: hofunc.hod(_summed(network), 2, layout="compact")(x).dense(),
    "writes": lambda network, x: hofunc.hessian(_written(network))(x),
    "a gradient inside": lambda network, x: hofunc.hessian(_slope(network))(x),
    "draws": lambda network, x: hofunc.hessian(lambda y: nn.functional.dropout(network(y)).square().sum())(x),
    "vmap": lambda network, x: torch.func.vmap(hofunc.hessian(_summed(network)))(x),
}


def network_on(device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).to(device, torch.float64)


def gradients(compute: Callable[[Tensor], Tensor], network: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
    """Return the gradients of a sum over several inputs by these and by the parameters."""
    torch.manual_seed(1)
    total = torch.stack([compute(x).sin().sum() for x in inputs]).sum()
    return [*torch.autograd.grad(total, [*inputs, *[p for p in network.parameters() if p.ndim > 1]])]


@pytest.mark.parametrize("name", STEPS)
def test_activation_checkpointing(name: str, device: torch.device) -> None:
    """Several segments, each as if called for the first time and later, are computed again as they were."""
    network, step = network_on(device), STEPS[name]
    inputs = [rand(device, 4, 3, seed=seed).requires_grad_() for seed in range(3)]
    for _ in range(3):
        again = gradients(lambda x: checkpoint(step, network, x, use_reentrant=False), network, inputs)
        assert_equal(again, gradients(lambda x: step(network, x), network, inputs))


def test_functions_that_ask_at_their_first_call(device: torch.device) -> None:
    """Ask whether autograd follows the input: such a function is recorded in another way, as its first call tells."""
    network = network_on(device)
    space: dict[str, Any] = {"network": network}
    exec("def f(x):\n    y = network(x).exp() if x.requires_grad else network(x)\n    return (y * y).sum()", space)
    step, x = hofunc.hessian(space["f"]), rand(device, 4, 3).requires_grad_()
    first = gradients(partial(checkpoint, step, use_reentrant=False), network, [x])
    assert_equal(first, gradients(step, network, [x]))


def test_of_what_is_recorded_once(device: torch.device) -> None:
    network = network_on(device)
    inputs = [rand(device, 4, 3, seed=seed).requires_grad_() for seed in range(2)]
    hessian = hofunc.hessian(_summed(network))
    expected = gradients(hessian, network, inputs)
    for step in (hofunc.jit(hofunc.hessian(_summed(network))), hessian.plan(inputs[0])):
        for _ in range(2):
            found = gradients(partial(checkpoint, step, use_reentrant=False), network, inputs)
            assert_equal(found, expected)


@pytest.mark.parametrize("name", STEPS)
def test_hooks_that_compute(name: str, device: torch.device) -> None:
    network, step, x = network_on(device), STEPS[name], rand(device, 4, 3).requires_grad_()
    expected = gradients(lambda x: step(network, x), network, [x])
    for _ in range(2):
        with save_on_cpu():
            assert_equal(gradients(lambda x: step(network, x), network, [x]), expected)
        with saved_tensors_hooks(lambda tensor: tensor.numpy(force=True), lambda saved: torch.tensor(saved).to(device)):
            assert_equal(gradients(lambda x: step(network, x), network, [x]), expected)


def test_hooks_are_left_as_they_were(device: torch.device) -> None:
    network, x = network_on(device), rand(device, 4, 3).requires_grad_()
    packed: list[Any] = []
    unpacked: list[Any] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    def unpack(tensor: Tensor) -> Tensor:
        unpacked.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, unpack):
        result = hofunc.hessian(_summed(network))(x)
        with pytest.raises(ZeroDivisionError):
            hofunc.hessian(lambda y: _summed(network)(y) / (1 // 0))(x)
        before = len(packed)
        y = x * x
        assert len(packed) == before + 2
    assert before
    assert not unpacked, "nothing went back yet"
    (result.sum() + y.sum()).backward()
    assert unpacked, "what was recorded keeps nothing beside what the hooks made"


def test_what_was_written_over_since_it_was_saved(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        y = x.exp()
        z = y.square().sum()
        with torch.no_grad():
            y.mul_(2)
        (slope,) = torch.autograd.grad(z, x, create_graph=True)
        return slope.sum()

    with save_on_cpu(), pytest.raises(RuntimeError, match=r"modified by an inplace operation: .* shape \(3,\)"):
        hofunc.hessian(f)(rand(device, 3))
