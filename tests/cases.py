"""Functions on which hod is compared with nested torch.func, with inputs and orders."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that everyone gives it

Module = TypeVar("Module", bound=torch.nn.Module)

Built = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    """A function to differentiate.

    Attributes:
        name: What it shows.
        build: Given a device, the function and its arguments, in float64.
        orders: Orders at which it is compared.
        argnums: What it is differentiated by.
        reference: Given a device, the same function as torch differentiates it right, where it does not do so with f.
    """

    name: str
    build: Callable[[torch.device], Built]
    orders: tuple[int, ...] = (1, 2, 3)
    argnums: int | tuple[int, ...] = 0
    reference: Callable[[torch.device], Callable[..., Any]] | None = None


CASES: list[Case] = []


def case(
    name: str, *, orders: tuple[int, ...] = (1, 2, 3), argnums: int | tuple[int, ...] = 0
) -> Callable[[Callable[[torch.device], Built]], None]:
    """Enter a case, given a function that builds it."""

    def enter(build: Callable[[torch.device], Built]) -> None:
        CASES.append(Case(name, build, orders, argnums))

    return enter


def simple(
    name: str, f: Callable[[Tensor], Any], *shape: int, orders: tuple[int, ...] = (1, 2, 3), argnums: int = 0
) -> None:
    """Enter a function of one tensor of the given shape."""
    CASES.append(Case(name, lambda device: (f, (rand(device, *shape),)), orders, argnums))


def several(name: str, f: Callable[..., Any], *shapes: tuple[int, ...], orders: tuple[int, ...] = (1, 2, 3)) -> None:
    """Enter a function of several tensors of the given shapes, to be differentiated by all of them."""

    def build(device: torch.device) -> Built:
        return f, tuple(rand(device, *shape, seed=seed) for seed, shape in enumerate(shapes))

    CASES.append(Case(name, build, orders, tuple(range(len(shapes)))))


def rewritten(
    name: str, f: Callable[[Tensor], Any], same: Callable[[Tensor], Any], *shape: int, orders: tuple[int, ...]
) -> None:
    """Enter a function of one tensor that torch cannot differentiate as it stands, with one that it can."""
    CASES.append(Case(name, lambda device: (f, (rand(device, *shape),)), orders, reference=lambda device: same))


def rand(device: torch.device, *shape: int, seed: int = 0) -> Tensor:
    """Return fixed random numbers of order one; on the meta device there are none."""
    if device.type == "meta":
        return torch.empty(shape, dtype=torch.float64, device=device)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(device)


def distinct(module: Module, seed: int = 0) -> Module:
    """Fill all floating parameters and buffers of a module with random numbers, no two of which are equal.

    Those of a new module may be zeros and ones, which hide that one is taken for another. They are smaller the more of
    them are summed, never near zero, and positive where they are variances.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            size = 0.2 + torch.rand(tensor.shape, dtype=torch.float64, generator=generator)
            sign = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
            summed = max(1, tensor[:1].numel()) if tensor.dim() > 1 else 1
            tensor.copy_(size if "var" in name else sign * size / summed**0.5)
    return module


def mixed(y: Tensor) -> Tensor:
    """Sum up something whose derivatives of all orders differ from element to element."""
    return (y * y * y.sin()).sum()


# The traps of design.md, section 6.

simple("one tensor used twice by one op", lambda x: x * x, 3, orders=(1, 2, 3, 4))
simple("a new slot beside one of the same variable", lambda x: (x.tanh() * x).sum(), 3, orders=(1, 2, 3, 4))
simple("one term in two slots", lambda x: (x @ x.t()).exp().sum(), 2, 2, orders=(1, 2, 3))
simple("a softmax that is summed is constant", lambda x: x.softmax(1).sum(), 3, 4, orders=(1, 2, 3))
simple("a weighted softmax", lambda x: (x.softmax(1) * x.detach().cos()).sum(), 2, 3, orders=(1, 2, 3, 4))
simple("an output that does not depend on the input", lambda x: torch.ones(2, dtype=x.dtype, device=x.device), 3)
simple(
    "an axis of size one is broadcast", lambda x: (x[:, :1] * x + x.mean(0, keepdim=True)).exp(), 2, 3, orders=(1, 2)
)
simple("a scalar is broadcast", lambda x: (x.sum() * x).sin().sum(), 3, orders=(1, 2, 3, 4))


# Networks.


@case("MLP with a vector output", orders=(1, 2, 3, 4))
def _mlp(device: torch.device) -> Built:
    first, second = rand(device, 3, 5, seed=1), rand(device, 5, 2, seed=2)
    return lambda x: (x @ first).tanh() @ second, (rand(device, 3),)


@case("MLP over a batch")
def _mlp_batch(device: torch.device) -> Built:
    first, second = rand(device, 2, 4, seed=1), rand(device, 4, 2, seed=2)
    return lambda x: ((x @ first).sigmoid() @ second).tanh(), (rand(device, 3, 2),)


@case("MLP of modules", orders=(1, 2, 3))
def _modules(device: torch.device) -> Built:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.SiLU(), torch.nn.Linear(4, 2), torch.nn.Softplus())
    return distinct(net.double().to(device).requires_grad_(False)), (rand(device, 2, 3),)


@case("the thesis's network", orders=(1, 2, 3))
def _thesis(device: torch.device) -> Built:
    weights = [rand(device, 4, 4, seed=seed) for seed in (1, 2, 3)]
    scale = rand(device, 3, 4, seed=4)

    def f(x: Tensor) -> Tensor:
        for weight in weights[:-1]:
            x = (x @ weight).relu()
        return ((x @ weights[-1]).softmax(1) * scale).sum()

    return f, (rand(device, 3, 4),)


@case("the thesis's network by all parameters", orders=(1, 2), argnums=(0, 1, 2))
def _parameters(device: torch.device) -> Built:
    scale = rand(device, 2, 3, seed=4)
    return (
        lambda x, v, w: (((x @ v).tanh() @ w).softmax(1) * scale).sum(),
        (rand(device, 2, 3), rand(device, 3, 4, seed=1), rand(device, 4, 3, seed=2)),
    )


def _attention(device: torch.device, tokens: int) -> Built:
    weight, out = rand(device, 4, 12, seed=1), rand(device, 4, 4, seed=2)

    def f(x: Tensor) -> Tensor:
        query, key, value = (x @ weight).reshape(tokens, 3, 2, 2).permute(1, 2, 0, 3)
        scores = (query @ key.transpose(-1, -2) / 2**0.5).softmax(-1)
        return (scores @ value).transpose(0, 1).reshape(tokens, 4) @ out

    return f, (rand(device, tokens, 4),)


CASES.append(Case("attention with head reshapes", lambda device: _attention(device, 3), (1, 2)))
CASES.append(Case("attention of two tokens", lambda device: _attention(device, 2), (3,)))  # torch takes its time


@case("GRU cell")
def _gru(device: torch.device) -> Built:
    cell = distinct(torch.nn.GRUCell(3, 2).double().to(device).requires_grad_(False))
    return lambda x: cell(x, x[:, 1:]), (rand(device, 2, 3),)


@case("LSTM cell", orders=(1, 2))
def _lstm(device: torch.device) -> Built:
    cell = distinct(torch.nn.LSTMCell(3, 2).double().to(device).requires_grad_(False))
    return lambda x: cell(x, (x[:, :2], x[:, 1:])), (rand(device, 2, 3),)


@case("a pytree of parameters", orders=(1, 2))
def _pytree(device: torch.device) -> Built:
    def f(parameters: dict[str, Any], x: Tensor) -> dict[str, Tensor]:
        hidden = (x @ parameters["weight"] + parameters["shift"][0]).tanh()
        return {"sum": hidden.sum(0), "scaled": hidden[0] * parameters["shift"][1]}

    parameters = {"weight": rand(device, 3, 2), "shift": (rand(device, 2, seed=1), rand(device, 2, seed=2))}
    return f, (parameters, rand(device, 2, 3, seed=3))


@case("two arguments, all cross blocks", argnums=(0, 1))
def _two(device: torch.device) -> Built:
    return lambda x, w: ((x @ w).tanh() * x.sum()).sum(0), (rand(device, 2, 3), rand(device, 3, 2, seed=1))


@case("arguments out of order", orders=(1, 2), argnums=(1, 0))
def _swapped(device: torch.device) -> Built:
    return lambda x, y: (x * y.exp()).sum(0), (rand(device, 2, 3), rand(device, 3, seed=1))


simple("several outputs sharing work", lambda x: (x.exp(), [x.exp() * x, x]), 2, orders=(1, 2))
simple("an output that is an input", lambda x: x, 2, orders=(1, 2))


# Batches and directions: what shares an index in all slots, what does not, and what loses it late.


def _rows(x: Tensor) -> Tensor:
    """Return a number for each row that has all derivatives."""
    weight = rand(x.device, x.shape[-1], 3, seed=1)
    return ((x @ weight).tanh() @ rand(x.device, 3, seed=2)).sin()


def _field(x: Tensor, t: Tensor) -> Tensor:
    return _rows(torch.stack([x, t], -1)) * t.exp()


simple("a number for each row", _rows, 2, 2, orders=(1, 2, 3, 4))
simple("rows that are added up", lambda x: _rows(x).sum(), 3, 2, orders=(1, 2, 3, 4))
simple("rows that mix late, in a square", lambda x: _rows(x).sum() ** 2, 2, 2, orders=(1, 2, 3, 4))
simple("rows that mix late, in a product", lambda x: _rows(x) * x.sin().sum(), 3, 2)
simple("a part of the sum of all rows for each", lambda x: (x.sin().sum(1) + _rows(x).sum() * 0.25).sum(), 3, 2)
simple("rows that mix late, in one of two outputs", lambda x: (_rows(x), _rows(x).sum().exp()), 3, 2)
simple("the products of all pairs of rows", lambda x: (x @ x.t()).tanh(), 3, 2)
simple("neighbouring rows", lambda x: (x[1:] * x[:-1]).exp().sum(1), 3, 2)
simple("rows with those of the other end", lambda x: (x * x.flip(0)).sin(), 3, 2)
simple("rows that are taken twice", lambda x: _rows(x[[0, 2, 0]]), 3, 2)
simple("rows of a reshaped input", lambda x: _rows(x.reshape(-1, 2)), 2, 4)
simple("columns for rows", lambda x: _rows(x.t()), 2, 3)
simple("elementwise before the rows", lambda x: _rows(x.sin() * x), 2, 2, orders=(1, 2, 3, 4))
simple("elementwise beside the rows", lambda x: x.sin() * _rows(x)[:, None] + x**3, 3, 2)
simple(
    "two axes of directions", lambda x: _rows(x.flatten(1)) * (x @ x.transpose(1, 2)).diagonal(0, 1, 2).sum(1), 2, 2, 2
)
simple("a batch between two axes of directions", lambda x: _rows(x.transpose(0, 1).flatten(1)), 2, 2, 2)
simple("two axes of batch", _rows, 2, 2, 2)
simple("one row", lambda x: _rows(x) * x.sum(), 1, 3)
simple("one direction", _rows, 2, 1, orders=(1, 2, 3, 4, 5))
simple("one direction for each element", lambda x: x.tanh() * x.sin(), 2, orders=(1, 2, 3, 4, 5))
simple("one direction in all", lambda x: (x.tanh() * x.sin()).exp(), orders=(1, 2, 3, 4, 5))
simple("directions beside an axis of size one", lambda x: _rows(x.flatten(1)), 2, 1, 2)
simple("directions between axes of size one", lambda x: (x * x.sum()).sin(), 1, 2, 1)
several("a field of place and time", _field, (2,), (2,), orders=(1, 2, 3, 4))
several("a field and its sum", lambda x, t: (_field(x, t), _field(x, t).sum() * t), (2,), (2,))
several("a field of a place for each and one time", lambda x, t: _field(x, t.expand(3)), (3,), ())
several("rows and a weight", lambda x, w: _rows(x * w), (3, 2), (2,))
several("rows and a linear weight", lambda x, w: x.tanh() @ w, (3, 2), (2,))
several("rows of two inputs beside each other", lambda x, t: _rows(torch.cat([x, t], 1)), (2, 2), (2, 1))
several("all pairs of two inputs", lambda x, y: _field(x[:, None] * y, x[:, None] + y), (2,), (3,))
several("rows of one and the sum of another", lambda x, y: _rows(x) * _rows(y).sum(), (2, 2), (3, 2))
several("three inputs", lambda x, y, z: _field(x, y).sum() * z.exp() + x * z, (2,), (2,), (2,))
several("one of two does not matter", lambda x, y: _rows(x), (2, 2), (2, 2))
several("one of two matters only to a derivative of lower order", lambda x, y: _rows(x) + y, (2, 2), (2,))


# Norms and losses.


def _written_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / ((centred**2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


def _layer_norm(device: torch.device, norm: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    first, second = rand(device, 3, 4, seed=1), rand(device, 4, seed=2)
    return lambda x, weight, bias: norm(x @ first, weight, bias).tanh() @ second


CASES.append(
    Case(
        "layer_norm, which torch differentiates wrongly",
        lambda device: (
            _layer_norm(device, lambda x, weight, bias: F.layer_norm(x, (4,), weight, bias)),
            (rand(device, 2, 3), rand(device, 4, seed=3), rand(device, 4, seed=4)),
        ),
        (1, 2, 3),
        (0, 1),
        lambda device: _layer_norm(device, _written_layer_norm),
    )
)


def _loss(name: str, f: Callable[[Tensor, torch.device], Tensor], *, orders: tuple[int, ...] = (1, 2, 3)) -> None:
    def build(device: torch.device) -> Built:
        weight = rand(device, 3, 4, seed=1)
        return lambda x: f(x @ weight, device), (rand(device, 3, 3),)

    CASES.append(Case(name, build, orders))


def _labels(device: torch.device, *numbers: int) -> Tensor:
    return torch.tensor(numbers, device=device)


_loss("mse", lambda y, device: F.mse_loss(y, rand(device, 3, 4, seed=2)))
_loss("cross-entropy", lambda y, device: F.cross_entropy(y, _labels(device, 1, 0, 3)))
_loss(
    "cross-entropy with weights and an ignored row",
    lambda y, device: F.cross_entropy(y, _labels(device, 1, -100, 3), weight=rand(device, 4, seed=2).abs()),
)
_loss(
    "cross-entropy with smoothed labels",
    lambda y, device: F.cross_entropy(y, _labels(device, 1, 0, 3), label_smoothing=0.1),
)
_loss("cross-entropy with probabilities", lambda y, device: F.cross_entropy(y, rand(device, 3, 4, seed=2).softmax(1)))
_loss(
    "nll, unreduced",
    lambda y, device: F.nll_loss(y.log_softmax(1), _labels(device, 1, 0, 3), reduction="none"),
    orders=(1, 2),
)
_loss("huber", lambda y, device: F.huber_loss(y, rand(device, 3, 4, seed=2), delta=1.5))
_loss("smooth l1", lambda y, device: F.smooth_l1_loss(y, rand(device, 3, 4, seed=2), reduction="sum"))
_loss("l1", lambda y, device: F.l1_loss(y.exp(), rand(device, 3, 4, seed=2)))
_loss(
    "binary cross-entropy with logits",
    lambda y, device: F.binary_cross_entropy_with_logits(y, rand(device, 3, 4, seed=2).sigmoid()),
)
_loss(
    "kl divergence",
    lambda y, device: F.kl_div(y.log_softmax(1), rand(device, 3, 4, seed=2).softmax(1), reduction="batchmean"),
)


# Code as people write it.


def _in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y[0] = x[1] * 2
    y.add_(1)
    y[:, 1].mul_(x[:, 0])
    z = torch.zeros_like(x)
    z.copy_(y)
    z[1:, ::2] *= x[1:, ::2]
    z[[2, 0, 1], 1] = x[:3, 2]
    z[x.detach() > 1] = 0.5
    return mixed(z)


def _views_written(x: Tensor) -> Tensor:
    y = torch.empty(3, 4, dtype=x.dtype, device=x.device)
    top = y[:1]
    y.copy_(x)
    y.t()[1] = x[:, 0] * x[:, 2]
    y.diagonal().exp_()
    top += y[1:2]
    return mixed(y) + mixed(y.view(2, 6)[:, 1:3])


def _views_functional(x: Tensor) -> Tensor:
    y = torch.stack([x[:, 0], x[:, 0] * x[:, 2], x[:, 2], x[:, 3]], 1)
    y = torch.diagonal_scatter(y, y.diagonal().exp())
    y = torch.cat([y[:1] + y[1:2], y[1:]])
    return mixed(y) + mixed(y.view(2, 6)[:, 1:3])


def _accumulated(x: Tensor) -> Tensor:
    total = torch.zeros((), dtype=x.dtype, device=x.device)
    for row in x:
        total += row.prod()
        total *= row[0]
    return total


def _out(x: Tensor) -> Tensor:
    result = torch.empty_like(x)
    torch.mul(x, x.sin(), out=result)
    return mixed(result)


simple("in-place code", _in_place, 4, 3, orders=(1, 2, 3))
rewritten("writes through views", _views_written, _views_functional, 3, 4, orders=(1, 2))
simple("a running total in place", _accumulated, 3, 2, orders=(1, 2, 3))
rewritten("an out argument", _out, lambda x: mixed(x * x.sin()), 3, orders=(1, 2))
simple("a branch that is taken", lambda x: mixed(x) if x[0] < 9 else x.sum(), 3)
simple("a branch that is not taken", lambda x: mixed(x) if x[0] > 9 else (x * x).sum(), 3)
simple("a loop of as many steps as the values say", lambda x: mixed(x * int(x.abs().sum())), 3, orders=(1, 2))
simple("what leaves torch is a constant", lambda x: (x * x.sum().item() + x.detach() * x).sum(), 3, orders=(1, 2))
simple("nested grad", lambda x: torch.func.grad(lambda y: mixed(y.tanh()))(x), 3, orders=(1, 2))
simple("nested vmap", lambda x: torch.func.vmap(lambda row: mixed(row) * row)(x), 2, 3, orders=(1, 2))
simple("nested hessian", lambda x: torch.func.hessian(mixed)(x).diagonal(), 3, orders=(1, 2))
simple("nested jvp", lambda x: torch.func.jvp(torch.sin, (x,), (x * x,))[1], 3, orders=(1, 2))
simple(
    "nested jvp along what is laid out otherwise",
    lambda x: torch.func.jvp(torch.tanh, (x.t() * x.sin().t(),), (x * x,))[1],
    2,
    2,
    orders=(1, 2),
)
simple("einsum", lambda x: torch.einsum("ij,kj,jk->ik", x, x, x), 2, 2, orders=(1, 2, 3))


@case("a captured tensor that needs gradients", orders=(1, 2))
def _captured(device: torch.device) -> Built:
    weight = rand(device, 3, 3, seed=1).requires_grad_()
    return lambda x: (x @ weight.t().exp()).tanh(), (rand(device, 3),)


@case("the input captured as well", orders=(1, 2))
def _captured_input(device: torch.device) -> Built:
    x = rand(device, 3)
    return lambda y: (y * x).sin().sum(), (x,)
