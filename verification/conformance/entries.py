"""The entries of torch's database of ops that can be differentiated twice, each with its samples as pure functions.

Samples of a complex dtype are functions of the real and imaginary parts of what they are differentiated by.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

from verification.conformance.sample import Sample

SEED = 0


def usable_entries(dtype: torch.dtype = torch.float64) -> list[Any]:
    """Return the OpInfos that torch says it differentiates twice in a dtype, in the order of the database."""
    return [op for op in op_db if dtype in op.supported_dtypes("cpu") and op.supports_autograd and op.supports_gradgrad]


def name_of(op: Any) -> str:
    """Return the name of an entry, its variant included."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def samples_of(op: Any, most: int | None = None, dtype: torch.dtype = torch.float64) -> Iterator[Sample | str]:
    """Yield the samples of an entry, the same in every run; a reason in place of one that is not used.

    Args:
        op: The entry.
        most: How many samples to make; None for all.
        dtype: Their dtype.
    """
    _seed(SEED)
    for number, info in enumerate(list(op.sample_inputs("cpu", dtype, requires_grad=True))):
        yield _sample(op, info) if most is None or number < most else f"after the first {most}"


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - what the database draws from
    random.seed(seed)


def _sample(op: Any, info: Any) -> Sample | str:
    leaves, spec = tree_flatten((info.input, info.args, info.kwargs))
    if any(isinstance(leaf, Tensor) and leaf.layout is not torch.strided for leaf in leaves):
        return "a sparse tensor"
    places = [place for place, leaf in enumerate(leaves) if _is_differentiable(leaf)]
    if not places:
        return "no input to differentiate by"

    def call(inputs: Sequence[Tensor]) -> list[Any]:
        filled = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]  # some are written to
        for place, tensor in zip(places, inputs, strict=True):
            filled[place] = torch.view_as_complex(tensor) if leaves[place].is_complex() else tensor
        input_, args, kwargs = tree_unflatten(filled, spec)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            result = op.gradcheck_wrapper(op.get_op(), input_, *args, **kwargs)
        return tree_flatten(info.output_process_fn_grad(result))[0]

    inputs = tuple(_real(leaves[place].detach()).clone() for place in places)  # none a part of another tensor's memory
    leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    try:
        tried = call([x.clone().requires_grad_() for x in inputs])
    except RuntimeError:
        return "a function of more than the values of its tensors"
    chosen = [place for place, y in enumerate(tried) if isinstance(y, Tensor) and y.requires_grad]
    if not chosen:
        return "no output to differentiate"

    def f(*inputs: Tensor) -> list[Tensor]:
        outputs = call(inputs)
        return [_real(outputs[place]) for place in chosen]

    return Sample(f, inputs, [_real(tried[place].detach()) for place in chosen])


def _is_differentiable(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad and (leaf.is_floating_point() or leaf.is_complex())


def _real(y: Tensor) -> Tensor:
    return torch.view_as_real(y.resolve_conj()) if y.is_complex() else y
