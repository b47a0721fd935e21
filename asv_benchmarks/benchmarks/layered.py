"""Programs in layers: perceptrons, attention, convolutions, graphs, and recurrent networks of torch.nn."""

import math
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from .problem import Function, Problem, drawn

HEADS = 2


class WrittenOut(nn.Module):
    """What a layer norm over the last axis computes, of elementary ops.

    Nested torch.func is wrong in second derivatives by its weight (docs/explanations/torch-errors.md).
    """

    def __init__(self, fused: nn.LayerNorm):
        super().__init__()
        self.weight, self.bias, self.eps = fused.weight, fused.bias, fused.eps

    def forward(self, x: Tensor) -> Tensor:
        """Return x, centred and of variance one along the last axis, scaled and shifted."""
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.weight + self.bias


def _written_out(model: nn.Module) -> nn.Module:
    """Return a model with its layer norms written out."""
    result = deepcopy(model)
    for module in list(result.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.LayerNorm):
                setattr(module, name, WrittenOut(child))
    return result


def _seeded(model: nn.Module) -> nn.Module:
    """Return a model in float64 with parameters that are always the same, those of norms near one and zero."""
    model = model.to(torch.float64)
    with torch.no_grad():
        for seed, (name, parameter) in enumerate(model.named_parameters()):
            matrix = parameter.dim() > 1
            scale = 1 / math.sqrt(parameter[0].numel()) if matrix else 0.1
            middle = float(not matrix and name.endswith("weight"))
            parameter.copy_(middle + drawn(*parameter.shape, seed=seed, scale=scale))
    return model


def _by_input(model: nn.Module, x: Tensor) -> Problem:
    """Return the mean square of a model's output by its input."""
    fixed = _seeded(model).requires_grad_(False)

    def f(x: Tensor) -> Tensor:
        return fixed(x).square().mean()

    return Problem(f, (x,), written_out=_with_elementary_attention(f))


def _by_parameters(model: nn.Module, x: Tensor) -> Problem:
    """Return the mean square of a model's output by all its parameters."""
    model = _seeded(model)
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def function(model: nn.Module) -> Function:
        return lambda parameters: functional_call(model, parameters, (x,)).square().mean()

    return Problem(
        function(model), (parameters,), written_out=_with_elementary_attention(function(_written_out(model)))
    )


def _with_elementary_attention(f: Function) -> Function:
    """Return a function without fused attention, whose backward pass torch does not differentiate."""

    def elementary(x: Any) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return f(x)

    return elementary


def _perceptron(layers: int, width: int) -> nn.Module:
    each: Iterable[tuple[nn.Module, ...]] = (
        (nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)) for _ in range(layers)
    )
    return nn.Sequential(*(module for group in each for module in group))


def perceptron_by_input(layers: int, width: int = 16) -> Problem:
    """Linear layers, each with GELU and a layer norm, by four rows."""
    return _by_input(_perceptron(layers, width), drawn(4, width))


def perceptron_by_parameters(layers: int, width: int = 8) -> Problem:
    """The same by all parameters: a block for each pair of them."""
    return _by_parameters(_perceptron(layers, width), drawn(4, width))


def _encoder(layers: int, width: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, HEADS, width, 0.0, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def encoder_by_input(layers: int, width: int = 16) -> Problem:
    """Layers of attention, layer norms and two linear maps by four tokens."""
    return _by_input(_encoder(layers, width), drawn(1, 4, width))


def encoder_by_parameters(layers: int, width: int = 8) -> Problem:
    """The same by all parameters, 12 of each layer."""
    return _by_parameters(_encoder(layers, width), drawn(1, 4, width))


def lstm(steps: int, layers: int = 2, directions: int = 2) -> Problem:
    """An LSTM of torch.nn by its inputs."""
    model = _seeded(nn.LSTM(3, 3, layers, bidirectional=directions == 2)).requires_grad_(False)
    return Problem(lambda x: model(x)[0][-1].square().sum(), (drawn(steps, 1, 3),))


def decoder(layers: int, width: int = 8, order: int = 2) -> Problem:
    """A decoder as GPT-2's by five tokens: attention to those before, by a boolean mask, and a perceptron."""
    shapes = {"qkv": (3 * width, width), "out": (width, width), "up": (2 * width, width), "down": (width, 2 * width)}
    weights = [
        {name: drawn(*shape, seed=10 * layer + seed, scale=0.3) for seed, (name, shape) in enumerate(shapes.items())}
        for layer in range(layers)
    ]
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)

    def attention(x: Tensor, weight: dict[str, Tensor]) -> Tensor:
        parts = (x @ weight["qkv"].T).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (HEADS, width // HEADS)).transpose(0, 1) for part in parts)
        scores = (query @ key.mT / math.sqrt(width / HEADS)).masked_fill(later, -math.inf)
        return (scores.softmax(-1) @ value).transpose(0, 1).flatten(1) @ weight["out"].T

    def f(x: Tensor, norm: nn.Module) -> Tensor:
        for weight in weights:
            x = x + attention(norm(x), weight)
            x = x + functional.gelu(norm(x) @ weight["up"].T) @ weight["down"].T
        return x.square().sum()

    fused = nn.LayerNorm(width, dtype=torch.float64).requires_grad_(False)
    elementary = WrittenOut(fused)
    return Problem(lambda x: f(x, fused), (drawn(5, width),), order, written_out=lambda x: f(x, elementary))


class _Block(nn.Module):
    """A residual block of two convolutions with batch norms."""

    def __init__(self, channels: int):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        inside = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(x + self.norms[1](self.second(inside)))


def residual_network(blocks: int, channels: int = 4, side: int = 6) -> Problem:
    """A ResNet in evaluation by the image; with 8 blocks it has the 18 layers of ResNet-18."""
    body = (_Block(channels) for _ in range(blocks))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 3), nn.Softplus())
    model = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), *body, *head).eval()
    return _by_input(model, drawn(1, 3, side, side))


def graph_network(layers: int, nodes: int = 8, width: int = 4) -> Problem:
    """Sums over neighbours, found by an edge list, by the features of all nodes."""
    weights = [drawn(width, width, seed=layer, scale=0.5) for layer in range(layers)]
    source = torch.arange(nodes).repeat(2)
    target = torch.cat([(torch.arange(nodes) + 1) % nodes, (torch.arange(nodes) + 3) % nodes])

    def f(x: Tensor) -> Tensor:
        for weight in weights:
            messages = (x @ weight)[source]
            x = torch.tanh(x + torch.zeros_like(x).index_add(0, target, messages))
        return x.square().sum()

    return Problem(f, (drawn(nodes, width),))


def annealed(layers: int, width: int = 6) -> Problem:
    """A loss with a weight that is another Python float at every call."""
    weights = [drawn(width, width, seed=layer, scale=0.5) for layer in range(layers)]
    schedule = iter(1 / (1 + call) for call in range(10**9))

    def f(x: Tensor) -> Tensor:
        now, y = next(schedule), x
        for weight in weights:
            y = torch.tanh(y @ weight)
        return y.sum() + now * x.pow(4).sum()

    return Problem(f, (drawn(4, width),))


def selected(layers: int, width: int = 6) -> Problem:
    """What is positive of an input, through an MLP of each number."""
    weights = [drawn(width, width, seed=layer, scale=0.5) for layer in range(layers)]

    def f(x: Tensor) -> Tensor:
        y = x[x > 0][:, None].expand(-1, width)
        for weight in weights:
            y = torch.tanh(y @ weight)
        return y.sum()

    return Problem(f, (drawn(12),))
