"""Parts of axes, taken and written, against nested torch.func, and the labels that they keep."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, use

aten = torch.ops.aten
pytestmark = ORACLE_WARNINGS

TAKEN = [
    use("select", lambda x: x.select(1, 2), (2, 3)),
    use("select of a negative dim and index", lambda x: x.select(-1, -3), (2, 3)),
    use("select of a vector", lambda x: x[1] * x, (3,)),
    use("split", lambda x: x.split(2), (5,)),
    use("split along a negative dim", lambda x: x.split(2, -1)[1], (2, 3)),
    use("split.Tensor", lambda x: aten.split.Tensor(x, 2, 1)[1], (2, 3)),
    use("split into given sizes", lambda x: x.split([1, 0, 2], 1), (2, 3)),
    use("split_with_sizes", lambda x: aten.split_with_sizes.default(x, [2, 1], -1)[1], (2, 3)),
    use("split without views", lambda x: x.unsafe_chunk(2, 1)[1] * x.unsafe_split_with_sizes([2, 1], 1)[1], (2, 3)),
    use("chunk", lambda x: x.chunk(2, 1), (2, 3)),
    use("unbind", lambda x: x.unbind(1), (2, 3)),
    use("unbind of a negative dim", lambda x: x.unbind(-2)[1], (3, 2)),
    use("diagonal", torch.diagonal, (3, 3)),
    use("diagonal above", lambda x: x.diagonal(1), (2, 3)),
    use("diagonal below", lambda x: x.diagonal(-1), (3, 2)),
    use("diagonal of other dims", lambda x: x.diagonal(1, -1, 0), (3, 1, 2)),
    use("diagonal beyond the corner", lambda x: x.diagonal(3) + x.sum(), (2, 3), orders=(1, 2)),
    use("slice", lambda x: x[1:], (3, 2)),
    use("slice of negative ends", lambda x: x[:, -2:-1], (2, 3)),
    use("slice beyond the end", lambda x: x[1:9], (3,)),
    use("slice of nothing", lambda x: x[2:1], (3,), orders=(1,)),
    use("slice with a step", lambda x: x[::2], (5,)),
    use("slice with a step and ends", lambda x: x[:, 1:-1:3], (2, 6), orders=(1, 2)),
    use("slice with a step that stops before the last", lambda x: x[:4:3], (8,)),
    use("slice with a step that is empty", lambda x: x[3:1:2], (4,), orders=(1,)),
    use("slice with a step, negative dim", lambda x: aten.slice.Tensor(x, -1, None, None, 2), (2, 3)),
    use("slice.Tensor of a slice", lambda x: x[1:][1:].tanh()[:1], (4,)),
    use("neighbours", lambda x: x[1:] - x[:-1], (4,)),
    use("slices of every second", lambda x: x[::2] * x[1::2], (4,)),
    use("narrow", lambda x: x.narrow(1, 1, 2), (2, 3)),
    use("slice of an expanded tensor", lambda x: x.expand(3, 3)[1:, ::2], (3,), orders=(1, 2)),
]

JOINED = [
    use("cat", lambda x, y: torch.cat([x, y]), (2, 2), (1, 2)),
    use("cat along a negative dim", lambda x, y: torch.cat([x, y], -1), (2, 1), (2, 2)),
    use("cat of a tensor with itself", lambda x: torch.cat([x, x.sin(), x]), (2,)),
    use("cat with an empty tensor", lambda x: torch.cat([x[:0], x, x[:1]]), (2, 2)),
    use("cat with the legacy empty tensor", lambda x: torch.cat([torch.empty(0).to(x), x, x.exp()], 1), (2, 1)),
    use("cat with a constant", lambda x: torch.cat([torch.ones(2).to(x), x]), (2,)),
    use("cat of a single tensor", lambda x: torch.cat([x], 0), (2,)),
    use("stack", lambda x, y: torch.stack([x, y, x]), (2,), (2,)),
    use("stack along a negative dim", lambda x, y: torch.stack([x, y], -1), (2,), (2,)),
    use("stack along a middle dim", lambda x: torch.stack([x, x * x], 1), (2, 2)),
    use("stack of scalars", lambda x: torch.stack([x.sum(), x.prod(), x[0]]), (2,)),
    use("pad", lambda x: F.pad(x, (1, 2)), (3,)),
    use("pad of two dims with a value", lambda x: F.pad(x, (1, 0, 0, 2), value=3.0), (2, 2), orders=(1, 2)),
    use("pad by less than nothing", lambda x: F.pad(x, (-1, -1)), (4,)),
    use("pad that shifts", lambda x: F.pad(x, (2, -2)), (4,)),
    use("pad that shifts everything out", lambda x: F.pad(x, (-3, 2)) + x.sum(), (3,)),
    use("constant_pad_nd", lambda x: aten.constant_pad_nd.default(x, [-1, 1, 1, -1]), (2, 3)),
    use("diag_embed", torch.diag_embed, (3,)),
    use("diag_embed with an offset", lambda x: torch.diag_embed(x, 1), (2,)),
    use("diag_embed below, other dims", lambda x: torch.diag_embed(x, -1, 0, 2), (2, 2), orders=(1, 2)),
    use("diag_embed with dims swapped", lambda x: torch.diag_embed(x, 1, -1, 0), (2, 2), orders=(1, 2)),
    use("diag", lambda x: torch.diag(x, -1) * x.sum(), (2,)),
]

WRITTEN = [
    use("slice_scatter", lambda x, y: torch.slice_scatter(x, y, 0, 1, 2), (3, 2), (1, 2)),
    use(
        "slice_scatter to the end",
        lambda x, y: torch.slice_scatter(x, y, -1, -2),
        (2, 3),
        (2, 2),
        reference=lambda x, y: torch.cat([x[:, :1], y], 1),
    ),
    use("slice_scatter of everything", torch.slice_scatter, (2,), (2,)),
    use(
        "slice_scatter of nothing",
        lambda x, y: torch.slice_scatter(x, y, 0, 2, 1),
        (3,),
        (0,),
        orders=(1,),
        reference=lambda x, y: x + y.sum(),
    ),
    use("slice_scatter with a step", lambda x, y: torch.slice_scatter(x, y, 0, 0, 4, 2), (4,), (2,)),
    use("slice_scatter with a step from within", lambda x, y: torch.slice_scatter(x, y, 1, 1, 5, 2), (1, 6), (1, 2)),
    use("slice_scatter of itself", lambda x: torch.slice_scatter(x, x[:1] * x[1:], 0, 1), (2, 2)),
    use("select_scatter", lambda x, y: torch.select_scatter(x, y, 1, 0), (2, 3), (2,)),
    use("select_scatter of negative dim and index", lambda x, y: torch.select_scatter(x, y, -2, -1), (3, 2), (2,)),
    use("diagonal_scatter", torch.diagonal_scatter, (2, 2), (2,)),
    use("diagonal_scatter above", lambda x, y: torch.diagonal_scatter(x, y, 1), (2, 3), (2,)),
    use("diagonal_scatter below, other dims", lambda x, y: torch.diagonal_scatter(x, y, -1, 2, 0), (2, 1, 2), (1, 1)),
    use("select_backward", lambda x: aten.select_backward.default(x, [2, 3], -1, -1), (2,)),
    use("slice_backward", lambda x: aten.slice_backward.default(x, [2, 3], -1, 1, 3, 1), (2, 2)),
    use("slice_backward with a step", lambda x: aten.slice_backward.default(x, [5], 0, 1, 5, 2), (2,)),
    use("slice_backward to the end", lambda x: aten.slice_backward.default(x, [4], 0, -3, 2**63 - 1, 1), (3,)),
    use("diagonal_backward", lambda x: aten.diagonal_backward.default(x, [2, 3], 1, 0, 1), (2,)),
    use("diagonal_backward below", lambda x: aten.diagonal_backward.default(x, [3, 1, 2], -1, 0, -1), (1, 2)),
    use("copy", lambda x, y: aten.copy.default(x, y) * x, (2, 3), (3,), reference=lambda x, y: y * x),
    use("copy of a scalar", aten.copy.default, (2, 1), (), reference=lambda x, y: y + 0 * x),
    use("fill", lambda x, y: aten.fill.Tensor(x, y) * x, (2, 2), ()),
]

CASES: list[OpCase] = [*TAKEN, *JOINED, *WRITTEN]


@every_row(CASES)
def test_slices(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


@pytest.mark.parametrize(
    ("f", "pattern"),
    [
        (lambda x: x[1:].tanh(), "b c, b[1:3] c, b[1:3] c"),
        (lambda x: x[:, 0].tanh(), "b, b 0, b 0"),
        (lambda x: torch.cat([x, x.sin()], 1)[:, 2:], "b c, b c, b c"),
        (lambda x: torch.cat([x.tanh(), x[:1]], 0), "b[0:3] c, b c, b c"),
        (lambda x: torch.stack([x.tanh(), x], 1), "b 0 c, b c, b c"),
        (lambda x: F.pad(x.tanh(), (0, 1)), "b c[0:2], b c, b c"),
        (lambda x: x[:, :1].tanh().squeeze(1), "b, b c[0:1], b c[0:1]"),
        (lambda x: x.tanh().split(1, 1)[1].squeeze(1), "b, b c[1:2], b c[1:2]"),
    ],
)
def test_labels_are_kept(f: Callable[[Tensor], Tensor], pattern: str, device: torch.device) -> None:
    assert hofunc.hod(f, 2, layout="compact")(rand(device, 3, 2)).pattern == pattern
