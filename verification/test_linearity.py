"""Derivatives are linear in the function.

Claim: D^k (a f + b g) = a D^k f + b D^k g, for programs f and g of one vector.
Source: the definition of a derivative.
Falsifier: terms that are folded, merged or dropped where those of two branches of one graph meet; a coefficient that is
lost; common subexpressions that are not common.
Tolerance: that of `verification.vectors`.
"""

from hypothesis import given
from hypothesis import strategies as st

import hofunc
from hofunc.arguments import STRATEGIES
from verification.programs import Program, programs
from verification.vectors import assert_close, fitting, mixed, moved, vector


@given(
    programs(max_ops=5, max_elements=8),
    programs(max_ops=5, max_elements=8),
    st.integers(1, 3),
    st.sampled_from(STRATEGIES),
)
def test_sum_of_two_programs(first: Program, second: Program, order: int, strategy: str) -> None:
    f, x = mixed(vector(first))
    g, _ = moved(mixed(vector(second)), x)
    order = fitting(order, f, x)
    together = hofunc.hod(lambda x: 1.5 * f(x) - g(x) * 0.7, order, strategy=strategy)(x)
    assert_close(together, 1.5 * hofunc.hod(f, order)(x) - 0.7 * hofunc.hod(g, order)(x))
