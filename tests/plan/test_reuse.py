"""Reuse: steps write over what nothing reads afterwards, and over nothing else."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.graph.node import Call, Ref
from hofunc.plan.lean import priced
from hofunc.plan.lookups import elements
from hofunc.plan.operators import passed_on
from hofunc.plan.program import Given, Program, Register, Step, finished
from hofunc.rules.ops.maps import put_back
from hofunc.run.executor import compiled, interpreted
from hofunc.scatter import range_like
from hofunc.views import add_scaled, put
from tests.cases import rand
from verification.memory import SLACK, taken

CPU = torch.device("cpu")
X, A, B, C, D = map(Register, range(5))

TWICE = (torch.mul, X, 2.0)
PROGRAMS: dict[str, tuple[list[tuple], list[Register], dict[int, int]]] = {
    "a product": ([TWICE, (torch.mul, A, 3.0)], [B], {2: 0}),
    "what is given": ([TWICE], [A], {}),
    "what is returned": ([TWICE, (torch.mul, A, 3.0)], [A, B], {}),
    "what is read later": ([TWICE, (torch.mul, A, X), (torch.add, A, B)], [C], {3: 0}),
    "the second of two": ([TWICE, (torch.mul, X, A)], [B], {2: 1}),
    "a square": ([TWICE, (torch.mul, A, A)], [B], {2: 0}),
    "of which there is a view": ([TWICE, (torch.permute, A, (1, 0)), (torch.neg, A), (torch.mm, B, C)], [D], {}),
    "a view": ([TWICE, (torch.permute, A, (1, 0)), (torch.neg, B)], [C], {3: 0}),
    "a part of itself": ([TWICE, (torch.permute, A, (1, 0)), (torch.add, A, B)], [C], {}),
    "what is smaller": ([TWICE, (torch.sum, A, (0,)), (torch.mul, X, B)], [C], {}),
    "what an op may have kept": (
        [TWICE, (Call(torch.ops.aten.alias.default, (Ref(0),)), A), (torch.mul, A, 3.0), (torch.mul, B, C)],
        [D],
        {4: 1},
    ),
    "a part of a tensor": (
        [TWICE, (torch.diagonal, A, 0, 0, 1), (add_scaled, B, B, 0.5), (torch.diagonal_scatter, A, C, 0, 0, 1)],
        [D],
        {4: 0},
    ),
    "a part of a part": (
        [
            TWICE,
            (torch.diagonal, A, 0, 0, 1),
            (torch.mul, B, 3.0),
            (put, A, C, (("reshape", (16,)), ("narrow", 0, 5, 4))),
        ],
        [D],
        {4: 0},
    ),
    "views of views": (
        [TWICE, (torch.sum, X, (0,)), (put, A, B, (("diagonal", 0, 0, 1),)), (torch.mul, C, 2.0)],
        [D],
        {3: 0, 4: 0},
    ),
    "what is read at indices": (
        [(range_like, X, 4), (elements, X, A), (torch.mul, B, 3.0), (Call(put_back, (Ref(0), Ref(1), 4)), C, A)],
        [D],
        {3: 0},
    ),
    "what is added at indices": (
        [(range_like, X, 4), (Call(put_back, (Ref(0), Ref(1), 4)), X, A), (torch.neg, B)],
        [C],
        {3: 0},
    ),
    "a mask": ([(torch.gt, X, 0), (torch.mul, X, 2.0), (passed_on, B, A), (add_scaled, C, X, 2.0)], [D], {}),
}


def made(steps: Sequence[tuple], outputs: Sequence[Register]) -> Program:
    """Return the program of some steps, priced as a plan is, of a square tensor."""
    numbered = [Step(number, function, tuple(args)) for number, (function, *args) in enumerate(steps, 1)]
    return priced(finished({0: Given(0, (4, 4), torch.float64)}, {}, numbered, outputs), CPU)[0]


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_written_over(name: str) -> None:
    steps, outputs, expected = PROGRAMS[name]
    program = made(steps, outputs)
    assert dict(program.over) == expected
    x = rand(CPU, 4, 4)
    before = x.clone()
    wanted = compiled(program._replace(over=()))([x])
    for run in (compiled(program), interpreted(program)):
        for _ in range(2):
            torch.testing.assert_close(run([x]), wanted, rtol=0, atol=0)
    torch.testing.assert_close(x, before, rtol=0, atol=0)


ROW = (torch.sum, X, (0,))
SUMS: dict[str, tuple[list[tuple], list[Register], tuple[int, ...]]] = {
    "a product of matrices": ([TWICE, (torch.mm, X, X), (torch.add, A, B)], [C], (3,)),
    "that stands first": ([(torch.mm, X, X), (torch.add, A, X)], [B], (2,)),
    "what is given": ([(torch.mm, X, X), (torch.add, X, A)], [B], (2,)),
    "scaled": ([TWICE, (torch.mm, X, X), (add_scaled, A, B, -0.5)], [C], (3,)),
    "of elements": ([TWICE, (torch.mul, X, X), (add_scaled, A, B, -0.5)], [C], (3,)),
    "a row for all": ([ROW, (torch.mm, X, X), (torch.add, A, B)], [C], (3,)),
    "of what is multiplied": ([TWICE, (torch.mm, A, X), (torch.add, A, B)], [C], ()),
    "of a view of that": ([TWICE, (torch.permute, A, (1, 0)), (torch.mm, B, X), (torch.add, A, C)], [D], ()),
    "what is read again": ([TWICE, (torch.mm, X, X), (torch.add, A, B), (torch.mul, B, C)], [D], ()),
    "what is returned": ([TWICE, (torch.mm, X, X), (torch.add, A, B)], [B, C], ()),
    "with itself": ([(torch.mm, X, X), (torch.add, A, A)], [B], ()),
    "the other one scaled": ([TWICE, (torch.mm, X, X), (add_scaled, B, A, -0.5)], [C], ()),
    "more than the product": ([ROW, (torch.mul, A, A), (torch.add, X, B)], [C], ()),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_that_are_one_call_with_a_product(name: str) -> None:
    steps, outputs, expected = SUMS[name]
    program = made(steps, outputs)
    assert program.joined == expected
    x = rand(CPU, 4, 4)
    before = x.clone()
    wanted = compiled(program._replace(over=(), joined=()))([x])
    for run in (compiled(program), interpreted(program), compiled(program._replace(over=()))):
        for _ in range(2):
            torch.testing.assert_close(run([x]), wanted, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(x, before, rtol=0, atol=0)
    torch.testing.assert_close(interpreted(program)([x]), compiled(program)([x]), rtol=0, atol=0)


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_where_somebody_follows(name: str) -> None:
    steps, outputs, _ = PROGRAMS[name]
    program = made(steps, outputs)
    x = rand(CPU, 4, 4).requires_grad_()

    def total(x: Tensor) -> Any:
        return sum(result.sin().sum() for result in compiled(program)([x]))

    def expected(x: Tensor) -> Any:
        return sum(result.sin().sum() for result in compiled(program._replace(over=()))([x]))

    torch.testing.assert_close(torch.autograd.grad(total(x), x), torch.autograd.grad(expected(x), x))
    torch.testing.assert_close(torch.func.jacrev(total)(x), torch.func.jacrev(expected)(x))
    batch = rand(CPU, 3, 4, 4, seed=1)
    torch.testing.assert_close(torch.func.vmap(total)(batch), torch.func.vmap(expected)(batch))


BANDS: dict[str, Callable[[Tensor], Tensor]] = {
    "Rosenbrock": lambda x: (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum(),
    "neighbours": lambda x: (x[1:] * x[:-1]).sin().sum(),
    "every other": lambda x: (x[::2] * x[1::2]).sin().sum(),
    "second differences": lambda x: ((x[2:] - 2 * x[1:-1] + x[:-2]) ** 4).sum() + (x**3).sum(),
    "blocks": lambda x: (x.view(-1, 4).square().sum(1) ** 2).sum(),
    "a part alone": lambda x: x[3:9].sin().sum(),
    "of a grid": lambda x: ((x.view(8, -1)[1:] - x.view(8, -1)[:-1]) ** 4).sum() + (x[8:] - x[:-8]).cos().sum(),
}


@pytest.mark.parametrize("name", BANDS)
def test_bands_are_written_to_a_hessian_and_not_to_copies_of_it(name: str) -> None:
    """Whatever is beside the result is of as many entries as its bands."""
    x = rand(CPU, 96)
    expected = torch.func.hessian(BANDS[name])(x)
    plan = hofunc.hessian(BANDS[name]).plan(x)
    held = taken(lambda: plan(x))
    assert held <= 1.2 * 8 * x.numel() ** 2
    assert plan.peak_bytes == pytest.approx(held, rel=0.02, abs=SLACK)
    for run in (plan, hofunc.hessian(BANDS[name])):
        torch.testing.assert_close(run(x), expected)
    batch = torch.stack([x, x.flip(0)])
    several = torch.func.vmap(torch.func.hessian(BANDS[name]))(batch)
    torch.testing.assert_close(torch.func.vmap(hofunc.hessian(BANDS[name]))(batch), several)
    (traced,) = plan.to_fx()(x)
    torch.testing.assert_close(traced, expected)
    x.requires_grad_()
    weights = rand(CPU, 96, 96, seed=1)
    wanted = torch.autograd.grad((torch.func.hessian(BANDS[name])(x) * weights).sum(), x, materialize_grads=True)
    for run in (plan, hofunc.hessian(BANDS[name])):
        torch.testing.assert_close(torch.autograd.grad((run(x) * weights).sum(), x, materialize_grads=True), wanted)


def test_parts_are_written_to_a_derivative_and_not_to_copies_of_it() -> None:
    i, j = torch.triu_indices(24, 24, 1)

    def energy(x: Tensor) -> Tensor:
        return (1 + (x[i] - x[j]).square().sum(-1)).reciprocal().sum()

    x = rand(CPU, 24, 3)
    plan = hofunc.hod(energy, 3).plan(x)
    held = taken(lambda: plan(x))
    assert held <= 2.1 * 8 * x.numel() ** 3
    assert plan.peak_bytes == pytest.approx(held, rel=0.02, abs=SLACK)
    torch.testing.assert_close(plan(x), torch.func.jacfwd(torch.func.hessian(energy))(x))
