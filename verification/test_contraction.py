"""A contraction of a derivative is torch.einsum of the dense derivative.

Claim: for any program of rows, any order from 1 to 4, any pattern that fits the shapes and any operands, einsum returns
what torch.einsum makes of the derivative by hod, by every strategy, at once or in chunks of rows; up to order 2 also
what it makes of that by nested torch.func. So are its gradients by the inputs and by the operands.
Source: the definition of einsum, and that sums over labels may be done in any order.
Falsifier: a label that is summed too early, twice or not at all; slots that are taken to be alike and are not; an
operand that enters where its labels are not bound; a wrong count of equal terms.
Tolerance: 1e-9 of the largest entry, as in test_agreement; of gradients, which are of one order more, 1e-8.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import assume, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor

import hofunc
from hofunc.contracted import STRATEGIES
from verification.oracles import contraction, nested_reverse, relative_error
from verification.profiles import PROFILE, database
from verification.programs import Program, programs
from verification.rows import by_rows, is_mapped, rows_of
from verification.vectors import mixture

ROWS = 2
ENTRIES = 20_000
SIZES = {1: (6, 6), 2: (5, 5), 3: (4, 4), 4: (3, 3)}  # most statements, and elements of all inputs
PARTS = 2  # tests of each order, so that processes share them evenly
TOLERANCE, OF_GRADIENTS = 1e-9, 1e-8
each_part = pytest.mark.parametrize(("order", "part"), [(k, part) for k in reversed(SIZES) for part in range(PARTS)])


class Asked(NamedTuple):
    """A pattern, and the shapes of its operands."""

    pattern: str
    shapes: tuple[tuple[int, ...], ...]


@st.composite
def asked(draw: st.DrawFn, output: Sequence[int], slot: Sequence[int], order: int) -> Asked:
    """Draw a pattern that fits: names are shared wherever sizes are equal, and places are fixed now and then."""
    sizes: dict[str, int] = {}

    def axis(size: int) -> str:
        if size and draw(st.integers(0, 7)) == 0:
            return str(draw(st.integers(0, size - 1)))
        known = [name for name, other in sizes.items() if other == size]
        if known and draw(st.integers(0, 2)) > 0:
            return draw(st.sampled_from(known))
        name = f"n{len(sizes)}"
        sizes[name] = size
        return name

    groups = [[axis(size) for size in output], *([axis(size) for size in slot] for _ in range(order))]
    if not sizes:
        return Asked(f"{', '.join(' '.join(group) for group in groups)} -> ", ())
    each_name = st.sampled_from([*sizes])
    operands = draw(st.lists(st.lists(each_name, max_size=3), max_size=3))
    result = draw(st.lists(each_name, max_size=4, unique=True))
    text = ", ".join(" ".join(group) for group in [*groups, *operands])
    return Asked(f"{text} -> {' '.join(result)}", tuple(tuple(sizes[name] for name in names) for names in operands))


def operands_of(shapes: Sequence[Sequence[int]]) -> tuple[Tensor, ...]:
    """Return operands, no two of which are alike."""
    return tuple(
        (mixture(1, torch.Size(shape).numel()) + number / 3).sin().reshape(shape) for number, shape in enumerate(shapes)
    )


def seeded(order: int, part: int) -> Any:
    """Draw other examples for every part, and the same in every run unless those of a night."""
    return (lambda test: test) if PROFILE == "nightly" else seed(100 + PARTS * order + part)


def of_rows(program: Program) -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """Return a program of rows, as a function of all of them at once, and its inputs."""
    assume(is_mapped(program))
    f, rows = by_rows(program), rows_of(program, ROWS)
    assume(f(*rows).numel() and all(x.numel() for x in rows))
    return f, rows


@each_part
def test_contractions(order: int, part: int) -> None:
    max_ops, max_elements = SIZES[order]

    @seeded(order, part)
    @settings(database=database(f"contraction_{order}"))
    @given(programs(max_ops=max_ops, max_elements=max_elements), st.data(), st.sampled_from([None, 1]))
    def check(program: Program, data: st.DataObject, chunk_size: int | None) -> None:
        f, rows = of_rows(program)
        number = data.draw(st.integers(0, len(rows) - 1))
        output = f(*rows).shape
        assume(output.numel() * rows[number].numel() ** order <= ENTRIES)
        pattern, shapes = data.draw(asked(output, rows[number].shape, order))
        operands = operands_of(shapes)
        oracles = [hofunc.hod(f, order, number)(*rows)]
        oracles += [nested_reverse(f, order, number)(*rows)] if order <= 2 and not program.tolerance else []
        for strategy in STRATEGIES:
            got = contracted(f, pattern, order, number, strategy, chunk_size, rows, operands)
            errors = [relative_error(got, contraction(oracle, pattern, operands)) for oracle in oracles]
            assert max(errors) < TOLERANCE, f"{errors} by {strategy} for {pattern!r} of rows of\n{program.source()}"

    check()


def contracted(
    f: Callable[..., Tensor],
    pattern: str,
    order: int,
    number: int,
    strategy: str,
    chunk_size: int | None,
    rows: Sequence[Tensor],
    operands: tuple[Tensor, ...],
) -> Tensor:
    """Return a contraction, in chunks if it can be, as its result has rows or not."""
    argnums = (number,) * order
    try:
        return hofunc.einsum(f, pattern, argnums, strategy=strategy, chunk_size=chunk_size)(*rows, operands=operands)
    except hofunc.ArgumentError as refused:
        if chunk_size is None or "chunk_size" not in str(refused):
            raise
    return hofunc.einsum(f, pattern, argnums, strategy=strategy)(*rows, operands=operands)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_gradients_of_contractions(order: int) -> None:
    max_ops, max_elements = SIZES[order + 1]

    @settings(database=database(f"gradients_of_contractions_{order}"))
    @given(programs(max_ops=max_ops, max_elements=max_elements), st.data(), st.sampled_from(STRATEGIES))
    def check(program: Program, data: st.DataObject, strategy: str) -> None:
        f, rows = of_rows(program)
        output = f(*rows).shape
        assume(output.numel() * rows[0].numel() ** (order + 1) <= ENTRIES)
        pattern, shapes = data.draw(asked(output, rows[0].shape, order))
        operands = operands_of(shapes)

        def ours(x: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
            transform = hofunc.einsum(f, pattern, (0,) * order, strategy=strategy)
            return weighted(transform(x, *rows[1:], operands=operands))

        def dense(x: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
            return weighted(contraction(hofunc.hod(f, order)(x, *rows[1:]), pattern, operands))

        got, expected = (torch.func.grad(loss, (0, 1))(rows[0], operands) for loss in (ours, dense))
        error = relative_error(got, expected)
        assert error < OF_GRADIENTS, f"{error} by {strategy} for {pattern!r} of rows of\n{program.source()}"

    check()


def weighted(result: Tensor) -> Tensor:
    """Return a sum of what is computed in which every entry counts otherwise."""
    return (result.reshape(-1) * mixture(1, result.numel()).reshape(-1)).sum()


def test_patterns_that_are_drawn_fit() -> None:
    """The strategy itself: patterns share names, fix places, and have operands; torch.einsum takes them all."""
    met = {"shared": 0, "fixed": 0, "operands": 0}

    @settings(database=database("patterns"), max_examples=50)
    @given(asked((2,), (2, 3), 2))
    def check(drawn: Asked) -> None:
        pattern, shapes = drawn
        contraction(torch.ones(2, 2, 3, 2, 3, dtype=torch.float64), pattern, operands_of(shapes))
        groups = [group.split() for group in pattern.split("->")[0].split(",")]
        met["shared"] += bool({*groups[1]} & {*groups[2]})
        met["fixed"] += any(name.isdigit() for group in groups for name in group)
        met["operands"] += bool(shapes)

    check()
    assert all(met.values()), met
