"""The programs that verification draws: every row of their table works, and what is drawn is what it says."""

from itertools import product

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.utils._pytree import tree_leaves

from verification.programs import Program, programs
from verification.programs.build import Builder, Step
from verification.programs.draw import SHAPES
from verification.programs.row import Row
from verification.programs.table import ROWS

# torch's forward mode compiles a helper with what it deprecates itself

FEW = SHAPES[:8]


def shapes_of(row: Row) -> list[tuple[tuple[int, ...], ...]]:
    return list(product(SHAPES if row.arity < 3 else FEW, repeat=row.arity))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_use_of_a_row_is_smooth_where_it_is_put(row: Row) -> None:
    """On all shapes: it runs, stays finite and in double precision."""
    fitting = [shapes for shapes in shapes_of(row) if row.fitting(*shapes)]
    assert fitting
    for shapes in fitting:
        for use in range(len(row.fitting(*shapes))):
            builder = Builder(shapes, seed=1, max_elements=10**6, rows=(row,))
            builder.take(Step(1, 255, use))
            (statement,) = builder.statements
            value = builder.values[-1]
            assert value.dtype == torch.float64
            assert value.isfinite().all(), statement.text


def test_names_of_rows_are_different() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


@settings(max_examples=100, database=None, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(programs())
def test_a_program_is_pure_and_prints_as_what_it_is(program: Program) -> None:
    before = [x.clone() for x in program.inputs]
    value = program(*program.inputs)
    scope: dict[str, object] = {}
    exec(program.source(order=1).replace("print(", "result = ("), scope)
    again = scope["f"](*(scope[f"x{number}"] for number in range(len(before))))  # type: ignore[operator]
    for one, other in zip(tree_leaves(value), tree_leaves(again), strict=True):
        assert torch.equal(one, other)
    assert all(map(torch.equal, before, program.inputs))
