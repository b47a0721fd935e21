"""Scores are kept once, and those that are kept are those of the pages."""

from pathlib import Path

import pytest

from verification import scores
from verification.conformance import table
from verification.conformance.examine import Examined, Finding
from verification.mutation.report import Counts, keep

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {"conformance": "conformance.md", "conformance, complex numbers": "conformance-complex.md"}


def test_a_score_that_is_the_same_again_is_not_kept_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "scores.json"
    monkeypatch.setattr(scores, "now", lambda: ("0123abc", "2026-01-02"))
    for killed in (1, 1, 2, 1):
        scores.keep("mutation", {"killed": killed}, file)
    scores.keep("conformance", {"samples": 3}, file)
    kept = scores.read(file)
    assert [score.figures["killed"] for score in kept["mutation"]] == [1, 2, 1]
    assert kept["conformance"] == [scores.Score("0123abc", "2026-01-02", {"samples": 3})]


def test_a_score_says_what_is_checked_out() -> None:
    commit, date = scores.now()
    assert int(commit, 16) >= 0
    assert [len(part) for part in date.split("-")] == [4, 2, 2]


def test_a_sample_of_mutants_that_was_not_run_whole_has_no_score(tmp_path: Path) -> None:
    file = tmp_path / "scores.json"
    keep(Counts(sample=4, run=3, killed=3, by_time=0, explained=0, survived=0), 7, file)
    assert not file.exists()
    keep(Counts(sample=4, run=4, killed=2, by_time=1, explained=1, survived=1), 7, file)
    (score,) = scores.read(file)["mutation"]
    assert score.figures == {"seed": 7, "size": 4, "killed": 2, "explained": 1, "survived": 1}


def test_entries_are_counted_by_their_worst_verdict() -> None:
    findings = [
        Finding(1, 1, "right", (), (), ""),
        Finding(2, 1, "refused", (), (), ""),
        Finding(1, 2, "right", (), (), ""),
    ]
    mixed, constant = Examined("a", (), (), tuple(findings), {}), Examined("b", (), (), (), {})
    counted = table.score({"a": mixed, "b": constant}, ["a", "b"], (1, 2))
    assert counted["samples"] == 2
    assert counted["orders"]["1"] == {"right": 0, "wrong": 0, "broken": 0, "refused": 1, "too slow": 0}
    assert counted["orders"]["2"]["right"] == 1


@pytest.mark.parametrize("kind", PAGES)
def test_the_totals_of_a_page_are_kept(kind: str) -> None:
    (page,) = DOCS.rglob(PAGES[kind])
    (*_, last) = scores.read()[kind]
    totals = page.read_text(encoding="utf-8").split("## Totals")[1].split("\n## ")[0]
    for verdict in last.figures["orders"]["1"]:
        (line,) = [line for line in totals.splitlines() if line.startswith(f"| entries {verdict} |")]
        counts = [int(cell.split()[0]) for cell in line.strip("| ").split(" | ")[1:]]
        assert counts == [by_verdict[verdict] for by_verdict in last.figures["orders"].values()]
