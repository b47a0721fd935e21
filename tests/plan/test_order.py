"""Order: steps that give up memory come as soon as they can."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that everyone gives it

import hofunc
from hofunc.plan import lean, order
from hofunc.plan.adding import Summed, Work, added_in_pieces
from hofunc.plan.cost import cost_of
from hofunc.plan.late import put_off
from hofunc.plan.lean import priced
from hofunc.plan.program import Given, Register, Step, finished
from hofunc.plan.tracing import traced
from hofunc.run.executor import compiled
from tests.cases import rand

CPU = torch.device("cpu")


def test_what_becomes_small_does_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight products, each of which is part of a sum too, the sums over all entries come first."""
    x, width = Register(0), 64
    steps: list[Step] = []
    total = x
    for number in range(8):
        product, later = Register(10 + number), Register(20 + number)
        steps.append(Step(product.index, torch.mul, (x, float(number))))
        steps.append(Step(later.index, torch.add, (total, product)))
        total = later
    sums = [Register(30 + number) for number in range(8)]
    steps += [Step(each.index, torch.sum, (Register(10 + n), (0, 1))) for n, each in enumerate(sums)]
    program = finished({0: Given(0, (width, width), torch.float64)}, {}, steps, [total, *sums])
    monkeypatch.setattr(lean, "LARGE", 0)
    made, its_cost = priced(program, CPU)
    one = 8 * width**2
    assert cost_of(program, CPU).peak_bytes > 8 * one
    assert its_cost.peak_bytes < 3 * one
    value = rand(CPU, width, width)
    torch.testing.assert_close(compiled(made)([value]), compiled(program)([value]), rtol=0, atol=0)


def test_what_is_only_viewed_is_computed_late() -> None:
    """A large sum that is first read through views is not held while what is added to it is computed."""
    x, width = Register(0), 64
    large, viewed, folded, other, total = (Register(number) for number in range(1, 6))
    steps = [
        Step(large.index, torch.mm, (Register(6), Register(7))),
        Step(viewed.index, torch.reshape, (large, (width // 2, 2, width))),
        Step(folded.index, torch.permute, (viewed, (1, 0, 2))),
        Step(8, torch.mul, (x, x)),
        Step(9, torch.exp, (Register(8),)),
        Step(10, torch.sum, (Register(9), (0,))),
        Step(other.index, torch.mul, (Register(10), 2.0)),
        Step(total.index, torch.add, (folded, other)),
    ]
    shapes = {0: (width, width), 6: (width, 1), 7: (1, width)}
    given = {register: Given(place, shape, torch.float64) for place, (register, shape) in enumerate(shapes.items())}
    program = finished(given, {}, steps, [total])
    late, _ = put_off(program, traced(program))
    assert [step.target for step in late.steps] == [8, 9, 10, 4, 1, 2, 3, 5]
    values = [rand(CPU, *shape) for shape in shapes.values()]
    torch.testing.assert_close(compiled(late)(values), compiled(program)([*values]), rtol=0, atol=0)


def test_what_rows_are_added_to_is_made_late() -> None:
    """All that adds to one matrix is put off together, with what is added, if that is less than the matrix."""
    x, places = Register(0), Register(1)
    rows, more, one, both, matrix, other, total = (Register(number) for number in range(2, 9))
    how = (4, 4, (0, 0), (Summed(1.0, 0, 1, (0, 1)),), Work())
    steps = [
        Step(rows.index, torch.mul, (x, 2.0)),
        Step(more.index, torch.mul, (x, 3.0)),
        Step(one.index, added_in_pieces, ((64, 8), *how, places, rows)),
        Step(both.index, added_in_pieces, (one, *how, places, more)),
        Step(matrix.index, torch.reshape, (both, (8, 8, 8))),
        Step(9, torch.mul, (x, x)),
        Step(10, torch.exp, (Register(9),)),
        Step(other.index, torch.sum, (Register(10), (0,))),
        Step(total.index, torch.add, (matrix, other)),
    ]
    given = {0: Given(0, (4, 8), torch.float64), 1: Given(1, (4,), torch.long)}
    program = finished(given, {}, steps, [total])
    late, _ = put_off(program, traced(program))
    assert [step.target for step in late.steps][:3] == [9, 10, other.index]
    values = [rand(CPU, 4, 8), torch.tensor([3, 3, 9, 63])]
    expected = torch.zeros(64, 8, dtype=torch.float64).index_add(0, values[1], 5 * values[0])
    expected = expected.reshape(8, 8, 8) + values[0].square().exp().sum(0)
    for made in (program, late):
        torch.testing.assert_close(compiled(made)([*values]), [expected])


def test_random_numbers_are_drawn_in_order() -> None:
    x = rand(CPU, 200, 200)

    def f(x: Tensor) -> Tensor:
        return (F.dropout(x, 0.5) * torch.rand_like(x) * x.sin()).sum()

    plan = hofunc.hessian(f, layout="compact").plan(x)
    got = []
    for _ in range(2):
        torch.manual_seed(0)
        got.append(plan(x).diagonal().dense())
    torch.manual_seed(0)
    kept, random = F.dropout(torch.ones_like(x), 0.5), torch.rand_like(x)
    for each in got:
        torch.testing.assert_close(each, kept * random * (2 * x.cos() - x * x.sin()))


def test_steps_are_looked_at_a_few_times_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many read the same tensor, as each step of a solver its parameters: see how often is counted."""
    counts: list[int] = []
    look = order._Order._is_small

    def counted(self: order._Order, place: int) -> bool:
        counts[-1] += 1
        return look(self, place)

    monkeypatch.setattr(lean, "LARGE", 0)
    monkeypatch.setattr(lean, "EACH", 0)
    monkeypatch.setattr(order._Order, "_is_small", counted)
    for number in (200, 400):
        registers = [Register(n) for n in range(2 * number + 1)]
        steps = []
        for n in range(number):
            state, rate, moved = registers[2 * n], registers[2 * n + 1], registers[2 * n + 2]
            steps.append(Step(rate.index, torch.mul, (state, registers[0])))
            steps.append(Step(moved.index, torch.add, (state, rate)))
        counts.append(0)
        priced(finished({0: Given(0, (8,), torch.float64)}, {}, steps, [registers[-1]]), CPU)
    assert counts[1] <= 2.1 * counts[0] <= 2.1 * 4 * 200
