"""Nested torch.func as an expert writes it: one row, mapped; or everything as one flat vector."""

from collections.abc import Callable
from functools import reduce
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.func import jacfwd, jacrev, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from .workloads import Function, Subject, Workload

Call = Callable[[], Any]
TRANSFORMS: dict[str, Callable[..., Any]] = {"jacrev": jacrev, "jacfwd": jacfwd}

# Outermost first, what is mostly the fastest in front. Reverse over forward never came out fastest, and forward alone
# only where each row has few inputs.
NESTS = {
    2: (("jacrev", "jacrev"), ("jacfwd", "jacrev"), ("jacfwd", "jacfwd")),
    3: (
        ("jacrev", "jacrev", "jacrev"),
        ("jacfwd", "jacrev", "jacrev"),
        ("jacfwd", "jacfwd", "jacrev"),
        ("jacfwd", "jacfwd", "jacfwd"),
    ),
    4: (
        ("jacfwd", "jacrev", "jacrev", "jacrev"),
        ("jacfwd", "jacfwd", "jacrev", "jacrev"),
        ("jacfwd", "jacfwd", "jacfwd", "jacrev"),
        ("jacfwd", "jacfwd", "jacfwd", "jacfwd"),
    ),
}


def nests(workload: Workload) -> list[tuple[str, ...]]:
    """Return the nests that are worth a try."""
    return [nest for nest in NESTS[workload.order] if workload.rows or "jacrev" in nest]


def title(nest: tuple[str, ...], mapped: bool) -> str:
    """Write a nest as it is called: `vmap(jacfwd(jacrev))`."""
    return "(".join(("vmap", *nest) if mapped else nest) + ")" * (len(nest) - 1 + mapped)


def differentiated(f: Function, nest: tuple[str, ...]) -> Function:
    """Return the derivative of f by a nest."""
    return reduce(lambda function, name: TRANSFORMS[name](function), reversed(nest), f)


def in_chunks(workload: Workload, size: int) -> tuple[Function, Tensor]:
    """Return the dense derivative by one flat vector, so many rows at a time: what is in between stays small."""
    lower, vector = _one_order_less(workload)
    return jacrev(lower, chunk_size=size), vector


def by_products(workload: Workload, size: int) -> tuple[Function, Tensor]:
    """Return the same by so many columns at a time, each along one direction: of a Hessian, products with vectors."""
    lower, vector = _one_order_less(workload)
    basis = torch.eye(len(vector))

    def derivative(vector: Tensor) -> Tensor:
        def along(direction: Tensor) -> Tensor:
            return torch.func.jvp(lower, (vector,), (direction,))[1]

        return vmap(along, out_dims=-1, chunk_size=size)(basis)

    return derivative, vector


def _one_order_less(workload: Workload) -> tuple[Function, Tensor]:
    f, vector = flat(workload)
    return differentiated(f, ("jacrev",) * (workload.order - 1)), vector


def flat(workload: Subject) -> tuple[Function, Tensor]:
    """Return the function of one vector that holds all arguments, and that vector."""
    leaves, spec = tree_flatten(workload.args)
    edges = [0, *torch.tensor([leaf.numel() for leaf in leaves]).cumsum(0).tolist()]

    def f(vector: Tensor) -> Tensor:
        parts = [vector[low:high].view(leaf.shape) for (low, high), leaf in zip(pairwise(edges), leaves, strict=True)]
        return workload.f(*tree_unflatten(parts, spec))

    return f, torch.cat([leaf.reshape(-1) for leaf in leaves])


def nested(workload: Workload, nest: tuple[str, ...]) -> tuple[Function, Tensor]:
    """Return a function of one tensor, and that tensor: the derivative of each row, or by one flat vector."""
    if workload.rows:
        return vmap(differentiated(workload.f, nest)), workload.args[0]
    f, vector = flat(workload)
    return differentiated(f, nest), vector


def scattered(workload: Workload, nest: tuple[str, ...]) -> tuple[Function, Tensor]:
    """Return the dense Hessian of independent rows by each row's, put on the diagonal of zeros."""
    x = workload.args[0]
    count, width = x.shape
    rows, diagonal = vmap(differentiated(workload.f, nest)), torch.arange(count)

    def dense(x: Tensor) -> Tensor:
        return x.new_zeros(count, count, width, width).index_put((diagonal, diagonal), rows(x)).permute(0, 2, 1, 3)

    return dense, x


def naive(workload: Workload) -> Call:
    """Return nested torch.func without a thought of batches, as torch.func.hessian, and its diagonal for rows."""
    nest = ("jacfwd",) * (workload.order - 1) + ("jacrev",)
    f = workload.f if not workload.rows else lambda x: workload.f(x).sum()
    derivative: Callable[..., Any] = f
    for name in reversed(nest):
        derivative = TRANSFORMS[name](derivative, argnums=workload.argnums)
    if not workload.rows:
        return lambda: derivative(*workload.args)
    index = torch.arange(workload.args[0].shape[0])
    picked = [part for _ in range(workload.order) for part in (index, slice(None))]
    return lambda: derivative(*workload.args)[tuple(picked)]
