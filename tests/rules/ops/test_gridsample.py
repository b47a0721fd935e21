"""Sampling at given places against nested torch.func, and at the ends of the range."""

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that everyone gives it

import hofunc
from tests.cases import rand
from tests.checks import check_hod
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, use

pytestmark = ORACLE_WARNINGS

MODES = [
    *product(("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (False, True)),
]


def sampled(mode: str, padding: str, align_corners: bool):  # type: ignore[no-untyped-def]
    """Return a function that samples an image, or a volume, at places some of which lie far outside."""
    return lambda x, grid: F.grid_sample(
        x, grid * 1.3 + 0.05, mode=mode, padding_mode=padding, align_corners=align_corners
    )


cubic, linear = sampled("bicubic", "reflection", False), sampled("bilinear", "zeros", False)

CASES: list[OpCase] = [
    *(
        use(
            f"{mode} with {padding}{', corners aligned' * aligned}",
            sampled(mode, padding, aligned),
            (1, 1, 2, 3),
            (1, 1, 3, 2),
            orders=(1, 2),
        )
        for mode, padding, aligned in MODES
    ),
    *(
        use(
            f"{mode} in space with {padding}",
            sampled(mode, padding, padding == "reflection"),
            (1, 1, 2, 2, 2),
            (1, 1, 1, 2, 3),
            orders=(1, 2),
        )
        for mode, padding, aligned in MODES
        if mode != "bicubic" and not aligned
    ),
    use("several channels and images", sampled("bilinear", "zeros", False), (2, 2, 2, 2), (2, 1, 1, 2), orders=(1, 2)),
    use("third derivatives", lambda grid: cubic(rand(grid.device, 1, 1, 2, 3), grid), (1, 1, 2, 2), orders=(3,)),
    use(
        "third derivatives in space",
        lambda grid: linear(rand(grid.device, 1, 1, 2, 3, 2), grid),
        (1, 1, 1, 1, 3),
        orders=(3,),
    ),
    use("affine_grid", lambda x: F.affine_grid(x, [1, 1, 2, 2], align_corners=False), (1, 2, 3)),
    use(
        "affine_grid in space", lambda x: F.affine_grid(x, [1, 1, 1, 2, 1], align_corners=False), (1, 3, 4), orders=(1,)
    ),
]


@every_row(CASES)
def test_grid_sample(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


@pytest.mark.parametrize(("mode", "padding", "align_corners"), MODES)
def test_on_the_ends_of_the_range_derivatives_are_those_of_torch(
    mode: str, padding: str, align_corners: bool, device: torch.device
) -> None:
    x = rand(device, 1, 1, 4, 4)  # of which the middles are numbers without rounding
    ends = torch.tensor([-1.0, -0.75, 0.25, 1.0], dtype=torch.float64, device=device)
    grid = torch.stack(torch.meshgrid(ends, ends, indexing="ij"), -1)[None]

    def f(grid: Tensor) -> Tensor:
        return F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=align_corners).sin().sum()

    check_hod(f, (grid,), 1)
    check_hod(f, (grid,), 2)


def test_sampling_keeps_the_batch(device: torch.device) -> None:
    x = rand(device, 3, 1, 2, 2)
    f = sampled("bilinear", "border", False)
    derivative = hofunc.hod(lambda grid: f(x, grid).sum((1, 2, 3)), 2, layout="compact")(rand(device, 3, 1, 2, 2))
    assert all(axes.startswith("b") for axes in derivative.pattern.split(", "))
