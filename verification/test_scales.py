"""In single precision hofunc is about as exact as nested first-order differentiation, at all scales.

Claim: derivatives of order two and three of norms, moments, normalisations, softmax and its relatives, angles,
products and quotients, in float32, by every strategy, are not farther from the truth than four times what nested
torch.func is, or a few units in the last place of the largest element. Elements are compared as they are, and
in units of the variables.
Source: the functions written again in mpmath's numbers, differentiated in hundreds of digits.
Falsifier: a difference of what is nearly equal, which leaves rounding where the derivative is small.
Tolerance: as the claim says. Where nested torch.func is not a number there is nothing to compare with.
"""

import pytest

from hofunc.arguments import STRATEGIES
from verification.scales import FUNCTIONS, complaints, points

# The third derivative of a deviation by what is a million times as large as all else, which is 1e-12 of the others.
BELOW_ALL_DIGITS = {("deviation", (1e6, 1.0, 1.0), 3)}


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_beside_those_of_nested_differentiation(name: str, order: int) -> None:
    found = [
        f"{point}: {complaint}"
        for point in points()
        if (name, point.scales, order) not in BELOW_ALL_DIGITS
        for complaint in complaints(name, point, order, STRATEGIES)
    ]
    assert not found, "\n".join(found)
