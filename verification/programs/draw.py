"""The hypothesis strategy of programs."""

from math import prod

from hypothesis import strategies as st

from verification.programs.build import CHOICES, Step, build
from verification.programs.program import Program
from verification.programs.row import Shape
from verification.programs.table import ROWS

# From the simplest on; those that are squares and those with axes of size one are more than their share of traps.
SHAPES: tuple[Shape, ...] = (
    *(
        (),
        (2,),
        (3,),
        (2, 2),
        (1,),
        (2, 3),
        (3, 2),
        (1, 3),
        (3, 1),
        (2, 1, 2),
        (4,),
        (2, 2, 2),
        (1, 2, 1),
        (5,),
        (3, 3),
    ),
    *((2, 4), (1, 1), (2, 1, 3), (2, 3, 2), (2, 2, 3)),
)

INPUTS = 3  # at most
FIXED = INPUTS + 6  # how many bytes of a drawn program are not those of a step


def programs(*, max_ops: int = 8, max_elements: int = 12, max_outputs: int = 2) -> st.SearchStrategy[Program]:
    """Return a strategy that draws programs.

    All choices are made in one draw, of bytes. Hypothesis repeats parts of what it has drawn in several draws, and of
    programs most would be of few different ops, or only have other inputs than the one before.

    Args:
        max_ops: How many statements a program may have.
        max_elements: How many elements all inputs may have together; other values may have twice as many.
        max_outputs: How many outputs it may have.

    Returns:
        Strategy of programs with float64 inputs, up to three of them, which may differentiate by some only, in any
        order. It shrinks to few statements, small shapes and one input.
    """
    size = FIXED + 3 * max_ops

    def read(drawn: bytes) -> Program:
        choices = iter(drawn)

        def choice(count: int) -> int:
            return next(choices) * count // CHOICES

        inputs = 1 + choice(INPUTS)
        shapes = [SHAPES[choice(len(SHAPES))] for _ in range(INPUTS)][:inputs]
        seed = CHOICES * next(choices) + next(choices)
        outputs, argnums, count = 1 + choice(max_outputs), next(choices), 1 + choice(max_ops)
        steps = [Step(choice(len(ROWS) + 1), next(choices), next(choices)) for _ in range(max_ops)]
        return build(
            _within(shapes, max_elements),
            steps[:count],
            seed=seed,
            outputs=outputs,
            argnums=argnums,
            max_elements=2 * max_elements,
        )

    @st.composite  # where a mapped strategy would print the bytes
    def program(draw: st.DrawFn) -> Program:
        return read(draw(st.binary(min_size=size, max_size=size)))

    return program()


def _within(shapes: list[Shape], room: int) -> list[Shape]:
    """Return those shapes that have no more elements together than there is room for, a scalar if there are none."""
    kept: list[Shape] = []
    for shape in shapes:
        if prod(shape) <= room:
            room -= prod(shape)
            kept.append(shape)
    return kept or [()]
