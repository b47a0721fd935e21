"""The Laplacian of a perceptron written out by hand: what only pays where there is one network."""

import torch
from torch import Tensor

from .contractions import Contraction, Way
from .workloads import Function

SLOPES = {  # of an activation with value y at z: its first and second derivative
    "tanh": lambda _, y: (1 - y * y, -2 * y * (1 - y * y)),
    "sin": lambda z, y: (z.cos(), -y),
}


def way(contraction: Contraction) -> Way:
    """Return the way to a Laplacian, weighted or not: values, slopes and Laplacians from layer to layer."""
    weight = contraction.operands[0] if contraction.operands else None

    def laplacian(f: Function) -> Function:
        _, (activation, layers) = f.args  # type: ignore[attr-defined]

        def of_rows(x: Tensor) -> Tensor:
            (first, bias), *others = layers
            z, slopes = x @ first + bias, first[:, None].expand(-1, len(x), -1)
            bends = torch.zeros_like(z)
            for matrix, shift in others:
                y = getattr(torch, activation)(z)
                once, twice = SLOPES[activation](z, y)
                paired = slopes if weight is None else torch.einsum("ij,jnw->inw", weight, slopes)
                bends = (once * bends + twice * (slopes * paired).sum(0)) @ matrix
                z, slopes = y @ matrix + shift, (once * slopes) @ matrix
            return bends.squeeze(-1)

        return of_rows

    return laplacian
