"""Claim: what a later call of a function that writes in place returns is right, whatever became otherwise since.

Functions of random steps are called many times: steps write to rows, columns, diagonals, masks and all of buffers, to
views of views and to tensors of which the shape is changed in place. From call to call the values, what is captured
(another tensor, another layout, a view of another), a number, the steps taken, the strides of the input, whether
autograd is on, the order and what follows the recording change, or nothing does. Some write where gradients are off, or
to constants of their own.

Source: that a recording goes along the one before is an optimisation (hofunc/graph/route.py): results may not tell.

Falsifier: a call that differs from two nested directional derivatives of torch.func, which run the function as it is,
or an error. They share no code with hofunc.

Tolerance: 1e-9 relative to the largest entry, in float64: rounding, as both compute the same sums of products.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.forward_ad import _set_fwd_grad_enabled

import hofunc
from hofunc.graph.walk import Walk

ROWS, COLUMNS = 3, 2
CALLS = 10

Step = Callable[["_State"], None]


@dataclass(frozen=True)
class Setting:
    """What a call goes by beside its input.

    Attributes:
        captured: A tensor that the function captured.
        number: A number that it captured.
        is_other: Whether it takes other steps in one place.
        is_strided: Whether the input has other strides.
    """

    captured: Tensor
    number: float = 0.5
    is_other: bool = False
    is_strided: bool = False


class _State:
    """What the steps of a function compute with: a value, a buffer, and views of the buffer."""

    def __init__(self, x: Tensor, setting: Setting):
        self.x, self.setting = x, setting
        self.value = x
        self.buffer = torch.zeros(ROWS, COLUMNS, dtype=x.dtype)
        self.view = self.buffer


def _apply(function: Callable[[Tensor], Tensor]) -> Step:
    def step(state: _State) -> None:
        state.value = function(state.value)

    return step


def _write(write: Callable[[_State], object]) -> Step:
    def step(state: _State) -> None:
        write(state)

    return step


def _new_buffer(state: _State) -> None:
    state.buffer = state.view = state.value.clone()


def _empty(state: _State) -> None:
    state.buffer = state.view = torch.empty(ROWS, COLUMNS, dtype=state.x.dtype)
    for row in range(ROWS):
        state.buffer[row] = state.value[row] * (row + 1)


def _look(view: Callable[[Tensor], Tensor]) -> Step:
    def step(state: _State) -> None:
        state.view = view(state.buffer)

    return step


def _fill_rows(state: _State) -> None:
    for row in range(1, ROWS):
        state.buffer[row] = state.buffer[row - 1].sin() + state.value[row] * state.buffer[row - 1]


def _masked(state: _State) -> None:
    mask = state.value > 0
    state.buffer[mask] = state.value[mask].exp()


def _branch(state: _State) -> None:
    if state.setting.is_other:
        state.buffer.mul_(state.value)
    else:
        state.buffer.add_(state.value.cos())


def _by_value(state: _State) -> None:
    if state.value.sum().item() > 0:
        state.buffer[0].mul_(3.0)


def _turned(state: _State) -> None:
    turned = state.value * 2
    turned.t_()
    state.buffer.mul_(turned.t())
    turned.unsqueeze_(0).mul_(state.setting.number)
    state.buffer += turned.squeeze_(0).t()


@contextmanager
def _gradients(is_on: bool) -> Iterator[None]:
    """Have gradients on or off, and tangents with them where those are taken: forward mode goes by no_grad nowhere."""
    are_taken = torch._C._functorch.maybe_current_level() is not None
    with torch.set_grad_enabled(is_on), _set_fwd_grad_enabled(is_on) if are_taken else nullcontext():
        yield


def _unseen(write: Callable[[_State], object]) -> Step:
    def step(state: _State) -> None:
        with _gradients(False):
            write(state)

    return step


def _seen_or_not(state: _State) -> None:
    with _gradients(state.setting.is_other):
        state.buffer.mul_(state.value)


def _constant(state: _State) -> None:
    limits = state.setting.captured.detach().clone()
    limits.clamp_(min=0.1)
    with _gradients(False):
        limits[0].mul_(state.setting.number)
    state.value = state.value * limits


STEPS: dict[str, Step] = {
    "sin": _apply(torch.sin),
    "square": _apply(lambda value: value * value),
    "captured product": lambda state: setattr(state, "value", state.value * state.setting.captured),
    "captured added in place": _write(lambda state: state.buffer.add_(state.setting.captured)),
    "product of matrices": lambda state: setattr(
        state, "value", torch.stack([row @ state.setting.captured.T @ state.value for row in state.value])
    ),
    "number": lambda state: setattr(state, "value", state.value * state.setting.number + state.x),
    "new buffer": _new_buffer,
    "empty": _empty,
    "all": _look(lambda buffer: buffer),
    "row": _look(lambda buffer: buffer[1:2]),
    "column": _look(lambda buffer: buffer[:, 1:]),
    "transposed": _look(lambda buffer: buffer.t()[:1].t()),
    "detour": _look(lambda buffer: buffer.view(-1)[2:].view(2, COLUMNS)),
    "sin_": _write(lambda state: state.view.sin_()),
    "mul_": _write(lambda state: state.view.mul_(state.value.sum(0, keepdim=True)[:, : state.view.shape[1]])),
    "copy_": _write(lambda state: state.view.copy_(state.value[: state.view.shape[0], : state.view.shape[1]])),
    "addcmul_": _write(lambda state: state.buffer.addcmul_(state.value, state.x, value=0.3)),
    "number_": _write(lambda state: state.view.mul_(state.setting.number)),
    "diagonal": _write(lambda state: state.buffer.diagonal().add_(state.value.diagonal().sin())),
    "index": _write(lambda state: state.buffer.index_put_((torch.tensor([0, 2]),), state.value[:2] ** 2)),
    "set": _write(lambda state: state.buffer.__setitem__((slice(None), 0), state.value[:, 1])),
    "rows": _fill_rows,
    "masked": _masked,
    "branch": _branch,
    "by value": _by_value,
    "turned": _turned,
    "read": lambda state: setattr(state, "value", state.value + state.buffer),
    "read view": lambda state: setattr(state, "value", state.value * state.view.sum()),
    "sigmoid_": lambda state: setattr(state, "value", (state.value * 2).sigmoid_()),
    "chunks": lambda state: setattr(state, "value", torch.cat([c.tanh_() for c in (state.value * 1.5).chunk(2, 1)], 1)),
    "vector": lambda state: setattr(state, "value", state.value + state.value[0] @ state.setting.captured.T[:, :2]),
    "unseen sin_": _unseen(lambda state: state.view.sin_()),
    "unseen clamp_": _unseen(lambda state: state.buffer.clamp_(-0.5, 0.5)),
    "unseen product": _unseen(lambda state: state.view.mul_(state.value.sum() * state.setting.captured.sum())),
    "unseen value": _unseen(lambda state: setattr(state, "value", state.value * 2 + state.buffer)),
    "seen or not": _seen_or_not,
    "constant": _constant,
    "detached": lambda state: setattr(state, "value", state.value * state.buffer.detach().sum()),
}


def function_of(steps: list[str], setting: Setting) -> Callable[[Tensor], Tensor]:
    """Return the function of some steps, always of the same code."""

    def f(x: Tensor) -> Tensor:
        state = _State(x, setting)
        for step in steps:
            STEPS[step](state)
        return (state.value.sin().sum() + (state.buffer * state.x).sum()).sin()

    return f


def along(f: Callable[[Tensor], Tensor], x: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Return the second derivative along two directions, by nested forward mode."""
    return torch.func.jvp(lambda x: torch.func.jvp(f, (x,), (u,))[1], (x,), (v,))[1]


def _is_followed(f: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Tell whether torch runs a function at all where autograd follows what it captured: some writes it refuses."""
    try:
        f(x)
    except RuntimeError:
        return False
    return True


def settings(captured: Tensor) -> st.SearchStrategy[list[tuple[str, Setting]]]:
    """Return what calls go by, mostly what the one before did, each with the name of what became otherwise.

    What was captured, autograd follows or does not, and in the last of the cases below the other way round.
    """
    plain = Setting(captured)
    others = {
        "another tensor": replace(plain, captured=captured.clone() * 1.5),
        "another layout": replace(plain, captured=captured.t().contiguous().t()),
        "a view": replace(plain, captured=torch.cat([captured, captured])[ROWS:]),
        "a number": replace(plain, number=0.7),
        "minus zero": replace(plain, number=-0.0),
        "zero": replace(plain, number=0.0),
        "a branch": replace(plain, is_other=True),
        "strides": replace(plain, is_strided=True),
        "computed": replace(plain, captured=captured.exp()),
        "follows": replace(plain, captured=captured.detach().clone().requires_grad_(not captured.requires_grad)),
    }
    other = st.sampled_from([*others.items()])
    return st.lists(st.one_of(*[st.just(("nothing", plain))] * 3, other), min_size=CALLS, max_size=CALLS)


def _check_slope(got: Tensor, expected: Tensor, captured: Tensor) -> None:
    """Compare the slope of a result by what was captured; torch has none where it saved what was written over."""
    try:
        (wanted,) = torch.autograd.grad(expected, captured, allow_unused=True, materialize_grads=True)
    except RuntimeError:
        return
    slope = torch.zeros_like(captured)
    if got.requires_grad:
        (slope,) = torch.autograd.grad(got, captured, allow_unused=True, materialize_grads=True)
    assert (slope - wanted).abs().max() <= 1e-8 * (1 + wanted.abs().max())


@given(st.data())
def test_later_calls_of_functions_that_write(data: st.DataObject) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))

    def drawn() -> Tensor:
        return torch.randn(ROWS, COLUMNS, generator=generator, dtype=torch.float64)

    steps = data.draw(st.lists(st.sampled_from([*STEPS]), min_size=2, max_size=9))
    calls = data.draw(settings(drawn().requires_grad_(data.draw(st.booleans()))))
    arrived = 0
    for number, (name, setting) in enumerate([calls[0]] * 4 + calls):
        f, x, u, v = function_of(steps, setting), drawn(), drawn(), drawn()
        if setting.is_strided:
            x = x.t().contiguous().t()
        before = x.clone()
        if setting.captured.requires_grad and not _is_followed(f, x):
            continue
        expected = along(f, x, u, v)
        with pytest.MonkeyPatch.context() as patch:
            found: list[bool] = []
            arrives = Walk.arrives

            def noted(self: Walk, outputs: list[Tensor]) -> bool:
                found.append(arrives(self, outputs))  # noqa: B023
                return found[-1]  # noqa: B023

            patch.setattr(Walk, "arrives", noted)
            hessian = hofunc.hessian(f)(x)
        arrived += any(found)
        assert torch.equal(x, before)
        got = torch.einsum("abcd,ab,cd->", hessian, u, v)
        scale = hessian.abs().max().item() + 1
        assert abs(got.item() - expected.item()) <= 1e-9 * scale * 20, (number, name, steps)
        if setting.captured.requires_grad:
            _check_slope(got, along(f, x, u, v), setting.captured)
    event(f"{arrived > 0} that a call went along")
