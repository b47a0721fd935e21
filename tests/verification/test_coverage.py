"""The counts of what programs were made of, and what makes a run too dull."""

import json

import pytest
import torch

from verification.coverage import LEAST_PAIRS, Coverage, complaints, report
from verification.programs import Program
from verification.programs.build import Step, build
from verification.programs.table import ROWS


@pytest.fixture
def program() -> Program:
    """A sine of a sine."""
    return build([(2,)], [Step(1, 0, 0)] * 2, seed=0, outputs=1, argnums=0, max_elements=9)


def test_a_program_counts_its_ops_and_pairs(program: Program) -> None:
    coverage = Coverage()
    coverage.add(program, 2)
    coverage.add(program, 2)
    assert coverage.programs == {2: 2}
    assert coverage.rows[2] == {"sin": 4}
    assert coverage.pairs[2] == {("sin", "sin"): 2}


def test_counts_of_processes_add_up(program: Program) -> None:
    one, other = Coverage(), Coverage()
    one.add(program, 1)
    other.add(program, 1)
    other.add(program, 3)
    other.verdicts["nested_forward was wrong at order 3"] += 1
    one.merge(json.loads(json.dumps(other.packed())))
    assert one.programs == {1: 2, 3: 1}
    assert one.of_all() == ({"sin"}, {("sin", "sin")})
    lines = report(one)
    assert [line.split() for line in lines[1:4]] == [["1", "2", "1", "1"], ["3", "1", "1", "1"], ["all", "3", "1", "1"]]
    assert lines[4] == "1 times nested_forward was wrong at order 3"


def full() -> Coverage:
    coverage = Coverage()
    names = [row.name for row in ROWS]
    for order in LEAST_PAIRS:
        coverage.programs[order] = 600
        coverage.rows[order].update(names)
        coverage.pairs[order].update((names[n % len(names)], names[n // len(names)]) for n in range(2500))
    return coverage


def test_a_run_of_much_is_not_dull() -> None:
    assert complaints(full(), "ci") == []
    assert complaints(full(), "nightly") == ["2400 programs, expected at least 100000"]
    assert complaints(Coverage(), "dev") == []


def test_a_dull_run_is_a_failure(program: Program) -> None:
    coverage = full()
    coverage.rows[3].clear()
    coverage.pairs[4].clear()
    few = [complaint.split(",")[0] for complaint in complaints(coverage, "ci")]
    assert few == ["0 ops at order 3", "0 pairs of ops at order 4"]
    alone = Coverage()
    for _ in range(3000):
        alone.add(program, 2)
    assert len(complaints(alone, "ci")) == 10


def test_programs_are_of_the_dtype_of_their_inputs(program: Program) -> None:
    assert program.to(torch.float32)(*program.to(torch.float32).inputs).dtype == torch.float32
