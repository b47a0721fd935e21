"""What tests are made of does what they rely on."""

import pytest
import torch
from torch import Tensor, nn

from tests.cases import distinct

MODULES: dict[str, nn.Module] = {
    "linear": nn.Linear(3, 4),
    "layer norm": nn.LayerNorm(5),
    "group norm": nn.GroupNorm(2, 4),
    "batch norm": nn.BatchNorm1d(4),
    "LSTM": nn.LSTM(2, 3, 2),
    "PReLU": nn.PReLU(),
    "transformer": nn.TransformerEncoderLayer(4, 2, 6),
    "nested": nn.Sequential(nn.Conv2d(2, 3, 3), nn.Sequential(nn.BatchNorm2d(3)), nn.Embedding(4, 2)),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", MODULES)
def test_all_numbers_of_a_module_are_distinct(name: str, dtype: torch.dtype) -> None:
    module = MODULES[name].to(dtype)
    assert distinct(module) is module
    numbers = _numbers(module)
    assert len(numbers.unique()) == len(numbers) > 0
    assert len(numbers.abs().unique()) == len(numbers)
    assert numbers.abs().min() > 0.01
    assert numbers.abs().max() <= 1.2
    assert all(parameter.requires_grad for parameter in module.parameters())
    for key, tensor in module.state_dict().items():
        assert "var" not in key or (tensor > 0.1).all()
        assert tensor.is_floating_point() or (key.endswith("num_batches_tracked") and tensor == 0)


def test_a_seed_gives_the_same_numbers_and_another_others() -> None:
    first, again, other = (_numbers(distinct(nn.BatchNorm1d(3), seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not {*first.tolist()} & {*other.tolist()}


def _numbers(module: nn.Module) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in module.state_dict().values() if tensor.is_floating_point()])
