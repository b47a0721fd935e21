"""Ordinary differential equations: torchdiffeq."""

from functools import wraps
from unittest import mock

import torch

from verification.zoo.entry import Case, Library, Output

torchdiffeq = Library("torchdiffeq")

_ADJOINT = {"functions": ["torchdiffeq._impl.adjoint.OdeintAdjointMethod"]}


def _end(method: str, adjoint: bool = False) -> Case:
    """Return where a small network takes a point in time 1, by a solver."""
    from torchdiffeq import odeint, odeint_adjoint

    class Field(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def forward(self, t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.layer(y)) * (1 + t)

    field, times = Field(), torch.tensor([0.0, 1.0])
    solve = odeint_adjoint if adjoint else odeint

    def end(start: torch.Tensor) -> torch.Tensor:
        return solve(field, start, times, method=method, rtol=1e-4, atol=1e-4)[-1]

    return end, (torch.tensor([0.3, -0.2]),)


@torchdiffeq
def euler() -> Case:
    """Differentiate the end by the start."""
    return _end("euler")


@torchdiffeq
def rk4() -> Case:
    """Differentiate the end by the start."""
    return _end("rk4")


@torchdiffeq.entry(is_convention=True)
def dopri5() -> Case:
    """Differentiate the end by the start, the steps being as they are."""
    return _end("dopri5")


@torchdiffeq.entry(options=_ADJOINT, like=rk4)
def odeint_adjoint() -> Case:
    """Differentiate the end by the start; its adjoint equation has no second derivative."""
    return _end("rk4", adjoint=True)


def _with_steps() -> Case:
    """Return dopri5 differentiated through the sizes of its steps too, which torchdiffeq hides from autograd."""
    from torchdiffeq._impl import rk_common

    end, arguments = _end("dopri5")
    sized = rk_common._optimal_step_size.__wrapped__

    @wraps(end)
    def followed(start: torch.Tensor) -> Output:
        with mock.patch.object(rk_common, "_optimal_step_size", sized):
            return end(start)

    return followed, arguments


@torchdiffeq.entry(options=_ADJOINT, like=_with_steps)
def odeint_adjoint_dopri5() -> Case:
    """Differentiate the end by the start; recorded is all that the solver does, the sizes of its steps included."""
    return _end("dopri5", adjoint=True)
