"""What steps do to tensors without data, against torch on tensors that have some."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import strategies as st
from torch import Tensor

from hofunc.algebra.extents import Rows
from hofunc.plan.builder import cut
from hofunc.plan.memory import Held, Kind
from hofunc.plan.program import Given, Program, Register, Step
from hofunc.plan.tracing import retraced, traced
from hofunc.views import add_scaled

X = torch.zeros(4, 3, 2)

STEPS: dict[str, Callable[[Tensor], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "permute": lambda x: (torch.permute, (x, (2, 0, 1))),
    "transpose": lambda x: (torch.transpose, (x, -2, -1)),
    "narrow": lambda x: (torch.narrow, (x, 1, 1, 2)),
    "cut": lambda x: (cut, (x, 0, 2, (1,))),
    "cut apart": lambda x: (cut, (x, 0, 0, (2, 1, 2))),
    "cut to no axis": lambda x: (cut, (x, 1, 2, ())),
    "select": lambda x: (torch.select, (x, 1, 2)),
    "unsqueeze": lambda x: (torch.unsqueeze, (x, 1)),
    "unsqueeze at the end": lambda x: (torch.unsqueeze, (x, 3)),
    "narrow from behind": lambda x: (torch.narrow, (x, -1, 1, 1)),
    "select from behind": lambda x: (torch.select, (x, -2, -1)),
    "unsqueeze from behind": lambda x: (torch.unsqueeze, (x, -1)),
    "unsqueeze before": lambda x: (torch.unsqueeze, (x, -3)),
    "permute from behind": lambda x: (torch.permute, (x, (-1, 0, -2))),
    "reshape": lambda x: (torch.reshape, (x, (3, 8))),
    "reshape of all": lambda x: (torch.reshape, (x, (-1,))),
    "reshape but one": lambda x: (torch.reshape, (x, (2, -1, 4))),
    "reshape of what may be a copy": lambda x: (torch.reshape, (x, (3, 2, 4))),
    "diagonal": lambda x: (torch.diagonal, (x, 0, 0, 1)),
    "diagonal above": lambda x: (torch.diagonal, (x, 1, -1, 0)),
    "diagonal below": lambda x: (torch.diagonal, (x, -2, 0, 2)),
    "expand": lambda x: (torch.Tensor.expand, (x, (5, 4, 3, 2))),
    "expand turned": lambda x: (torch.Tensor.expand, (x, (5, *x.shape))),
    "sum": lambda x: (torch.sum, (x, (0, 2))),
    "mul": lambda x: (torch.mul, (x, 2)),
    "mul with itself": lambda x: (torch.mul, (x, x)),
    "add": lambda x: (torch.add, (x, x)),
    "add turned": lambda x: (add_scaled, (x, x, 2.0)),
    "neg turned": lambda x: (torch.neg, (x,)),
}


def outcome(steps: Sequence[Step], given: Tensor) -> list[Any]:
    program = Program({0: Given(0, tuple(given.shape), given.dtype)}, {}, tuple(steps), ((),) * len(steps), ())
    return traced(program).of(range(len(steps) + 1))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_steps(name: str, *, turned: bool) -> None:
    x = X.transpose(0, 1) if turned and ("reshape" in name or "turned" in name) else X.permute(0, 1, 2)
    first = Step(1, torch.permute, (Register(0), (1, 0, 2) if x.shape != X.shape else (0, 1, 2)))
    function, args = STEPS[name](x)
    registers = tuple(Register(1) if arg is x else arg for arg in args)
    before, _, got = outcome([first, Step(2, function, registers)], X)
    expected = function(*args)
    assert isinstance(got, Held)
    assert got.shape == tuple(expected.shape)
    assert got.dtype == expected.dtype
    assert got.kind.stride == expected.stride()
    is_view = expected.untyped_storage().data_ptr() == X.untyped_storage().data_ptr()
    assert (got.memory is before.memory) is is_view
    assert [*got.memory.values()] == [expected.untyped_storage().nbytes()]


@st.composite
def views(draw: st.DrawFn) -> Tensor:
    """Draw a tensor that lies in memory in some way: turned, in part, every other entry of it, the same many times."""
    tensor = torch.zeros(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    for way in draw(st.lists(st.sampled_from(["turned", "part", "sparse", "repeated"]), max_size=3)):
        if way == "turned":
            tensor = tensor.permute(draw(st.permutations(range(tensor.dim()))))
        elif way == "repeated":
            tensor = tensor.expand(draw(st.integers(1, 3)), *tensor.shape)
        elif way == "sparse":
            tensor = tensor[..., ::2]
        else:
            tensor = tensor[min(1, len(tensor) - 1) :]
    return tensor


@st.composite
def shapes(draw: st.DrawFn, count: int) -> tuple[int, ...]:
    """Draw a shape of so many entries."""
    shape: list[int] = []
    for _ in range(draw(st.integers(1, 4))):
        shape.append(draw(st.sampled_from([size for size in range(1, count + 1) if count % size == 0])))
        count //= shape[-1]
    return (*shape, count)


@drawn(views(), st.data())
def test_what_may_be_a_view_of_another_shape_is_told_as_by_torch(tensor: Tensor, data: st.DataObject) -> None:
    shape = data.draw(shapes(tensor.numel()))
    kind = Kind(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.untyped_storage().nbytes())
    stride, expected = kind.viewed(shape), torch.reshape(tensor, shape)
    is_view = expected.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    assert (stride is not None) is is_view
    if stride is not None:
        pairs = zip(shape, stride, expected.stride(), strict=True)
        assert all(size == 1 or got == step for size, got, step in pairs)


def test_steps_of_tensors_of_the_same_looks_have_memory_of_their_own() -> None:
    r0, r1, r2 = (Register(number) for number in range(3))
    steps = [Step(1, torch.neg, (r0,)), Step(2, torch.neg, (r1,)), Step(3, torch.t, (r2,)), Step(4, torch.t, (r1,))]
    given, one, other, view, another = outcome(steps, torch.zeros(3, 2))
    assert one.memory is not other.memory
    assert one.memory is not given.memory
    assert view.memory is other.memory
    assert another.memory is one.memory


def test_what_follows_from_no_other_step_holds_what_it_held() -> None:
    """The third step takes something else, and so does the fourth by it; the second and the fifth do not."""
    r0, r1, r2, r3 = (Register(number) for number in range(4))
    steps = (
        Step(1, torch.neg, (r0,)),
        Step(2, torch.t, (r1,)),
        Step(3, torch.reshape, (r2, (2, 3))),
        Step(4, torch.neg, (r3,)),
        Step(5, torch.neg, (r2,)),
    )
    before = Program({0: Given(0, (3, 2), torch.float32)}, {}, steps, ((), (), (), (), ()), (4, 5))
    program = before._replace(steps=(*steps[:2], Step(3, torch.reshape, (r2, (6,))), *steps[3:]))
    trace = traced(before)
    again, anew = retraced(program, before, trace), traced(program)
    for register in range(6):
        one, other = again.values[register].kind, anew.values[register].kind
        assert (one.shape, one.stride, one.nbytes) == (other.shape, other.stride, other.nbytes)
    same = [register for register in range(6) if again.values[register] is trace.values[register]]
    assert same == [0, 1, 2, 5]
    assert [effect.is_view for effect in again.effects] == [effect.is_view for effect in anew.effects]
    assert again.values[2].memory is again.values[1].memory
    assert again.values[4].memory is not again.values[3].memory


def test_rows_are_numbers() -> None:
    (_, got) = outcome([Step(1, torch.reshape, (Register(0), (Rows(4), 6)))], X)
    assert [type(size) for size in got.shape] == [int, int]


@pytest.mark.parametrize(
    ("function", "args"),
    [(torch.reshape, ((5, 5),)), (torch.narrow, (0, 3, 2)), (torch.select, (1, 3)), (torch.mul, (torch.zeros(5),))],
)
def test_what_does_not_fit_is_refused(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    given = {0: Given(0, (4, 3, 2), torch.float64), 1: Given(1, (5,), torch.float64)}
    taken = tuple(Register(1) if isinstance(arg, Tensor) else arg for arg in args)
    with pytest.raises(RuntimeError):
        traced(Program(given, {}, (Step(2, function, (Register(0), *taken)),), ((),), ()))
