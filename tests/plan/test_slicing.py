"""Slices of steps: a slice of what a step makes is what it makes of slices, and sums of slices are the sum."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.graph.layout import select_scatter
from hofunc.graph.node import Call, Ref
from hofunc.plan.lookups import elements
from hofunc.plan.looped import some
from hofunc.plan.operators import passed_on
from hofunc.plan.program import Given, Program, Register, Step, frees_of
from hofunc.plan.relations import add_last, read_last
from hofunc.plan.slicing import Along, made, op_of, sized, summed, taken, template
from hofunc.plan.tracing import traced
from hofunc.rules.ops.elementwise import power
from hofunc.rules.ops.maps import flipped, picked, put_back, rolled, running_sum
from hofunc.rules.ops.softmax import OF_PROBABILITIES
from hofunc.scatter import added
from hofunc.views import add_scaled, concatenated, filled, folded, narrow_scatter, put, stacked

aten = torch.ops.aten
INDEX = torch.tensor([3, 0, 3, 1, 2])
A, B, C = map(Register, range(3))


hofunc.hessian(lambda x: x.pow(-3))(torch.ones(2))  # of which the rule tells that its derivatives are elementwise

CASES: dict[str, tuple[Any, tuple, list[Tensor]]] = {
    "mul": (torch.mul, (A, B), [torch.randn(4, 6, 2), torch.randn(6, 1)]),
    "mul by a number": (torch.mul, (A, 2), [torch.randn(4, 6)]),
    "add_scaled": (add_scaled, (A, B, 0.5), [torch.randn(4, 6), torch.randn(6)]),
    "passed_on": (passed_on, (A, B), [torch.randn(4, 6), torch.randn(4, 1) > 0]),
    "sin": (Call(aten.sin.default, (Ref(0),)), (A,), [torch.randn(4, 6)]),
    "to": (torch.Tensor.to, (A, torch.float64), [torch.randn(4, 6)]),
    "contiguous": (torch.Tensor.contiguous, (A,), [torch.randn(4, 6)]),
    "permute": (torch.permute, (A, (2, 0, 1)), [torch.randn(4, 6, 2)]),
    "transpose": (torch.transpose, (A, -1, -3), [torch.randn(4, 6, 2)]),
    "unsqueeze": (torch.unsqueeze, (A, 1), [torch.randn(4, 6)]),
    "expand": (torch.Tensor.expand, (A, (3, 4, 6)), [torch.randn(4, 1)]),
    "diagonal": (torch.diagonal, (A, 0, 0, 2), [torch.randn(4, 6, 4)]),
    "diagonal_scatter": (torch.diagonal_scatter, (A, B, 0, 0, 2), [torch.randn(4, 6, 4), torch.randn(6, 4)]),
    "put": (put, (A, B, (("narrow", 1, 1, 4), ("diagonal", 0, 0, 1))), [torch.randn(4, 6, 3), torch.randn(3, 4)]),
    "put, broadcast": (put, (A, B, (("select", 2, 1), ("narrow", 0, 1, 2))), [torch.randn(4, 6, 3), torch.randn(2, 1)]),
    "put, reshaped": (put, (A, B, (("reshape", (24, 3)), ("select", 0, 1))), [torch.randn(4, 6, 3), torch.randn(3)]),
    "filled": (
        filled,
        (A, (5, 2, 7, 4), (("narrow", 0, 1, 4), ("narrow", 2, 2, 5), ("diagonal", 0, 0, 3))),
        [torch.randn(2, 5, 4)],
    ),
    "select": (torch.select, (A, 1, 3), [torch.randn(4, 6, 2)]),
    "select_scatter": (select_scatter, (A, B, 1, 3), [torch.randn(4, 6, 2), torch.randn(4, 2)]),
    "narrow": (torch.narrow, (A, 1, 2, 3), [torch.randn(4, 6, 2)]),
    "narrow_scatter": (narrow_scatter, (A, B, 1, 2, 3), [torch.randn(4, 6, 2), torch.randn(4, 3, 2)]),
    "concatenated": (concatenated, (1, A, B), [torch.randn(4, 6), torch.randn(4, 2)]),
    "stacked": (stacked, (A, B), [torch.randn(4, 6), torch.randn(4, 6)]),
    "elements": (elements, (A, B), [torch.randn(4, 6, 2), INDEX]),
    "elements of two": (elements, (A, B, C), [torch.randn(4, 6, 2), INDEX, INDEX + 1]),
    "read_last": (Call(read_last, (Ref(0), Ref(1), 4)), (A, B), [torch.randn(6, 4), INDEX]),
    "add_last": (Call(add_last, (Ref(0), Ref(1), 4)), (A, B), [torch.randn(6, 5), INDEX]),
    "picked": (Call(picked, (Ref(0), Ref(1), 4)), (A, B), [torch.randn(6, 4), INDEX - 1]),
    "put_back": (Call(put_back, (Ref(0), Ref(1), 4)), (A, B), [torch.randn(6, 5), INDEX]),
    "flipped": (Call(flipped, (Ref(0),)), (A,), [torch.randn(4, 6, 2)]),
    "rolled": (Call(rolled, (Ref(0), 2)), (A,), [torch.randn(4, 6, 2)]),
    "running_sum": (Call(running_sum, (Ref(0),)), (A,), [torch.randn(4, 6, 2)]),
    **{
        f"{function.__name__}, {name}": (
            Call(function, (Ref(0), Ref(1), order, count)),
            (A, B),
            [torch.randn(shape), p],
        )
        for function in OF_PROBABILITIES
        for name, shape, p, order, count in (
            ("rows", (3, 4, 6), torch.randn(4, 6).softmax(-1), (0, 1), 1),
            ("columns", (3, 4, 6), torch.randn(6, 4).softmax(0), (1, 0), 1),
            ("two axes", (3, 4, 6, 2), torch.randn(6, 4, 2).softmax(0), (1, 0, 2), 2),
            ("one for all", (3, 4, 6), torch.randn(1, 6).softmax(1), (0, 1), 1),
            ("of its shape", (4, 6), torch.randn(4, 6).softmax(-1), (0, 1), 1),
        )
    },
    "index_select": (torch.index_select, (A, 1, B), [torch.randn(4, 6, 2), INDEX]),
    "index": (Call(aten.index.Tensor, (Ref(0), (Ref(1),))), (A, B), [torch.randn(4, 6, 2), INDEX - 1]),
    "pow": (torch.pow, (A, 3), [torch.randn(4, 6)]),
    "a derivative": (Call(power, (Ref(0), Ref(1), 2, -3)), (A, B), [torch.randn(4, 6), torch.randn(4, 6)]),
    "sum of the last": (torch.sum, (A, (-1,)), [torch.randn(4, 6, 2)]),
    "sum of all": (torch.sum, (A,), [torch.randn(4, 6)]),
    "sum of one": (torch.sum, (A, 1), [torch.randn(4, 6)]),
    "sum that keeps": (torch.sum, (A, (-1,), True), [torch.randn(4, 6)]),
    "sum": (torch.sum, (A, (0, 2)), [torch.randn(4, 6, 2, 3)]),
    "mm": (torch.mm, (A, B), [torch.randn(4, 6), torch.randn(6, 5)]),
    "bmm": (torch.bmm, (A, B), [torch.randn(2, 4, 6), torch.randn(2, 6, 5)]),
    "matmul": (torch.matmul, (A, B), [torch.randn(2, 4, 6), torch.randn(6, 5)]),
    "matmul, a vector": (torch.matmul, (A, B), [torch.randn(2, 4, 6), torch.randn(6)]),
    "folded": (folded, (A, B), [torch.randn(2, 4, 6), torch.randn(6, 5)]),
    "folded, a vector": (folded, (A, B), [torch.randn(2, 4, 6), torch.randn(6)]),
    "reshape": (torch.reshape, (A, (8, 6, 5)), [torch.randn(2, 4, 3, 10)]),
    "reshape of one": (torch.reshape, (A, (1, 8, 1, 3)), [torch.randn(2, 1, 4, 3)]),
    "added": (
        added,
        (4, 6, (1, 2.0), A, B, C, Register(3)),
        [INDEX, INDEX[:2], torch.randn(5, 2, 3), torch.randn(2, 6)],
    ),
    "added, one term": (added, (4, 6, (0.5,), A, B), [INDEX, torch.randn(5, 2, 3)]),
}
# Axes along which there are slices that follow from slices: those of the result, and those that are summed.
KNOWN = {
    "diagonal": 1,
    "diagonal_scatter": 1,
    "select_scatter": 2,
    "narrow": 2,
    "narrow_scatter": 2,
    "put": 1,
    "put, broadcast": 1,
    "put, reshaped": 0,
    "filled": 1,
}


def program_of(name: str) -> tuple[Program, list[Tensor]]:
    function, args, tensors = CASES[name]
    given = {n: Given(n, tuple(tensor.shape), tensor.dtype) for n, tensor in enumerate(tensors)}
    shapes = {9: (tuple(run(name).shape), torch.float32)} if isinstance(function, Call) or "sum " in name else {}
    step = Step(9, function, args)
    return Program(given, shapes, (step,), frees_of([step], [9])[0], (9,)), tensors


def run(name: str) -> Tensor:
    function, args, tensors = CASES[name]
    return function(*[tensors[arg.index] if isinstance(arg, Register) else arg for arg in args])


def sliced(step: Step, looks: dict, found: list, own: dict[int, Along], tensors: list[Tensor], piece: Callable) -> Any:
    places = dict(found)
    args = [
        piece(tensors[arg.index], places[arg.index]) if isinstance(arg, Register) else sized(arg, 1)
        for arg in template(step, looks, own)
    ]
    return step.function(*args)


@pytest.mark.parametrize("name", CASES)
def test_slices_of_results_follow_from_slices(name: str) -> None:
    program, tensors = program_of(name)
    looks, (step,), whole = traced(program).values, program.steps, run(name)
    known = 0
    for dim, entries in enumerate(whole.shape):
        found = taken(step, Along(dim), looks)
        if found is None or entries == 1:
            continue
        known += 1
        for start in range(entries):
            got = sliced(
                step,
                looks,
                found,
                {9: Along(dim)},
                tensors,
                lambda x, along: some(x, along, entries, start, 1),  # noqa: B023
            )
            torch.testing.assert_close(got, whole.narrow(dim, start, 1))
        for register, along in found:
            if along is not None:
                assert made(step, register, along, looks) is not None
    sizes = [size for size in whole.shape if size > 1]
    expected = {"reshape": 1, "added": 0, "added, one term": 0, "reshape of one": 1, "concatenated": 1}
    is_one_less = name in ("stacked", "add_last", "put_back", "flipped", "rolled", "running_sum")
    of_probabilities = step.function.args[-1] if op_of(step.function) in OF_PROBABILITIES else 0  # type: ignore[union-attr]
    expected["sum that keeps"] = 0
    assert known == expected.get(name, KNOWN.get(name, len(sizes) - is_one_less - of_probabilities))


SUMS = ["mm", "bmm", "matmul", "matmul, a vector", "folded", "sum", "sum of the last", "sum of all", "sum of one"]


@pytest.mark.parametrize("name", [*SUMS, "add_last", "put_back"])
def test_sums_of_slices_are_sums(name: str) -> None:
    program, tensors = program_of(name)
    looks, (step,), whole = traced(program).values, program.steps, run(name)
    dim = 0 if name == "sum" else 1 if name == "sum of one" else tensors[0].dim() - 1
    found = summed(step, 0, Along(dim), looks)
    assert found is not None
    entries = tensors[0].shape[dim]
    parts = [
        sliced(step, looks, found, {}, tensors, lambda x, along: some(x, along, entries, start, 1))  # noqa: B023
        for start in range(entries)
    ]
    torch.testing.assert_close(torch.stack(parts).sum(0), whole)


def test_rows_are_summed_for_some_of_them() -> None:
    program, tensors = program_of("added, one term")
    looks, (step,) = traced(program).values, program.steps
    found = summed(step, 1, Along(0), looks)
    assert found == [(0, Along(0)), (1, Along(0))]
    parts = [added(4, 6, (0.5,), tensors[0][n : n + 1], tensors[1][n : n + 1]) for n in range(5)]
    torch.testing.assert_close(torch.stack(parts).sum(0), run("added, one term"))
    assert summed(program_of("added")[0].steps[0], 2, Along(0), traced(program_of("added")[0]).values) is None


def test_labels_within_axes() -> None:
    program, tensors = program_of("added, one term")
    looks, (step,), whole = traced(program).values, program.steps, run("added, one term")
    for along, entries in ((Along(1, 1, 3), 2), (Along(1, 2, 1), 3)):
        found = taken(step, along, looks)
        assert found is not None
        assert found[0] == (0, None)
        for start in range(entries):
            got = sliced(step, looks, found, {9: along}, tensors, lambda x, at: some(x, at, entries, start, 1))  # noqa: B023
            torch.testing.assert_close(got, some(whole, along, entries, start, 1))
    assert made(step, 1, Along(2), looks) == Along(1, 2, 1)


def test_what_mixes_entries_has_no_slices() -> None:
    for call in (Call(aten.cumsum.default, (Ref(0), 0)), Call(aten.bernoulli.default, (Ref(0),))):
        step = Step(9, call, (A,))
        program = Program({0: Given(0, (4, 6), torch.float32)}, {}, (step,), ((0,),), (9,))
        assert all(taken(step, Along(dim), traced(program).values) is None for dim in (0, 1))


@pytest.mark.parametrize(
    ("op", "args", "expected"), [(torch.narrow, (1, 2, 3), True), (torch.Tensor.expand, ((4, 6),), False)]
)
def test_calls_that_hold_sizes_have_no_slices(op: Callable, args: tuple, expected: bool) -> None:
    """A view within the steps of a recurrence is a call that holds its numbers, as a node's is."""
    step = Step(9, Call(op, (Ref(0), *args)), (A,))
    program = Program({0: Given(0, (4, 6), torch.float32)}, {}, (step,), ((0,),), (9,))
    assert any(taken(step, Along(dim), traced(program).values) is not None for dim in (0, 1)) == expected
