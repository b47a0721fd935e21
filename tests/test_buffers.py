"""Modules that write to their buffers: refused with the remedy, which is right at orders 1 to 3."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import hofunc
from tests.cases import rand
from verification.oracles import nested_reverse, relative_error

MODULES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "batch_norm": (nn.BatchNorm1d(2), (4, 2)),
    "batch_norm of all batches": (nn.BatchNorm1d(2, momentum=None), (4, 2)),
    "batch_norm in two dimensions": (nn.BatchNorm2d(2, affine=False), (2, 2, 2, 1)),
    "instance_norm": (nn.InstanceNorm1d(2, track_running_stats=True, affine=True), (2, 2, 3)),
}


def _standard(x: Tensor, name: str) -> Tensor:
    """Normalise by the formula: torch's own derivatives are wrong at order 3."""
    dims = [dim for dim in range(x.dim()) if dim != 1 and (dim != 0 or name != "instance_norm")]
    variance, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    return (x - mean) / (variance + 1e-5).sqrt()


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", MODULES)
def test_buffers_are_passed_and_returned(name: str, order: int, device: torch.device) -> None:
    module, shape = MODULES[name]
    module = module.to(device, torch.float64).train()
    x, weights = rand(device, *shape), rand(device, *shape, seed=1)
    buffers = {key: buffer.clone() for key, buffer in module.named_buffers()}

    def loss(x: Tensor, buffers: dict[str, Tensor]) -> Any:
        written = {key: buffer.clone() for key, buffer in buffers.items()}
        y = functional_call(module, (dict(module.named_parameters()), written), (x,))
        return (y.exp() * weights).sum(), written

    expected = nested_reverse(lambda x: (_standard(x, name).exp() * weights).sum(), order)(x)
    transform = hofunc.hod(loss, order, has_aux=True)
    for call in (transform, transform.plan(x, buffers)):
        got, new = call(x, buffers)
        assert relative_error(got, expected) < 1e-9
        assert all(torch.equal(buffer, buffers[key]) for key, buffer in module.named_buffers())
        _, reference = loss(x, buffers)
        assert all(torch.allclose(new[key], reference[key], rtol=1e-12) for key in reference)
        assert any(not torch.equal(new[key], buffers[key]) for key in buffers)


@pytest.mark.parametrize("name", MODULES)
def test_buffers_that_f_does_not_own_are_left_alone(name: str, device: torch.device) -> None:
    module, shape = MODULES[name]
    module = module.to(device, torch.float64).train()
    before = {key: buffer.clone() for key, buffer in module.named_buffers()}
    transform = hofunc.hessian(lambda x: module(x).exp().sum())
    for call in (transform, transform.plan, lambda x: torch.func.vmap(transform)(x[None])):
        with pytest.raises(hofunc.MutationError, match=r"captured tensor.*see docs/how-to/buffers\.md"):
            call(rand(device, *shape))
    assert all(torch.equal(buffer, before[key]) for key, buffer in module.named_buffers())
    module.eval()
    assert hofunc.hessian(lambda x: module(x).exp().sum())(rand(device, *shape)).isfinite().all()
