"""Interpolation against nested torch.func."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that everyone gives it

import hofunc
from tests.cases import rand
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, use
from verification.oracles import relative_error

pytestmark = ORACLE_WARNINGS

SMOOTH = [
    use("linear", lambda x: F.interpolate(x, 5, mode="linear"), (1, 2, 3)),
    use("linear to less", lambda x: F.interpolate(x, 2, mode="linear"), (1, 1, 5)),
    use("linear with corners", lambda x: F.interpolate(x, 5, mode="linear", align_corners=True), (1, 1, 3)),
    use("linear by a scale", lambda x: F.interpolate(x, scale_factor=1.7, mode="linear"), (1, 1, 3)),
    use(
        "linear by a scale of its own",
        lambda x: F.interpolate(x, scale_factor=1.7, mode="linear", recompute_scale_factor=True),
        (1, 1, 3),
    ),
    use("bilinear", lambda x: F.interpolate(x, (3, 4), mode="bilinear"), (1, 1, 2, 3)),
    use("bilinear along one axis", lambda x: F.interpolate(x, (2, 3), mode="bilinear"), (1, 1, 2, 2)),
    use("bilinear with corners", lambda x: F.interpolate(x, (3, 1), mode="bilinear", align_corners=True), (1, 1, 2, 2)),
    use("bilinear by scales", lambda x: F.interpolate(x, scale_factor=(1.5, 2), mode="bilinear"), (1, 1, 2, 2)),
    use("bilinear of an empty batch", lambda x: F.interpolate(x, (3, 4), mode="bilinear"), (0, 1, 2, 3), orders=(1,)),
    use("bilinear, smoothed", lambda x: F.interpolate(x, (2, 2), mode="bilinear", antialias=True), (1, 1, 3, 4)),
    use("bicubic", lambda x: F.interpolate(x, (3, 4), mode="bicubic"), (1, 1, 2, 3)),
    use("bicubic with corners", lambda x: F.interpolate(x, (3, 4), mode="bicubic", align_corners=True), (1, 1, 2, 3)),
    use("bicubic, smoothed", lambda x: F.interpolate(x, (2, 2), mode="bicubic", antialias=True), (1, 1, 3, 4)),
    use("lanczos, smoothed", lambda x: F.interpolate(x, (2, 2), mode="lanczos", antialias=True), (1, 1, 3, 4)),
    use("trilinear", lambda x: F.interpolate(x, (3, 1, 2), mode="trilinear"), (1, 1, 2, 2, 1)),
    use("area", lambda x: F.interpolate(x, (2, 3), mode="area"), (1, 1, 3, 3)),
    use("linear in inference mode", lambda x: F.interpolate(x, 5, mode="linear"), (1, 2, 3), inference=True),
]

NEAREST = [
    use("nearest to a multiple", lambda x: F.interpolate(x, scale_factor=2), (2, 1, 3)),
    use("nearest to more", lambda x: F.interpolate(x, 5), (1, 2, 3)),
    use("nearest to less", lambda x: F.interpolate(x, 2), (1, 1, 5)),
    use("nearest by a scale", lambda x: F.interpolate(x, scale_factor=1.7), (1, 1, 4)),
    use("nearest, 2d", lambda x: F.interpolate(x, (4, 3)), (1, 1, 2, 2)),
    use("nearest, 3d", lambda x: F.interpolate(x, (4, 3, 1)), (1, 1, 2, 2, 1)),
    use("nearest-exact", lambda x: F.interpolate(x, 5, mode="nearest-exact"), (1, 1, 3)),
    use("nearest-exact, 2d", lambda x: F.interpolate(x, (1, 3), mode="nearest-exact"), (1, 1, 3, 2)),
    use("nearest-exact, 3d", lambda x: F.interpolate(x, (1, 3, 2), mode="nearest-exact"), (1, 1, 2, 2, 1)),
]


CASES: list[OpCase] = [*SMOOTH, *NEAREST]


@every_row(CASES)
def test_interpolation(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


def test_interpolation_keeps_the_batch(device: torch.device) -> None:
    for mode in ("bilinear", "nearest"):
        derivative = hofunc.hod(
            lambda x, mode=mode: F.interpolate(x, (3, 5), mode=mode).sin().sum((1, 2, 3)), 2, layout="compact"
        )(rand(device, 4, 1, 2, 2))
        assert all(axes.startswith("b") for axes in derivative.pattern.split(", "))


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
def test_elements_that_are_repeated_stay_apart(strategy: str, device: torch.device) -> None:
    transform = hofunc.hod(
        lambda x: F.interpolate(x.sin(), scale_factor=2).sin().sum(2), 2, layout="compact", strategy=strategy
    )
    assert transform(rand(device, 3, 1, 8)).nbytes == 8 * 3 * 8


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear"])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("factor", [2.1, 1.7, 0.6])
def test_by_a_factor_the_jacobian_is_what_the_op_does(
    factor: float, rank: int, mode: str, device: torch.device
) -> None:
    """torch's own Jacobian of the nearest element goes by the sizes, and is another map."""
    name = {2: "bilinear", 3: "trilinear"}.get(rank, mode) if mode == "linear" else mode
    x = rand(device, 1, 1, *[4] * rank)

    def f(x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=factor, mode=name)

    got = torch.tensordot(hofunc.jacobian(f)(x), x, x.dim())
    assert relative_error(got, f(x)) < 1e-12
