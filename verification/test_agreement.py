"""hofunc agrees with every oracle, for random programs.

Claim: the derivatives of orders 1 to 4 of any program, by any of its inputs, by every strategy and in every layout, at
once or in chunks of rows, are those that torch gets by nesting; where torch differs, finite differences say that it is
torch that is wrong.
Source: the definition of a derivative. Falsifier: a wrong rule, composition, label, plan or step.
Tolerance: 1e-9 of the largest entry, as rounding is 1e-16 of terms that cancel, and in derivatives of order 4 there are
some that are a million times as large; what torch itself knows to fewer digits is marked in the table of ops.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import assume, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_map

import hofunc
from hofunc.arguments import LAYOUTS, STRATEGIES
from verification.coverage import COVERAGE
from verification.oracles import nested_autograd, nested_forward, nested_forward_over_reverse, nested_reverse
from verification.profiles import PER_PROPERTY, PROFILE, database
from verification.programs import Program, programs
from verification.verdict import AGREED, ORACLE_WRONG, judge

# Loops over autograd take a call an element, and nested reverse memory that grows as the product of all orders.
ORACLES: dict[int, tuple[Any, ...]] = {
    1: (nested_reverse, nested_forward, nested_autograd),
    2: (nested_reverse, nested_forward, nested_forward_over_reverse, nested_autograd),
    3: (nested_reverse, nested_forward, nested_forward_over_reverse),
    4: (nested_forward, nested_forward_over_reverse),
}
SIZES = {1: (8, 12), 2: (8, 8), 3: (7, 5), 4: (6, 4)}  # most statements, and elements of all inputs
PARTS = 9  # tests of each order, so that processes share them evenly
NUMBER_OF_TESTS = PARTS * len(ORACLES)
MORE = 2  # times as many examples as of other properties
ROWS_OF_A_BATCH = 3

# The slow ones first, so that processes end together.
each_part = pytest.mark.parametrize(
    ("order", "part"), [(order, part) for order in reversed(ORACLES) for part in range(PARTS)]
)


def seeded(order: int, part: int) -> Any:
    """Draw other examples for every part, and the same in every run unless those of a night."""
    return (lambda test: test) if PROFILE == "nightly" else seed(PARTS * order + part)


def densely(derivative: Any) -> Any:
    """Make every compact derivative of a pytree dense."""
    compact = hofunc.Derivative
    return tree_map(
        lambda leaf: leaf.dense() if isinstance(leaf, compact) else leaf,
        derivative,
        is_leaf=lambda leaf: isinstance(leaf, compact),
    )


@each_part
def test_programs(order: int, part: int) -> None:
    max_ops, max_elements = SIZES[order]
    ways = [(first, s, layout) for first in ORACLES[order] for s in STRATEGIES for layout in LAYOUTS]

    @seeded(order, part)
    @settings(max_examples=MORE * PER_PROPERTY[PROFILE], database=database(f"order_{order}"))
    @given(programs(max_ops=max_ops, max_elements=max_elements), st.sampled_from(ways))
    def check(program: Program, way: tuple[Any, str, str]) -> None:
        first, strategy, layout = way
        oracles = sorted(ORACLES[order], key=lambda oracle: oracle is not first)
        at, by = program.inputs, program.argnums
        got = densely(hofunc.hod(program, order, by, strategy=strategy, layout=layout)(*at))
        verdict = judge(got, program, at, order, by, tolerance=program.tolerance, oracles=oracles)
        COVERAGE.add(program, order)
        if verdict.kind == ORACLE_WRONG:
            COVERAGE.verdicts[f"{verdict.oracle} was wrong at order {order}"] += 1
        source = program.source(order=order, strategy=strategy, layout=layout)
        assert verdict.kind in {AGREED, ORACLE_WRONG}, f"{verdict}\n{source}"

    check()


def rows_near(program: Program) -> tuple[Tensor, ...]:
    """Return a batch of inputs, so close to each other that none of them is across a kink."""
    steps = torch.arange(ROWS_OF_A_BATCH, dtype=torch.float64) / 1000
    return tuple(x + steps.reshape(-1, *[1] * x.dim()) * x.cos() for x in program.inputs)


def row_by_row(program: Program) -> Callable[..., Any]:
    """Return the function of a batch that calls a program for every row, which does not depend on torch's vmap."""

    def f(*rows: Tensor) -> Any:
        outputs = [program(*row) for row in zip(*rows, strict=True)]
        return tree_map(lambda *leaves: torch.stack(leaves), *outputs)

    return f


def maps(program: Program, rows: Sequence[Tensor]) -> bool:
    """Tell whether torch can map a program: it cannot where the program looks at values."""
    try:
        torch.func.vmap(program)(*rows)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("chunk_size", [1, 2])
def test_programs_in_chunks_of_rows(order: int, chunk_size: int) -> None:
    max_ops, max_elements = SIZES[order + 1]
    oracles = (nested_forward, nested_forward_over_reverse)

    @settings(database=database(f"order_{order}_chunks_of_{chunk_size}"))
    @given(programs(max_ops=max_ops, max_elements=max_elements), st.sampled_from(STRATEGIES))
    def check(program: Program, strategy: str) -> None:
        rows, by = rows_near(program), program.argnums
        assume(maps(program, rows))
        transform = partial(hofunc.hod, torch.func.vmap(program), order, by, layout="compact", strategy=strategy)
        try:
            got = transform(chunk_size=chunk_size)(*rows)
        except hofunc.ArgumentError as refused:
            if "rows that cannot be taken apart" not in str(refused):
                raise
            got = transform()(*rows)
        f = row_by_row(program)
        verdict = judge(densely(got), f, rows, order, by, tolerance=program.tolerance, oracles=oracles)
        assert verdict.kind in {AGREED, ORACLE_WRONG}, f"{verdict}\nfor vmap of\n{program.source(order=order)}"

    check()
