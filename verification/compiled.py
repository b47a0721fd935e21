"""Functions with transforms inside, to be compiled: those that are one graph, what may change, and what is no graph."""

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.utils import _pytree as pytree

import hofunc
from verification.oracles import relative_error

X = torch.tensor([[0.3, -1.2, 0.7], [1.1, 0.4, -0.6]], dtype=torch.float64)
W = nn.Parameter(torch.tensor([[0.2, 1.0], [-0.5, 0.3], [0.8, -0.1]], dtype=torch.float64))
SCALE = 2.0


def f(x: Tensor) -> Tensor:
    """A scalar of rows, and of a parameter that it captures."""
    return ((x @ W).tanh() ** 2).sum()


def u(x: Tensor) -> Tensor:
    """A scalar for every row."""
    return ((x @ W).tanh() ** 2).sum(-1)


def rows(x: Tensor) -> Tensor:
    """The first function of all rows."""
    each: Tensor = torch.vmap(f)(x[:, None])
    return each.sum()


def curved(x: Tensor) -> Tensor:
    """Return a scalar of a Hessian."""
    return hofunc.hessian(f)(x).sin().sum()


def with_computed(x: Tensor) -> Tensor:
    """Differentiate a function that captures what was computed just before."""
    h = x.exp()
    return hofunc.hessian(lambda z: (z * h).sum() ** 2)(x)


def parts(tree: Any) -> list[Any]:
    """Return the leaves of a result, and the gradients of its tensors by the parameter."""
    leaves = pytree.tree_leaves(tree)
    followed = [leaf.sin().sum() for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    return [*leaves, *(torch.autograd.grad(torch.stack(followed).sum(), W, allow_unused=True) if followed else ())]


def same(got: Any, expected: Any) -> None:
    """Compare results in structure, value, whether autograd follows them, and gradients."""
    assert pytree.tree_structure(got) == pytree.tree_structure(expected)
    for one, other in zip(parts(got), parts(expected), strict=True):
        if isinstance(other, Tensor):
            assert relative_error(one.detach(), other.detach()) < 1e-10
            assert one.requires_grad == other.requires_grad
        else:
            assert one == other


def in_one_graph(call: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
    """Check that a function is one graph, compiled once, that returns what the function does; returns its size."""
    counter: Any = CompileCounter()
    compiled = torch.compile(call, backend=counter, fullgraph=True)
    for _ in range(2):
        same(compiled(*args, **kwargs), call(*args, **kwargs))
    assert counter.frame_count == 1
    return int(counter.op_count)


POINT = {"w": X, "b": torch.tensor(0.5, dtype=torch.float64)}
CASES: dict[str, tuple[Callable[..., Any], tuple, dict]] = {
    "hessian": (hofunc.hessian(f), (X,), {}),
    "order three": (hofunc.hod(f, 3), (X,), {}),
    "derivatives": (hofunc.derivatives(f, 2), (X,), {}),
    "made inside": (lambda x: hofunc.hessian(f)(x.cos()).sum(-1), (X,), {}),
    "laplacian": (hofunc.laplacian(u), (X,), {}),
    "a weight": (lambda x, w: hofunc.laplacian(u)(x, weight=w), (X, torch.eye(3, dtype=torch.float64)), {}),
    "several patterns": (
        hofunc.einsum(u, {"l": "b, b i, b i -> b", "h": "b, b i, b j, b j -> b i"}),
        (X,),
        {"operands": {"h": (X.cos(),)}},
    ),
    "curl": (hofunc.curl(lambda x: x.roll(1, -1).sin() * x), (X,), {}),
    "hvp": (lambda x, v: hofunc.hvp(f)(x, vector=v), (X, X.cos()), {}),
    "ggnvp": (
        lambda w, x: hofunc.ggnvp(lambda w, x: x @ w, lambda z: (z**4).sum())(w, x, vector=w.sin()),
        (torch.ones(3, dtype=torch.float64), X),
        {},
    ),
    "pytrees": (
        hofunc.hessian(lambda p: {"y": (p["w"].sin() * p["b"]).sum(), "z": p["b"] ** 3}),
        (POINT,),
        {},
    ),
    "blocks": (hofunc.hod(lambda p: (p["w"] ** 2 * p["b"].exp()).sum(), blocks="diagonal"), (POINT,), {}),
    "aux": (hofunc.hessian(lambda x: ((x**3).sum(), {"y": x.sin(), "n": 3}), has_aux=True), (X,), {}),
    "keywords": (lambda x: hofunc.hessian(lambda x, *, power: (x**power).sum())(x, power=3), (X,), {}),
    "both passed and captured": (lambda x: hofunc.hessian(lambda z: (z * x).sum() ** 2)(x), (X,), {}),
    "passed twice": (lambda x: hofunc.hessian(lambda z, y: (z * y).sum() ** 2, (0, 1))(x, x), (X,), {}),
    "captured and computed": (with_computed, (X,), {}),
    "nested": (hofunc.hessian(lambda x: hofunc.laplacian(u)(x).sum()), (X,), {}),
    "of vmap": (hofunc.hessian(rows), (X,), {}),
    "of grad": (hofunc.jacobian(lambda x: torch.func.grad(f)(x).sin()), (X,), {}),
    "under vmap": (torch.vmap(hofunc.hessian(lambda row: f(row[None]))), (X,), {}),
    "under grad": (torch.func.grad(curved), (X,), {}),
    "numbers as tensors": (
        hofunc.hessian(lambda x: (x * torch.arange(3) * torch.tensor([1.0, 2, 3])).sin().sum()),
        (X,),
        {},
    ),
    "asks for a gradient": (hofunc.hessian(lambda x: (x**3).sum() if x.requires_grad else (x**2).sum()), (X,), {}),
    "complex": (hofunc.hessian(lambda z: (z * z.conj()).real.sum() ** 2), (torch.complex(X, X.sin()),), {}),
    "in place": (hofunc.hessian(lambda x: x.clone().mul_(x).sum() ** 2), (X,), {}),
    "a view of what is passed": (hofunc.hessian(lambda x: (x.T @ x).sin().sum()), (X,), {}),
    "views, nested": (lambda x: hofunc.hessian(lambda y: hofunc.laplacian(u)(y.T.mT.T).sum())(x.T), (X,), {}),
    "a constant without axes": (hofunc.hessian(lambda x: (x**3 * x.new_tensor(2.0)).sum()), (X,), {}),
    "whole constants without axes": (hofunc.hessian(lambda x: (x**3 * torch.tensor([2, 3])[1]).sum()), (X,), {}),
    "conjugates": (
        lambda z: hofunc.hessian(lambda z: (z * z.conj()).real.sum() ** 2)(z.H),
        (torch.complex(X, X.sin()),),
        {},
    ),
    "a module": (hofunc.hessian(nn.Sequential(nn.Linear(3, 2), nn.Tanh()).double()), (X,), {}),
}


class Network(nn.Module):
    """A network that derives itself, of much that may change."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.act = nn.Linear(3, 2), nn.Tanh()
        self.scale, self.settings = 1.5, {"power": 3.0}
        self.free, self.laplacian = nn.Parameter(torch.tensor(0.7)), hofunc.laplacian(self.field)
        self.shift: Tensor
        self.register_buffer("shift", torch.tensor(1.1))

    def field(self, x: Tensor) -> Tensor:
        """A scalar for every row."""
        y = self.act(self.layer(x)).sum(-1) * self.scale * SCALE
        y += self.free * (x ** self.settings["power"]).sum(-1) * self.shift
        return y.sin() if self.training else y.cos()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return derivatives of the field, by a transform that is kept, and by one that is made."""
        return self.laplacian(x), hofunc.hessian(lambda z: self.field(z).sum())(x)


def _bind(value: float) -> None:
    global SCALE  # noqa: PLW0603
    SCALE = value


CHANGES: list[tuple[str, Callable[[Any], Any]]] = [
    ("a global", lambda _: _bind(3.0)),
    ("the global again", lambda _: _bind(4.0)),
    ("an attribute", lambda net: setattr(net, "scale", 0.2)),
    ("evaluation", lambda net: net.eval()),
    ("training", lambda net: net.train()),
    ("a parameter", lambda net: setattr(net, "free", nn.Parameter(torch.tensor(-0.4, dtype=torch.float64)))),
    ("its values", lambda net: net.free.data.mul_(3)),
    ("a buffer", lambda net: setattr(net, "shift", torch.tensor(5.0, dtype=torch.float64))),
    ("what a dict holds", lambda net: net.settings.update(power=2.0)),
    ("a dict", lambda net: setattr(net, "settings", {"power": 4.0})),
    ("a module", lambda net: setattr(net, "act", nn.Softplus())),
    (
        "a parameter of a module",
        lambda net: setattr(net.layer, "weight", nn.Parameter(torch.ones_like(net.layer.weight))),
    ),
    ("a frozen parameter", lambda net: net.layer.weight.requires_grad_(False)),
    ("the transform", lambda net: setattr(net, "laplacian", hofunc.laplacian(lambda x: 2 * net.field(x)))),
    ("a method", lambda net: setattr(net, "field", types.MethodType(lambda net, x: net.free * (x**4).sum(-1), net))),
    ("the dtype", lambda net: net.float()),
]


def check_changes(backend: str, changes: list[tuple[str, Callable[[Any], Any]]]) -> None:
    """Compare a compiled network with itself, and the gradients of what it returns, after every change."""
    torch.manual_seed(0)
    network = Network().double()
    compiled = torch.compile(network, backend=backend, fullgraph=True)
    with torch._dynamo.config.patch(recompile_limit=64):
        for what, change in [("nothing", lambda _: None), *changes]:
            change(network)
            x = X.to(network.layer.weight.dtype)
            with torch.no_grad():
                _check_equal(compiled(x), network(x), what)
            _check_equal(compiled(x), network(x), what)
            asked = [each for each in network.parameters() if each.requires_grad]
            pairs = [torch.autograd.grad(call(x)[0].sum(), asked, allow_unused=True) for call in (compiled, network)]
            for one, other in zip(*pairs, strict=True):
                assert (one is None) == (other is None), what
                assert one is None or torch.allclose(one, other), what
    _bind(2.0)


def _check_equal(got: tuple[Tensor, ...], expected: tuple[Tensor, ...], what: str) -> None:
    assert all(map(torch.allclose, got, expected)), what
    assert [each.requires_grad for each in got] == [each.requires_grad for each in expected], what


class Cube(torch.autograd.Function):
    """A cube with a backward of its own."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """Return it."""
        return x**3

    @staticmethod
    def setup_context(context: Any, inputs: Any, output: Tensor) -> None:  # noqa: ARG004
        """Keep x."""
        context.save_for_backward(*inputs)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        """Return the gradient."""
        (x,) = context.saved_tensors
        return 3 * x * x * gradient


def detecting(x: Tensor) -> Tensor:
    """Look at every result."""
    with hofunc.detect_anomaly():
        return hofunc.hessian(f)(x)


def tapped(x: Tensor) -> Tensor:
    """Square a value with a name."""
    return hofunc.tap("h", x.sin()).square().sum()


OPAQUE: dict[str, Callable[[Tensor], Any]] = {
    "item": hofunc.hessian(lambda x: (x**3).sum() * x.sum().item()),
    "a branch": hofunc.hessian(lambda x: (x**3).sum() if x.sum() > 0 else (x**2).sum()),
    "a branch inside": lambda x: hofunc.hessian(lambda x: (x**3).sum() if x.sum() > 0 else x.sum())(x.sin()),
    "a Function": hofunc.hessian(lambda x: Cube.apply(x).sum()),
    "a float": lambda x: hofunc.hessian(lambda y: y**3)(2.0) * x,
    "numbers drawn": hofunc.hessian(lambda x: (x**3 * torch.rand(3).ceil()).sum()),
    "a tap": hofunc.hessian(tapped, wrt="h"),
    "compact": hofunc.hessian(f, layout="compact"),
    "anomalies": detecting,
    "a plan": hofunc.hessian(f).plan(X),
    "a plan made": lambda x: hofunc.hessian(f).plan(x.cos())(x),
    "an estimate": hofunc.laplacian(lambda x: (x**2).sum(-1), samples=3),
    "a jet": lambda x: hofunc.jet(f, (x,), ((x, x),)),
}
