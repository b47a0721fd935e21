"""Functions whose plans are saved and loaded, of every kind of thing that a plan is made of."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that everyone gives it

import hofunc
from tests.cases import distinct, rand

CPU = torch.device("cpu")


class Two(NamedTuple):
    """A pytree of a class of its own."""

    a: Tensor
    b: Tensor


class Saved(NamedTuple):
    """What to make a plan of: a transform, and its arguments."""

    transform: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def plan(self) -> Any:
        """Make it."""
        return self.transform.plan(*self.args, **self.kwargs)  # type: ignore[attr-defined]

    def called(self, plan: Any, scale: float = 1) -> Any:
        """Call it on inputs that are scaled, from one state of the random generator."""
        torch.manual_seed(0)
        moved = [torch.utils._pytree.tree_map(lambda x: _scaled(x, scale), each) for each in (self.args, self.kwargs)]
        return plan(*moved[0], **moved[1])


def _scaled(leaf: Any, scale: float) -> Any:
    is_floating = isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())
    return leaf * scale if is_floating else leaf


weight = rand(CPU, 3, 3, seed=1)
first, second = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3])


def layer(x: Tensor) -> Tensor:
    """A layer of a network."""
    return (x @ weight).tanh()


def pairs(x: Tensor) -> Tensor:
    """A function of differences by indices."""
    return ((x[first] - x[second]) ** 4).sum()


def at(transform: Callable[..., Any], *args: Any, **kwargs: Any) -> Saved:
    """Return what to make a plan of."""
    return Saved(transform, args, kwargs)


def _of_parameters() -> Saved:
    net = distinct(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double())

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(net, parameters, (x,)).sin().sum()

    hessian = hofunc.hessian(loss, layout="compact")
    return at(hessian, {name: each.detach() for name, each in net.named_parameters()}, rand(CPU, 5, 3))


def _of_module(module: nn.Module, *shape: int) -> Saved:
    distinct(module.double())
    return at(hofunc.hessian(lambda x: _first(module(x)).sin().sum()), rand(CPU, *shape))


def _first(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


def _holomorphic() -> Saved:
    z = torch.complex(rand(CPU, 3), rand(CPU, 3, seed=1))
    return at(hofunc.hessian(torch.exp, holomorphic=True), z)


def _shapes() -> Saved:
    def f(p: dict[str, Any]) -> OrderedDict[str, Tensor]:
        return OrderedDict(u=(p["a"].a * p["a"].b.sin()).sum(), v=p["c"][0] ** 2)

    return at(hofunc.derivatives(f, 2), {"c": [rand(CPU, 2)], "a": Two(rand(CPU, 3), rand(CPU, 3, seed=1))})


def _aux() -> Saved:
    def f(x: Tensor, name: str, *, power: int) -> tuple[Tensor, dict[str, Any]]:
        return (x**power).sum(), {"name": name, "x": 2 * x, "nothing": None, "zero": -0.0, "sizes": x.shape}

    return at(hofunc.hessian(f, has_aux=True), rand(CPU, 3), "some", power=3)


def _branch(x: Tensor) -> Tensor:
    return (x**3).sum() * x.sign()[0].item() if (x * x).sum() > 0 else x.sum()


SAVED: dict[str, Callable[[], Saved]] = {
    "MLP": lambda: at(hofunc.hessian(lambda x: layer(layer(x)).sum()), rand(CPU, 4, 3)),
    "by parameters, compact": _of_parameters,
    "transformer": lambda: _of_module(nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0), 2, 1, 4),
    "LSTM": lambda: _of_module(nn.LSTM(3, 2), 2, 1, 3),
    "chunks": lambda: at(hofunc.hessian(lambda x: layer(x).sum(), chunk_size=7), rand(CPU, 50, 3)),
    "max_bytes": lambda: at(
        hofunc.hessian(lambda x: layer(x).prod(-1).sum(), layout="compact", max_bytes=30000), rand(CPU, 64, 3)
    ),
    "laplacian": lambda: at(hofunc.laplacian(lambda x: layer(x).prod(-1)), rand(CPU, 5, 3)),
    "hvp": lambda: at(hofunc.hvp(lambda x: layer(x).sum()), rand(CPU, 5, 3), vector=rand(CPU, 5, 3, seed=1)),
    "complex": lambda: at(
        hofunc.hessian(lambda z: (z * z.conj()).real.sum() ** 2), torch.complex(rand(CPU, 3), rand(CPU, 3, seed=1))
    ),
    "holomorphic": _holomorphic,
    "dropout": lambda: at(hofunc.hessian(lambda x: F.dropout(x, 0.5).pow(2).sum()), rand(CPU, 30)),
    "indices, compact": lambda: at(hofunc.hessian(pairs, layout="compact"), rand(CPU, 4)),
    "indices": lambda: at(hofunc.hessian(pairs), rand(CPU, 4)),
    "a branch": lambda: at(hofunc.hessian(_branch), torch.ones(3)),
    "a mask": lambda: at(hofunc.hessian(lambda x: (x[x > 0] ** 3).sum()), rand(CPU, 6)),
    "pytrees": _shapes,
    "aux": _aux,
    "opaque": lambda: at(hofunc.hessian(lambda x: torch.special.log_ndtr(x.cumprod(0)).sum()), rand(CPU, 3)),
    "classes": lambda: at(
        hofunc.hessian(lambda x, t: F.cross_entropy(x, t)), rand(CPU, 4, 3), torch.tensor([0, 2, 1, 1])
    ),
    "a number": lambda: at(hofunc.hessian(lambda x: x**3), 2.0),
    "tap": lambda: at(hofunc.hessian(lambda x: (hofunc.tap("h", x.sin()) ** 3).sum(), wrt="h"), rand(CPU, 3)),
    "some blocks": lambda: at(
        hofunc.hessian(lambda x, y: (x * y).sin().sum(), argnums=(0, 1), blocks="diagonal"), rand(CPU, 3), rand(CPU, 3)
    ),
}
