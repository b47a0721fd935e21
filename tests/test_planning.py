"""Planning grows with a program as the program does, or with the blocks of its result: counted, not timed."""

import json
from dataclasses import asdict, replace

import pytest

from asv_benchmarks import baseline, cold, first_calls
from asv_benchmarks.benchmarks.programs import PROGRAMS, Program
from asv_benchmarks.cold import exponent, header, line, misses, row_of
from asv_benchmarks.first_calls import Nested, Row
from hofunc.plan import lean, turns

ROW = Row(10, 100, 0.1, 0.01, "mixed", 50, 1000, Nested("jacrev(jacrev)", 0.02, 0.01, 1e-16))
ROWS = [replace(ROW, size=size, effort=10 * size) for size in (10, 20, 40)]
PROGRAM = Program("RNN, steps", PROGRAMS[0].make, (10, 20, 40), 5)


@pytest.mark.parametrize("program", [program for program in PROGRAMS if program.small], ids=lambda each: each.name)
def test_planning_grows_no_faster_than_it_may(program: Program) -> None:
    """The figures are those that test_baseline.py holds plans to."""
    one, two = (int(baseline.read()[program.at(program.small)][effort]) for effort in baseline.EFFORTS)
    assert two <= 2**program.exponent * one, f"{one} steps of planning at {program.small}, {two} at twice that"


def test_steps_of_plans_that_were_given_up_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = PROGRAMS[0].make(3)
    before = problem.planned()
    alone = before.plan.effort
    monkeypatch.setattr(turns, "FIRST_LEAVE", alone // 2)
    monkeypatch.setattr(turns, "PER_COMPOSITION", 0)
    assert problem.planned().effort >= alone + alone // 2


def test_first_and_later_calls_of_a_program_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_calls, "TURNS", (1, 1))
    program = replace(PROGRAM, sizes=(2, 3, 4))
    rows = [first_calls.measured_at(program, size) for size in program.sizes]
    assert [row.size for row in rows] == [2, 3, 4]
    assert all(row.nested is not None and row.nested.error < 1e-13 and row.later > 0 for row in rows)
    assert rows[0].steps < rows[1].steps < rows[2].steps
    assert all(row.effort >= row.steps for row in rows)  # of all strategies that were planned


def test_no_nest_is_tried_where_it_would_take_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_calls, "TURNS", (1, 1))
    assert first_calls.measured_at(replace(PROGRAM, nested=1), 2).nested is None


def test_a_row_is_read_as_it_was_printed() -> None:
    assert [row_of(json.loads(json.dumps(asdict(row)))) for row in (ROW, replace(ROW, nested=None))] == [
        ROW,
        replace(ROW, nested=None),
    ]


def test_what_is_not_done_in_time_is_missing() -> None:
    assert cold.in_a_process(PROGRAM, 0.001) == []


def test_an_exponent_is_the_slope_of_the_logarithms() -> None:
    assert exponent(ROWS, lambda row: 3.0 * row.size**1.5) == pytest.approx(1.5)
    assert exponent(ROWS[:1], lambda row: row.size) is None
    assert exponent(ROWS, lambda _: None) is None


def test_a_line_has_figures_of_all_sizes() -> None:
    cells = line(PROGRAM, ROWS).split(" | ")
    assert len(cells) == len(next(header()).split(" | "))
    assert cells[:4] == ["| RNN, steps", "10 / 20 / 40", "100 / 200 / 400 (1.0)", "100 / 100 / 100 (0.0)"]
    assert cells[-2:] == ["mixed, jacrev(jacrev)", "1e-16 |"]


def test_a_program_without_figures_has_a_line_that_says_so() -> None:
    assert line(PROGRAM, []).startswith("| RNN, steps | none in time | ")


def test_a_table_without_a_miss_names_none() -> None:
    assert list(misses(PROGRAM, ROWS)) == []


def test_misses_are_named() -> None:
    steep = [replace(row, effort=row.size**2, first=0.4, later=0.02) for row in ROWS[:2]]
    assert list(misses(PROGRAM, steep)) == [
        "RNN, steps: planning steps grow by an exponent of 2.00, more than 1.2",
        "RNN, steps, 10: the first call takes 0.40 s, more than 0.30",
        "RNN, steps, 10: a later call takes 2.00 times torch's",
        "RNN, steps, 20: the first call takes 0.40 s, more than 0.30",
        "RNN, steps, 20: a later call takes 2.00 times torch's",
        "RNN, steps, 40: not done in time",
    ]


def test_loops_are_not_looked_for_among_many_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps are put in order again for each loop that is tried: 6 s for what holds 6 MB in 6000 steps."""
    (lstm,) = (program for program in PROGRAMS if program.name.startswith("LSTM"))
    problem = lstm.make(100)
    monkeypatch.setattr(lean, "_in_loops", lambda *_: pytest.fail("loops were looked for"))
    assert problem.planned().plan.run_cost.peak_bytes > lean.HELD
