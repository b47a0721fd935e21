"""A plan of a function that keeps things from call to call is never stale.

Claim: of whatever a function keeps in its objects, and however it is called and changed between the calls of a plan,
the plan returns what the transform then returns, or raises an ArgumentError; or it is not made, by an UntracedError.
Source: a plan is of a call that leaves what it looks at as it found it, so that any like it computes the same.
Falsifier: state that is carried from call to call and is taken for scratch, a count, or what a call left behind.
Tolerance: 1e-9, since both compute the same steps in another order.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import hofunc
from verification.profiles import PER_PROPERTY, PROFILE, database

MORE = 3  # times as many examples as of other properties
WEIGHT = torch.tensor([0.5, -1.2, 0.8], dtype=torch.float64)
KEPT = st.sampled_from(("a", "b", "c", "pair"))
NUMBERS = st.integers(0, 4)

# {p} and {q} are attributes and {n} a number; s is the object, x the input, y the result so far.
STATEMENTS = (
    *("s.{p} = x * 2", "s.{p} = y", "s.{p} = (s.{q}, 2.0)", "s.{p} = s.{q}", "s.{p} = None", "s.{p} = len(x) + 0.5"),
    *("s.{p}, s.{q} = s.{q}, s.{p}", "setattr(s, '{p}', y)", "s.{p} = again(s.{q})", "s.{p} = {{x: s.{q}}}"),
    *("y = y + number(s.{p}, x)", "y = y * number(s.{p}, x)", "y = y + number(getattr(s, '{p}'), x)"),
    *(
        "y = y * (2 if s.{p} is s.{q} else 1)",
        "y = y * (3 if s.{p} is None else 1)",
        "y = y * (2 if s.{p} is x else 1)",
    ),
    *("if s.{p} is None: s.{p} = s.weight.exp()", "if not hasattr(s, 'extra'): s.extra = x * 3"),
    *("y = y * (3 if hasattr(s, 'extra') else 1)", "s.extra = {n}.0", "vars(s).pop('extra', None)"),
    *("s.count += 1", "s.count = min(s.count + 1, {n})", "y = y * s.count", "y = y * (2 if s.count > {n} else 1)"),
    *("s.log.append(1.0)", "y = y * len(s.log)", "s.log = s.log[-{n}:]"),
    *("s.memo[{n} % 2] = y", "y = y + number(s.memo.get({n} % 2), x)", "s.memo.setdefault({n} % 2, s.weight)"),
    *("s.inner = SimpleNamespace(v=x)", "y = y + s.inner.v", "s.inner.v = s.inner.v * 2", "s = s.other"),
)
written = st.builds(lambda text, p, q, n: text.format(p=p, q=q, n=n), st.sampled_from(STATEMENTS), KEPT, KEPT, NUMBERS)
changes = st.tuples(
    st.sampled_from(("call", "transform", "none", "a", "b", "c", "pair", "count", "log", "memo", "extra")), NUMBERS
)


def number(held: Any, x: Tensor) -> Tensor:
    """Return a tensor of whatever is kept."""
    if isinstance(held, Tensor):
        return held.reshape(x.shape)
    if isinstance(held, tuple | list | dict):
        return number([*held.values(), *held][0] if isinstance(held, dict) else held[0], x) if held else x * 0
    return x * 0 + (0.5 if held is None else held)


def again(held: Any) -> Any:
    """Return another container of the same things."""
    return held if isinstance(held, Tensor | float | None) else type(held)(held)


def keeper(depth: int = 1) -> SimpleNamespace:
    """Return an object that keeps things."""
    made = SimpleNamespace(a=None, b=2.0, c=WEIGHT.clone(), weight=WEIGHT, count=0, log=[1.0], memo={})
    made.pair, made.inner, made.other = (made.c, 2.0), SimpleNamespace(v=WEIGHT), keeper(depth - 1) if depth else made
    return made


def function(statements: list[str]) -> Callable[[SimpleNamespace, Tensor], Tensor]:
    """Return a function of some statements."""
    source = "\n    ".join(["def f(s, x):", "y = x**3", *statements, "return (y.tanh() ** 2).sum()"])
    space: dict[str, Any] = {"number": number, "again": again, "SimpleNamespace": SimpleNamespace}
    exec(compile(source, "/of_a_user.py", "exec"), space)
    made: Callable[[SimpleNamespace, Tensor], Tensor] = space["f"]
    return made


def change(kept: SimpleNamespace, what: str, how: int) -> None:
    """Give an object something else to keep, as a user may."""
    if what == "count":
        kept.count = how
    elif what == "log":
        kept.log = [1.0] * how
    elif what == "memo":
        kept.memo = dict(kept.memo) if how < 2 else {0: WEIGHT}
    elif what in ("a", "b", "c", "pair", "extra"):
        setattr(kept, what, (None, 3.0, WEIGHT * 2, kept.c, (kept.c, 2.0))[how])


@settings(max_examples=MORE * PER_PROPERTY[PROFILE], database=database(), deadline=None)
@given(
    statements=st.lists(written, min_size=1, max_size=6), before=st.integers(0, 2), steps=st.lists(changes, max_size=6)
)
def test_plans_of_functions_that_keep_things(statements: list[str], before: int, steps: list[tuple[str, int]]) -> None:
    f, kept = function(statements), keeper()
    called = SimpleNamespace(f=lambda x: f(kept, x))
    transform, x = hofunc.jacobian(called.f), torch.linspace(0.1, 0.9, 3, dtype=torch.float64)
    for _ in range(before):
        called.f(x)
    try:
        plan = transform.plan(x)
    except hofunc.UntracedError:
        return
    for number_of_step, (what, how) in enumerate([("none", 0), *steps]):
        if what in ("call", "transform"):
            (called.f if what == "call" else transform)(x.cos())
        change(kept, what, how)
        at = x.sin() * number_of_step
        try:
            got = plan(at)
        except hofunc.ArgumentError:
            got = None
        expected = transform(at)
        if got is not None:
            torch.testing.assert_close(got.detach(), expected.detach(), rtol=1e-9, atol=1e-9, equal_nan=True)
