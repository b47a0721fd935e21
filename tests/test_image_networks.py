"""Blocks of networks for images, as modules, at orders one to three.

The oracle is nested forward mode, which only ever convolves more images at once; nested reverse mode of a convolution
takes gigabytes at the third order.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that everyone gives it

import hofunc
from tests.cases import distinct, rand
from verification.oracles import nested_forward, relative_error

TOLERANCE = 1e-10

# torch's own, on the way to forward mode


class WrittenOutNorm(nn.Module):
    """Batch normalisation by its formula: torch's own is differentiated wrongly in training."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise every channel over all images and places."""
        mean = x.mean((0, 2, 3), keepdim=True)
        return (x - mean) / (((x - mean) ** 2).mean((0, 2, 3), keepdim=True) + 1e-5).sqrt()


class ResNetBlock(nn.Module):
    """Two convolutions with norms beside a third with a stride, and pooling of all places."""

    def __init__(self, norm: Callable[[], nn.Module]):
        super().__init__()
        self.first = nn.Conv2d(1, 2, 3, stride=2, padding=1, bias=False)
        self.second = nn.Conv2d(2, 2, 3, padding=1, bias=False)
        self.beside = nn.Conv2d(1, 2, 1, stride=2)
        self.norms = nn.ModuleList([norm(), norm()])

    def forward(self, x: Tensor) -> Tensor:
        """Return two numbers for each image."""
        y = self.norms[0](self.first(x)).relu()
        y = self.norms[1](self.second(y)) + self.beside(x)
        return F.adaptive_avg_pool2d(F.silu(y), 1).flatten(1)


class UNetBlock(nn.Module):
    """Down by pooling, through a convolution, up again, and beside what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 2, 3, padding=1)
        self.bottom = nn.Conv2d(2, 2, 3, padding=1)
        self.norm = nn.GroupNorm(1, 2)
        self.up = nn.ConvTranspose2d(2, 2, 2, stride=2)
        self.last = nn.Conv2d(5, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return an image of the size of the first."""
        left = F.gelu(self.down(x))
        low = F.silu(self.norm(self.bottom(F.max_pool2d(left, 2))))
        smooth = F.interpolate(low[:, :1], scale_factor=2.0, mode="bilinear")
        return self.last(torch.cat([left, self.up(low), smooth], 1)).tanh()


def build(make: Callable[[], nn.Module], device: torch.device) -> nn.Module:
    """Return a module with fixed weights, all of them distinct, in float64."""
    return distinct(make().double().to(device).requires_grad_(False))


def in_training() -> nn.Module:
    """Return the norm of a block in training."""
    return nn.BatchNorm2d(2, affine=False, track_running_stats=False)


def in_evaluation() -> nn.Module:
    """Return the norm of a block in evaluation."""
    return nn.BatchNorm2d(2).eval()


BLOCKS = {
    "ResNet in training": (lambda: ResNetBlock(in_training), lambda: ResNetBlock(WrittenOutNorm)),
    "ResNet in evaluation": (lambda: ResNetBlock(in_evaluation), lambda: ResNetBlock(in_evaluation)),
    "U-Net": (UNetBlock, UNetBlock),
}


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", BLOCKS)
def test_by_the_images(name: str, order: int, device: torch.device) -> None:
    module, reference = (build(make, device) for make in BLOCKS[name])
    x = rand(device, 2, 1, 4, 2)
    got = hofunc.hod(lambda x: module(x).sin().sum(), order)(x)
    expected = nested_forward(lambda x: reference(x).sin().sum(), order)(x)
    assert relative_error(got, expected) < TOLERANCE


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", BLOCKS)
def test_by_the_parameters(name: str, order: int, device: torch.device) -> None:
    module, reference = (build(make, device) for make in BLOCKS[name])
    x = rand(device, 2, 1, 4, 2)

    def loss(model: nn.Module) -> Callable[[dict[str, Tensor]], Tensor]:
        return lambda parameters: torch.func.functional_call(model, parameters, (x,)).sin().sum()

    parameters = dict(module.named_parameters())
    got = hofunc.hod(loss(module), order)(parameters)
    assert relative_error(got, nested_forward(loss(reference), order)(parameters)) < TOLERANCE


@pytest.mark.parametrize("name", ["ResNet in evaluation", "U-Net"])
def test_images_that_do_not_mix_stay_apart(name: str, device: torch.device) -> None:
    module, x = build(BLOCKS[name][0], device), rand(device, 3, 1, 4, 2)
    derivative = hofunc.hod(lambda x: module(x).flatten(1).sum(1), 2, layout="compact")(x)
    assert all(axes.startswith("b") for axes in derivative.pattern.split(", "))
    assert derivative.nbytes == 8 * 3 * 8 * 8
