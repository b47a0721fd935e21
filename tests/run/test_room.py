"""Room: what does not fit into the memory that is free is refused before it is computed, with what would fit."""

from collections.abc import Callable
from contextlib import nullcontext
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.plan import strategies, turns
from hofunc.plan.builder import Leave
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


def test_a_refusal_takes_few_steps_of_planning(free: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the terms of a long function hold is not found out, which may take longer than a second."""
    steps = []
    made = turns.narrower

    def narrower(*leaves: Leave) -> Leave:
        steps.append(min(leave.steps for leave in leaves))
        return made(*leaves)

    def f(x: Tensor) -> Tensor:
        for _ in range(40):
            x = (x @ WEIGHT[:20]).tanh() * x.sum()
        return x.sum()

    free(20 * 20 * 8 - 1)
    monkeypatch.setattr(turns, "narrower", narrower)
    monkeypatch.setattr(room, "STEPS", 300)
    with pytest.raises(hofunc.ArgumentError, match=r"Stream.*It may take less with layout='compact'\. Products"):
        hofunc.hessian(f)(rand(CPU, 20))
    assert steps == [300]


def test_chunks_of_a_long_function_are_named_and_not_looked_for(
    free: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, transform = rand(CPU, 20), hofunc.hessian(mixing)
    plan = transform.plan(x)
    free(plan.peak_bytes // 2)
    monkeypatch.setattr(room, "FEW_STEPS", 0)
    with pytest.raises(hofunc.ArgumentError, match=f"It may fit with max_bytes={plan.peak_bytes // 2}, which takes"):
        transform(x)


def test_results_that_do_not_fit_go_to_a_file(free: Callable[[int], None]) -> None:
    free(20 * 20 * 8 - 1)
    with pytest.raises(hofunc.ArgumentError, match=rf"The results alone are {20 * 20 * 8}.*hofunc\.Stream"):
        hofunc.hessian(mixing)(rand(CPU, 20))


@pytest.mark.parametrize("how", ["call", "plan"])
@pytest.mark.parametrize("limit", [None, 20 * 20 * 8 - 1])
def test_results_that_do_not_fit_are_refused_before_anything_is_planned(
    how: str, limit: int | None, free: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for terms, which are named where they fit."""
    original, planned = strategies.propagated, []

    def noted(*args: Any, **kwargs: Any) -> Any:
        planned.append(kwargs["keeps_indices"])
        return original(*args, **kwargs)

    monkeypatch.setattr("hofunc.plan.planner.propagated", noted)
    free(20 * 20 * 8 - 1)
    transform = hofunc.hessian(lambda x: mixing(x) + x[0], max_bytes=limit)
    told = f"got {20 * 20 * 8} bytes at once, at the least"
    if limit is not None and how == "call":  # in which what f computed is there as well
        told = f"got 9624 bytes at once, at the least, of which {20 * 20 * 8} are results"
    with pytest.raises(hofunc.ArgumentError, match=told):
        (transform.plan if how == "plan" else transform)(rand(CPU, 20))
    assert all(planned)
    assert bool(planned) == (limit is None)


def test_blocks_that_are_transposes_count_once(free: Callable[[int], None]) -> None:
    f = lambda x, y: (x.sin() * y[:4].exp()).sum() + y.prod()  # noqa: E731 - as short as it can be
    least = (4 * 4 + 4 * 6 + 6 * 6) * 8
    x, y = rand(CPU, 4), rand(CPU, 6, seed=1)
    free(least - 1)
    with pytest.raises(hofunc.ArgumentError, match=f"got {least} bytes at once, at the least"):
        hofunc.hessian(f, (0, 1))(x, y)
    with pytest.raises(
        hofunc.ArgumentError, match=f"got {least + 8} bytes at once, at the least, of which {least} are"
    ):
        hofunc.hessian(f, (0, 1), max_bytes=least - 1)(x, y)
    free(1 << 30)
    plan = hofunc.hessian(f, (0, 1)).plan(x, y)
    assert plan.peak_bytes >= least
    hofunc.hessian(f, (0, 1), max_bytes=plan.peak_bytes)(x, y)


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


def test_terms_are_not_planned_where_a_plan_holds_far_more_beside_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look for loops by which these would hold less takes as long as all the rest of a refusal."""
    one, other = torch.triu_indices(24, 24, 1)
    weight = rand(CPU, 8, 8, seed=1)

    def messages(x: Tensor) -> Tensor:
        distances = (x[one] - x[other]).square().sum(-1, keepdim=True)
        made = ((-distances * torch.arange(1, 9) / 8).exp() @ weight).tanh()
        nodes = x.new_zeros(24, 8).index_add(0, one, made).tanh()
        made = nodes[other] * (distances * weight[0]).sin()
        return (x.new_zeros(24, 8).index_add(0, one, made).tanh() @ weight).tanh().sum()

    original, are_terms = strategies.propagated, []

    def noted(*args: Any, **kwargs: Any) -> Any:
        are_terms.append(kwargs["keeps_indices"])
        return original(*args, **kwargs)

    x, most = rand(CPU, 24, 3), 250_000
    assert hofunc.hessian(messages, layout="compact").plan(x).peak_bytes > most
    monkeypatch.setattr("hofunc.plan.planner.propagated", noted)
    with pytest.raises(hofunc.ArgumentError, match=r"the least of all .* Raise max_bytes to \d+\.$"):
        hofunc.hessian(messages, max_bytes=most)(x)
    assert are_terms
    assert not any(are_terms)


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


@pytest.mark.parametrize(
    ("f", "shape", "share", "expected"),
    [
        (lambda x: x.sin().prod(1), (100, 3), 0.5, {"compact", "Stream", "rows"}),
        (lambda x: ((x @ x.T).softmax(-1) @ x).square().sum(), (30, 6), 1.1, {"Stream"}),
        (lambda x: ((x @ x.T).softmax(-1) @ x).square().sum(), (30, 6), 1.02, {"Stream"}),  # by columns, not planned
        (lambda x: x.sin().prod(1), (100, 3), 1 / 7200, set()),  # what is handed over takes more too
        (lambda x: x.sin().square().sum(), (60,), 0.5, {"compact", "Stream"}),
        (lambda x: (x.flatten()[:, None] * torch.ones(1, 900)).sin().square().sum(), (60,), 1.05, set()),
    ],
)
def test_what_would_fit_max_bytes_is_named(
    f: Callable[[Tensor], Tensor], shape: tuple[int, ...], share: float, expected: set[str], tmp_path: Path
) -> None:
    """It fits, and no more is named."""
    x = rand(CPU, *shape)
    most = int(share * f(x).numel() * x.numel() ** 2 * 8)
    with pytest.raises(hofunc.ArgumentError, match="takes more memory than allowed") as caught:
        hofunc.hessian(f, max_bytes=most)(x)
    _, remedy = str(caught.value).split("Raise max_bytes")
    assert {word for word in ("compact", "Stream", "rows") if word in remedy} == expected
    if "compact" in expected:
        hofunc.hessian(f, max_bytes=most, layout="compact")(x)
    streamed = hofunc.hessian(f, max_bytes=most, out=hofunc.Stream(tmp_path))
    with nullcontext() if "Stream" in expected else pytest.raises(hofunc.ArgumentError, match="takes more memory"):
        streamed(x)
    if "least of all" in str(caught.value):
        hofunc.hessian(f, max_bytes=int(remedy.split()[1].rstrip(",.")))(x)
