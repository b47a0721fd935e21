"""Nested forward mode of functions in which ops that torch differentiates wrongly are written out."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from verification.oracles.nested import Argnums, Function, nested_forward


def nested_written_out(f: Function, order: int, argnums: Argnums = 0) -> Function:
    """Nest ``torch.func.jacfwd`` over f with the formulas of norms and of `logcumsumexp` in place of torch's ops.

    Cannot judge: other ops that forward mode has wrong, or no formula for.
    """

    def written_out(*args: Any) -> Any:
        with _WrittenOut():
            return f(*args)

    return nested_forward(written_out, order, argnums)


class _WrittenOut(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _FORMULAS.get(func, func)(*args, **(kwargs or {}))


def _normalised(x: Tensor, dims: Sequence[int], eps: float) -> Tensor:
    centred = x - x.mean(tuple(dims), keepdim=True)
    return centred / ((centred * centred).mean(tuple(dims), keepdim=True) + eps).sqrt()


def _of_channels(parameter: Tensor, x: Tensor) -> Tensor:
    return parameter.reshape(-1, *[1] * (x.dim() - 2))


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    y = _normalised(x, range(-len(shape), 0), eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _batch_norm(
    x: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,  # noqa: ARG001 - of statistics, on which the result does not depend
    eps: float = 1e-5,
) -> Tensor:
    if training or mean is None or variance is None:
        y = _normalised(x, [dim for dim in range(x.dim()) if dim != 1], eps)
    else:
        y = (x - _of_channels(mean, x)) / (_of_channels(variance, x) + eps).sqrt()
    y = y if weight is None else y * _of_channels(weight, x)
    return y if bias is None else y + _of_channels(bias, x)


def _instance_norm(input: Tensor, *, eps: float = 1e-5, **_: Any) -> Tensor:  # noqa: A002 - torch's name
    return _normalised(input, range(2, input.dim()), eps)


def _logcumsumexp(x: Tensor, dim: int) -> Tensor:
    largest = x.detach().amax(dim, keepdim=True)
    return (x - largest).exp().cumsum(dim).log() + largest


_FORMULAS: dict[Any, Callable[..., Tensor]] = {
    functional.layer_norm: _layer_norm,
    functional.batch_norm: _batch_norm,
    functional.instance_norm: _instance_norm,
    Tensor.logcumsumexp: _logcumsumexp,
    torch.logcumsumexp: _logcumsumexp,
}
