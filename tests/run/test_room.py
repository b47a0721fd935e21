"""Room: what does not fit into the memory that is free is refused before it is computed, with what would fit."""

from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.run import room
from tests.cases import rand

CPU = torch.device("cpu")
WEIGHT = rand(CPU, 40, 30)


WEIGHT = rand(CPU, 400, 20)


def mixing(x: Tensor) -> Tensor:
    """Return a number of which the Hessian holds ten times as much as it has."""
    return (WEIGHT @ x).sin().square().sum() ** 2


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return what sets how much memory is free."""
    monkeypatch.setattr(room, "SMALL", 0)
    monkeypatch.setattr("hofunc.run.evaluate.SMALL", 0)
    return lambda count: monkeypatch.setattr(room, "free_bytes", lambda _: count)


@pytest.mark.parametrize("how", ["call", "plan"])
def test_what_does_not_fit_is_refused_with_what_does(how: str, free: Callable[[int], None]) -> None:
    x, transform = rand(CPU, 20), hofunc.hessian(mixing)
    call: Callable[[Tensor], Any] = transform.plan if how == "plan" else transform
    plan = transform.plan(x)
    expected = transform(x)
    free(plan.peak_bytes // 2)
    for _ in range(2):
        with pytest.raises(hofunc.ArgumentError, match="takes more memory than there is: got") as caught:
            call(x)
    message = str(caught.value)
    assert f"expected at most {plan.peak_bytes // 2}, which are free" in message
    assert f"bytes with max_bytes={plan.peak_bytes // 2}, in chunks" in message
    got = hofunc.hessian(mixing, max_bytes=plan.peak_bytes // 2).plan(x)(x)
    assert torch.allclose(got, expected)


def test_results_that_do_not_fit_go_to_a_file(free: Callable[[int], None]) -> None:
    free(20 * 20 * 8 - 1)
    with pytest.raises(hofunc.ArgumentError, match=rf"The results alone are {20 * 20 * 8}.*hofunc\.Stream"):
        hofunc.hessian(mixing)(rand(CPU, 20))


def test_terms_that_fit_are_named(free: Callable[[int], None]) -> None:
    x = rand(CPU, 40, 3)
    f = lambda x: x.sin().prod(1)  # noqa: E731 - as short as it can be
    free(40 * 9 * 8 * 10)
    with pytest.raises(hofunc.ArgumentError, match=r"with layout='compact'\. Products") as caught:
        hofunc.hessian(f)(x)
    assert "in chunks" not in str(caught.value)
    hofunc.hessian(f, layout="compact")(x)
    free(40)
    with pytest.raises(hofunc.ArgumentError, match="Take fewer rows at a time"):
        hofunc.hessian(f, layout="compact")(x)


def test_a_limit_of_ones_own_is_not_compared(free: Callable[[int], None]) -> None:
    free(1)
    assert hofunc.hessian(mixing, max_bytes=1 << 30)(rand(CPU, 20)).shape == (20, 20)


def test_free_bytes_are_those_of_the_machine_or_of_its_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_GROUP", tmp_path)
    machine = room.free_bytes(CPU)
    assert machine > 1 << 20
    for name, text in (("max", "5000"), ("current", "3000"), ("stat", "anon 1\ninactive_file 700\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert room.free_bytes(CPU) == 2700
    (tmp_path / "memory.max").write_text("max")
    assert room.free_bytes(CPU) > 1 << 20
    assert room.free_bytes(torch.device("meta")) == inf
