"""hod against nested torch.func, in float64, on all cases and by every strategy."""

import pytest
import torch

from hofunc.arguments import STRATEGIES
from tests.cases import CASES, Case
from tests.checks import check_hod

# torch's own: its forward mode compiles a helper with what it deprecates, and lacks some batching rules.
pytestmark = [
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
]


@pytest.mark.parametrize(
    ("case", "order"), [pytest.param(case, order, id=f"{case.name}-{order}") for case in CASES for order in case.orders]
)
def test_hod_is_exact(case: Case, order: int, device: torch.device) -> None:
    f, args = case.build(device)
    reference = case.reference(device) if case.reference else None
    check_hod(
        f, args, order, argnums=case.argnums, reference=reference, strategies=(*STRATEGIES, "reverse-without-either")
    )
