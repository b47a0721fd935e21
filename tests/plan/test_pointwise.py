"""Elementwise ops on meta tensors against torch's own kernels."""

from itertools import product
from typing import Any

import torch

from hofunc.internals import OpOverload
from hofunc.plan.pointwise import pointwise
from hofunc.rules.registry import RULES

aten = torch.ops.aten


SHAPES: list[list[tuple[int, ...]]] = [[(3, 4)], [(3, 1), (4,), ()], [()]]


ELEMENTWISE = [op for op in RULES if isinstance(op, OpOverload) and torch.Tag.pointwise in op.tags]


def given(op: OpOverload, dtype: torch.dtype, shapes: list[tuple[int, ...]]) -> list[Any] | None:
    """Return arguments for an op, None if it takes what is neither a tensor nor a number."""
    args: list[Any] = []
    for argument in op._schema.arguments:
        kind = str(argument.type)
        if argument.kwarg_only or argument.has_default_value():
            break
        if kind not in ("Tensor", "number", "float", "int"):
            return None
        args.append(torch.empty(shapes[len(args) % len(shapes)], dtype=dtype, device="meta") if kind == "Tensor" else 2)
    return args


def test_every_op_that_is_elementwise() -> None:
    found = 0
    for op in ELEMENTWISE:
        for dtype, shapes in product([torch.float64, torch.int64, torch.bool], SHAPES):
            args = given(op, dtype, shapes)
            got = None if args is None else pointwise(op, args)
            if got is not None and args is not None:
                expected = op(*args)
                assert (got.shape, got.stride(), got.dtype) == (expected.shape, expected.stride(), expected.dtype), op
                found += 1
    assert found > 600


def test_what_is_left_to_torch() -> None:
    x, y = torch.empty(3, 4, device="meta"), torch.empty(4, 3, device="meta")
    assert pointwise(aten.add.Tensor, (x, y.t())) is None, "laid out otherwise"
    assert pointwise(aten.add.Tensor, (x, y)) is None, "shapes that do not fit"
    assert pointwise(aten.add_.Tensor, (x, x)) is None, "written in place"
    assert pointwise(aten.mm.default, (x, y)) is None
    assert pointwise(aten.frexp.Tensor, (x,)) is None, "two results"
