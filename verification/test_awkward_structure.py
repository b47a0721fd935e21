"""Derivatives are right where one element of an input is several of what an op takes or returns.

Claim: at orders 2 and 3, by every strategy by name, a hofunc derivative of the sum of squares of an op is that of the
op written out: with indices that repeat, or name nothing, for every op that takes indices; with windows that overlap;
with axes that are broadcast.
Source: linear ops are their own matrices, made of values alone; what is not linear is judged by nested torch.func.
Falsifier: a diagonal that is kept where two of its elements are one, or is added up once too often; a transpose of a
map that overwrites what it should add; slots that share a label which a broadcast has summed.
Tolerance: rounding, 1e-12 of the largest entry.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that everyone gives it

import hofunc
from hofunc.arguments import STRATEGIES
from verification.indexed import TABLE, Indexed, of_vector, squared, vector, written_out
from verification.oracles import nested_reverse, relative_error

pytestmark = [
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
    pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter:UserWarning"),
    pytest.mark.filterwarnings("ignore:index_reduce.. is in beta:UserWarning"),
    pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning"),
]

Function = Callable[[Tensor], Tensor]


def check(f: Function, reference: Function, z: Tensor, order: int) -> None:
    """Compare all strategies with the reference."""
    expected = nested_reverse(squared(reference), order)(z)
    for strategy in STRATEGIES:
        got = hofunc.hod(squared(f), order, strategy=strategy)(z)
        assert relative_error(got, expected) < 1e-12, strategy


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize(
    ("use", "indices"),
    [
        pytest.param(use, indices, id=f"{use.name}-{indices}")
        for use in TABLE
        for indices in ((2, 0, 2, 2), ())
        if indices or use.name != "max_unpool2d"  # which takes indices of its own
    ],
)
def test_indices(use: Indexed, indices: tuple[int, ...], order: int) -> None:
    index = torch.tensor(indices, dtype=torch.int64)
    check(of_vector(use.f, index), written_out(use, index), vector(index), order)


def matrix_of(f: Function, size: int) -> Function:
    """Return an affine function as a product with its matrix, made of its values."""
    constant = f(torch.zeros(size, dtype=torch.float64))
    matrix = torch.stack([f(row.clone()) - constant for row in torch.eye(size, dtype=torch.float64)], -1)
    return lambda z: matrix @ z + constant


WINDOWS: dict[str, Function] = {
    "unfold": lambda z: z.unfold(0, 3, 1),
    "unfold of an axis": lambda z: z.reshape(2, 6).unfold(1, 3, 2),
    "unfold twice": lambda z: z.reshape(3, 4).unfold(0, 2, 1).unfold(1, 3, 1),
    "im2col": lambda z: F.unfold(z.reshape(1, 1, 3, 4), (2, 3), padding=1),
    "col2im": lambda z: F.fold(z.reshape(1, 4, 3), (2, 4), (2, 2)),
    "avg_pool1d": lambda z: F.avg_pool1d(z.reshape(1, 2, 6), 3, 1),
    "avg_pool2d": lambda z: F.avg_pool2d(z.reshape(1, 1, 3, 4), 2, 1, 1),
    "avg_pool2d, without what is padded": lambda z: F.avg_pool2d(
        z.reshape(1, 3, 4), 2, 1, padding=1, count_include_pad=False
    ),
    "avg_pool3d": lambda z: F.avg_pool3d(z.reshape(1, 1, 2, 2, 3), (1, 2, 2), 1),
    "adaptive_avg_pool2d": lambda z: F.adaptive_avg_pool2d(z.reshape(1, 1, 3, 4), (2, 3)),
    "conv1d": lambda z: F.conv1d(z.reshape(1, 2, 6), torch.linspace(-1, 1, 18, dtype=torch.float64).reshape(3, 2, 3)),
    "conv2d with dilation": lambda z: F.conv2d(
        z.reshape(1, 1, 3, 4), torch.linspace(-1, 1, 4, dtype=torch.float64).reshape(1, 1, 2, 2), dilation=(1, 2)
    ),
    "conv_transpose2d": lambda z: F.conv_transpose2d(
        z.reshape(1, 1, 3, 4), torch.linspace(-1, 1, 9, dtype=torch.float64).reshape(1, 1, 3, 3), stride=2
    ),
    "windows by strides": lambda z: z.as_strided((2, 3, 2), (5, 2, 1), 1),
    "interpolation": lambda z: F.interpolate(z.reshape(1, 1, 3, 4), (4, 7), mode="bilinear"),
    "nearest, by a factor": lambda z: F.interpolate(z.reshape(1, 2, 6), scale_factor=2.1),
    "reflection": lambda z: F.pad(z.reshape(1, 2, 6), (3, 2), mode="reflect"),
    "replication": lambda z: F.pad(z.reshape(1, 2, 6), (3, 2), mode="replicate"),
    "circulation": lambda z: F.pad(z.reshape(1, 2, 6), (3, 2), mode="circular"),
    "running sums": lambda z: z.reshape(3, 4).cumsum(0),
}
BROADCAST: dict[str, Function] = {
    "expand": lambda z: z[:, None].expand(12, 2),
    "expand of an axis of size one": lambda z: z.reshape(1, 12, 1).expand(2, 12, 3),
    "repeat": lambda z: z.reshape(3, 4).repeat(2, 3),
    "repeat_interleave": lambda z: z.reshape(3, 4).repeat_interleave(torch.tensor([2, 0, 1]), 0),
    "roll and add": lambda z: z.reshape(3, 4) + z.reshape(3, 4).roll(1, 0),
    "add of rows": lambda z: z[:8].reshape(2, 4) + z[8:],
    "add of a row and a column": lambda z: z[:8] + z[8:, None],
    "sum that is kept": lambda z: z.reshape(3, 4) - z.reshape(3, 4).mean(1, keepdim=True),
    "where": lambda z: torch.where(torch.tensor([True, False, True]), z[:4, None], z[4:7]),
    "broadcast_tensors": lambda z: torch.cat(torch.broadcast_tensors(z[:4, None], z[4:])),
    "broadcast by strides": lambda z: z.as_strided((3, 4), (0, 3)),
    "meshgrid": lambda z: torch.stack(torch.meshgrid(z[:4], z[4:], indexing="ij")),
    "einsum of a diagonal": lambda z: torch.einsum("ii->i", z[:9].reshape(3, 3)),
}


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("name", [*WINDOWS, *BROADCAST])
def test_windows_and_broadcasts(name: str, order: int) -> None:
    f = {**WINDOWS, **BROADCAST}[name]
    generator = torch.Generator().manual_seed(1)
    check(f, matrix_of(f, 12), torch.randn(12, dtype=torch.float64, generator=generator), order)


PRODUCTS: dict[str, Function] = {
    "of all pairs": lambda z: z[:, None] * z,
    "of rows and a column": lambda z: z.reshape(3, 4) * z[:3, None],
    "of windows": lambda z: z.unfold(0, 3, 1) * z[2:, None],
    "of what is gathered": lambda z: z[torch.tensor([0, 1, 1, 5])] * z[torch.tensor([1, 1, 0, 5])],
    "of an image and its kernel": lambda z: F.conv2d(z.reshape(1, 1, 3, 4), z[:4].reshape(1, 1, 2, 2)),
    "of matrices that are broadcast": lambda z: z.reshape(3, 2, 2) @ z[:4].reshape(2, 2),
    "of an axis with itself": lambda z: torch.einsum("ij,kj->ikj", z.reshape(3, 4), z.reshape(3, 4)),
    "largest of windows": lambda z: F.max_pool2d(z.reshape(1, 1, 3, 4), 2, 1),
}


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, order: int) -> None:
    generator = torch.Generator().manual_seed(1)
    check(PRODUCTS[name], PRODUCTS[name], torch.randn(12, dtype=torch.float64, generator=generator), order)
