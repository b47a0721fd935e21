"""A plan is never stale.

Claim: whatever has changed since a plan was made, a call of it gives what the transform itself gives now, values and
whether autograd follows them, or an ArgumentError that says what has changed. It refuses nothing without a reason.
Source: a plan is a recording that is not made again, and so it is good for as long as another one would be the same.
Falsifier: something that recording depends on and that no call of a plan looks at: a dtype, an attribute, a mode.
Tolerance: that of `verification.vectors`, since a plan computes what is captured by steps of its own.
"""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import hofunc
from hofunc.arguments import STRATEGIES
from verification.changing import CHANGES, PIECES, Change, Setting, is_harmless, is_said, reset
from verification.programs import Program, programs
from verification.vectors import assert_close

SINGLE = 1e-3  # of the largest entry: single precision, and what cancellation leaves of it
STEPS = 8  # changes in a row, each with a call of every plan there is
KEPT = 3  # plans


def or_refusal(g: Callable[..., Any], *args: Any) -> Any:
    """Return what a call returns, or the error by which a plan refuses it."""
    try:
        return g(*args)
    except hofunc.ArgumentError as error:
        return error


class Kept:
    """A plan, and what has changed since it was made.

    Args:
        setting: What it depends on.
        pieces: Those of its function.
        strategy: That of the derivatives.
    """

    def __init__(self, setting: Setting, pieces: Iterable[str], strategy: str = "auto"):
        self.setting, self.pieces = setting, tuple(pieces)
        self.transform = hofunc.derivatives(setting.function(self.pieces), 2, strategy=strategy)
        self.changes: list[Change] = []
        self.call: Callable[..., Any] | None = None
        try:
            self.call = setting.called(self.transform.plan)
        except hofunc.HofuncError:  # a plan that is not made cannot be stale
            assert "seeded" in self.pieces

    def check(self) -> bool:
        """Call the plan, and return whether it took the call."""
        if self.call is None:
            return False
        expected = self.setting.called(self.transform)
        got = or_refusal(self.setting.called, self.call)
        if isinstance(got, hofunc.ArgumentError):
            names = [change.name for change in self.changes]
            assert not is_harmless(self.changes, self.pieces), f"refused after {names}: {got}"
            assert is_said(got, self.changes), f"after {names}, the error is about something else: {got}"
            return False
        assert_close(*(tree_map(Tensor.detach, result) for result in (got, expected)))
        history = [[leaf.requires_grad for leaf in tree_leaves(result)] for result in (got, expected)]
        assert history[0] == history[1], f"requires_grad {history[0]}, expected {history[1]}"
        return True


@pytest.fixture(autouse=True)
def _same_global() -> None:
    reset()


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_a_change(change: Change) -> None:
    """After each change by itself, there and again: most of them go back."""
    setting = Setting()
    kept = Kept(setting, change.pieces)
    kept.check()
    for _ in range(2):
        change.apply(setting)
        kept.changes.append(change)
        kept.check()


class Changing(RuleBasedStateMachine):
    """Tries to make plans stale by changes in any order, several at a time."""

    plans: list[Kept]

    @initialize(
        pieces=st.sets(st.sampled_from(sorted(PIECES)), min_size=1, max_size=3), strategy=st.sampled_from(STRATEGIES)
    )
    def start(self, pieces: set[str], strategy: str) -> None:
        """Make the first plan."""
        reset()
        self.setting, self.pieces, self.strategy = Setting(), sorted(pieces), strategy
        fitting = [change for change in CHANGES if not change.pieces or pieces & {*change.pieces}]
        self.fitting = [*fitting, *CHANGES]
        self.plans = []
        self.plan()

    @rule()
    def plan(self) -> None:
        """Make another plan."""
        self.plans = [*self.plans, Kept(self.setting, self.pieces, self.strategy)][-KEPT:]

    @rule(numbers=st.lists(st.integers(0, 1000), min_size=1, max_size=3))
    def change(self, numbers: list[int]) -> None:
        """Change something, and call every plan: those that refused may be right again."""
        for number in numbers:
            change = self.fitting[number % len(self.fitting)]
            change.apply(self.setting)
            for kept in self.plans:
                kept.changes.append(change)
        taken = [kept.check() for kept in self.plans]
        if not any(taken):
            self.plan()

    @rule()
    def call_again(self) -> None:
        """Call what has just been called, which no plan answers in another way."""
        taken = [kept.check() for kept in self.plans]
        assert taken == [kept.check() for kept in self.plans]

    def teardown(self) -> None:
        """Leave everything as it was."""
        reset()


TestChanging = Changing.TestCase
TestChanging.settings = settings(stateful_step_count=STEPS)


@given(programs(max_ops=5, max_elements=6), st.sampled_from(STRATEGIES))
def test_captured_tensors_of_programs(program: Program, strategy: str) -> None:
    """Their values change, in place."""
    derivatives = hofunc.derivatives(program, 2, program.argnums, strategy=strategy)
    plan = derivatives.plan(*program.inputs)
    assert_close(plan(*program.inputs), derivatives(*program.inputs))
    for tensor in program.captured.values():
        if tensor.is_floating_point():
            tensor.mul_(1.001)
    got = or_refusal(plan, *program.inputs)
    if isinstance(got, hofunc.ArgumentError):
        assert "values" in str(got)  # of what was read
    else:
        assert_close(got, derivatives(*program.inputs))


@given(programs(max_ops=5, max_elements=6), st.sampled_from(STRATEGIES), st.sampled_from([torch.bfloat16, None]))
def test_autocast_of_programs(program: Program, strategy: str, planned: torch.dtype | None) -> None:
    """Plans of single precision, made with autocast on or off, and called with both."""
    low = program.to(torch.float32)
    derivatives = hofunc.derivatives(low, 2, low.argnums, strategy=strategy)
    with torch.autocast("cpu", planned, enabled=planned is not None):
        plan = derivatives.plan(*low.inputs)
    for dtype in (torch.bfloat16, None):
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            got, expected = or_refusal(plan, *low.inputs), derivatives(*low.inputs)
        if isinstance(got, hofunc.ArgumentError):
            assert dtype is not planned, got
            assert "autocast" in str(got)
        else:
            assert_close(got, expected, SINGLE)
