"""A program: a pure function with its inputs, as the lines of torch that it consists of."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

Argnums = int | tuple[int, ...]

IMPORTS = "import torch\nfrom torch.nn import functional as F"


@dataclass(frozen=True)
class Statement:
    """One step of a program.

    Attributes:
        row: Name of the row of the table that it is a use of.
        text: Lines of Python in which ``{0}``, ``{1}`` ... are the operands and ``{out}`` is the result.
        operands: Numbers of the values that it takes: inputs first, then the results of all statements.
        out: Number of its result.
    """

    row: str
    text: str
    operands: tuple[int, ...]
    out: int


@dataclass(frozen=True, eq=False, repr=False)
class Program:
    """A pure function of tensors, with inputs at which it is smooth.

    Calling it calls the function. Its text is what runs: ``str(program)`` is the same lines, to be pasted.

    Attributes:
        inputs: The inputs.
        captured: The tensors that the function captures, by name.
        statements: Those that the outputs depend on, in order.
        outputs: Numbers of the values that are returned; a single one is returned as it is, several as a tuple.
        argnums: What to differentiate by.
        tolerance: How exact torch's own derivatives of the ops in it are.
    """

    inputs: tuple[Tensor, ...]
    captured: dict[str, Tensor]
    statements: tuple[Statement, ...]
    outputs: tuple[int, ...]
    argnums: Argnums
    tolerance: float

    def __call__(self, *inputs: Tensor) -> Any:
        """Call the function."""
        return self.function(*inputs)

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The function itself."""
        scope: dict[str, Any] = dict(self.captured)
        exec(f"{IMPORTS}\n{self.definition}", scope)
        f: Callable[..., Any] = scope["f"]
        return f

    @cached_property
    def definition(self) -> str:
        """The text of the function."""
        names = self._names()
        lines = [
            line
            for each in self.statements
            for line in each.text.format(*map(names.get, each.operands), out=names[each.out]).split("\n")
        ]
        arguments = [names[number] for number in range(len(self.inputs))]
        returned = ", ".join(names[number] for number in self.outputs)
        return "\n    ".join([f"def f({', '.join(arguments)}):", *lines, f"return {returned}"])

    def _names(self) -> dict[int, str]:
        count = len(self.inputs)
        results = {statement.out: f"v{place}" for place, statement in enumerate(self.statements)}
        return {**{number: f"x{number}" for number in range(count)}, **results}

    def source(self, **options: Any) -> str:
        """Return the program as lines to be run, with a call of hod.

        Args:
            options: What hod is called with, beside argnums.
        """
        named = [(f"x{number}", tensor) for number, tensor in enumerate(self.inputs)]
        settings = ", ".join(f"{name}={value!r}" for name, value in {"argnums": self.argnums, **options}.items())
        arguments = ", ".join(name for name, _ in named)
        return "\n".join(
            [
                *IMPORTS.split("\n"),
                "import hofunc\n",
                *(f"{name} = {literal(tensor)}" for name, tensor in [*named, *self.captured.items()]),
                f"\n{self.definition}\n",
                f"print(hofunc.hod(f, {settings})({arguments}))",
            ]
        )

    def __repr__(self) -> str:
        return self.source(order=2)

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        """Print the program in the report of hypothesis, which would print what it was made of."""
        printer.text("\n" + repr(self) + "\n")

    def to(self, *target: Any) -> "Program":
        """Return the program with its tensors on another device, or of another dtype."""
        captured = {
            name: tensor.to(*target) if tensor.is_floating_point() else tensor.to(self.inputs[0].to(*target).device)
            for name, tensor in self.captured.items()
        }
        return replace(self, inputs=tuple(tensor.to(*target) for tensor in self.inputs), captured=captured)

    def rows(self) -> Iterator[str]:
        """Yield the row of every statement."""
        return (statement.row for statement in self.statements)

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield the rows of every two statements of which the second takes the result of the first."""
        makers = {statement.out: statement.row for statement in self.statements}
        for statement in self.statements:
            yield from ((makers[number], statement.row) for number in set(statement.operands) if number in makers)


def literal(tensor: Tensor) -> str:
    """Write a tensor as an expression."""
    dtype = "" if tensor.dtype == torch.int64 else f", dtype={tensor.dtype}"
    return f"torch.tensor({tensor.tolist()}{dtype})"


def alive(statements: Sequence[Statement], outputs: Sequence[int]) -> tuple[Statement, ...]:
    """Return the statements that the outputs depend on."""
    needed = set(outputs)
    kept: list[Statement] = []
    for statement in reversed(statements):
        if statement.out in needed:
            kept.append(statement)
            needed.update(statement.operands)
    return tuple(reversed(kept))
