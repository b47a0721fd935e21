"""Real networks of many kinds, small, at orders 2 and 3 by their input and at order 2 by their parameters.

The oracle is nested reverse mode in float64 of the same network, with attention by its formula; where torch is wrong
about a layer, of one that has it written out. tests/test_image_networks.py has those for images.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812 - the name that everyone gives it
from torch.nn.attention import SDPBackend, sdpa_kernel

import hofunc
from tests.cases import distinct, rand
from tests.rules.opcase import ORACLE_WARNINGS
from verification.oracles import nested_reverse, relative_error

TOLERANCE = 1e-9

pytestmark = ORACLE_WARNINGS


class WrittenOutLayerNorm(nn.Module):
    """Layer normalisation by its formula: torch's own is differentiated wrongly at order 3."""

    def __init__(self, width: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        centred = x - x.mean(-1, keepdim=True)
        return centred / ((centred**2).mean(-1, keepdim=True) + 1e-5).sqrt() * self.weight + self.bias


class WrittenOutHardsigmoid(nn.Module):
    """Hardsigmoid by its formula: torch cannot differentiate its own twice."""

    def forward(self, x: Tensor) -> Tensor:
        """Clamp a line."""
        return (x / 6 + 0.5).clamp(0, 1)


class Encoder(nn.Module):
    """A transformer encoder layer, norms first or last, by its formula if layers are to be written out."""

    def __init__(self, *, norm_first: bool, written_out: bool):
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True, norm_first=norm_first)
        if written_out:
            for name in ("norm1", "norm2"):
                norm = WrittenOutLayerNorm(4)
                norm.load_state_dict(getattr(layer, name).state_dict())
                setattr(layer, name, norm)
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Return as many vectors as there are."""
        layer: nn.TransformerEncoderLayer = self.layer
        if layer.norm_first:
            x = x + self._attended(layer.norm1(x))
            return x + self._fed(layer.norm2(x))
        x = layer.norm1(x + self._attended(x))
        return layer.norm2(x + self._fed(x))

    def _attended(self, x: Tensor) -> Tensor:
        return self.layer.self_attn(x, x, x, need_weights=False)[0]

    def _fed(self, x: Tensor) -> Tensor:
        return self.layer.linear2(self.layer.linear1(x).relu())


class GPTBlock(nn.Module):
    """Causal attention with rotary positions and a gated layer, after root mean square norms."""

    def __init__(self, width: int = 4, heads: int = 2):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4, bias=False), nn.Linear(2, width, bias=False)
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same."""
        y = self.norms[0](x)
        queries, keys, values = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(y).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(rotated(queries), rotated(keys), values, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        one, other = self.up(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.down(F.silu(one) * other)


def rotated(x: Tensor) -> Tensor:
    """Rotate pairs of numbers by an angle that grows with the time."""
    angles = torch.arange(x.shape[-2], dtype=x.dtype, device=x.device)[:, None] * 0.7
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack(
        [even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()], -1
    ).flatten(-2)


class Recurrent(nn.Module):
    """A layer that goes through time, and what it ends with."""

    def __init__(self, layer: Callable[..., nn.Module]):
        super().__init__()
        self.layer, self.last = layer(2, 3, batch_first=True), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return a number for each sequence."""
        return self.last(self.layer(x)[0][:, -1]).squeeze(-1)


class MessagePassing(nn.Module):
    """Messages along the edges of a graph, added up at their ends."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(4, 3), nn.Linear(5, 2)
        self.register_buffer("ends", torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]]))

    def forward(self, x: Tensor) -> Tensor:
        """Map what nodes have to what they have next, and add it up."""
        source, target = self.get_buffer("ends").unbind()
        messages = self.message(torch.cat([x[source], x[target]], 1)).tanh()
        received = messages.new_zeros(len(x), 3).index_add(0, target, messages)
        most = torch.zeros_like(received).scatter_reduce(0, target[:, None].expand(-1, 3), messages, "amax")
        return self.update(torch.cat([x, received + most], 1)).sigmoid().sum()


class DeepONet(nn.Module):
    """A branch for a function's values and a trunk for a place, whose products are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.trunk = nn.Sequential(nn.Linear(2, 4), nn.SiLU(), nn.Linear(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        """Take the values of a function, and then places."""
        return self.trunk(x[3:].view(-1, 2)) @ self.branch(x[:3])


class Siren(nn.Module):
    """Sines of sines."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 4), nn.Linear(4, 4), nn.Linear(4, 1)])

    def forward(self, x: Tensor) -> Tensor:
        """Return a number for each row."""
        for layer in self.layers[:-1]:
            x = (3 * layer(x)).sin()
        return self.layers[-1](x).squeeze(-1)


class Flow(nn.Module):
    """Minus the log-density of a normalising flow: a coupling layer, and a linear one with its log-determinant."""

    def __init__(self) -> None:
        super().__init__()
        self.coupling, self.mix = nn.Linear(1, 4), nn.Parameter(torch.eye(3) + 0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Return a number for each row."""
        scale, shift = self.coupling(x[:, :1]).chunk(2, dim=1)
        z = torch.cat([x[:, :1], x[:, 1:] * scale.tanh().exp() + shift], 1) @ self.mix
        return (z**2).sum(1) / 2 - scale.tanh().sum(1) - torch.linalg.slogdet(self.mix)[1]


class NeuralODE(nn.Module):
    """Three steps of Runge and Kutta's method through a field."""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        """Return where the point is in the end."""
        for _ in range(3):
            one = self.field(x)
            two = self.field(x + 0.1 * one)
            three = self.field(x + 0.1 * two)
            four = self.field(x + 0.2 * three)
            x = x + 0.2 / 6 * (one + 2 * two + 2 * three + four)
        return x


class GaussianProcess(nn.Module):
    """Minus the log-likelihood of places' values, by the logarithms of length, height and noise."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.Parameter(torch.tensor([0.1, 0.2, -1.0]))
        self.register_buffer("y", torch.tensor([0.3, -0.2, 0.5, 0.1]))

    def forward(self, x: Tensor) -> Tensor:
        """Take places, one a row."""
        length, height, noise = self.scales.exp()
        squares = ((x[:, None] - x) ** 2).sum(-1)
        kernel = height * (-squares / (2 * length**2)).exp() + noise * torch.eye(len(x), dtype=x.dtype, device=x.device)
        factor = torch.linalg.cholesky(kernel)
        y = self.get_buffer("y")
        weights = torch.cholesky_solve(y[:, None], factor).squeeze(1)
        return y @ weights / 2 + factor.diagonal().log().sum()


@dataclass(frozen=True)
class Network:
    """A network, one that is the same to torch if it needs another, and the shape of its input."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    oracle: Callable[[], nn.Module] | None = None

    def built(self, device: torch.device) -> tuple[nn.Module, nn.Module]:
        """Return both, in float64 and with equal parameters, all of them distinct."""
        network = distinct(self.make().double().to(device))
        oracle = (self.oracle or self.make)().double().to(device)
        oracle.load_state_dict(network.state_dict())
        return network, oracle


def perceptrons() -> Iterator[tuple[str, Network]]:
    """Yield small networks with every activation, and with every norm."""
    activations: tuple[Callable[[], nn.Module], ...] = (
        *(nn.Tanh, nn.Sigmoid, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus),
        *(nn.Softsign, nn.Tanhshrink, nn.LogSigmoid, nn.Hardswish, nn.Hardtanh, nn.Hardsigmoid, nn.ReLU6, nn.PReLU),
    )
    for activation in activations:
        oracle = WrittenOutHardsigmoid if activation is nn.Hardsigmoid else activation
        yield f"activation {getattr(activation, '__name__', '')}", Network(between(activation), (2, 2), between(oracle))
    norms: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
        "LayerNorm": (lambda: nn.LayerNorm(4), lambda: WrittenOutLayerNorm(4)),
        "RMSNorm": (lambda: nn.RMSNorm(4), lambda: nn.RMSNorm(4)),
        "BatchNorm, eval": (lambda: nn.BatchNorm1d(4).eval(), lambda: nn.BatchNorm1d(4).eval()),
    }
    for name, (norm, oracle) in norms.items():
        yield f"norm {name}", Network(between(norm), (2, 2), between(oracle))


def between(layer: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return what makes a network with a layer in it."""
    return lambda: nn.Sequential(nn.Linear(2, 4), layer(), nn.Linear(4, 4), nn.Tanh(), layer(), nn.Linear(4, 1))


NETWORKS: dict[str, Network] = {
    **dict(perceptrons()),
    **{
        f"transformer encoder, norm {'first' if first else 'last'}, {mode}": Network(
            lambda first=first, mode=mode: getattr(  # type: ignore[misc]
                nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True, norm_first=first), mode
            )(),
            (1, 2, 4),
        )
        for first in (True, False)
        for mode in ("train", "eval")
    },
    "GPT block": Network(GPTBlock, (1, 2, 4)),
    "LSTM": Network(lambda: Recurrent(nn.LSTM), (2, 2, 2)),
    "GRU": Network(lambda: Recurrent(nn.GRU), (2, 2, 2)),
    "RNN": Network(lambda: Recurrent(nn.RNN), (2, 2, 2)),
    "message passing": Network(MessagePassing, (3, 2)),
    "DeepONet": Network(DeepONet, (7,)),
    "SIREN": Network(Siren, (3, 2)),
    "normalising flow": Network(Flow, (2, 3)),
    "neural ODE": Network(NeuralODE, (2,)),
    "Gaussian process": Network(GaussianProcess, (4, 1)),
}


def oracle_of(name: str, network: nn.Module, oracle: nn.Module, device: torch.device) -> nn.Module:
    """Return what torch differentiates rightly: an encoder layer by its formula, and others as they are."""
    if not name.startswith("transformer"):
        return oracle
    written_out = Encoder(norm_first="norm first" in name, written_out=True).double().to(device)
    written_out.layer.load_state_dict(network.state_dict())
    return written_out


def networks(name: str, device: torch.device) -> tuple[nn.Module, nn.Module]:
    """Return the network of a name and its oracle."""
    network, oracle = NETWORKS[name].built(device)
    return network, oracle_of(name, network, oracle, device)


def expected(f: Callable[..., Tensor], order: int, argnums: int | tuple[int, ...], *args: Tensor) -> Any:
    """Return the oracle's derivative, with attention by its formula: torch cannot differentiate the fused one twice."""
    with sdpa_kernel(SDPBackend.MATH):
        return nested_reverse(f, order, argnums)(*args)


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_by_the_input(name: str, order: int, device: torch.device) -> None:
    network, oracle = networks(name, device)
    x = rand(device, *NETWORKS[name].shape)
    got = hofunc.hod(lambda x: network(x).sin().sum(), order)(x)
    assert relative_error(got, expected(lambda x: oracle(x).sin().sum(), order, 0, x)) < TOLERANCE


@pytest.mark.parametrize("name", NETWORKS)
def test_by_the_parameters(name: str, device: torch.device) -> None:
    """By the last parameter, and by it and the input."""
    network, oracle = networks(name, device)
    x = rand(device, *NETWORKS[name].shape)
    place = len([*network.parameters()]) - 1
    last, of_oracle = [*network.named_parameters()][place][0], [*oracle.named_parameters()][place][0]

    def loss(module: nn.Module, parameter: str, value: Tensor, x: Tensor) -> Tensor:
        return (functional_call(module, {parameter: value}, (x,)) ** 2).sum()

    value = network.get_parameter(last).detach()
    got = hofunc.hessian(lambda value, x: loss(network, last, value, x), (0, 1))(value, x)
    wanted = expected(lambda value, x: loss(oracle, of_oracle, value, x), 2, (0, 1), value, x)
    assert relative_error(got, wanted) < TOLERANCE
