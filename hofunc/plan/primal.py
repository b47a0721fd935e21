"""The primal as steps of a program, so that a function and its derivatives are one straight line."""

from collections.abc import Callable, Mapping, Sequence
from operator import getitem
from typing import Any, NamedTuple

import torch

from hofunc.errors import BranchError, PlanMismatchError
from hofunc.graph.draws import draws
from hofunc.graph.layout import COMPUTED_AGAIN, as_pairs
from hofunc.graph.node import Call, Graph, Node, Ref, call_of, fill, refs
from hofunc.graph.quick import QUICK
from hofunc.graph.reads import identical
from hofunc.internals import OpOverload
from hofunc.plan.chunks import Chunks
from hofunc.plan.operators import zeros
from hofunc.plan.program import Given, Program, Register, Step, finished, with_order
from hofunc.rules.lower import read_by

aten = torch.ops.aten

_VIEWS = (
    aten._unsafe_view.default,
    aten.expand.default,
    aten.permute.default,
    aten.select.int,
    aten.squeeze.dim,
    aten.t.default,
    aten.transpose.int,
    aten.unsqueeze.default,
    aten.view.default,
)


_FEW = 6  # numbers that an error shows


class PartsOf(NamedTuple):
    """What a program takes where it is the real and imaginary parts of the complex tensor with a number."""

    number: int


Source = int | torch.Tensor | PartsOf


class Whole:
    """Completes a program, which starts from the values of a recorded graph, by the steps that compute these.

    Args:
        program: The program.
        graph: The recorded graph.
        sources: What each of the graph's inputs and constants is: the number of a tensor that the whole takes, or the
            parts of that, or a tensor.

    Attributes:
        outputs: The registers of the program's outputs.
        owners: By the register that a step of the completed program computes, the recorded node for which it does.
    """

    def __init__(self, program: Program, graph: Graph, sources: Mapping[int, Source]):
        self._graph, self._sources = graph, sources
        self._given = {r: given for r, given in program.given.items() if not isinstance(given.origin, int)}
        self._shapes = dict(program.shapes)
        self._count = max([*program.given, *(step.target for step in program.steps)], default=-1) + 1
        self._values: dict[int, Register] = {}
        same: dict[int, Register] = {}  # where two registers of the program hold one value, the first
        for register, given in program.given.items():
            if isinstance(given.origin, int):
                same[register] = self._values.setdefault(given.origin, Register(register))
        self._steps = [
            step._replace(args=tuple(same.get(a.index, a) if isinstance(a, Register) else a for a in step.args))
            for step in program.steps
        ]
        self._arranging: list[Step] = []
        self._guards: list[Register] = []
        self.outputs = [same.get(register, Register(register)) for register in program.outputs]
        self.owners: dict[int, int] = {}

    def value(self, number: int) -> Register:
        """Return the register of a recorded node's value."""
        if number not in self._values:
            self._values[number] = self._new()
        return self._values[number]

    def emit(self, function: Callable | Call, *args: Any) -> Register:
        """Append a step that arranges results."""
        register = self._new()
        self._arranging.append(Step(register.index, function, args))
        if function is zeros:
            shape, dtype, _ = args
            self._shapes[register.index] = shape, dtype
        return register

    def guard(self, call: Call, operands: Sequence[int], value: Any) -> None:
        """Let the program raise, before it does anything else, unless a call on recorded nodes returns the value."""
        registers = [self.value(operand) for operand in operands]
        check = Call(Guard(_placed(call), value), tuple(map(Ref, range(len(registers)))))
        self._guards.append(self.emit(check, *registers))

    def program(self, outputs: Sequence[Register]) -> Program:
        """Return the program that takes tensors and returns the outputs, without steps that they do not need."""
        return finished(self._given, self._shapes, self._every(), outputs, self._guards)

    def in_turn(self, outputs: Sequence[Register]) -> Program:
        """Return what `program` does, the function first and then the steps of the program that it completes.

        These were put in an order in which they hold little, which may not be found again.
        """
        every = self._every()
        program = finished(self._given, self._shapes, every, outputs, self._guards)
        return with_order(program, every, self._guards)

    def _every(self) -> list[Step]:
        """Return all steps, those of the function first."""
        steps = (*self._primal(), *self._steps, *self._arranging)
        return [checked for step in steps for checked in self._checked(step)]

    def around(self, chunks: Chunks, outputs: Sequence[Register]) -> Chunks:
        """Return the chunks of the program between what takes tensors and what returns the outputs.

        What runs before them returns, after what they take, the values that are needed after them.
        """
        first = Whole(chunks.before, self._graph, self._sources)
        passed = list(first.outputs)
        count = sum(len(body.joints) for body in chunks.bodies)
        given = dict(chunks.after.given)
        numbers = {register.index: number for number, register in self._values.items()}
        reads = [arg for step in self._arranging for arg in step.args if isinstance(arg, Register)]
        for register in (*reads, *outputs):
            number = numbers.get(register.index)
            if number is not None and register.index not in given:
                node = self._graph.nodes[number]
                given[register.index] = Given(count + len(passed), tuple(node.shape), node.dtype)
                passed.append(first.value(number))
        shapes = {**self._shapes, **chunks.after.shapes}
        after = finished(given, shapes, [*chunks.after.steps, *self._arranging], outputs, self._guards)
        return chunks._replace(before=first.program(passed), after=after)

    def _new(self) -> Register:
        self._count += 1
        return Register(self._count - 1)

    def _primal(self) -> list[Step]:
        """Return the steps that compute the values asked for, and draw random numbers, in the order of the graph."""
        needed = set(self._values)
        for node in reversed(self._graph.nodes):
            if node.number in needed or draws(node):
                needed.add(node.number)
                needed.update(node.operands)
        steps: list[Step] = []
        latest: tuple[Call | None, int, Register | None] = (None, 0, None)
        for node in self._graph.nodes:
            if node.number not in needed:
                continue
            target = self.value(node.number)
            if node.is_given:
                steps += self._taken(target, node)
                continue
            self._shapes[target.index] = (tuple(node.shape), node.dtype)
            self.owners[target.index] = node.number
            call, operands = call_of(node), tuple(self.value(operand) for operand in node.operands)
            if node.output is None:
                steps.append(self._step(target, node, call, operands))
                continue
            call_before, output_before, several = latest
            if several is None or call_before != call or output_before >= node.output:
                several = self._new()
                self.owners[several.index] = node.number
                again = call._replace(op=COMPUTED_AGAIN.get(call.op, call.op))
                steps.append(Step(several.index, _placed(again), operands))
            latest = call, node.output, several
            steps.append(Step(target.index, getitem, (several, node.output)))
        return steps

    def _taken(self, target: Register, node: Node) -> list[Step]:
        """Note what a node that is given stands for; returns the steps that make it of that."""
        source, shape = self._sources[node.number], tuple(node.shape)
        if not isinstance(source, PartsOf):
            self._given[target.index] = Given(source, shape, node.dtype)
            return []
        whole = self._new()
        self._given[whole.index] = Given(source.number, shape[:-1], node.dtype.to_complex())
        return [Step(target.index, as_pairs, (whole,))]

    def _step(self, target: Register, node: Node, call: Call, operands: tuple[Register, ...]) -> Step:
        quick = COMPUTED_AGAIN.get(node.op) or QUICK.get(node.op)
        if quick is None or node.kwargs:
            return Step(target.index, _placed(call), operands)
        supply = iter(operands)
        args = tuple(next(supply) if type(arg) is Ref else arg for arg in node.args)
        if node.op in _VIEWS:
            del self._shapes[target.index]  # so that its cost is that of a view
        return Step(target.index, quick, args)

    def _checked(self, step: Step) -> list[Step]:
        """Return a step, and one that checks the shape of what it returns where that depends on values."""
        call = step.function
        if not isinstance(call, Call) or not isinstance(call.op, OpOverload) or step.target not in self._shapes:
            return [step]
        if not self._has_dynamic_shape(step, call.op):
            return [step]
        unchecked = self._new()
        if step.target in self.owners:
            self.owners[unchecked.index] = self.owners[step.target]
        shape, _ = self._shapes[unchecked.index] = self._shapes[step.target]
        return [step._replace(target=unchecked.index), Step(step.target, same_shape, (unchecked, shape, str(call.op)))]

    def _has_dynamic_shape(self, step: Step, op: OpOverload) -> bool:
        """Tell whether values decide the shape of what an op returns; an index does so only if it is a mask."""
        if op is not aten.index.Tensor:
            return torch.Tag.dynamic_output_shape in op.tags
        given = {register: given.dtype for register, given in self._given.items()}
        dtypes = {register: dtype for register, (_, dtype) in self._shapes.items()} | given
        return any(dtypes.get(arg.index) in {torch.bool, torch.uint8} for arg in step.args[1:])


def _placed(call: Call) -> Call:
    """Return a call whose Refs name its operands by place."""
    args, kwargs = fill(
        (call.args, call.kwargs), (Ref(place) for place, _ in enumerate(refs((call.args, call.kwargs))))
    )
    return Call(call.op, args, kwargs)


class Guard:
    """Raises unless a call returns the value that it returned when the plan was made.

    Args:
        call: The call, which takes tensors and returns a number or truth value.
        value: The value.
    """

    def __init__(self, call: Call, value: Any):
        self.call, self.value = call, value
        self.__name__ = f"check {read_by(call)}"

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Call it.

        Raises:
            PlanMismatchError: It returns another value.
            BranchError: A tensor is a batch under vmap, so that there is no one value.
        """
        try:
            got = self.call(*tensors)
            same = identical(got, self.value)
        except RuntimeError as error:
            raise BranchError(
                "hofunc: a plan of a function that reads values of tensors",
                got=f"a batch of them under vmap, for {read_by(self.call)}",
                expected="one value",
                remedy="Call the plan outside of vmap, or use torch.where in place of a branch.",
            ) from error
        if not same:
            raise PlanMismatchError(
                "hofunc: a plan of a function that reads values of tensors",
                got=f"{_shown(got)} from {read_by(self.call)}",
                expected=f"{_shown(self.value)}, as planned",
                remedy="Make another plan for these values, or call the transform itself, which records them anew.",
            )


def guard_of(step: Step) -> Guard | None:
    """Return the guard that is a step of a program, None if the step is another one."""
    call = step.function
    return call.op if isinstance(call, Call) and isinstance(call.op, Guard) else None


def _shown(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"{value.tolist()}" if value.numel() <= _FEW else f"a tensor of shape {tuple(value.shape)} of other numbers"


def same_shape(tensor: torch.Tensor, shape: tuple[int, ...], op: str) -> torch.Tensor:
    """Return a tensor whose shape depends on values, if it is the one that was planned for.

    Raises:
        PlanMismatchError: It is not.
    """
    if tensor.shape != shape:
        raise PlanMismatchError(
            f"hofunc: a plan of a function in which values decide a shape, that of {op}",
            got=f"shape {tuple(tensor.shape)}",
            expected=f"shape {tuple(shape)}, as planned",
            remedy="Make another plan for these values, or call the transform itself.",
        )
    return tensor
