"""Random numbers under vmap are drawn as ``randomness`` says.

Claim: of a derivative that is mapped over rows, every row is that of its own numbers: with "different" each row has
others, with "same" all have one set, and "error" refuses to draw any. Dropout is no exception.
Source: what ``torch.func.vmap`` says of its argument; f returns what it drew beside its value, so that the derivative
can be taken again with these numbers for an argument.
Falsifier: numbers that are drawn once, while the function is recorded, and stand in the plan for all rows.
Tolerance: that of `verification.vectors`.
"""

from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

import hofunc
from hofunc.arguments import STRATEGIES
from verification.programs import Program, programs
from verification.vectors import assert_close, fitting, mixed, vector

ROWS = 3
ENOUGH = 12  # random numbers, of which no two sets are alike

DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "rand_like": torch.rand_like,
    "randn": lambda x: torch.randn(x.shape, dtype=x.dtype),
    "bernoulli": lambda x: torch.bernoulli(torch.full(x.shape, 0.5, dtype=x.dtype)) + 0.5,
    "dropout": lambda x: functional.dropout(torch.ones_like(x)) + 0.5,
    "in place": lambda x: torch.empty(x.shape, dtype=x.dtype).uniform_() + 0.5,
}


def drawing(program: Program, draw: str) -> tuple[Callable[..., tuple[Tensor, Tensor]], Callable[..., Tensor], Tensor]:
    """Return a function that draws numbers and returns them too, the same with these for an argument, and its point."""
    f, x = mixed(vector(program))

    def given_numbers(x: Tensor, numbers: Tensor) -> Tensor:
        return f(x) * numbers[:2] + (x.sum() * numbers).sin().sum()

    def random(x: Tensor) -> tuple[Tensor, Tensor]:
        numbers = DRAWS[draw](x.sum().expand(ENOUGH))
        return given_numbers(x, numbers), numbers

    return random, given_numbers, x


def maps(random: Callable[..., tuple[Tensor, Tensor]], rows: Tensor, randomness: str) -> bool:
    """Tell whether torch itself can map a function: it has no rule for all ops, nor for all ways to draw."""
    try:
        torch.func.vmap(random, randomness=randomness)(rows)
    except RuntimeError:
        return False
    return True


@given(
    programs(max_ops=3, max_elements=4),
    st.integers(1, 3),
    st.sampled_from(STRATEGIES),
    st.sampled_from(sorted(DRAWS)),
    st.sampled_from(["same", "different"]),
)
def test_rows_have_their_numbers(program: Program, order: int, strategy: str, draw: str, randomness: str) -> None:
    random, given_numbers, x = drawing(program, draw)
    order = fitting(order, lambda x: random(x)[0], x)
    rows = x.expand(ROWS, *x.shape)
    assume(maps(random, rows, randomness))
    transform = hofunc.hod(random, order, has_aux=True, strategy=strategy)
    found, numbers = torch.func.vmap(transform, randomness=randomness)(rows)
    numbers = numbers.expand(ROWS, ENOUGH)
    for place in range(ROWS):
        assert_close(found[place], hofunc.hod(given_numbers, order)(x, numbers[place]))
    assert torch.equal(numbers[0], numbers[1]) == (randomness == "same")


@pytest.mark.parametrize("draw", sorted(DRAWS))
def test_numbers_are_refused(draw: str) -> None:
    def f(x: Tensor) -> Tensor:
        return (DRAWS[draw](x) * x.sin()).sum()

    with pytest.raises(RuntimeError, match="randomness"):  # of torch, as of the function itself
        torch.func.vmap(hofunc.hessian(f))(torch.ones(ROWS, 2, dtype=torch.float64))
