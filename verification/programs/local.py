"""What works on neighbours: convolutions, pooling, windows and resampling."""

from collections.abc import Iterator

from verification.programs.domain import APART
from verification.programs.row import Shape, shaped


def _convolved(x: Shape) -> Iterator[str]:
    if len(x) == 2 and x[1] > 1:
        channels, length = x
        yield f"F.conv1d({{0}}, {{w:2,{channels},2}})"
        yield f"F.conv1d({{0}}[None], {{w:1,{channels},2}}, {{w:1}}, stride=2, padding=1)[0]"
        yield f"F.conv1d({{0}}, {{w:{channels},1,2}}, groups={channels}, padding=1, dilation=2)"
        yield f"F.conv1d({{0}}.sin()[None], {{0}}[None], padding={length - 1})[0]"
        yield f"F.conv_transpose1d({{0}}, {{w:{channels},1,2}}, stride=2)"
    if len(x) == 3 and x[2] > 1:
        yield f"F.conv2d({{0}}, {{w:2,{x[0]},1,2}})"
        yield f"F.conv2d({{0}}, {{w:1,{x[0]},2,2}}, {{w:1}}, padding=(1, 0))"
        yield f"F.conv_transpose2d({{0}}, {{w:{x[0]},1,1,2}})"


def _averaged(x: Shape) -> Iterator[str]:
    if len(x) == 2 and x[1] > 1:
        yield "F.avg_pool1d({0}, 2)"
        yield "F.avg_pool1d({0}, 2, stride=1, padding=1, count_include_pad=False)"
        yield "F.adaptive_avg_pool1d({0}, 2)"
    if len(x) == 3 and x[2] > 1:
        yield "F.avg_pool2d({0}, (1, 2), stride=1)"
        yield "F.adaptive_avg_pool2d({0}, (1, 2))"


def _largest(x: Shape) -> Iterator[str]:
    if len(x) == 2 and x[1] > 1:
        yield "F.max_pool1d({0}, 2)"
        yield "F.max_pool1d({0}[None], 2, stride=1)[0]"
        yield "F.adaptive_max_pool1d({0}, 1)"
    if len(x) == 3 and x[2] > 1:
        yield "F.max_pool2d({0}, (1, 2), stride=1)"


def _in_windows(x: Shape) -> Iterator[str]:
    if len(x) == 3 and x[2] > 1:
        yield "F.unfold({0}, (1, 2))"
        yield f"F.fold(F.unfold({{0}}, (1, 2)).sin(), ({x[1]}, {x[2]}), (1, 2))"


def _resampled(x: Shape) -> Iterator[str]:
    if len(x) == 2:
        yield f"F.interpolate({{0}}[None], size={x[1] + 1}, mode='linear')[0]"
        yield f"F.interpolate({{0}}[None], size={x[1] + 1}, mode='nearest')[0]"
    if len(x) == 3:
        yield f"F.interpolate({{0}}[None], size=({x[1] + 1}, {x[2]}), mode='bilinear', align_corners=True)[0]"
        yield f"F.interpolate({{0}}[None], size=({x[1]}, {x[2] + 1}), mode='bicubic')[0]"


LOCAL = (
    shaped("convolution", _convolved),
    shaped("average pooling", _averaged),
    shaped("max pooling", _largest, domain=APART),
    shaped("windows", _in_windows),
    shaped("resampling", _resampled),
)
