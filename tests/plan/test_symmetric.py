"""Sums of products of symmetric entries: of those that differ alone, each as often as it is there."""

import numpy as np
import pytest
import torch

from hofunc.algebra.labels import Label, full
from hofunc.algebra.packed import count
from hofunc.plan.builder import Builder
from hofunc.plan.places import Places
from hofunc.plan.program import Register
from tests.algebra.dense import RandomTerms
from tests.plan.plans import names
from tests.plan.workbench import Workbench

SIZE, REST = 3, (2, 4)


def made(device: torch.device, entries: int, drawn: int) -> tuple[Workbench, list[Register], list[np.ndarray]]:
    """Return tensors of packed entries and other axes, as registers of a builder and as arrays."""
    draw = RandomTerms(0)
    factors = [draw.factor(tuple([(full(Label(size)),) for size in (entries, *REST)])) for _ in range(drawn)]
    bench = Workbench(draw, device)
    registers = [bench.builder.value(bench.named_source(factor.source).node) for factor in factors]
    return bench, registers, [draw.tensors[factor.source] for factor in factors]


def unpacked(builder: Builder, tensor: Register, order: int) -> Register:
    """Return all entries, as the axes of a symmetric tensor."""
    places = builder.constant(Places.unpacked(SIZE, order))
    taken = builder.emit(torch.index_select, tensor, 0, places)
    return builder.emit(torch.reshape, taken, ((SIZE,) * order + REST))


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("drawn", [1, 2])
def test_sums_over_all_symmetric_axes(drawn: int, order: int, is_turned: bool, device: torch.device) -> None:
    bench, packed, arrays = made(device, count(SIZE, order), drawn)
    builder = bench.builder
    wholes = [unpacked(builder, tensor, order) for tensor in packed]
    product = [wholes[0], wholes[-1]]
    if is_turned:
        dims = (*reversed(range(order)), *range(order, order + len(REST)))
        product[1] = builder.emit(torch.permute, product[1], dims)
    found = builder.emit(torch.sum, builder.emit(torch.mul, *product), tuple(range(order)))
    places = Places.unpacked(SIZE, order).made().numpy()
    (got,) = bench.run([found])
    np.testing.assert_allclose(got, (arrays[0][places] * arrays[-1][places]).sum(0), rtol=1e-12)
    assert "index_select" not in names(builder.program([found]))


def test_other_sums_are_of_all_entries(device: torch.device) -> None:
    bench, (one, other), _ = made(device, count(SIZE, 2), 2)
    builder = bench.builder
    whole, plain = unpacked(builder, one, 2), builder.emit(torch.reshape, other, (count(SIZE, 2), *REST))
    turned = builder.emit(torch.permute, whole, (0, 2, 1, 3))  # of which the second axis is none of the symmetric ones
    sums = [
        builder.emit(torch.sum, builder.emit(torch.mul, whole, whole), (1,)),
        builder.emit(torch.sum, builder.emit(torch.mul, whole, whole), (0, 1, 2)),
        builder.emit(torch.sum, builder.emit(torch.mul, turned, turned), (0, 1)),
        builder.emit(torch.sum, builder.emit(torch.mul, plain, plain), (0,)),
        builder.emit(torch.sum, whole, (0, 1)),
    ]
    assert "matmul" not in names(builder.program(sums))
