"""Scratch: what calls allocate beside their results, against what torch's allocator hands out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that everyone gives it

from asv_benchmarks.memory import peak
from hofunc.internals import identity_of
from hofunc.plan import scratch
from hofunc.plan.memory import bytes_of, memory_of
from hofunc.plan.scratch import Watch, called
from tests.cases import rand

CPU = torch.device("cpu")
X, SQUARES = rand(CPU, 60, 64), rand(CPU, 60, 8, 8) + 8 * torch.eye(8, dtype=torch.float64)
IMAGE, KERNEL = rand(CPU, 4, 6, 12, 12), rand(CPU, 4, 6, 3, 3)


def back(x: Tensor, large: Tensor, w: Tensor, groups: int) -> Tensor:
    """Return the derivative of a convolution by its operand, in a direction of its result."""
    ones, mask = [1, 1], [True, False, False]
    args = (x, large, w, None, ones, ones, ones, False, [0, 0], groups, mask)
    result: Tensor = torch.ops.aten.convolution_backward(*args)[0]
    return result


def by_weight(small: Tensor, large: Tensor, w: Tensor, groups: int) -> Tensor:
    """Return the derivative of a convolution by its weight, in a direction of its result."""
    ones, mask = [1, 1], [False, True, False]
    args = (small, large, w, None, ones, ones, ones, False, [0, 0], groups, mask)
    result: Tensor = torch.ops.aten.convolution_backward(*args)[1]
    return result


CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "temporaries": (lambda x: (x.sin() + x.cos()) * x, (X,)),
    "temporaries of one size after those of another": (lambda x: (x[:, None] * x[:, :8, None]).sum(1).sin(), (X,)),
    "a sum of exponentials": (lambda x: x.logsumexp(1), (X,)),
    "inverses": (torch.linalg.inv, (SQUARES,)),
    "exponentials of matrices": (torch.linalg.matrix_exp, (SQUARES / 20,)),
    "singular values": (torch.linalg.svd, (SQUARES,)),
    "a loss": (F.mse_loss, (X, X + 1)),
    "a smooth loss": (F.smooth_l1_loss, (X, X + 1)),
    "a loss of Huber's": (F.huber_loss, (X, X + 1)),
    "a loss of every element": (lambda x, y: F.mse_loss(x, y, reduction="none"), (X, X + 1)),
    "a loss of logits": (F.binary_cross_entropy_with_logits, (X, X.sigmoid())),
    "a product of what has no unit stride": (torch.mm, (X[:, ::2], X[:32])),
    "a product of what is repeated": (torch.mm, (X[:1].expand(60, 64), X.t())),
    "a product of what is transposed": (torch.mm, (X.t(), X)),
    "a convolution": (F.conv2d, (IMAGE, KERNEL)),
    "a convolution by groups": (lambda x, w: F.conv2d(x, w, groups=2), (IMAGE, KERNEL[:, :3].contiguous())),
    "a dilated convolution": (lambda x, w: F.conv2d(x, w, dilation=2), (IMAGE, KERNEL)),
    "a transposed convolution": (F.conv_transpose2d, (IMAGE, KERNEL.transpose(0, 1).contiguous())),
    "the transpose of a convolution": (
        lambda x, w: back(x, x.new_empty(4, 6, 12, 12), w, 1),
        (IMAGE[:, :4].contiguous(), KERNEL),
    ),
    "the transpose of one by groups": (
        lambda x, w: back(x, x.new_empty(4, 6, 12, 12), w, 2),
        (IMAGE[:, :4].contiguous(), KERNEL[:, :3].contiguous()),
    ),
    "the derivative of a convolution by its weight": (
        lambda small, large: by_weight(small, large, small.new_empty(4, 6, 3, 3), 1),
        (IMAGE[:, :4].contiguous(), IMAGE),
    ),
    "the same of one by groups": (
        lambda small, large: by_weight(small, large, small.new_empty(4, 3, 3, 3), 2),
        (IMAGE[:, :4].contiguous(), IMAGE),
    ),
    "the same in single precision": (
        lambda small, large: by_weight(small, large, small.new_empty(4, 6, 3, 3), 1),
        (IMAGE[:, :4].float(), IMAGE.float()),
    ),
    "distances": (lambda x: torch.cdist(x, x), (X,)),
    "interpolation": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (IMAGE,)),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_a_call_allocates(name: str) -> None:
    function, args = CALLS[name]
    results: list[Any] = []
    with torch.no_grad():
        function(*args)
        got = peak(lambda: results.append(function(*args)))
    metas = [torch.empty_strided(arg.shape, arg.stride(), dtype=arg.dtype, device="meta") for arg in args]
    result, scratch = called(function, metas)
    assert bytes_of(result, memory_of(metas)) + scratch == pytest.approx(got, rel=0.05, abs=700)


def test_views_stay_views_also_when_a_call_recurs() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        made = x.exp()
        return x.t(), made[1:]

    for _ in range(2):
        x = torch.empty(4, 3, device="meta")
        (view, part), scratch = called(f, [x])
        assert memory_of(view) == memory_of(x)
        assert (view.stride(), part.shape, part.storage_offset()) == ((1, 3), (3, 3), 3)
        assert bytes_of(part) == bytes_of(x)
        assert scratch == 0


def test_what_needs_values_is_refused() -> None:
    with pytest.raises(RuntimeError):
        called(lambda x: x * x.sum().item(), [torch.empty(3, device="meta")])


def test_shapes_that_do_not_fit_are_refused_without_torchs_kernels() -> None:
    """Of these the first that a process calls imports torch's compiler, only to say so."""
    two, three = (torch.empty(4, size, device="meta") for size in (2, 3))
    with pytest.raises(RuntimeError, match=r"aten.mul.Tensor of shapes that do not fit: \[\(4, 2\), \(4, 3\)\]"):
        called(torch.mul, (two, three))


def test_what_a_call_holds_is_not_gone_through_at_every_op(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def noted(storage: torch.UntypedStorage) -> int:
        looks.append(1)
        return identity_of(storage)

    def chain(x: Tensor) -> list[Tensor]:
        return [x + number for number in range(200)]

    monkeypatch.setattr(scratch, "identity_of", noted)
    x = torch.empty(3, device="meta")
    with Watch(x) as watch:
        kept = chain(x)
    assert watch.peak == 200 * kept[0].nbytes
    assert len(looks) <= 3 * 200
    del kept[:100]
    with watch:
        x.exp()
    assert watch.peak == 200 * 3 * 4
