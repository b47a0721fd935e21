"""A plan that is kept is never stale.

Claim: after the function has taken another branch, got another shape, captured another tensor or other values, or has
other numbers or masks, a transform that has plans of all that went before gives what one without any plans does.
Source: a plan is found by the structure of a recording, which is made at every call.
Falsifier: a constant, a shape or a branch that is part of a plan and not of its key.
Tolerance: rounding, 1e-9 of the largest element, since a number may be a value of one plan and part of the other.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_leaves

import hofunc
from hofunc.arguments import STRATEGIES
from hofunc.run import cache
from verification.programs import Program, programs
from verification.vectors import mixed, mixture, moved, vector

CHANGES = st.lists(
    st.sampled_from(["branch", "shape", "values", "tensor", "number", "scale", "mask"]), min_size=2, max_size=5
)


class Changing:
    """A function of one tensor that depends on what it captures: programs, a weight, a mask, numbers and a branch."""

    def __init__(self, first: Program, second: Program):
        self.first = mixed(vector(first))
        self.second = moved(mixed(vector(second)), self.first.x)
        self.weight = mixture(2, 1)[:, 0]
        self.mask = torch.tensor([True, False])
        self.power = 2
        self.scale = 1.0
        self.is_second = False

    def __call__(self, x: Tensor) -> Tensor:
        """Call one of the programs on every row, and add what is captured."""
        f = self.second.f if self.is_second else self.first.f
        y = torch.stack([f(row) for row in x]) ** self.power * self.weight * self.scale
        return torch.cat([y, y[..., self.mask].square()], -1) - self.scale

    def change(self, what: str, x: Tensor) -> Tensor:
        """Change the function, or its argument, which is returned."""
        if what == "branch":
            self.is_second = not self.is_second
        elif what == "values":
            self.weight += 0.5
        elif what == "tensor":
            self.weight = self.weight.clone() - 0.25
        elif what == "number":
            self.power = 5 - self.power
        elif what == "scale":
            self.scale *= -0.75
        elif what == "mask":
            self.mask = self.mask.flip(0)
        return x[:1] if what == "shape" and len(x) > 1 else x.repeat(2, 1) if what == "shape" else x


@given(programs(max_ops=4, max_elements=4), programs(max_ops=4, max_elements=4), CHANGES, st.sampled_from(STRATEGIES))
def test_kept_plans_after_changes(first: Program, second: Program, changes: list[str], strategy: str) -> None:
    f = Changing(first, second)
    x = f.first.x[None]
    derivative = hofunc.derivatives(f, 2, strategy=strategy)
    derivative(x)
    for what in changes:
        x = f.change(what, x)
        kept = tree_leaves(derivative(x))
        with without_plans():
            fresh = tree_leaves(hofunc.derivatives(f, 2, strategy=strategy)(x))
        assert all(map(agree, kept, fresh)), what


def agree(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors are the same up to rounding."""
    scale = other[other.isfinite()].abs().max().item() if other.isfinite().any() else 0.0
    return torch.allclose(one, other, rtol=1e-9, atol=1e-9 * scale, equal_nan=True)


@contextmanager
def without_plans() -> Iterator[None]:
    """Put the plans that are kept aside, and what is known of numbers."""
    plans, met = dict(cache._plans), dict(cache._schedules._met)
    cache.forget()
    yield
    cache.forget()
    cache._plans.update(plans)
    cache._schedules._met.update(met)
