"""Calls during which Python does not look for cycles."""

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from hofunc import hessian
from hofunc.graph.uncollected import kept, paused, uncollected
from tests.cases import rand


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    was = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was else gc.disable)()


@contextmanager
def collections() -> Iterator[list[str]]:
    """Note the beginnings and ends of collections."""
    found: list[str] = []

    def note(phase: str, _: Any) -> None:
        found.append(phase)

    gc.callbacks.append(note)
    try:
        yield found
    finally:
        gc.callbacks.remove(note)


def chain(length: int) -> Callable[[Tensor], Tensor]:
    def f(x: Tensor) -> Tensor:
        for _ in range(length):
            x = x.sin()
        return x.sum()

    return f


def test_it_is_off_within_and_on_again_behind() -> None:
    assert uncollected(gc.isenabled)() is False
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        uncollected(lambda: 1 / 0)()
    assert gc.isenabled()
    gc.disable()
    assert uncollected(gc.isenabled)() is False
    with paused():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_a_later_call_does_not_collect(device: torch.device) -> None:
    computed, x = hessian(chain(300)), rand(device, 2)
    computed(x)
    gc.collect()
    with collections() as found:
        for _ in range(3):
            computed(x)
    assert len(found) <= 3 * 2  # of the youngest, when a call has returned


def test_what_a_later_call_makes_is_gone_without_a_collection(device: torch.device) -> None:
    def left(length: int) -> int:
        computed, x = hessian(chain(length)), rand(device, 2)
        computed(x)
        gc.collect()
        gc.disable()
        computed(x)
        found = gc.collect()
        gc.enable()
        return found

    left(10)  # with what tests before have left, and is let go of only now
    assert left(10) == left(40)


def test_what_a_program_has_set_aside_stays_there() -> None:
    gc.freeze()
    with kept():
        pass
    assert gc.get_freeze_count()  # fewer, where other threads have let go of some


IMPORTED = """import gc, sys
found = []
import torch
gc.collect()
gc.callbacks.append(lambda phase, _: found.append("hofunc.rules" in sys.modules))
import hofunc
made = [[number] for number in range(10)]
late = {"hofunc.callable_plan", "hofunc.contracted", "hofunc.draw", "hofunc.hooks", "hofunc.jitted", "hofunc.testing"}
late |= {"hofunc.operators", "hofunc.outline", "hofunc.run.compiler", "hofunc.structured.shown", "hofunc.traced_call"}
hofunc.hessian(torch.sin)(torch.tensor(1.0))
print(any(found), *sorted(late & sys.modules.keys()), {*hofunc.__all__} <= {*dir(hofunc)})
asked = {name: getattr(hofunc, name) for name in hofunc.__all__}
print(late - sys.modules.keys(), asked["jit"].__name__, asked["Drawing"].__name__)
"""


def test_an_import_and_a_call_read_nothing_that_few_ask_for_and_collect_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout.split() == ["False", "True", "{'hofunc.traced_call'}", "jit", "Drawing"]
