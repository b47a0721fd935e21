"""Columns by torch.autograd.grad, as an expert writes them for independent rows.

The sum over rows has every row's gradient by itself, so that one call of grad gives a column for all rows; and
columns that are equal by symmetry are computed once: only those with i <= j <= ...
"""

import torch
from torch import Tensor

from .nests import flat
from .symmetric import keys, positions
from .workloads import Function, Workload


def columns(workload: Workload) -> tuple[Function, Tensor]:
    """Return the derivative of every row, (N, d, ... order times), by columns, as a function of x (N, d)."""
    f, order, width = workload.f, workload.order, workload.args[0].shape[1]
    every = [keys(width, rank) for rank in range(order)]
    index = positions(width, order - 1)

    def derivative(x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            known: dict[tuple[int, ...], Tensor] = {(): torch.autograd.grad(f(x).sum(), x, create_graph=True)[0]}
            for combinations in every[1:]:
                more = len(combinations[0]) < order - 1
                sums = {key: known[key[:-1]][:, key[-1]].sum() for key in combinations}
                known = {
                    key: torch.autograd.grad(total, x, create_graph=more, retain_graph=True)[0]
                    for key, total in sums.items()
                }
            stacked = torch.stack([known[key].detach() for key in every[-1]], 1)  # (N, combinations, d)
        return stacked[:, index]

    return derivative, workload.args[0]


def batched(workload: Workload) -> tuple[Function, Tensor]:
    """Return the dense Hessian by one flat vector, with all columns in one call of torch.autograd.grad."""
    f, vector = flat(workload)
    basis = torch.eye(len(vector))

    def hessian(vector: Tensor) -> Tensor:
        with torch.enable_grad():
            vector = vector.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(f(vector), vector, create_graph=True)
            return torch.autograd.grad(gradient, vector, basis, is_grads_batched=True)[0]

    return hessian, vector
