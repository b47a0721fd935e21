"""What products of a Hessian with a vector take by all parameters of networks, beside `grad` of `grad` by torch.

Run it as `python -m asv_benchmarks.networks`: it prints a table in Markdown, of milliseconds of processor time, in
float64 on one thread. Networks are small, so that steps count rather than operations. A first call finds no plan; all
others are medians in turn. Products are compared with torch's, and the largest difference is printed too.
"""

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

import hofunc
from hofunc.run.cache import forget

ROUNDS = 7
Parameters = dict[str, Tensor]


class Recurrent(nn.Module):
    """A recurrent network, by default an LSTM of two layers, of which all states are returned."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU] = nn.LSTM, width: int = 6, layers: int = 2) -> None:
        super().__init__()
        self.layers = kind(4, width, layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the states of the last layer."""
        states: Tensor = self.layers(x)[0]
        return states


def normalised(layers: int) -> nn.Module:
    """Return layers of 16: linear, layer norm, GELU."""
    each = (nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU()) for _ in range(layers))
    return nn.Sequential(*each)


def convolved(layers: int) -> nn.Module:
    """Return layers of four channels: convolution, group norm, SiLU."""
    each = (nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU()) for _ in range(layers))
    return nn.Sequential(*each)


def attending(layers: int) -> nn.Module:
    """Return an encoder of width 16 with two heads."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Sequence[int]]] = {
    "12 layers of 16: linear, layer norm, GELU": (lambda: normalised(12), (32, 16)),
    "24 of these": (lambda: normalised(24), (32, 16)),
    "transformer encoder of 3 layers of 16": (lambda: attending(3), (4, 6, 16)),
    "8 layers: convolution, group norm, SiLU": (lambda: convolved(8), (2, 4, 8, 8)),
    "LSTM of 2 layers, 20 steps": (Recurrent, (3, 20, 4)),
    "LSTM of 1 layer of 6, 100 steps": (lambda: Recurrent(layers=1), (1, 100, 4)),
    "LSTM of 1 layer of 16, 200 steps": (lambda: Recurrent(width=16, layers=1), (1, 200, 4)),
    "GRU of 1 layer of 6, 100 steps": (lambda: Recurrent(nn.GRU, layers=1), (1, 100, 4)),
}


def by_torch(loss: Callable[[Parameters], Tensor], parameters: Parameters, vector: Parameters) -> Parameters:
    """Return the product by two backward passes."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in parameters.items()}
    slopes = torch.autograd.grad(loss(leaves), [*leaves.values()], create_graph=True)
    return dict(zip(leaves, torch.autograd.grad(slopes, [*leaves.values()], [*vector.values()]), strict=True))


def seconds(call: Callable[[], Any]) -> float:
    """Return the processor time of a call."""
    start = process_time()
    call()
    return process_time() - start


def row(make: Callable[[], nn.Module], shape: Sequence[int]) -> Iterator[str]:
    """Yield the figures of a network."""
    torch.manual_seed(0)
    network, x = make().double(), torch.randn(*shape, dtype=torch.float64)
    parameters = {name: tensor.detach() for name, tensor in network.named_parameters()}
    target = torch.randn_like(network(x))

    def loss(parameters: Parameters) -> Tensor:
        return (functional_call(network, parameters, (x,)) - target).square().mean()

    vector = {name: torch.randn_like(tensor) for name, tensor in parameters.items()}
    product = hofunc.hvp(loss)
    jitted = hofunc.jit(product)
    calls: list[Callable[[], Parameters]] = [
        lambda: product(parameters, vector=vector),
        lambda: jitted(parameters, vector=vector),
        lambda: by_torch(loss, parameters, vector),
    ]
    forget()
    first = seconds(calls[0])
    ours, _, theirs = (call() for call in calls)
    off = max(float((ours[name] - theirs[name]).abs().max()) for name in parameters)
    for call in calls:
        call()
    turns = [[seconds(call) for call in calls] for _ in range(ROUNDS)]
    yield str(len(parameters))
    yield f"{1e3 * first:.0f}"
    yield from (f"{1e3 * median(taken):.1f}" for taken in zip(*turns, strict=True))
    yield f"{off:.0e}"


def main() -> None:
    """Print a row for every network, after a product that finds all imports done."""
    torch.set_num_threads(1)
    print("| network | leaves | first call | later calls | by hofunc.jit | torch's grad of grad | difference |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with sdpa_kernel(SDPBackend.MATH):  # which alone torch differentiates twice
        [*row(lambda: normalised(1), (2, 16))]
        for name, (make, shape) in NETWORKS.items():
            print(f"| {name} | {' | '.join(row(make, shape))} |", flush=True)


if __name__ == "__main__":
    main()
