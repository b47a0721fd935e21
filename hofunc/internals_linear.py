"""What hofunc reads of torch to have oneDNN multiply matrices in single precision, which torch leaves to BLAS.

BLAS does not use all of every processor: MKL takes twice as long as oneDNN for large matrices on one of AMD that has
AVX512, in torch 2.13. Inductor calls these ops in what it compiles, for weights that it has packed; they take matrices
as they are, too, at some ten microseconds a call. They have no derivatives.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hofunc.internals import OpOverload


def _found(overload: str) -> Callable[..., Tensor] | None:
    """Return an op without the overhead of finding its kernel from Python; None if this torch has none."""
    op: Any = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), overload, None)
    return op._op if isinstance(op, OpOverload) and torch.backends.mkldnn.is_available() else None


_linear, _linear_added = _found("default"), _found("binary")
_NO_SCALARS: list[float] = []


def has_linear() -> bool:
    """Tell whether oneDNN is there, and may be used."""
    return _linear is not None and _linear_added is not None and bool(torch.backends.mkldnn.enabled)


def linear(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of two matrices in single precision on a CPU, of which the left one may be a batch."""
    return _linear(left, right.t(), None, "none", _NO_SCALARS, "")  # type: ignore[misc]


def linear_with_bias(bias: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return the product of two such matrices and a vector that is added to each row of it."""
    return _linear(left, right.t(), bias, "none", _NO_SCALARS, "")  # type: ignore[misc]


def linear_added(total: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return the product of two such matrices and a matrix, that is added to it, as a new one."""
    return _linear_added(left, total, right.t(), None, "add")  # type: ignore[misc]
