"""A peer in Taylor mode by jet-for-pytorch, where it is installed (`pip install .[peers]`, Python 3.12 or later)."""

import math
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.func import vmap

from .contractions import Contraction
from .symmetric import keys, positions
from .workloads import Function, Workload

AVAILABLE = find_spec("jet") is not None


def directions(width: int, order: int) -> tuple[Tensor, Tensor]:
    """Return one direction (entries, width) for each different entry of a derivative, and the matrix to these.

    The derivatives along the directions are homogeneous polynomials of the entries, of which there are as many.
    """
    counts = torch.tensor([[key.count(axis) for axis in range(width)] for key in keys(width, order)]).double()
    factorials = torch.tensor([math.prod(math.factorial(int(count)) for count in row) for row in counts.tolist()])
    powers = (counts[:, None] ** counts).prod(-1) * math.factorial(order) / factorials
    return counts.float(), torch.linalg.inv(powers).float()


def polarised(workload: Workload) -> tuple[Function, Tensor]:
    """Return the derivative of every row, as a function of x (N, d): jets along directions, interpolated."""
    x, order = workload.args[0], workload.order
    along, inverse = directions(x.shape[1], order)
    index = positions(x.shape[1], order)
    taylor = import_module("jet").jet(workload.f, (x[0],))

    def one(row: Tensor, direction: Tensor) -> Tensor:
        zeros = [torch.zeros_like(direction)] * (order - 1)
        value: Tensor = taylor((row, direction, *zeros))[order]
        return value

    mapped = vmap(vmap(one, (None, 0)), (0, None))
    return lambda x: (mapped(x, along) @ inverse.T)[:, index], x


def standard(contraction: Contraction, f: Function) -> Function:
    """Return the weighted sum of derivatives along directions, each a jet of its own, mapped by vmap."""
    (x,), order = contraction.args, contraction.order
    vectors, weights = contraction.directions()
    taylor = import_module("jet").jet(f, (x,))

    def one(x: Tensor, direction: Tensor) -> Tensor:
        zeros = [torch.zeros_like(x)] * (order - 1)
        value: Tensor = taylor((x, direction.expand(x.shape), *zeros))[order]
        return value

    mapped = vmap(one, (None, 0))
    return lambda x: weights @ mapped(x, vectors)


def collapsed(contraction: Contraction, f: Function) -> Function:
    """Return the weighted sum of derivatives along directions, by jets in which those of a weight are summed early."""
    (x,), order = contraction.args, contraction.order
    vectors, weights = contraction.directions()
    groups = [(float(weight), vectors[weights == weight]) for weight in weights.unique()]
    taylor = import_module("jet").jet(f, (x,), collapsed=True)

    def along(x: Tensor, directions: Tensor) -> Tensor:
        slopes = directions[:, None].expand(-1, *x.shape)
        zeros = [torch.zeros_like(slopes)] * (order - 2)
        value: Tensor = taylor((x, slopes, *zeros, torch.zeros_like(x)))[order]
        return value

    return lambda x: torch.stack([weight * along(x, each) for weight, each in groups]).sum(0)
