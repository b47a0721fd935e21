"""Programs that treat rows independently, and how to say that rows are in another order."""

from collections.abc import Callable

import torch
from torch import Tensor

from verification.programs import Program

ROWS = 3


def rows_of(program: Program, count: int = ROWS) -> tuple[Tensor, ...]:
    """Return inputs that hold some rows, each close to the inputs of the program, where it is smooth too."""
    return tuple(
        torch.stack([x + 1e-3 * torch.full_like(x, row + 1.0).sin() * (row + x).cos() for row in range(count)])
        for x in program.inputs
    )


def by_rows(program: Program) -> Callable[..., Tensor]:
    """Return a function that maps a program over the first axes of its inputs, and returns its outputs as rows."""

    def row(*inputs: Tensor) -> Tensor:
        output = program(*inputs)
        return torch.cat([y.reshape(-1) for y in (output if isinstance(output, tuple) else (output,))])

    return torch.func.vmap(row)


def is_mapped(program: Program) -> bool:
    """Tell whether vmap can map a program: whether it branches on no values, and torch has the batching rules."""
    try:
        by_rows(program)(*rows_of(program))
    except RuntimeError:
        return False
    return True
