"""However a derivative is computed, it is the same.

Claim: strategies, chunks of rows and of coordinates, frozen plans, their FX graphs and their compiled forms give one
derivative.
Source: all are orders of evaluation of one sum of products.
Falsifier: a shuffle, a multiplicity of a packed entry, a chunk boundary or a captured constant that one of them has
wrong.
Tolerance: that of `verification.vectors`.
"""

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves

import hofunc
from hofunc.arguments import STRATEGIES
from verification.blocks import inputs_of, reachable
from verification.programs import Program, programs
from verification.rows import ROWS, by_rows, is_mapped, rows_of
from verification.vectors import assert_close, dense


@given(programs(max_elements=8), st.integers(1, 4), st.booleans())
def test_strategies(program: Program, order: int, is_by_all: bool) -> None:
    order = reachable(program, order)
    argnums = inputs_of(program) if is_by_all else program.argnums
    first, *others = [hofunc.derivatives(program, order, argnums, strategy=by)(*program.inputs) for by in STRATEGIES]
    for other in others:
        assert_close(other, first)


@given(programs(max_ops=6, max_elements=4), st.integers(1, 3), st.sampled_from(STRATEGIES), st.integers(1, ROWS))
def test_chunks_of_rows(program: Program, order: int, strategy: str, chunk_size: int) -> None:
    assume(is_mapped(program))
    order, numbers = reachable(program, order, ROWS), inputs_of(program)
    f, inputs = by_rows(program), rows_of(program)
    by: dict[str, Any] = {"order": order, "argnums": numbers, "layout": "compact", "strategy": strategy}
    try:
        chunked = hofunc.hod(f, chunk_size=chunk_size, **by)(*inputs)
    except hofunc.ArgumentError:  # it cannot take the rows apart, and says so
        assume(False)
    assert_close(dense(chunked), dense(hofunc.hod(f, **by)(*inputs)))


@given(programs(max_elements=6), st.integers(1, 3), st.sampled_from(STRATEGIES), st.integers(1, 4))
def test_chunks_of_coordinates(program: Program, order: int, strategy: str, chunk_size: int) -> None:
    order, numbers = reachable(program, order), inputs_of(program)
    expected = hofunc.hod(program, order, numbers, strategy=strategy)(*program.inputs)
    chunked = hofunc.hod(program, order, numbers, strategy=strategy, chunk_size=chunk_size)
    assert_close(chunked(*program.inputs), expected)
    assert_close(chunked.plan(*program.inputs)(*program.inputs), expected)


@given(programs(max_elements=6), st.integers(1, 3), st.sampled_from(STRATEGIES))
def test_frozen_plans(program: Program, order: int, strategy: str) -> None:
    order, numbers = reachable(program, order), inputs_of(program)
    derivative = hofunc.hod(program, order, numbers, strategy=strategy)
    plan, expected = derivative.plan(*program.inputs), derivative(*program.inputs)
    assert_close(plan(*program.inputs), expected)
    try:
        module = plan.to_fx()
    except hofunc.UnsupportedOpError:  # the program reads values, which a graph cannot
        assume(False)
    assert_close(list(module(*program.inputs)), tree_leaves(expected))


@given(programs(max_ops=4, max_elements=4), st.integers(1, 2), st.sampled_from(STRATEGIES))
def test_compiled_plans(program: Program, order: int, strategy: str) -> None:
    """The compiler is Dynamo without a code generator: what inductor makes of the same graph is torch's."""
    order, numbers = reachable(program, order), inputs_of(program)
    derivative = hofunc.hod(program, order, numbers, strategy=strategy)
    compiled = derivative.plan(*program.inputs).compile(backend="eager")
    for _ in range(2):  # the rest of a program that reads values is compiled at the second call
        assert_close(compiled(*program.inputs), derivative(*program.inputs))
