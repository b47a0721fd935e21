"""Running a program: its steps as one generated Python function of plain calls."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import torch

from hofunc.errors import InternalError
from hofunc.graph.identity import PLAIN
from hofunc.graph.node import Call, Ref
from hofunc.graph.quick import QUICK
from hofunc.internals import DisableTorchFunctionSubclass
from hofunc.plan.constants import with_tables
from hofunc.plan.program import Program, Register, Step
from hofunc.plan.reuse import WRITING, Sum, joined_sum, may_write
from hofunc.run.multiply import PRODUCTS, chosen, is_seen

Runner = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]

MANY = 500  # steps, from which on it is told how often a program is called before it is compiled:
OFTEN = 3  # times; it pays after 6 to 16, but what is called three times is called more often, as a rule


def compiled(program: Program, *, takes_over: bool = False) -> Runner:
    """Return a function from the values of the recorded nodes to the program's outputs.

    Registers become local variables, and everything else that a step takes becomes a name of the function's namespace,
    so that a call costs no more than if it had been written by hand. What a register holds is given up after its last
    use: its variable is deleted, or has the result of the step instead.

    Args:
        program: The program.
        takes_over: Whether the list of values is emptied, so that nothing holds them beyond their last use.
    """
    program = with_tables(program)
    names, variables, over = _Names(), _Variables(), dict(program.over)
    lines = [
        f"{variables.new(register)} = " + (names[origin] if isinstance(origin, torch.Tensor) else f"values[{origin}]")
        for register, (origin, *_) in program.given.items()
    ]
    multiplies = any(_function(step) in PRODUCTS for step in program.steps)
    if over or multiplies:
        lines.append(f"writes = {names[may_write]}({', '.join(variables[register] for register in program.given)})")
    if multiplies:
        lines.append(f"quick = writes and not {names[is_seen]}()")
    if takes_over:
        lines.append("values.clear()")
    for product, step, freed in _in_turn(program):
        if product is not None:
            expression = _sum(product, step, over.get(step.target), names, variables)
        else:
            expression = _expression(step, names, variables)
            if step.target in over:
                expression = f"{_writing(step, over[step.target], names, variables)} if writes else {expression}"
        dead = variables.freed(freed)
        lines.append(f"{variables.new(step.target)} = {expression}")
        if dead:
            lines.append("del " + ", ".join(dead))
            variables.idle += dead
    lines.append("return [" + ", ".join(variables[register] for register in program.outputs) + "]")
    source = "def run(values):\n " + "\n ".join(lines)
    namespace = names.namespace
    exec(compile(source, f"{__file__}:program", "exec"), namespace)  # noqa: S102 - the source is built here, of names
    return _plainly(program, namespace["run"])


def _in_turn(program: Program) -> Iterator[tuple[Step | None, Step, Sequence[int]]]:
    """Yield the steps as they are called, with the product that is part of a sum, and what is not read after."""
    joined, product = {*program.joined}, None
    before: Sequence[int] = ()
    following = [step.target for step in program.steps[1:]]
    for step, freed, after in zip_longest(program.steps, program.frees, following):
        if after in joined:
            product, before = step, freed
        elif product is None:
            yield None, step, freed
        else:
            yield product, step, [*before, *(register for register in freed if register != product.target)]
            product = None


class _Names:
    """Names of the namespace for what is no register, one for each object; small numbers are themselves.

    Attributes:
        namespace: The objects by their names.
    """

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {}
        self._known: dict[int, str] = {}

    def __getitem__(self, value: Any) -> str:
        if isinstance(value, bool | int | type(None)):
            return repr(value)
        name = self._known.setdefault(id(value), f"c{len(self._known)}")
        self.namespace[name] = value
        return name

    def of_product(self, function: Callable[..., torch.Tensor]) -> str:
        """Return a new name, of what multiplies matrices as a function does."""
        name = f"p{len(self.namespace)}"
        self.namespace[name] = chosen(self.namespace, name, function)
        return name


class _Variables:
    """Local variables for registers, each used again for another register after the last use of the first.

    Attributes:
        idle: Those that hold nothing.
    """

    def __init__(self) -> None:
        self.idle: list[str] = []
        self._names: dict[int, str] = {}
        self._count = 0

    def new(self, register: int) -> str:
        """Return the variable that is to hold a register."""
        if not self.idle:
            self.idle.append(f"r{self._count}")
            self._count += 1
        self._names[register] = self.idle.pop()
        return self._names[register]

    def __getitem__(self, register: int) -> str:
        return self._names[register]

    def freed(self, registers: Sequence[int]) -> list[str]:
        """Give the variables of registers up, of which the first is the next to be used; returns the others."""
        names = [self._names[register] for register in registers]
        self.idle += names[:1]
        return names[1:]


def _called(function: Callable[..., Any], args: Sequence[str], names: _Names) -> str:
    """Write a call; matrices are multiplied by what is the fastest, see `hofunc.run.multiply`, where nobody sees it."""
    usual = names[function]
    called = f"({names.of_product(function)} if quick else {usual})" if function in PRODUCTS else usual
    return f"{called}({', '.join(args)})"


def _function(step: Step) -> Callable[..., Any]:
    """Return what a step calls."""
    op = step.function.op if isinstance(step.function, Call) else step.function
    return QUICK.get(op, op)


def _expression(step: Step, names: _Names, variables: _Variables) -> str:
    if not isinstance(step.function, Call):
        return _called(step.function, _arguments(step, names, variables), names)
    registers = iter([variables[arg.index] for arg in step.args])
    positional = [_template(arg, registers, names) for arg in step.function.args]
    keywords = [f"{key}={_template(arg, registers, names)}" for key, arg in step.function.kwargs]
    if keywords:
        return f"{names[_function(step)]}({', '.join(positional + keywords)})"
    return _called(_function(step), positional, names)


def _writing(step: Step, place: int, names: _Names, variables: _Variables) -> str:
    """Write a step that writes over one of its arguments."""
    args = _arguments(step, names, variables)
    first, function = args.pop(place), WRITING[step.function]
    return f"{names[function]}({', '.join([first, *args])})"


def _sum(product: Step, step: Step, over: int | None, names: _Names, variables: _Variables) -> str:
    """Write a sum with the product of the step before it, which may write over a place."""
    found = _joined(product, step)
    other = variables[step.args[found.place].index]
    scaled = [f"{name}={names[value]}" for name, value in found.coefficient.items()]
    args = [other, *_arguments(product, names, variables), *scaled]
    if over != found.place:
        return f"{names[found.function]}({', '.join(args)})" if scaled else _called(found.function, args, names)
    return f"({names[found.writing]} if writes else {names[found.function]})({', '.join(args)})"


def _joined(product: Step, step: Step) -> Sum:
    found = joined_sum(product, step)
    if found is None:
        raise InternalError("hofunc.run: a sum that is one call", got=str(step), expected="a sum of the product before")
    return found


def _arguments(step: Step, names: _Names, variables: _Variables) -> list[str]:
    return [variables[arg.index] if isinstance(arg, Register) else names[arg] for arg in step.args]


def _template(arg: Any, registers: Iterator[str], names: _Names) -> str:
    """Write an argument of a call, with the next register for every Ref."""
    if type(arg) is Ref:
        return next(registers)
    if type(arg) is tuple:
        return "(" + "".join(_template(item, registers, names) + ", " for item in arg) + ")"
    return names[arg]


def interpreted(program: Program, *, takes_over: bool = False) -> Runner:
    """Return what `compiled` returns, which takes no time to make, and some 3 microseconds more to run each step."""

    def run(values: Any) -> list[torch.Tensor]:
        held = {r: origin if isinstance(origin, torch.Tensor) else values[origin] for r, (origin, *_) in given}
        writes = over if may_write(*held.values()) else {}
        if takes_over:
            values.clear()
        for product, step, freed in steps:
            target, function, given_args = step
            args = [held[arg.index] if type(arg) is Register else arg for arg in (product or step).args]
            if product is not None:
                found = _joined(product, step)
                is_over = writes.get(target) == found.place
                function = partial(found.writing if is_over else found.function, **found.coefficient)
                args.insert(0, held[given_args[found.place].index])
            elif target in writes:
                args.insert(0, args.pop(writes[target]))
                function = WRITING[function]
            held[target] = function(*args)
            del args
            for register in freed:
                del held[register]
        return [held[register] for register in program.outputs]

    program = with_tables(program)
    given, over, steps = program.given.items(), dict(program.over), [*_in_turn(program)]
    return _plainly(program, run)


def _plainly(program: Program, run: Runner) -> Runner:
    """Return a function that runs with torch's own ops, and not those of the subclasses of tensors that it holds."""
    held = (origin for origin, *_ in program.given.values() if isinstance(origin, torch.Tensor))
    if all(type(tensor) in PLAIN for tensor in held):
        return run

    def run_plainly(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with DisableTorchFunctionSubclass():
            return run(values)

    return run_plainly


def warming_up(program: Program, *, takes_over: bool = False) -> Runner:
    """Return what `compiled` returns, compiled at the call by which it is called often; fewer calls run sooner so."""
    run, calls = interpreted(program, takes_over=takes_over), 0

    def running(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        nonlocal run, calls
        calls += 1
        if calls == OFTEN:
            run = compiled(program, takes_over=takes_over)
        return run(values)

    return running
