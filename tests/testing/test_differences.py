"""Differences: right where they say that they are, and aware of where they are not."""

from collections.abc import Callable
from math import cos, exp, inf

import pytest
import torch

from hofunc.testing.differences import slope


@pytest.mark.parametrize(
    ("g", "expected"),
    [
        (lambda h: (1 + h).sin(), cos(1)),
        (lambda h: (2 * h).exp() * (1 + h), 3.0),
        (lambda h: (h + 1e-2).log(), 1e2),  # of which the larger steps leave the domain
        (lambda h: 0 * h + 7, 0.0),
        (lambda h: 1 / (1 + 100 * (h - 0.1) ** 2), 5.0),
        (lambda h: (h - 0.004).abs() * h.exp(), exp(0) * -1 + 0.004),  # a kink within the larger steps
    ],
)
def test_the_error_is_as_estimated_and_small(g: Callable[[torch.Tensor], torch.Tensor], expected: float) -> None:
    value, error = slope(lambda h: g(torch.tensor([h], dtype=torch.float64)))
    assert abs(value.item() - expected) <= error.item() + 1e-12
    assert error.item() < 1e-9 * max(abs(expected), 1)


@pytest.mark.parametrize(
    ("g", "jump"),
    [
        (torch.abs, 1.0),
        (torch.relu, 0.5),
        (lambda h: h.sign(), 1.0),
        (lambda h: (h.abs() + 1e-30).sqrt(), 1.0),
        (lambda h: (h - 1).sqrt(), inf),
        (lambda h: torch.where(h > 0, 5 * h.sin(), h), 2.0),
    ],
)
def test_no_slope_is_claimed_where_there_is_none(g: Callable[[torch.Tensor], torch.Tensor], jump: float) -> None:
    assert slope(lambda h: g(torch.tensor(h, dtype=torch.float64))).error.item() >= 0.9 * jump


def test_entries_are_judged_by_themselves() -> None:
    value, error = slope(lambda h: torch.tensor([[h * h + h, abs(h)], [h**3, 1 / h if h else 0.0]]).double())
    assert value.shape == error.shape == (2, 2)
    assert (error < 1e-5).tolist() == [[True, False], [True, False]]
    assert value[:, 0].tolist() == pytest.approx([1, 0], abs=1e-5)
