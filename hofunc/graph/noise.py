"""Ops that draw noise and multiply by it, as the ops that they are made of: fused, they hide the noise from a rule."""

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

_LOWER, _UPPER = 1 / 8, 1 / 3


def dropout(x: torch.Tensor, p: float, train: bool | None = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result and the mask of dropout, as CUDA computes it."""
    if not train or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = torch.rand_like(x) >= p
    return x * mask * (0 if p == 1 else 1 / (1 - p)), mask


def rrelu(
    x: torch.Tensor,
    noise: torch.Tensor,
    lower: float = _LOWER,
    upper: float = _UPPER,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Return x times slopes, which are written to noise: one where x is positive, else drawn; their mean if not."""
    if not training:
        return aten.leaky_relu.default(x, (lower + upper) / 2)
    empty = torch.empty_like(noise)
    _, slopes = aten.rrelu_with_noise_functional.default(x.detach(), empty, lower, upper, True, generator)
    noise.copy_(slopes)
    return x * slopes


def rrelu_(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Write the same to x."""
    return x.copy_(rrelu(x, *args, **kwargs))


_IN_PARTS: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: dropout,
    aten.rrelu_with_noise.default: rrelu,
    aten.rrelu_with_noise_.default: rrelu_,
}
IN_PARTS = {id(op): function for op, function in _IN_PARTS.items()}  # by id, since the hash of an op is slow
