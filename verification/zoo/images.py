"""Images: timm, kornia, monai, and the measures of torchmetrics."""

from typing import Any

import torch
from torch import Tensor

from verification.zoo.entry import Case, Library

timm = Library("timm")
kornia = Library("kornia")
monai = Library("monai")
torchmetrics = Library("torchmetrics")


def _network(name: str, size: int, **options: Any) -> Case:
    """Return the scores of an image by a network, as a function of a few of its pixels."""
    import timm as library

    model = library.create_model(name, pretrained=False, num_classes=2, in_chans=1, **options).eval()
    image = torch.randn(1, 1, size, size)
    return _by_pixels(model, image)


def _by_pixels(model: Any, image: Tensor) -> Case:
    """Return a function of the first four pixels of the middle row."""
    middle = image.shape[-2] // 2

    def f(pixels: Tensor) -> Tensor:
        row = torch.cat([pixels, image[0, 0, middle, 4:]])
        rows = torch.cat([image[0, 0, :middle], row[None], image[0, 0, middle + 1 :]])
        return model(rows[None, None])

    return f, (image[0, 0, middle, :4].clone(),)


@timm
def vision_transformer() -> Case:
    return _network(
        "vit_tiny_patch16_224", 8, img_size=8, patch_size=4, embed_dim=6, depth=1, num_heads=2, mlp_ratio=2.0
    )


@timm
def convnext() -> Case:
    return _network("convnext_atto", 32, depths=(1, 1, 1, 1), dims=(2, 2, 4, 4))


@timm
def mixer() -> Case:
    from timm.models.mlp_mixer import MlpMixer

    model = MlpMixer(num_classes=2, img_size=8, in_chans=1, patch_size=4, num_blocks=1, embed_dim=4).eval()
    return _by_pixels(model, torch.randn(1, 1, 8, 8))


@timm
def resnet() -> Case:
    from timm.models.resnet import BasicBlock, ResNet

    model = ResNet(BasicBlock, (1, 1, 1, 1), num_classes=2, in_chans=1, stem_width=2, channels=(2, 2, 4, 4)).eval()
    return _by_pixels(model, torch.randn(1, 1, 32, 32))


@kornia
def gaussian_blur() -> Case:
    from kornia.filters import gaussian_blur2d

    return lambda x: gaussian_blur2d(x, (3, 3), (1.0, 1.0)).sin(), (torch.rand(1, 1, 3, 3),)


@kornia
def structural_similarity() -> Case:
    from kornia.losses import ssim_loss

    other = torch.rand(1, 1, 4, 4)
    return lambda x: ssim_loss(x, other, window_size=3), (torch.rand(1, 1, 4, 4),)


@kornia
def warp_by_homography() -> Case:
    from kornia.geometry.transform import warp_perspective

    image = torch.rand(1, 1, 5, 5)
    return (
        lambda m: warp_perspective(image, m[None], (4, 4)),
        (torch.tensor([[1.02, 0.03, 0.21], [-0.02, 0.97, 0.33], [0.001, 0.002, 1.0]]),),
    )


@kornia
def colours() -> Case:
    from kornia.color import rgb_to_lab

    return rgb_to_lab, (0.2 + 0.5 * torch.rand(1, 3, 1, 2),)


@kornia
def rotation_of_quaternion() -> Case:
    from kornia.geometry.conversions import quaternion_to_axis_angle

    return lambda q: quaternion_to_axis_angle(q / q.norm()), (torch.tensor([0.9, 0.1, -0.3, 0.2]),)


@monai
def dice_loss() -> Case:
    from monai.losses import DiceLoss

    loss, target = DiceLoss(sigmoid=True), (torch.rand(1, 1, 3, 3) > 0.5).double()
    return lambda x: loss(x, target), (torch.randn(1, 1, 3, 3),)


@monai
def unet() -> Case:
    from monai.networks.nets import UNet

    model = UNet(2, 1, 1, channels=(2, 4), strides=(2,), num_res_units=1, act="gelu").eval()
    return _by_pixels(lambda x: model(x)[..., 2:4, 1], torch.randn(1, 1, 8, 8))


@monai
def local_correlation() -> Case:
    from monai.losses import LocalNormalizedCrossCorrelationLoss

    loss, target = LocalNormalizedCrossCorrelationLoss(spatial_dims=2, kernel_size=3), torch.rand(1, 1, 4, 4)
    return lambda x: loss(x, target), (torch.rand(1, 1, 4, 4),)


@torchmetrics
def image_ssim() -> Case:
    from torchmetrics.functional.image import structural_similarity_index_measure

    other = torch.rand(1, 1, 8, 8)
    return _by_pixels(
        lambda x: structural_similarity_index_measure(x, other, data_range=1.0, kernel_size=3, sigma=0.6),
        torch.rand(1, 1, 8, 8),
    )


@torchmetrics
def pearson_correlation() -> Case:
    from torchmetrics.functional import pearson_corrcoef

    other = torch.randn(5)
    return lambda x: pearson_corrcoef(x, other), (torch.randn(5),)


@torchmetrics
def signal_to_distortion() -> Case:
    from torchmetrics.functional.audio import scale_invariant_signal_distortion_ratio

    other = torch.randn(6)
    return lambda x: scale_invariant_signal_distortion_ratio(x, other), (torch.randn(6),)


@torchmetrics
def cosine_similarity() -> Case:
    from torchmetrics.functional import pairwise_cosine_similarity

    return pairwise_cosine_similarity, (torch.randn(3, 3),)
