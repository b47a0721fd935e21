"""Claim: a function with a transform inside is one graph under torch.compile, and returns what it does uncompiled.

Also: what is compiled is compiled anew, or right, after any change that the function can see; what is no graph runs as
it is; and five networks by inductor have equal values and gradients.

Source: the function itself, not compiled, which other files here compare with nested torch.func.

Falsifier: another value, gradient or structure; a second graph; a compilation at a second call.

Tolerance: 1e-10 in float64, since the ops are the same; 1e-6 by inductor, which orders sums otherwise.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import hofunc
from verification.compiled import CASES, CHANGES, OPAQUE, X, check_changes, in_one_graph, same
from verification.profiles import PROFILE

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("name", CASES)
def test_one_graph(name: str) -> None:
    call, args, kwargs = CASES[name]
    in_one_graph(call, *args, **kwargs)


def test_what_changes_between_calls() -> None:
    check_changes("aot_eager", CHANGES)


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
@pytest.mark.parametrize("name", OPAQUE)
def test_what_is_no_graph(name: str) -> None:
    def call(x: Tensor) -> Any:
        return x.sin() + 1, OPAQUE[name](x), x.cos()

    compiled: Any = torch.compile(call, backend="aot_eager")
    for x in (X, -X):
        same(compiled(x), call(x))


class Attention(nn.Module):
    """Attention over three vectors of two, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.norm = nn.MultiheadAttention(2, 1, batch_first=True), nn.LayerNorm(2)

    def forward(self, x: Tensor) -> Tensor:
        """Return a number for every row."""
        y = x.unflatten(-1, (3, 2))
        return self.norm(y + self.attend(y, y, y, need_weights=False)[0]).flatten(1).sum(-1, keepdim=True)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "tanh": lambda: nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)),
    "softplus": lambda: nn.Sequential(nn.Linear(6, 16), nn.Softplus(), nn.LayerNorm(16), nn.Linear(16, 1)),
    "gelu": lambda: nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 8), nn.SiLU(), nn.Linear(8, 1)),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 1)
    ),
    "attention": Attention,
}
TRANSFORMS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "hessian": lambda u: hofunc.hessian(lambda x: u(x).square().sum()),
    "derivatives": lambda u: hofunc.derivatives(lambda x: u(x).square().sum(), 2),
    "laplacian": hofunc.laplacian,
}


# Each takes up to a minute; all are tried every night.
BY_INDUCTOR = [*product(NETWORKS, TRANSFORMS)] if PROFILE == "nightly" else [("tanh", "laplacian")]


@pytest.mark.parametrize(("name", "transform"), BY_INDUCTOR)
def test_by_inductor(name: str, transform: str) -> None:
    torch.manual_seed(0)
    network, x = NETWORKS[name]().double(), torch.randn(4, 6, dtype=torch.float64)
    call = TRANSFORMS[transform](lambda x: network(x)[:, 0])
    counter: Any = CompileCounterWithBackend("inductor")
    compiled = torch.compile(call, backend=counter, fullgraph=True)
    with torch.no_grad():
        compiled(x)
    got = _with_gradients(compiled, x, network)
    expected = _with_gradients(call, x, network)
    assert all(torch.allclose(one, other, rtol=1e-6, atol=1e-9) for one, other in zip(got, expected, strict=True))
    compiled(x)
    assert counter.frame_count == 2  # without gradients, and with


def _with_gradients(call: Callable[..., Any], x: Tensor, network: nn.Module) -> list[Tensor]:
    """Return what a function returns, and the gradients of that by the parameters of a network."""
    found = call(x)
    tensors = list(found) if isinstance(found, tuple) else [found]
    total = torch.stack([each.sin().sum() for each in tensors]).sum()
    gradients = torch.autograd.grad(total, [*network.parameters()], allow_unused=True)
    return [*tensors, *filter(torch.is_tensor, gradients)]


def test_a_trace_by_inductor() -> None:
    """Of pytorch issue 190855, where torch's own Hessian has a constant added."""

    def f(t: Tensor) -> Tensor:
        return (1.0 / (t + torch.trace(t) * torch.eye(3, dtype=t.dtype))).mean()

    x = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6], [0.7, 0.8, 0.95]], dtype=torch.float64)
    assert torch.allclose(torch.compile(hofunc.hessian(f), fullgraph=True)(x), torch.func.hessian(f)(x))
