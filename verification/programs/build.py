"""Building a program from numbers: each step is a choice of an op, of operands and of a way to write it.

Steps are numbers that are read against what the program holds by then. Smaller numbers are simpler choices, and a step
of zeros is none, which leaves the others what they are, so that a failing program shrinks well.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, permutations, product
from math import ceil, log2, prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from verification.programs.program import Argnums, Program, Statement, alive
from verification.programs.row import Row, Shape
from verification.programs.table import ROWS

LARGEST = 4.0  # larger values are scaled down
WIDTH = {1: 12, 2: 8}  # how many values are looked through for operands, by their number
CHOICES = 256  # how many different picks and uses a step may ask for


class Step(NamedTuple):
    """One choice.

    Attributes:
        row: Number of the row, from one, or zero for none; where none of its uses fits, the next that does is taken.
        pick: Which of the fitting operands, from the newest to the oldest.
        use: Which way to write it.
    """

    row: int
    pick: int
    use: int


class Builder:
    """A program in the making: the values of its inputs and of all statements so far.

    Args:
        shapes: Those of the inputs.
        seed: That of the random numbers.
        max_elements: How many a value may have.
        rows: The ops to choose from; the first has to fit all shapes everywhere.
    """

    def __init__(self, shapes: Sequence[Shape], seed: int, max_elements: int, rows: Sequence[Row] = ROWS) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.values = [self.numbers(shape) for shape in shapes]
        self.inputs = tuple(self.values)
        self.statements: list[Statement] = []
        self.captured: dict[str, Tensor] = {}
        self.max_elements = max_elements
        self.rows = rows
        self.tolerances: dict[str, float] = {}

    def numbers(self, shape: Sequence[int]) -> Tensor:
        """Return random numbers of two decimals, so that they are short to print."""
        drawn = torch.rand(shape, dtype=torch.float64, generator=self.generator)
        return ((drawn * 3 - 1.5) * 100).round() / 100

    def take(self, step: Step) -> None:
        """Add a statement."""
        for number in range(len(self.rows) if step.row else 0):
            row = self.rows[(step.row - 1 + number) % len(self.rows)]
            if self._take_row(row, step):
                return

    def _take_row(self, row: Row, step: Step) -> bool:
        """Add a use of a row, unless it fits no operands, or is too large or not smooth at those picked."""
        fitting = [operands for operands in self._operands(row) if row.fitting(*self._shapes(operands))]
        if not fitting:
            return False
        operands = fitting[step.pick * step.pick * len(fitting) // CHOICES**2]
        uses = row.fitting(*self._shapes(operands))
        captured = dict(self.captured)
        guarded = self._guarded(row, operands, captured)
        if guarded is None:
            return False
        text = self._filled(uses[step.use % len(uses)], guarded, captured)
        text = text if "{out}" in text else f"{{out}} = {text}"
        try:
            value = self._run(text, operands, captured)
        except RuntimeError:  # torch cannot: vmap has no rule for it, or jvp no way to write to an expanded tensor
            return False
        if value.numel() > self.max_elements:
            return False
        self.captured = captured
        self._add(row, _scaled(text, value), operands)
        return True

    def _operands(self, row: Row) -> Iterator[tuple[int, ...]]:
        """Return what a row may be applied to, what nothing was made of before the rest, and the newest first."""
        used = self._used()
        newest = sorted(range(len(self.values)), key=lambda number: (number in used, -number))
        return product(newest[: WIDTH.get(row.arity, 5)], repeat=row.arity)

    def _used(self) -> set[int]:
        return {number for statement in self.statements for number in statement.operands}

    def _shapes(self, operands: Sequence[int]) -> tuple[Shape, ...]:
        return tuple(tuple(self.values[number].shape) for number in operands)

    def _guarded(self, row: Row, operands: tuple[int, ...], captured: dict[str, Tensor]) -> list[str] | None:
        """Return an expression for every operand that brings all into the row's domain, if there are any."""
        names = [f"{{{place}}}" for place in range(row.arity)]
        values = [self.values[number] for number in operands]
        if row.domain.contains(*values):
            return names
        for guards in row.domain.guards(tuple(values[0].shape)):
            texts = [self._filled(guard, [name], captured) for guard, name in zip(guards, names, strict=True)]
            if row.domain.contains(*(self._run(f"{{out}} = {text}", operands, captured) for text in texts)):
                return texts
        return None

    def _filled(self, use: str, operands: Sequence[str], captured: dict[str, Tensor]) -> str:
        """Put operands and the names of captured tensors, which are made, into an expression."""
        makers = {
            "w": self.numbers,
            "r": lambda sizes: 0.3 * torch.arange(prod(sizes), dtype=torch.float64).reshape(sizes),
            "i": torch.tensor,
        }
        fields = {kind: Capture(make, captured) for kind, make in makers.items()}
        return use.format(*operands, out="{out}", **fields)

    def _run(self, text: str, operands: Sequence[int], captured: dict[str, Tensor]) -> Tensor:
        names = [f"a{place}" for place in range(len(operands))]
        values = (self.values[number] for number in operands)
        scope: dict[str, Any] = {"torch": torch, "F": functional, **captured, **dict(zip(names, values, strict=True))}
        exec(text.format(*names, out="out"), scope)
        value: Tensor = scope["out"]
        return value

    def _add(self, row: Row, text: str, operands: tuple[int, ...]) -> None:
        self.statements.append(Statement(row.name, text, operands, len(self.values)))
        self.values.append(self._run(text, operands, self.captured))
        self.tolerances[row.name] = row.tolerance

    def program(self, count: int, argnums: int) -> Program:
        """Return what has been built.

        Args:
            count: How many outputs, at most: the values that no other was made of, the newest first.
            argnums: Number of one of the ways to choose what to differentiate by.
        """
        used = self._used()
        ends = (statement.out for statement in reversed(self.statements) if statement.out not in used)
        outputs = tuple(islice(ends, count)) or (0,)
        statements = alive(self.statements, outputs)
        named = set(re.findall(r"\bc\d+\b", " ".join(statement.text for statement in statements)))
        ways = choices_of_argnums(len(self.inputs))
        return Program(
            self.inputs,
            {name: tensor for name, tensor in self.captured.items() if name in named},
            statements,
            outputs,
            ways[argnums % len(ways)],
            max((self.tolerances[statement.row] for statement in statements), default=0.0),
        )


class Capture:
    """Stands for a kind of captured tensors in an expression: formatted with numbers, it makes one and is its name.

    Args:
        make: Returns the tensor, given the numbers.
        captured: Where it is put.
    """

    def __init__(self, make: Callable[[list[int]], Tensor], captured: dict[str, Tensor]) -> None:
        self.make = make
        self.captured = captured

    def __format__(self, numbers: str) -> str:
        name = f"c{len(self.captured)}"
        self.captured[name] = self.make([int(number) for number in numbers.split(",") if number])
        return name


def choices_of_argnums(count: int) -> list[Argnums]:
    """Return all ways to differentiate by some of a number of arguments, the simplest first."""
    several = [places for length in range(1, count + 1) for places in permutations(range(count), length)]
    return [*range(count), *several]


def _scaled(text: str, value: Tensor) -> str:
    """Make statements divide their result by a power of two where it is large."""
    largest = float(value.abs().max()) if value.numel() else 0.0
    if largest <= LARGEST:
        return text
    return f"{text}\n{{out}} = {{out}} * {2.0 ** -ceil(log2(largest / LARGEST))}"


def build(
    shapes: Sequence[Shape], steps: Sequence[Step], *, seed: int, outputs: int, argnums: int, max_elements: int
) -> Program:
    """Return the program of some steps.

    Args:
        shapes: Those of the inputs.
        steps: The choices that make its statements.
        seed: That of its random numbers.
        outputs: How many it returns, at most.
        argnums: Number of one of the ways to choose what to differentiate by.
        max_elements: How many elements a value may have.
    """
    builder = Builder(shapes, seed, max_elements)
    for step in steps:
        builder.take(step)
    return builder.program(outputs, argnums)
