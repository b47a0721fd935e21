"""Plans of the benchmarks are no larger than the baseline that is kept with them, or it is said how they are."""

from pathlib import Path

import pytest

from asv_benchmarks import baseline

OLD: dict[str, int | str] = {"strategy": "mixed", "steps": 100, "flops": 1000, "peak_bytes": 5000}


@pytest.mark.parametrize("name", baseline.workloads())
def test_plans_keep_to_the_baseline(name: str) -> None:
    kept = baseline.read()
    assert name in kept, f"{name}: no baseline. Keep one: {baseline.ACCEPT}"
    found = list(baseline.complaints(name, kept[name], baseline.measured(baseline.workloads()[name])))
    assert not found, "\n".join(found)


def test_the_baseline_has_no_other_points() -> None:
    assert set(baseline.read()) == set(baseline.workloads())


def test_small_changes_pass() -> None:
    new: dict[str, int | str] = {"strategy": "reverse", "steps": 102, "flops": 950, "peak_bytes": 5000}
    assert not list(baseline.complaints("T", OLD, new))


def test_growth_is_an_error_that_says_how_to_accept_it() -> None:
    new = OLD | {"strategy": "reverse", "flops": 1030}
    (message,) = baseline.complaints("T 10x10", OLD, new)
    assert message == (
        "T 10x10: flops 1000 -> 1030, +3.0% (strategy mixed -> reverse): over the 2% that it may grow. "
        "If it is meant to: python -m asv_benchmarks.baseline --accept"
    )


def test_a_stale_baseline_is_an_error_too() -> None:
    (message,) = baseline.complaints("T 10x10", OLD, OLD | {"steps": 50})
    assert message == (
        "T 10x10: steps 100 -> 50, -50.0%: better by more than 10%, so that the baseline is stale. "
        "Keep it: python -m asv_benchmarks.baseline --accept"
    )


def test_points_that_one_side_lacks() -> None:
    found = list(baseline.differences({"gone": OLD}, {"new": OLD}))
    assert [message.split(".")[0] for message in found] == [
        "gone: only the baseline has it",
        "new: only the benchmarks have it",
    ]


def test_accept_keeps_what_then_passes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, workload = next(iter(baseline.workloads().items()))
    monkeypatch.setattr(baseline, "workloads", lambda: {first: workload})
    monkeypatch.setattr(baseline, "PATH", tmp_path / "baseline.json")
    with pytest.raises(SystemExit, match="only the benchmarks have it"):
        baseline.main([])
    baseline.main(["--accept"])
    assert "kept: 1 points" in capsys.readouterr().out
    baseline.main([])
    assert list(baseline.read()) == [first]
