"""Nested JAX: formulas that share nothing with torch's."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack


def nested_jax(f: Callable[..., Any], order: int) -> Callable[..., Tensor]:
    """Nest ``jax.jacfwd`` over one ``jax.jacrev``, in float64.

    Cannot judge: functions that are not also written in JAX, which f is; it has to be installed.

    Args:
        f: Function of one array, in JAX.
        order: Order of the derivative.

    Returns:
        Function of a tensor that returns the derivative as a tensor.
    """
    jax = import_module("jax")
    derivative = jax.jacrev(f)
    for _ in range(order - 1):
        derivative = jax.jacfwd(derivative)

    def of_tensor(x: Tensor) -> Tensor:
        with jax.enable_x64(True):
            return torch.clone(from_dlpack(derivative(jax.numpy.asarray(x.numpy()))))

    return of_tensor
