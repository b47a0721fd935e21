"""Programs: straight lines of torch calls over registers, and the order in which they run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from hofunc.graph.draws import draws
from hofunc.graph.node import Call, Graph
from hofunc.plan.places import Integers
from hofunc.plan.tables import required
from hofunc.words import op_name


class Register:
    """Names a tensor that a program computes or is given; equal only to itself."""

    __slots__ = ("index",)

    def __init__(self, index: int):
        self.index = index

    def __repr__(self) -> str:
        return f"r{self.index}"


@dataclass(frozen=True, slots=True)
class AsStep:
    """The op of a node that is computed by the step of a program, as it was there.

    Attributes:
        function: That of the step; the arguments of the node are those of the step, with Refs.
    """

    function: Callable

    @property
    def __name__(self) -> str:
        """What the function is called."""
        return op_name(self.function)

    def __call__(self, *args: Any) -> Any:
        """Call the function."""
        return self.function(*args)


class Step(NamedTuple):
    """``registers[target] = function(*args)``, with Registers among the args."""

    target: int
    function: Callable | Call
    args: tuple


class Table(NamedTuple):
    """A vector of numbers that is not made before its plan is taken.

    Attributes:
        numbers: The numbers.
        dtype: Their dtype.
        device: Where it is to be.
    """

    numbers: tuple[float, ...] | Integers
    dtype: torch.dtype
    device: torch.device

    @property
    def nbytes(self) -> int:
        """How many bytes it takes."""
        return len(self.numbers) * self.dtype.itemsize

    def made(self) -> torch.Tensor:
        """Return the vector."""
        if not isinstance(self.numbers, tuple):
            return self.numbers.made().to(self.device, self.dtype)
        return torch.tensor(self.numbers, dtype=self.dtype, device=self.device)


class Given(NamedTuple):
    """What a register that is given holds: the value of a recorded node, by its number, or a constant of the plan."""

    origin: int | torch.Tensor | Table
    shape: tuple[int, ...]
    dtype: torch.dtype


class Program(NamedTuple):
    """Steps in order of execution.

    Attributes:
        given: What every register holds that no step computes.
        shapes: Shape and dtype of what rules compute: values of nodes, derivatives of ops, maps that are applied. Those
            of the others follow from what they are called with.
        steps: What to compute.
        frees: After each step, the registers that no later step reads.
        outputs: The registers that hold the results.
        over: The targets of steps that may write over what they take, each with the place of the argument.
        joined: The targets of sums that may be one call with the product that the step before computes for them alone.
    """

    given: dict[int, Given]
    shapes: dict[int, tuple[tuple[int, ...], torch.dtype]]
    steps: tuple[Step, ...]
    frees: tuple[tuple[int, ...], ...]
    outputs: tuple[int, ...]
    over: tuple[tuple[int, int], ...] = ()
    joined: tuple[int, ...] = ()


def device_of(graph: Graph) -> torch.device:
    """Return the device of the first input of a graph."""
    return (graph.inputs and graph.nodes[graph.inputs[0]].device) or torch.device("cpu")


def is_on_one_device(graph: Graph) -> bool:
    """Tell whether all that is given to a graph is on one device."""
    return len({node.device for node in graph.nodes if node.is_given}) <= 1


def finished(
    given: Mapping[int, Given],
    shapes: Mapping[int, tuple[tuple[int, ...], torch.dtype]],
    steps: Sequence[Step],
    outputs: Sequence[Register],
    checks: Sequence[Register] = (),
) -> Program:
    """Return the program that computes the outputs, without steps that neither they nor the checks need.

    A step comes right before the first that takes its result, so that little is held at once; but what draws random
    numbers comes first, in the order given, needed or not, as what is drawn later depends on it. Then come the checks,
    those among the steps too, so that what they refuse costs little.
    """
    makers, wanted = {step.target: step for step in steps}, [register.index for register in outputs]
    kept = depth_first(makers, [*_first(steps, checks), *wanted])
    frees, live = frees_of(kept, wanted)
    return Program(
        {register: origin for register, origin in given.items() if register in live},
        {register: shape for register, shape in shapes.items() if register in live},
        tuple(kept),
        frees,
        tuple(wanted),
    )


def with_order(program: Program, steps: Sequence[Step], checks: Sequence[Register] = ()) -> Program:
    """Return a finished program with its steps in another order, in which all come after what they take.

    Args:
        program: The program.
        steps: Its steps in that order, but for what comes first; others are left out.
        checks: The checks that it was finished with.
    """
    first = depth_first({step.target: step for step in steps}, _first(steps, checks))
    done, needed = {step.target for step in first}, {step.target for step in program.steps}
    order = (*first, *(step for step in steps if step.target in needed - done))
    return program._replace(steps=order, frees=frees_of(order, program.outputs)[0])


def _first(steps: Sequence[Step], checks: Sequence[Register]) -> list[int]:
    """Return the targets of what comes first: what draws random numbers, and checks."""
    drawn = [step.target for step in steps if is_drawn(step)]
    own = [step.target for step in steps if is_check(step)]
    return [*drawn, *(register.index for register in checks), *own]


def frees_of(steps: Sequence[Step], outputs: Sequence[int]) -> tuple[tuple[tuple[int, ...], ...], set[int]]:
    """Return the registers that no later step reads after each step, and all registers that are read or returned."""
    live = set(outputs)
    frees: list[tuple[int, ...]] = []
    for step in reversed(steps):
        reads = {arg.index for arg in step.args if type(arg) is Register}
        dead = reads - live
        frees.append(tuple(sorted(dead)))
        live |= dead
    return tuple(reversed(frees)), live


def is_check(step: Step) -> bool:
    """Tell whether a step checks a fact about indices."""
    return isinstance(step.function, Call) and step.function.op is required


def is_drawn(step: Step) -> bool:
    """Tell whether a step draws random numbers."""
    return isinstance(step.function, Call) and draws(step.function)


def depth_first(
    makers: Mapping[int, Step], outputs: Sequence[int], depths: Mapping[int, int] | None = None
) -> list[Step]:
    """Return the steps that outputs need, those of each argument together and before the step that takes it.

    Args:
        makers: The step that computes each register.
        outputs: The registers.
        depths: How deep each lies, of which the deepest come first among the arguments of a step; in order if left out.
    """
    order: list[Step] = []
    seen: set[int] = set()
    waiting: list[int | Step] = [*reversed(outputs)]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Step):  # whose arguments are there
            order.append(item)
        elif item in makers and item not in seen:
            seen.add(item)
            step = makers[item]
            waiting.append(step)
            taken: list[int] = [a.index for a in reversed(step.args) if type(a) is Register and a.index not in seen]
            if depths is not None:
                taken.sort(key=depths.__getitem__)
            waiting += taken
    return order
