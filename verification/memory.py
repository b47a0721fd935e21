"""What plans take of torch's allocator, beside what they say."""

import re
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that everyone gives it

import hofunc
from asv_benchmarks.memory import peak

STRATEGIES = ("reverse", "forward", "mixed")
SLACK = 1024  # bytes of numbers that are no tensors to a program


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Return fixed random numbers of order one."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


FIRST, SECOND = drawn(3, 24, seed=1), drawn(24, 24, seed=2)


def network(x: Tensor) -> Tensor:
    """Return what a network returns for every row."""
    return ((x @ FIRST.to(x.dtype)).tanh() @ SECOND.to(x.dtype)).sin().sum(1)


def _attention(x: Tensor) -> Tensor:
    q, k = x.reshape(-1, 4, 3), x.reshape(-1, 4, 3).sin()
    return (F.softmax(q @ k.mT, -1) @ q).pow(2).sum((1, 2))


def _recurrent(x: Tensor) -> Tensor:
    h = x.new_zeros(len(x), 8)
    for step in x.reshape(len(x), -1, 3).unbind(1):
        h = (step @ FIRST.to(x.dtype)[:, :8] + h @ SECOND.to(x.dtype)[:8, :8]).tanh()
    return h.pow(2).sum(1)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[int, ...], int]] = {
    "softmax": (lambda x: x.softmax(1), (100, 30), 1),
    "a network": (network, (200, 3), 2),
    "a network, order 3": (network, (100, 3), 3),
    "a layer norm": (lambda x: F.layer_norm((x @ FIRST.to(x.dtype)).exp(), (24,)).prod(1), (100, 3), 2),
    "attention": (_attention, (60, 12), 2),
    "a recurrence": (_recurrent, (100, 9), 2),
    "several outputs": (lambda x: ((x @ FIRST.to(x.dtype)).sin().sum(1), x.exp().prod(1)), (100, 3), 2),
    "rows last": (lambda x: (x.t() * x.t().sin()).prod(0), (200, 4), 2),
    "a logarithm of sums": (lambda x: torch.logsumexp(x @ FIRST.to(x.dtype), 1), (100, 3), 2),
    "inverses": (lambda x: torch.linalg.inv(x.reshape(-1, 3, 3) + 9 * torch.eye(3, dtype=x.dtype)), (40, 9), 1),
    "a convolution": (lambda x: F.conv1d(x, SECOND[:8, :6].reshape(8, 2, 3).to(x.dtype)).sin().sum(), (40, 2, 8), 2),
}


IN_ROWS = [name for name in FUNCTIONS if name not in ("attention", "inverses", "a convolution")]


def taken(call: Callable[[], Any]) -> int:
    """Return the bytes that a call takes at most, its third time."""
    call()
    call()
    with torch.no_grad():
        return peak(call)


def stated(transform: Any, *args: Any) -> int:
    """Return the least bytes of all that is tried, which a refusal names that is not for the results alone."""
    possible = mock.patch("hofunc.plan.limited._possible", side_effect=lambda ways, *_: ways)
    every = mock.patch("hofunc.plan.planner.check_possible"), possible
    with every[0], every[1], pytest.raises(hofunc.ArgumentError, match="takes more memory than allowed") as caught:
        transform(*args)
    found = re.search(r"got (\d+) bytes at once, the least of all strategies and chunks tried", str(caught.value))
    assert found is not None
    return int(found[1])


def assert_takes_what_it_says(transform: Any, *args: Any) -> None:
    """Compare what a plan takes with what it says."""
    plan = transform.plan(*args)
    got = taken(lambda: plan(*args))
    assert got <= 1.02 * plan.peak_bytes + SLACK
    assert plan.peak_bytes <= 1.02 * got + SLACK


def assert_keeps_to_max_bytes(f: Callable[..., Any], order: int, strategy: str, x: Tensor) -> None:
    """Check that a plan and a call, which computes f as well, can keep to the least that is named, or what f takes."""

    def limited(max_bytes: int) -> Any:
        return hofunc.hod(f, order, layout="compact", strategy=strategy, max_bytes=max_bytes)

    least = stated(limited(1).plan, x)
    assert stated(limited(least - 1).plan, x) == least
    for max_bytes in (least, least * 5 // 4):
        plan = limited(max_bytes).plan(x)
        assert taken(lambda: plan(x)) <= plan.peak_bytes + SLACK  # noqa: B023 - called at once
        assert plan.peak_bytes <= max_bytes
    least = stated(limited(1), x)
    call = limited(least)
    assert taken(lambda: call(x)) <= max(1.03 * least, taken(lambda: f(x))) + SLACK
