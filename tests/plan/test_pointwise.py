"""Elementwise ops on meta tensors against torch's own kernels."""

from itertools import product
from random import Random
from typing import Any

import torch
from torch import Tensor

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


def laid_out(random: Random, shape: list[int]) -> Tensor:
    """Return a tensor with axes in any order of memory, some of them broadcast, which fits a shape."""
    sizes = [1 if random.random() < 0.25 else size for size in shape][random.choice([0, 0, 0, 1]) :]
    order = random.sample(range(len(sizes)), len(sizes))
    tensor = torch.ones([sizes[dim] for dim in order]).permute([order.index(dim) for dim in range(len(sizes))])
    return tensor.expand(shape[len(shape) - len(sizes) :]) if random.random() < 0.3 else tensor


def test_tensors_laid_out_in_any_way() -> None:
    random = Random(0)  # noqa: S311
    for _ in range(400):
        shape = [random.choice([1, 2, 3, 3, 4]) for _ in range(random.randint(0, 5))]
        x, y, z = (laid_out(random, shape) for _ in range(3))
        calls: list[tuple[OpOverload, tuple, dict]] = [
            (aten.neg.default, (x,), {}),
            (aten.mul.Tensor, (x, 2.0), {}),
            (aten.mul.Tensor, (x, y), {}),
            (aten.add.Tensor, (x, y), {"alpha": 2.0}),
            (aten.where.self, (x > 0, y, z), {}),
        ]
        for op, args, options in calls:
            expected, got = op(*args, **options), pointwise(op, tuple(map(as_meta, args)), options)
            assert got is not None
            steps = [(step, size) for step, size in zip(expected.stride(), expected.shape, strict=True) if size > 1]
            assert [(s, n) for s, n in zip(got.stride(), got.shape, strict=True) if n > 1] == steps, (op, args)
            assert (got.shape, got.dtype) == (expected.shape, expected.dtype)


def as_meta(arg: Any) -> Any:
    """Return a tensor without elements that looks like a tensor."""
    return (
        torch.empty_strided(arg.shape, arg.stride(), dtype=arg.dtype, device="meta") if isinstance(arg, Tensor) else arg
    )


def test_back_through_softmax() -> None:
    grad, output = torch.ones(4, 3).t(), torch.ones(3, 4).softmax(1)
    for op in (aten._softmax_backward_data.default, aten._log_softmax_backward_data.default):
        for pair in ((grad, output), (output, grad), (output, output)):
            expected, got = op(*pair, 1, output.dtype), pointwise(op, (*map(as_meta, pair), 1, output.dtype))
            assert got is not None
            assert (got.shape, got.stride(), got.dtype) == (expected.shape, expected.stride(), expected.dtype)


def test_no_random_number_is_drawn_to_learn_a_dtype() -> None:
    before = torch.get_rng_state()
    assert pointwise(aten.bernoulli.p, (torch.empty(2, device="meta"), 0.5)) is None
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_left_to_torch() -> None:
    x, y = torch.empty(3, 4, device="meta"), torch.empty(4, 3, device="meta")
    assert pointwise(aten.clamp.default, (x,), {"min": "a"}) is None, "an option that is no number"
    assert pointwise(aten.add.Tensor, (x, y)) is None, "shapes that do not fit"
    assert pointwise(aten.add_.Tensor, (x, x)) is None, "written in place"
    assert pointwise(aten.mm.default, (x, y)) is None
    assert pointwise(aten.frexp.Tensor, (x,)) is None, "two results"
