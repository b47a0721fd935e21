"""Derivatives are contracted, tied, added and packed as dense tensors are.

Claim: `contract`, `diagonal`, `trace`, `packed`, sums and multiples of a structured derivative are those of the tensor
that its terms stand for, whatever labels the axes share, be they parts of ranges, merged, or read through indices that
run over labels of their own or of others; and what they return has terms that stand for it.
Source: the definition of a term (hofunc/algebra/term.py), written out index by index.
Falsifier: a label that is summed twice or not at all, indices that meet where they are equal by chance only, a part of
a range that is taken for the whole.
Tolerance: that of rounding sums of some hundred products of numbers of order one.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import hofunc
from hofunc.arguments import STRATEGIES
from hofunc.structured.packed import multisets
from verification.blocks import compact_blocks, inputs_of, reachable
from verification.programs import Program, programs
from verification.structures import Structure, written_out
from verification.vectors import assert_close as vectors_close
from verification.vectors import mixture

TOLERANCE = 1e-10
COUNT, EACH = 40, 50

numbers = pytest.mark.parametrize("part", range(COUNT))


def close(got: Tensor, expected: Tensor) -> bool:
    return got.shape == expected.shape and bool(torch.allclose(got, expected, rtol=0, atol=TOLERANCE))


def structures(part: int) -> list[Structure]:
    return [Structure(seed) for seed in range(part * EACH, (part + 1) * EACH)]


def flat(structure: Structure) -> Tensor:
    """Return what a derivative stands for, with one axis for every slot."""
    output, *slots = structure.derivative.shapes
    sizes = [torch.Size(slot).numel() for slot in slots]
    return written_out(structure.derivative).reshape(*output, *sizes)


def dense(got: object) -> Tensor:
    return got if isinstance(got, Tensor) else written_out(got)  # type: ignore[arg-type]


def at(tensor: Tensor, index: Sequence[Tensor]) -> Tensor:
    """Return the entries at indices along the last axes."""
    whole: tuple[Any, ...] = (Ellipsis, *index)
    return tensor[whole]


def is_square(structure: Structure) -> bool:
    return len({*structure.derivative.shapes[1:]}) == 1


@numbers
def test_contractions(part: int) -> None:
    for structure in structures(part):
        output, *slots = structure.derivative.shapes
        vectors = [structure.tensor(slot) if structure.random.random() < 0.6 else None for slot in slots]
        expected = contracted(flat(structure), len(output), vectors)
        got = dense(structure.derivative.contract(*vectors))
        left = [size for slot, vector in zip(slots, vectors, strict=True) if vector is None for size in slot]
        assert close(got, expected.reshape([*output, *left])), structure.derivative.terms


def contracted(tensor: Tensor, first: int, vectors: Sequence[Tensor | None]) -> Tensor:
    for place in reversed(range(len(vectors))):
        vector = vectors[place]
        if vector is not None:
            tensor = torch.tensordot(tensor, vector.reshape(-1), ([first + place], [0]))
    return tensor


@numbers
def test_diagonals_and_traces(part: int) -> None:
    for structure in filter(is_square, structures(part)):
        output, slot, *others = structure.derivative.shapes
        tensor, order = flat(structure), 1 + len(others)
        every = [torch.arange(torch.Size(slot).numel())] * order
        diagonal = at(tensor, every).reshape(*output, *slot)
        assert close(dense(structure.derivative.diagonal()), diagonal), structure.derivative.terms
        if order > 1:
            trace = tensor.diagonal(0, len(output), len(output) + order - 1).sum(-1)
            left = [size for slot in others[:-1] for size in slot]
            got = dense(structure.derivative.trace((0, order - 1)))
            assert close(got, trace.reshape([*output, *left])), structure.derivative.terms


@numbers
def test_packed_entries(part: int) -> None:
    for structure in filter(is_square, structures(part)):
        tensor, order = flat(structure), len(structure.derivative.kinds)
        sets = torch.combinations(torch.arange(tensor.shape[-1]), order, with_replacement=True).reshape(-1, order)
        assert close(structure.derivative.packed(), at(tensor, sets.unbind(1))), structure.derivative.terms


@numbers
def test_sums_and_multiples(part: int) -> None:
    for structure in structures(part):
        one = structure.derivative
        got = 2 * one + one * 0.5 - one / 4 + (-one)
        assert len(got.terms) <= len(one.terms)
        assert close(written_out(got), 1.25 * written_out(one)), one.terms


@numbers
def test_dense(part: int) -> None:
    for structure in structures(part):
        assert close(structure.derivative.dense(), written_out(structure.derivative)), structure.derivative.terms


@given(programs(max_elements=8), st.integers(1, 3), st.sampled_from(STRATEGIES))
def test_derivatives_of_programs(program: Program, order: int, strategy: str) -> None:
    order, by = reachable(program, order), inputs_of(program)
    derivative = hofunc.hod(program, order, by, layout="compact", strategy=strategy)(*program.inputs)
    for block in compact_blocks(derivative):
        output, *slots = block.shapes
        expected = block.dense().reshape([*output, *(prod(slot) for slot in slots)])
        vectors = [mixture(1, prod(slot)).to(block.dtype).reshape(slot) for slot in slots]
        assert_close(dense_of(block.contract(*vectors)), contracted(expected, len(output), vectors))
        assert_close(dense_of(block.contract(vectors[0])), contracted(expected, len(output), vectors[:1]), slots[1:])
        if len({*slots}) == 1:
            every = [torch.arange(prod(slots[0]))] * order
            assert_close(dense_of(block.diagonal()), at(expected, every), slots[:1])
        if len(block.symmetric_in) == 1:
            sets = multisets(prod(slots[0]), order, block.device)
            assert_close(block.packed(), at(expected, sets))


def dense_of(got: Any) -> Tensor:
    return got if isinstance(got, Tensor) else got.dense()


def assert_close(got: Tensor, expected: Tensor, slots: Sequence[Sequence[int]] = ()) -> None:
    flat = got.reshape([*got.shape[: got.dim() - sum(map(len, slots))], *map(prod, slots)])
    vectors_close(flat, expected.reshape(flat.shape))
