"""Packed sequences: recurrent layers over sequences of several lengths have the derivatives of each by itself."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import hofunc
from hofunc.arguments import STRATEGIES
from tests.cases import rand
from tests.checks import assert_equal
from verification.oracles import nested_reverse

LAYERS: dict[str, Callable[..., nn.RNNBase]] = {
    "RNN": nn.RNN,
    "GRU of two layers": lambda *sizes, **options: nn.GRU(*sizes, num_layers=2, **options),
    "LSTM in both directions": lambda *sizes, **options: nn.LSTM(*sizes, bidirectional=True, **options),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("batch_first", [False, True])
def test_packing_and_padding(batch_first: bool, strategy: str, device: torch.device) -> None:
    lengths, sizes = torch.tensor([3, 1]), ((2, 3) if batch_first else (3, 2))

    def f(x: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=batch_first)
        changed = packed._replace(data=packed.data.sin() * packed.data.sum())
        steps, counts = pad_packed_sequence(changed, batch_first, padding_value=0.3, total_length=4)
        return steps.exp() * counts.sum()

    def expected(x: Tensor) -> Tensor:
        steps = x.transpose(0, 1) if batch_first else x
        mask = (torch.arange(3)[:, None] < lengths).to(device)[..., None]
        total = torch.where(mask, steps, 0).sum()
        steps = torch.cat([torch.where(mask, steps.sin() * total, 0.3), steps.new_full((1, 2, 1), 0.3)])
        return (steps.transpose(0, 1) if batch_first else steps).exp() * 4

    x = rand(device, *sizes, 1)
    for order in (1, 2, 3):
        assert_equal(hofunc.hod(f, order, strategy=strategy)(x), nested_reverse(expected, order)(x))


@pytest.mark.parametrize("lengths", [(4, 2, 1), (4, 4, 4), (3, 3, 1)])
@pytest.mark.parametrize("layer", LAYERS)
def test_layers(layer: str, lengths: tuple[int, ...], device: torch.device) -> None:
    torch.manual_seed(0)
    network = LAYERS[layer](2, 3).to(device, torch.float64)

    def f(x: Tensor) -> Tensor:
        output, _ = network(pack_padded_sequence(x, torch.tensor(lengths)))
        return pad_packed_sequence(output)[0].square().sum()

    def alone(x: Tensor) -> Tensor:
        outputs = [network(x[:length, sample : sample + 1])[0] for sample, length in enumerate(lengths)]
        return torch.stack([output.square().sum() for output in outputs]).sum()

    x = rand(device, 4, 3, 2)
    hessian = nested_reverse(alone, 2)(x)
    assert_equal(hofunc.hessian(f)(x), hessian)
    compiled = hofunc.jit(hofunc.hessian(f))
    for _ in range(2):
        assert_equal(compiled(x), hessian)
