"""Rates of devices: measured once, kept in a file, and told by options."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from math import isfinite
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode

import hofunc
from hofunc.options import options
from hofunc.plan import devices
from hofunc.plan.devices import kept_at, measured, rates_of
from hofunc.plan.rates import RATES, Rates
from tests.cases import rand

CPU = torch.device("cpu")
STANDARD = RATES["cpu"]
SLOW = STANDARD._replace(flops=STANDARD.flops / 7, pace=3.0)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(devices, "_known", {})
    with options(rates="measured"):
        yield


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Measure nothing, and note what was to be measured."""
    found: list[torch.device] = []

    def noted(device: torch.device, standard: Rates, pace: float) -> Rates:
        del standard, pace
        found.append(device)
        return SLOW

    monkeypatch.setattr(devices, "measured", noted)
    return found


def _with_flops(flops: object) -> bytes:
    return json.dumps({"rates": {**STANDARD._asdict(), "flops": flops}}).encode()


def files() -> list[Path]:
    return [*kept_at().glob("*")]


def test_what_is_measured_is_told_in_seconds_of_the_standard_machine(device: torch.device) -> None:
    standard = RATES[device.type]
    found = measured(device, standard, 2.0)
    assert all(isfinite(each) and each >= 0 for each in found)
    assert found.flops > 0
    assert found.bytes > 0
    assert found.linear == 0 or found.linear > found.flops
    assert (found.term, found.large) == (standard.term, standard.large)
    if device.type == "cpu":
        assert found.call == pytest.approx(standard.call)
    else:
        assert found.pace == 2


def test_a_device_is_measured_once_and_kept(times: list[torch.device]) -> None:
    assert rates_of(CPU) == rates_of(CPU) == SLOW
    (file,) = files()
    assert json.loads(file.read_text())["rates"] == SLOW._asdict()
    devices._known.clear()  # as another process does
    assert rates_of(CPU) == SLOW
    assert times == [CPU]


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"rates": {"call": 1}}', b'{"rates": [1]}', b'{"rates": null}', b"\xff"]
    + [_with_flops(bad) for bad in ("1", None, -1.0, float("nan"))],
)
def test_a_file_that_holds_something_else_is_written_anew(times: list[torch.device], content: bytes) -> None:
    rates_of(CPU)
    (file,) = files()
    file.write_bytes(content)
    devices._known.clear()
    assert rates_of(CPU) == SLOW
    assert times == [CPU, CPU]
    assert json.loads(file.read_text())["rates"] == SLOW._asdict()
    assert files() == [file]


def test_what_cannot_be_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where threads waited for each other while other programs had the cores."""
    bad = [STANDARD._replace(flops=STANDARD.flops / 1000), STANDARD._replace(bytes=STANDARD.bytes / 100)]
    bad += [STANDARD._replace(item=STANDARD.item * 1000), STANDARD._replace(row=1.0), STANDARD._replace(linear=1e15)]
    found = [*bad, SLOW]
    monkeypatch.setattr(devices, "measured", lambda *_: found.pop(0))
    for _ in bad:
        assert rates_of(CPU) == STANDARD
        assert not files()
        devices._known.clear()  # as another process does, which measures again
    assert rates_of(CPU) == SLOW
    assert len(files()) == 1


def test_a_file_of_what_cannot_be_is_written_anew(times: list[torch.device]) -> None:
    rates_of(CPU)
    (file,) = files()
    file.write_bytes(_with_flops(STANDARD.flops / 1000))
    devices._known.clear()
    assert rates_of(CPU) == SLOW
    assert times == [CPU, CPU]
    assert json.loads(file.read_text())["rates"] == SLOW._asdict()


def test_a_folder_that_cannot_be_written_to_does_no_harm(times: list[torch.device], tmp_path: Path) -> None:
    (tmp_path / "hofunc").write_text("no folder")
    assert rates_of(CPU) == rates_of(CPU) == SLOW
    assert times == [CPU]


@pytest.mark.usefixtures("threads")
def test_other_numbers_of_threads_are_measured_by_themselves(times: list[torch.device]) -> None:
    rates_of(CPU)
    torch.set_num_threads(1)
    rates_of(CPU)
    assert times == [CPU, CPU]
    assert len(files()) == 2


def test_rates_that_others_were_kept_beside_are_measured_anew(
    times: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As what is not measured is that of the standard ones."""
    rates_of(CPU)
    monkeypatch.setitem(RATES, "cpu", STANDARD._replace(large=STANDARD.large + 1))
    devices._known.clear()
    rates_of(CPU)
    assert times == [CPU, CPU]


def test_standard_rates_are_no_measured_ones(times: list[torch.device]) -> None:
    with options(rates="standard"):
        assert rates_of(CPU) == STANDARD
    assert rates_of(torch.device("meta")) == RATES["cuda"]
    assert not times


def test_a_device_that_cannot_be_measured_works_as_a_standard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Rates:
        raise RuntimeError

    monkeypatch.setattr(devices, "measured", fail)
    assert rates_of(CPU) == STANDARD
    assert not files()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_works_as_a_standard_one() -> None:
    with FakeTensorMode():
        assert rates_of(torch.ones(2, device="cuda").device) == RATES["cuda"]


@pytest.mark.parametrize(
    "mode",
    [nullcontext, FakeTensorMode, torch.inference_mode, lambda: torch.device("meta"), lambda: torch.autocast("cpu")],
)
def test_no_mode_is_on_where_it_is_measured(mode: Callable[[], AbstractContextManager]) -> None:
    before = torch.get_rng_state()
    with mode():
        found = rates_of(CPU)
    assert type(found) is Rates
    assert found.pace != 1
    assert len(files()) == 1
    assert torch.equal(torch.get_rng_state(), before)


def test_derivatives_are_the_same_by_all_rates() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return ((x[1:] - x[:-1] ** 2) ** 2).sum()

    x = rand(CPU, 5)
    found = hofunc.hessian(f)(x)
    with options(rates="standard"):
        torch.testing.assert_close(found, hofunc.hessian(f)(x), rtol=1e-13, atol=0)


@pytest.mark.usefixtures("times")
def test_estimates_are_shown_in_seconds_of_this_machine() -> None:
    plan = hofunc.hessian(lambda x: (x**3).sum()).plan(rand(CPU, 3))
    shown = [line for line in str(plan.explain()).splitlines() if "by estimate" in line]
    with options(rates="standard"):
        standard = hofunc.hessian(lambda x: (x**3).sum()).plan(rand(CPU, 3))
        other = [line for line in str(standard.explain()).splitlines() if "by estimate" in line]
    assert shown != other
