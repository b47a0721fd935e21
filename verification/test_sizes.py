"""Claim: a transform compiled for all sizes of an axis returns, for each, what it does uncompiled, gradients too.

Source: the transform itself, not compiled, of which other files here compare what it returns with nested torch.func.

Falsifier: another value for some number of rows; a second graph of a network that takes any number of rows.

Tolerance: 1e-9 in float64, as another order of sums is chosen for another size.

Programs are drawn of steps on a table of rows. Many of these do with a number of rows what is no form in it: they halve
it, compare it with a constant, or count rows. Whatever is compiled anew for them is right; so is what is not.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fft import fft
from torch.nn.functional import (
    adaptive_avg_pool1d,
    avg_pool1d,
    conv1d,
    interpolate,
    pad,
    scaled_dot_product_attention,
)

import hofunc
from verification.profiles import PROFILE

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

SIZES = (6, 2, 9)
STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "sin": torch.sin,
    "mix": lambda x: x @ torch.tensor([[0.5, 1.0, 0.0], [-0.3, 0.2, 1.0], [0.1, 0.0, -0.7]], dtype=x.dtype),
    "over rows": lambda x: x.softmax(0),
    "along rows": lambda x: x.cumsum(0) / len(x),
    "normed": lambda x: (x - x.mean(0)) / (x.var(0) + 1).sqrt(),
    "whole": lambda x: x / (1 + x.square().mean()) + x.std(),
    "differences": lambda x: torch.cat([x[1:] - x[:-1], x[:1]]),
    "products": lambda x: (x @ x.T).tanh() @ x / len(x),
    "lower": lambda x: (x @ x.T).tril() @ x * 0.1,
    "rolled": lambda x: x * x.roll(1, 0),
    "flipped": lambda x: x * x.flip(0),
    "halves": lambda x: x * x[: len(x) // 2].sum(0),
    "second": lambda x: x + x[::2].square().sum(0),
    "few": lambda x: x + x[:7].cos().mean(0),
    "last": lambda x: x * x[-1],
    "diagonal": lambda x: x + x.diagonal().sum().sin(),
    "pooled": lambda x: x + avg_pool1d(x.T[None], 2)[0].mean(1),
    "adapted": lambda x: x + adaptive_avg_pool1d(x.T[None], 2)[0].sum(1),
    "resized": lambda x: x * interpolate(x.T[None], 5, mode="linear")[0].sum(1),
    "convolved": lambda x: x + conv1d(x.T[:, None], torch.ones(1, 1, 3, dtype=x.dtype), padding=1)[:, 0].T,
    "places": lambda x: x * torch.arange(len(x), dtype=x.dtype)[:, None].cos(),
    "largest": lambda x: x + x.amax(0),
    "sorted": lambda x: x * x.sort(0).values,
    "padded": lambda x: pad(x, (0, 0, 1, 2))[1 : len(x) + 1] * 2,
    "doubled": lambda x: torch.cat([x, x.sin()])[: len(x)] + torch.cat([x, x]).prod(1).sum(),
    "branch": lambda x: x.exp() * 0.1 if len(x) > 4 else x.sin(),
    "flat": lambda x: x + x.reshape(-1)[2:].square().mean(),
    "repeated": lambda x: x * x.repeat(2, 1).view(2, len(x), 3).sum(0),
    "rolled far": lambda x: x * x.roll(50, 0),
    "spectrum": lambda x: x * fft(x, dim=0).real.square().mean(0),
    "of eight": lambda x: x + fft(x, n=8, dim=0)[1].abs().square(),
    "far below": lambda x: (x @ x.T).tril(-4) @ x * 0.1,
    "wide": lambda x: x + torch.cat([x] * 8, 1).diagonal().square().sum().sin(),
    "few degrees": lambda x: x * x.var(0, correction=1.5).sqrt(),
    "attended": lambda x: scaled_dot_product_attention(x, x, x),
    "written": lambda x: torch.cat([x[:1] * 2, x[1:]]).index_fill(0, torch.tensor([0]), 0.5),
    "sampled": lambda x: x + interpolate(x.T[None], scale_factor=2, mode="linear")[0].mean(1),
    "least": lambda x: x * min(len(x), 7),
    "outer": lambda x: torch.einsum("ai,bi,bj->aj", x, x.sin(), x) / len(x) ** 2,
}
TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor]], Callable[..., Any]]] = {
    "hessian": lambda f: hofunc.hessian(lambda x: f(x).sin().sum()),
    "jacobian": hofunc.jacobian,
    "derivatives": lambda f: hofunc.derivatives(lambda x: f(x).square().mean(), 2),
    "hvp": lambda f: lambda x: hofunc.hvp(lambda x: f(x).square().sum())(x, vector=x.cos()),
    "laplacian": lambda f: hofunc.laplacian(lambda x: f(x).sin().sum(-1)),
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def points(count: int, columns: int = 3) -> Tensor:
    """Return so many rows."""
    return torch.linspace(-1.7, 2.1, count * columns, dtype=torch.float64).sin().view(count, columns)


@settings(deadline=None, max_examples=300 if PROFILE == "nightly" else 5)
@given(
    names=st.lists(st.sampled_from([*STEPS]), min_size=1, max_size=3),
    transform=st.sampled_from([*TRANSFORMS]),
)
def test_programs(names: list[str], transform: str) -> None:
    def f(x: Tensor) -> Tensor:
        for name in names:
            x = STEPS[name](x)
        return x

    torch.compiler.reset()
    call = TRANSFORMS[transform](f)
    with torch._dynamo.config.patch(recompile_limit=64):
        compiled = torch.compile(call, backend="eager", fullgraph=True, dynamic=True)
        for size in SIZES:
            same_within(compiled(points(size)), call(points(size)))


def same_within(got: Any, expected: Any) -> None:
    """Compare results, as tensors or tuples of them."""
    pairs = zip(got, expected, strict=True) if isinstance(expected, tuple) else [(got, expected)]
    for one, other in pairs:
        assert one.shape == other.shape
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-9)
