"""Single precision at mixed scales, where differences of what is nearly equal leave nothing but rounding."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch.nn.attention import SDPBackend, sdpa_kernel

import hofunc
from hofunc.arguments import STRATEGIES
from tests.cases import rand
from tests.checks import check_hod
from verification.oracles import nested_reverse
from verification.scales import BASE, FUNCTIONS, TIMES, ULPS, Point, complaints

POINTS = [Point(BASE, (1e-4, 1.0, 1e4)), Point(BASE, (1e6, 1.0, 1.0)), Point((10.8, 8.3, 11.2)), Point((24.0, -51, 36))]
ORDERS = {"deviation": (2,)}  # the third of one scale is below all digits, see verification


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_beside_those_of_nested_differentiation(name: str) -> None:
    for order in ORDERS.get(name, (2, 3)):
        found = [c for point in POINTS for c in complaints(name, point, order, ("auto", "reverse"))]
        assert not found, "\n".join(found)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_hessian_of_a_norm_of_scaled_numbers(strategy: str) -> None:
    """It was -3.6e-4, the rounding of terms of a thousand."""
    scales = torch.tensor([1e-4, 1.0, 1e4])
    x = torch.tensor([1.0, 2.0, 3.0])
    got = hofunc.hod(lambda x: (x * scales).norm(), 2, strategy=strategy)(x)
    exact = nested_reverse(lambda x: (x * scales.double()).norm(), 2)(x.double())
    assert abs(got[2, 2] - exact[2, 2]) < 1e-5 * exact.abs().max()


NORMALISED = {
    "normalize": lambda x: F.normalize(x, dim=1),
    "cosine similarity": lambda x: F.cosine_similarity(x, x.flip(0), dim=1),
    "rms_norm": lambda x: F.rms_norm(x, (3,)),
    "rms_norm by hand": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3),
    "a root of a sum": lambda x: x / torch.sqrt((x * x).sum(-1, keepdim=True)),
    "a factor on the left": lambda x: torch.rsqrt(x.square().mean(keepdim=True, dim=1) + 0.1) * x,
    "over a norm": lambda x: x / x.norm(dim=0, keepdim=True),
    "over a norm with limits": lambda x: x / x.norm(dim=1, keepdim=True).clamp_min(1.5),
    "over the norm of another": lambda x: x / x.flip(0).norm(dim=1, keepdim=True),
    "over a norm of order three": lambda x: x / x.norm(p=3, dim=1, keepdim=True),
    "by another's inverse root": lambda x: x * torch.rsqrt(x.sin().pow(2).mean(-1, keepdim=True) + 1e-3),
    "by the inverse root of another power": lambda x: x * torch.rsqrt(x.pow(4).mean(-1, keepdim=True) + 1e-3),
}


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", NORMALISED)
def test_vectors_over_their_own_length(name: str, order: int, device: torch.device) -> None:
    check_hod(lambda x: NORMALISED[name](x).sin().sum(0), (rand(device, 2, 3),), order)


def _attention_energy(x: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernel has no second derivative in torch
        return F.scaled_dot_product_attention(x[None], x[None], x[None]).square().sum()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("scale", [1e-2, 1.0, 10.0, 100.0])
def test_the_hessian_of_attention(scale: float, strategy: str) -> None:
    """Where one key has all of the weight, what the others would change was left over from rounding."""
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)) * scale
    exact = nested_reverse(_attention_energy, 2)(x.double())
    theirs = (nested_reverse(_attention_energy, 2)(x) - exact).abs().max()
    mine = (hofunc.hod(_attention_energy, 2, strategy=strategy)(x) - exact).abs().max()
    assert mine <= TIMES * theirs + ULPS * torch.finfo(torch.float32).eps * exact.abs().max()


@pytest.mark.parametrize("p", [1.5, 2, 3])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_slices_within_a_limit(p: float, order: int, device: torch.device) -> None:
    x = torch.cat((rand(device, 2, 3), 0.01 * rand(device, 1, 3)))
    check_hod(lambda x: x.renorm(p, 0, 0.5), (x,), order)
