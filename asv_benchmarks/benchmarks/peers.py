"""Every way to a workload's derivative: hofunc's, and the strongest that an expert writes in torch and in JAX.

All give the same tensor, but for layout: blocks of several arguments are views of one matrix for those that
differentiate by one flat vector.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import hofunc
from hofunc.transform import Transform

from . import contracted, jaxed, jets, scattered_by_hand
from .columns import batched, columns
from .contractions import Contraction
from .nests import NESTS, Call, by_products, in_chunks, naive, nested, nests, scattered, title
from .symmetric import count
from .ways import Peer, Prepared, of_every_kind, once_compiled
from .workloads import Workload

Point = Workload | Contraction
NAIVE_LIMIT = 2**28  # entries of the dense tensor of which naive nesting keeps a diagonal
CHUNKS = (8, 64)  # rows of a Hessian that reads through indices, whose intermediates are of all edges for each
JET_LIMIT = 1000  # different entries of a derivative, each of which takes one direction


def ours(workload: Point) -> list[Peer]:
    """Return hofunc's ways: recorded at every call, planned once, by hand or by jit, and compiled."""
    if isinstance(workload, Contraction):
        return contracted.ours(workload)
    found = [
        Peer("hofunc", "eager", lambda: _called(workload, derivative(workload))),
        Peer("hofunc plan", "captured", lambda: _called(workload, plan(workload))),
        Peer("hofunc jit", "captured", lambda: _called(workload, hofunc.jit(derivative(workload)))),
        Peer("hofunc plan, compiled", "compiled", lambda: _called(workload, plan(workload).compile())),
    ]
    if workload.rows:  # what puts the rows' tensor together is compiled as well
        found.append(
            Peer("hofunc plan and rows, compiled", "compiled", partial(once_compiled, partial(_rows, workload)))
        )
    return found


def derivative(workload: Workload, strategy: str = "auto") -> Transform:
    """Return hofunc's derivative of a workload, in which rows that are independent stay apart."""
    layout = "compact" if workload.rows else "dense"
    return hofunc.hod(workload.f, workload.order, workload.argnums, layout=layout, strategy=strategy)


def plan(workload: Point, strategy: str = "auto") -> hofunc.Plan:
    """Return hofunc's plan of a workload."""
    if isinstance(workload, Contraction):
        return contracted.plan(workload)
    return derivative(workload, strategy).plan(*workload.args)


def _rows(workload: Workload) -> Prepared:
    """Return the derivative of every row by a plan, as a function of x (N, d)."""
    planned = plan(workload)
    return lambda x: planned(x).dense(keep_batch=True), workload.args[0]


def _called(workload: Workload, function: Callable[..., Any]) -> Call:
    """Return a call that ends with one tensor of all rows where these are wanted."""
    if workload.rows:
        return lambda: function(*workload.args).dense(keep_batch=True)
    return lambda: function(*workload.args)


def peers(workload: Point) -> list[Peer]:
    """Return all others, eager ones first, then captured, then compiled, the same ways in the same order."""
    if isinstance(workload, Contraction):
        return contracted.peers(workload)
    found = []
    if _naive_size(workload) <= NAIVE_LIMIT:
        found.append(Peer("nested torch.func, naive", "eager", partial(naive, workload)))
    found += [*of_every_kind(_ways(workload)), *scattered_by_hand.ways(workload)]
    return found + (_jax(workload) if jaxed.AVAILABLE else [])


def peer_of_kind(workload: Point, kind: str) -> Peer:
    """Return one of hofunc's ways, by name, or a peer that is mostly the fastest of its kind, for its history."""
    if kind.startswith("hofunc"):
        return next(peer for peer in ours(workload) if peer.name == kind)
    if isinstance(workload, Contraction):
        return next(peer for peer in peers(workload) if peer.kind == kind)
    name = _by_rows(workload, NESTS[workload.order][0])
    name = name if kind == "eager" else f"{kind} {name}"
    return next(peer for peer in peers(workload) if peer.name == name)


def _naive_size(workload: Workload) -> int:
    return workload.args[0].numel() ** workload.order if workload.rows else workload.size


def _ways(workload: Workload) -> dict[str, Callable[[], Prepared]]:
    """Return what can be called eagerly, captured and compiled, by name."""
    ways: dict[str, Callable[[], Prepared]] = {
        title(nest, workload.rows): partial(nested, workload, nest) for nest in nests(workload)
    }
    if workload.rows:
        ways["columns by autograd.grad"] = partial(columns, workload)
        if jets.AVAILABLE and _is_for_jets(workload):
            ways["jet-for-pytorch, polarised"] = partial(jets.polarised, workload)
        return ways
    if workload.order == 2:
        ways["batched autograd.grad"] = partial(batched, workload)
    if workload.family == "G":
        reverse, lower = title(("jacrev",) * workload.order, False), title(("jacrev",) * (workload.order - 1), False)
        ways |= {f"{reverse}, {size} rows at a time": partial(in_chunks, workload, size) for size in CHUNKS}
        ways |= {f"jvp({lower}), {size} at a time": partial(by_products, workload, size) for size in CHUNKS}
    if workload.independent:
        ways |= {_by_rows(workload, nest): partial(scattered, workload, nest) for nest in nests(workload)}
    return ways


def _jax(workload: Workload) -> list[Peer]:
    found = [
        Peer(f"jitted JAX {_by_rows(workload, nest)}", "compiled", partial(jaxed.nest, workload, nest))
        for nest in nests(workload)
    ]
    if _is_for_jets(workload):
        found.append(Peer("jitted JAX jet, polarised", "compiled", partial(jaxed.jet, workload)))
    return found


def _by_rows(workload: Workload, nest: tuple[str, ...]) -> str:
    """Name a nest that makes use of independent rows."""
    scattered = "scattered " if workload.independent and not workload.rows else ""
    return scattered + title(nest, workload.independent)


def _is_for_jets(workload: Workload) -> bool:
    return workload.family == "P" and count(workload.args[0].shape[1], workload.order) <= JET_LIMIT


def flattened(workload: Point, result: Any) -> Tensor:
    """Return a result of any peer as one tensor: that of every row, or the matrix of all arguments by all."""
    if isinstance(workload, Contraction):
        return contracted.flattened(result)
    leaves = [leaf if isinstance(leaf, Tensor) else torch.tensor(leaf.__array__()) for leaf in tree_leaves(result)]
    if workload.rows:
        return leaves[0].detach()
    sizes = [leaf.numel() for leaf in tree_leaves(workload.args)]
    if len(leaves) == 1:
        return leaves[0].detach().reshape([sum(sizes)] * workload.order)
    blocks = iter(leaves)
    strips = [torch.cat([next(blocks).reshape(rows, columns) for columns in sizes], 1) for rows in sizes]
    return torch.cat(strips).detach()
