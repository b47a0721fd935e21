"""Derivatives of sums over edges and elements written out by hand: a block for each, added to its places at once."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from math import prod

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from .functions import TORCH
from .graphs import elements, pairs
from .ways import BY_HAND, Peer, as_it_is
from .workloads import Workload

Piece = tuple[tuple[Tensor, ...], Tensor, float]  # where the slots of blocks lie, the blocks (m, d, d, ...), a factor
Pieces = Callable[[Tensor], Iterator[Piece]]


def ways(workload: Workload) -> list[Peer]:
    """Return the way that is written by hand for a workload, where there is one."""
    if workload.function not in {pairs, elements}:
        return []
    pieces, (x,) = pieces_of(workload), workload.args

    def derivative(x: Tensor) -> Tensor:
        return dense(pieces(x), x, workload.order)

    return [Peer("blocks by hand", BY_HAND, partial(as_it_is, lambda: (derivative, x)))]


def pieces_of(workload: Workload) -> Pieces:
    """Return the function of x that yields what a derivative is the sum of."""
    make = _of_pairs if workload.function is pairs else _of_elements
    return partial(make, workload)


def dense(pieces: Iterable[Piece], x: Tensor, order: int) -> Tensor:
    """Return the sum of pieces as a dense tensor (n, d, n, d, ...)."""
    count, width = x.shape
    result = x.new_zeros(count**order, width**order)
    for indices, blocks, factor in pieces:
        places = sum(index * count**power for power, index in enumerate(reversed(indices)))
        result.index_add_(0, places, blocks.reshape(len(blocks), -1), alpha=factor)
    axes = [axis for slot in range(order) for axis in (slot, order + slot)]
    return result.view([count] * order + [width] * order).permute(axes).contiguous()


def csr(pieces: Iterable[Piece], x: Tensor) -> Tensor:
    """Return the sum of the pieces of a Hessian as a sparse matrix."""
    count, width = x.shape
    inner = torch.arange(width)
    rows, columns, values = [], [], []
    for (one, other), blocks, factor in pieces:
        rows.append((one[:, None, None] * width + inner[:, None]).expand_as(blocks).flatten())
        columns.append((other[:, None, None] * width + inner).expand_as(blocks).flatten())
        values.append((blocks * factor).flatten())
    places = torch.stack([torch.cat(rows), torch.cat(columns)])
    size = (count * width, count * width)
    return torch.sparse_coo_tensor(places, torch.cat(values), size, check_invariants=False).coalesce().to_sparse_csr()


def _of_pairs(workload: Workload, x: Tensor) -> Iterator[Piece]:
    """Yield the blocks of every pair by its two ends."""
    first, second = workload.constants
    blocks = BLOCKS[workload.order](x[first] - x[second])
    for ends in product(((first, 1.0), (second, -1.0)), repeat=workload.order):
        indices, signs = zip(*ends, strict=True)
        yield indices, blocks, prod(signs)


def _second(r: Tensor) -> Tensor:
    """Return the second derivatives of the energy by the vectors r (m, 3) between atoms, (m, 3, 3)."""
    inverse, unit = 1 / (r * r).sum(-1)[:, None, None], torch.eye(3)
    cubed = inverse**3
    once, twice = 12 * cubed * inverse * (1 - 2 * cubed), 24 * cubed * inverse**2 * (7 * cubed - 2)
    return 2 * once * unit + 4 * twice * (r[:, :, None] * r[:, None])


def _third(r: Tensor) -> Tensor:
    """Return the third derivatives of the energy by the vectors r (m, 3) between atoms, (m, 3, 3, 3)."""
    inverse, unit = 1 / (r * r).sum(-1)[:, None, None, None], torch.eye(3)
    cubed = inverse**3
    twice, thrice = 24 * cubed * inverse**2 * (7 * cubed - 2), 48 * cubed * inverse**3 * (5 - 28 * cubed)
    one, two, three = r[:, :, None, None], r[:, None, :, None], r[:, None, None]
    mixed = unit[:, :, None] * three + unit[:, None, :] * two + unit * one
    return 4 * twice * mixed + 8 * thrice * one * two * three


BLOCKS = {2: _second, 3: _third}


def _of_elements(workload: Workload, x: Tensor) -> Iterator[Piece]:
    """Yield the blocks of every triangle by pairs of its corners."""
    corners, inverses = workload.constants
    alone = torch.arange(3)[None]

    def energy(at: Tensor, inverse: Tensor) -> Tensor:
        return elements(TORCH, (alone, inverse[None]), at)

    blocks = vmap(jacrev(jacrev(energy)))(x[corners], inverses)  # (m, 3, 2, 3, 2)
    for one, other in product(range(3), repeat=2):
        yield (corners[:, one], corners[:, other]), blocks[:, one, :, other], 1.0
