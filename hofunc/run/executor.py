"""Running a program: its steps as one generated Python function of plain calls."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hofunc.graph.identity import PLAIN
from hofunc.graph.node import Call, Ref
from hofunc.plan.blueprint import Blueprint
from hofunc.plan.chunks import Chunks
from hofunc.plan.program import Program, Register

Runner = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


def runner(plan: Blueprint) -> Runner:
    """Return a function from the values of the recorded nodes to the results of a plan."""
    return compiled(plan.program) if plan.chunks is None else in_chunks(plan.chunks)


def in_chunks(chunks: Chunks) -> Runner:
    """Return a function that runs the parts of a program; what runs before the body may return more than it takes."""
    before, after = compiled(chunks.before), compiled(chunks.after)
    bodies = {size: compiled(body) for size, body in chunks.bodies.items()}

    def run(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        held, parts, start = before(values), [], 0
        for size in chunks.sizes:
            rows = [t if dim is None else t.narrow(dim, start, size) for t, dim in zip(held, chunks.dims, strict=False)]
            parts.append(bodies[size](rows))
            start += size
        joint = [torch.cat(pieces, dim) for *pieces, dim in zip(*parts, chunks.joints, strict=True)]
        return after([*joint, *held])

    return run


def compiled(program: Program) -> Runner:
    """Return a function from the values of the recorded nodes to the program's outputs.

    Registers become local variables, deleted after their last use, and everything else that a step takes becomes a
    name of the function's namespace, so that a call costs no more than if it had been written by hand.
    """
    names: dict[str, Any] = {}

    def name(value: Any) -> str:
        if isinstance(value, bool | int | type(None)):
            return repr(value)
        names[f"c{len(names)}"] = value
        return f"c{len(names) - 1}"

    lines = [
        f"r{register} = " + (name(origin) if isinstance(origin, torch.Tensor) else f"values[{origin}]")
        for register, (origin, *_) in program.given.items()
    ]
    for step, freed in zip(program.steps, program.frees, strict=True):
        lines.append(f"r{step.target} = {_expression(step.function, step.args, name)}")
        if freed:
            lines.append("del " + ", ".join(f"r{register}" for register in freed))
    lines.append("return [" + ", ".join(f"r{register}" for register in program.outputs) + "]")
    source = "def run(values):\n    " + "\n    ".join(lines)
    exec(compile(source, f"{__file__}:program", "exec"), names)  # noqa: S102 - the source is built here, from numbers
    held = (origin for origin, *_ in program.given.values() if isinstance(origin, torch.Tensor))
    return names["run"] if all(type(tensor) in PLAIN for tensor in held) else _with_plain_ops(names["run"])


def _with_plain_ops(run: Runner) -> Runner:
    """Return a function that runs with torch's own ops, and not those of the subclasses of tensors that it holds."""

    def run_plainly(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with torch._C.DisableTorchFunctionSubclass():
            return run(values)

    return run_plainly


def _expression(function: Callable | Call, args: tuple, name: Callable[[Any], str]) -> str:
    if not isinstance(function, Call):
        return f"{name(function)}({', '.join(_argument(arg, name) for arg in args)})"
    registers = iter(args)
    positional = [_template(arg, registers, name) for arg in function.args]
    keywords = [f"{key}={_template(arg, registers, name)}" for key, arg in function.kwargs]
    return f"{name(function.op)}({', '.join(positional + keywords)})"


def _argument(arg: Any, name: Callable[[Any], str]) -> str:
    return f"r{arg.index}" if isinstance(arg, Register) else name(arg)


def _template(arg: Any, registers: Any, name: Callable[[Any], str]) -> str:
    """Write an argument of a call, with the next register for every Ref."""
    if type(arg) is Ref:
        return f"r{next(registers).index}"
    if type(arg) is tuple:
        return "(" + "".join(_template(item, registers, name) + ", " for item in arg) + ")"
    return name(arg)
