"""The remainder of a Taylor polynomial falls at the rate of the next order.

Claim: f(x + h v) minus the Taylor polynomial of order k in h falls at least as h^(k+1).
Source: Taylor's theorem, for functions that are smooth around x. It needs values of f only, and no derivative by
others.
Falsifier: any entry of any derivative up to order k that is wrong makes it fall as h^k or slower.
Tolerance: the rate is measured between two steps, the smallest at which the remainder is well above rounding errors,
and has to be above k + 1/2: a right one tends to k + 1 or more, a wrong one to k or less.
"""

from functools import reduce
from math import factorial, log2

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import hofunc
from hofunc.arguments import STRATEGIES
from verification.programs import Program, programs
from verification.vectors import fitting, mixed, mixture, vector

STEPS = [2.0**-n for n in range(6, 22)]
NOISE = 2e-14  # of values, relative to the largest of the polynomial's terms
CLEAR = 100.0  # how far above it a remainder has to be


@given(programs(max_elements=12), st.integers(1, 3), st.sampled_from(STRATEGIES))
def test_rate_of_the_remainder(program: Program, order: int, strategy: str) -> None:
    assume("detach" not in program.definition)  # what is detached changes values, and no derivatives
    f, x = mixed(vector(program), 1)
    order = fitting(order, f, x)
    v = mixture(x.numel(), 1)[:, 0]
    derivatives = hofunc.derivatives(f, order, strategy=strategy)(x)
    along = [reduce(torch.matmul, [v] * k, derivative) for k, derivative in enumerate(derivatives)]

    def remainder(h: float) -> float:
        polynomial = sum((term * h**k / factorial(k) for k, term in enumerate(along)), torch.zeros(1).double())
        return float((f(x + h * v) - polynomial).abs())

    noise = NOISE * (1 + max(float(term.abs()) for term in along))
    remainders = [remainder(h) for h in STEPS]
    clear = [place for place in range(1, len(STEPS)) if remainders[place] > CLEAR * noise]
    if clear:
        rate = log2(remainders[clear[-1] - 1] / remainders[clear[-1]])
        assert rate > order + 0.5, f"the remainder of order {order} falls as h^{rate:.2f}"
