"""Progress: one option for all that takes long, and nothing where nobody asked."""

import sys
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc import ArgumentError, progress
from tests.cases import rand
from tests.checks import refused


class Bar:
    """A bar that notes what is shown."""

    made: list["Bar"]

    def __init__(self, total: int | None, unit: str, desc: str, delay: int):
        self.total, self.unit, self.desc, self.delay, self.n, self.is_open = total, unit, desc, delay, 0, False
        self.made.append(self)

    def __enter__(self) -> "Bar":
        self.is_open = True
        return self

    def __exit__(self, *_: object) -> None:
        self.is_open = False

    def update(self, count: int) -> None:
        self.n += count


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Bar]]:
    monkeypatch.setattr(Bar, "made", [], raising=False)
    monkeypatch.setitem(sys.modules, "tqdm.auto", type("auto", (), {"tqdm": Bar}))
    monkeypatch.setattr("hofunc.run.cache._plans", OrderedDict())
    monkeypatch.setattr("hofunc.plan.builder.TICK", 3)
    yield Bar.made
    assert not any(bar.is_open for bar in Bar.made)


def f(x: Tensor) -> Tensor:
    return (x.sin() * x.sum(-1, keepdim=True)).exp().sum(-1)


def test_planning_shows_its_steps(bars: list[Bar], device: torch.device) -> None:
    with hofunc.options(progress=True):
        hofunc.hessian(f)(rand(device, 4, 3))
        hofunc.hessian(f).plan(rand(device, 4, 3))
    assert [(bar.desc, bar.total, bar.unit, bar.delay) for bar in bars] == [("hofunc: planning", None, "step", 2)] * 2
    assert all(bar.n >= 30 and bar.n % 3 == 0 for bar in bars)


def test_chunks(bars: list[Bar], device: torch.device) -> None:
    x = rand(device, 5, 3)
    plan = hofunc.hessian(f, chunk_size=2).plan(x)
    expected = plan(x)
    with hofunc.options(progress=True):
        assert torch.equal(plan(x), expected)
        assert torch.equal(torch.func.vmap(plan)(x[None])[0], expected)
    assert [(bar.desc, bar.total, bar.n) for bar in bars] == [("hofunc: chunks", 3, 3)] * 2


def test_streams_and_what_is_asked_for_by_name(bars: list[Bar], tmp_path: Path, device: torch.device) -> None:
    x = rand(device, 4, 3)
    hofunc.hessian(f, out=hofunc.Stream(tmp_path / "0"))(x)
    assert bars == []
    with hofunc.options(progress=True):
        hofunc.hessian(f, out=hofunc.Stream(tmp_path / "1", progress=False))(x)
        assert not [bar for bar in bars if "Stream" in bar.desc]
        hofunc.hessian(f, out=hofunc.Stream(tmp_path / "2"))(x)
        hofunc.hessian(f, out=hofunc.Stream(tmp_path / "3", progress=True))(x)
    assert [bar.delay for bar in bars if "Stream" in bar.desc] == [2, 0]
    assert all(bar.n == bar.total for bar in bars if "Stream" in bar.desc)


def test_it_does_not_change_what_is_planned(bars: list[Bar], device: torch.device) -> None:
    x = rand(device, 4, 3)
    with hofunc.options(progress=True):
        shown = hofunc.hod(f, 3).plan(x)
    assert bars
    assert shown._subject.chosen.effort == hofunc.hod(f, 3).plan(x)._subject.chosen.effort  # type: ignore[union-attr]


def test_without_tqdm(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    refused(lambda: hofunc.options(progress=True), ArgumentError, "progress", "pip install tqdm")
    refused(lambda: hofunc.options(progress=1), ArgumentError, "got 1", "pip install tqdm")  # type: ignore[arg-type]
    hofunc.hessian(f)(rand(device, 4, 3))
    with hofunc.options(progress=False):
        hofunc.hessian(f)(rand(device, 4, 3))


def test_the_real_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY", 0)
    shown: Any = progress.display(True, "what")
    with shown(3, "chunk") as show:
        show(1)
        show(3)
    with hofunc.options(progress=True), progress.counting("planning", "step"):
        progress.ticking()(7)
    text = capsys.readouterr().err
    assert "what: 100%" in text
    assert "3/3" in text
    assert "planning: 7step" in text
    progress.ticking()(5)
    assert capsys.readouterr().err == ""
