"""What is read of torch to have oneDNN multiply matrices."""

import pytest
import torch
from torch import Tensor

from hofunc.internals_linear import has_linear, linear, linear_added, linear_with_bias
from tests.cases import rand

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not has_linear(), reason="torch has no oneDNN here")


def same(got: Tensor, expected: Tensor) -> None:
    """Compare single precision with double."""
    assert got.dtype is torch.float32
    assert got.shape == expected.shape
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "summed", "columns"), [(1, 1, 1), (3, 5, 2), (64, 64, 64), (300, 7, 65), (2, 500, 3)])
def test_products(rows: int, summed: int, columns: int) -> None:
    left, right, bias = rand(CPU, rows, summed), rand(CPU, summed, columns, seed=1), rand(CPU, columns, seed=2)
    total = rand(CPU, rows, columns, seed=3)
    for laid in (right.float(), right.float().t().contiguous().t(), right.float().repeat(1, 2)[:, :columns]):
        same(linear(left.float(), laid), left @ right)
        same(linear_with_bias(bias.float(), left.float(), laid), left @ right + bias)
        before = total.float()
        same(linear_added(before, left.float(), laid), left @ right + total)
        assert torch.equal(before, total.float())


def test_batches_of_rows_and_other_layouts_of_these() -> None:
    left, right = rand(CPU, 4, 6, 5), rand(CPU, 5, 3, seed=1)
    same(linear(left.float(), right.float()), left @ right)
    turned = left.float().transpose(0, 1)
    same(linear(turned, right.float()), left.transpose(0, 1) @ right)
    same(linear(left.float()[:, ::2], right.float()), left[:, ::2] @ right)


def test_what_is_not_finite_stays_so() -> None:
    left = torch.tensor([[float("inf"), 1.0], [float("nan"), 1.0], [1.0, 2.0]])
    found = linear(left, torch.ones(2, 2))
    assert torch.isinf(found[0]).all()
    assert torch.isnan(found[1]).all()
    assert torch.equal(found[2], torch.tensor([3.0, 3.0]))


def test_they_have_no_derivatives() -> None:
    """Torch warns only when it is too late, so they are for nobody who follows."""
    found = linear(torch.ones(2, 2, requires_grad=True), torch.ones(2, 2))
    with pytest.warns(UserWarning, match="an autograd kernel was not registered"):
        found.sum().backward()


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_it_may_be_switched_off() -> None:
    with torch.backends.mkldnn.flags(enabled=False):
        assert not has_linear()
    assert has_linear()
