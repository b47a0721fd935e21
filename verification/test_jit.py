"""jit returns what the transform returns, whatever changes from call to call.

Claim: of whatever has changed since any of its plans was made, arguments, captured tensors, Python objects, branches,
the state of torch or of autograd, a jitted function returns what its transform then returns, values and whether
autograd follows them, without an error; several threads as well; it keeps no more plans than it may.
Source: a plan is called only where it refuses nothing, and it is made of the very call that no other one fits.
Falsifier: a key that holds too little together with a plan that does not look; a plan that is made in one state and
called in another; random numbers that a refused call has drawn.
Tolerance: that of `verification.vectors`, since a plan computes what is captured by steps of its own.
"""

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import hofunc
from verification.changing import CHANGES, PIECES, SHAPE, Setting, reset
from verification.programs import Program, programs
from verification.rows import rows_of
from verification.vectors import assert_close, mixture

STEPS = 10  # changes in a row, each with calls
THREADS = 3
SINGLE = 1e-3  # of the largest entry: autocast and single precision, and what cancellation leaves of it

# Changes of what is passed, beside those of what a function depends on.
PASSED: tuple[Callable[[Setting], Any], ...] = (
    lambda s: setattr(s, "x", mixture(3 - s.x.shape[0] % 2, SHAPE[1])),
    lambda s: setattr(s, "x", s.x.detach().float() if s.x.dtype == torch.float64 else s.x.detach().double()),
    lambda s: setattr(s, "x", s.x.detach().clone().requires_grad_(not s.x.requires_grad)),
    lambda s: setattr(s, "x", -s.x.detach()),
    lambda s: setattr(s, "shift", s.shift.detach() * -1),
    lambda s: setattr(s, "power", 5 - s.power),
)


def branching(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function with branches on values of an argument and of a captured tensor, some after others."""

    def g(x: Tensor, *args: Any, shift: Tensor, power: int) -> Tensor:
        total = f(x, *args, shift=shift, power=power)
        if x.sum() > 0:
            total = total * 2
        step = torch.ones((), dtype=x.dtype)
        while (total * step).abs().max().item() > 1 and step > 1e-2:
            step = step / 3 if shift[-1] * step < 1 else step / 2
        total = total * step
        return total.exp() if shift[0] > 0 and not (total.abs() > 30).any() else total

    return g


class Changing(RuleBasedStateMachine):
    """Tries to make a jitted function stale by changes in any order, several at a time."""

    @initialize(
        pieces=st.sets(st.sampled_from(sorted(PIECES)), min_size=1, max_size=3), plans=st.sampled_from((1, 2, 3, 64))
    )
    def start(self, pieces: set[str], plans: int) -> None:
        """Make the function."""
        reset()
        self.setting, self.pieces, self.plans = Setting(), pieces, plans
        self.fitting = [change.apply for change in CHANGES if not change.pieces or pieces & {*change.pieces}]
        self.fitting += [*PASSED, *(change.apply for change in CHANGES)]
        self.transform = hofunc.derivatives(branching(self.setting.function(pieces)), 2)
        self.jitted = hofunc.jit(self.transform, max_plans=plans)
        self.call()

    @rule(numbers=st.lists(st.integers(0, 1000), min_size=1, max_size=3))
    def change(self, numbers: list[int]) -> None:
        """Change something, and call it."""
        for number in numbers:
            self.fitting[number % len(self.fitting)](self.setting)
        self.call()

    @rule()
    def call_again(self) -> None:
        """Call it once more, which plans nothing."""
        before = self.reasons()
        self.call()
        assert self.reasons() == before or len(before) < self.plans

    @rule()
    def forget(self) -> None:
        """Drop its plans."""
        self.jitted.clear()
        self.call()

    def reasons(self) -> list[str]:
        """Return what its plans are for, and why each was made, which stays so where one is planned in full."""
        lines = self.jitted.explain_misses().splitlines()[1:-1]
        return sorted(line.lstrip(" 0123456789") for line in lines)

    def call(self) -> None:
        """Call it, and the transform."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", hofunc.PlanningWarning)
            got, expected = self.setting.called(self.jitted), self.setting.called(self.transform)
        is_low = self.setting.world.autocast or torch.float32 in {each.dtype for each in self.tensors()}
        assert_close(*(tree_map(Tensor.detach, each) for each in (got, expected)), *((SINGLE,) if is_low else ()))
        history = [[leaf.requires_grad for leaf in tree_leaves(each)] for each in (got, expected)]
        assert history[0] == history[1], f"requires_grad {history[0]}, expected {history[1]}"
        assert [leaf.dtype for leaf in tree_leaves(got)] == [leaf.dtype for leaf in tree_leaves(expected)]
        assert len(self.jitted.plans) <= self.plans

    def tensors(self) -> Iterator[Tensor]:
        """Yield what is computed with; a matrix is always in single precision."""
        yield from (self.setting.x, self.setting.weight, *self.setting.net.parameters())
        yield from (self.setting.single,) if "single" in self.pieces else ()

    def teardown(self) -> None:
        """Leave everything as it was."""
        reset()


TestChanging = Changing.TestCase
TestChanging.settings = settings(stateful_step_count=STEPS)


@given(programs(max_ops=5, max_elements=6), st.integers(1, 3))
def test_programs_at_other_points_and_from_threads(program: Program, order: int) -> None:
    """Every program, call after call, while values of captured tensors change, and from several threads."""
    derivatives = hofunc.derivatives(program, order, program.argnums)
    jitted = hofunc.jit(derivatives, max_plans=8)
    points = [program.inputs, *zip(*rows_of(program, 3), strict=True)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hofunc.PlanningWarning)
        for _ in range(2):
            for point in points:
                assert_close(jitted(*point), derivatives(*point))
            for tensor in program.captured.values():
                if tensor.is_floating_point():
                    tensor.mul_(1.001)
    if any(name in program.definition for name in ("func.jvp", "func.jacfwd", "func.hessian")):
        return  # whose levels all threads of torch share
    expected = [derivatives(*point) for point in points]
    with ThreadPoolExecutor(THREADS) as pool:
        for got, right in zip(
            pool.map(lambda point: jitted(*point), points * THREADS), expected * THREADS, strict=True
        ):
            assert_close(got, right)


@pytest.mark.filterwarnings("ignore::hofunc.PlanningWarning")
def test_nothing_piles_up() -> None:
    """After calls of many shapes it holds its plans and no more, and so does the process."""
    jitted = hofunc.jit(hofunc.hessian(lambda x: (x**3).sum()), max_plans=4)
    for round_ in range(40):
        for size in range(1, 51):
            jitted(torch.ones(size))
        if round_ == 0:
            held = _held(jitted)
    assert len(jitted.plans) == 4
    assert _held(jitted) <= held


def _held(jitted: Any) -> int:
    return sum(len(each) for each in vars(jitted).values() if hasattr(each, "__len__") and not isinstance(each, str))
