"""Running a program: its steps as one generated Python function of plain calls."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from hofunc.graph.identity import PLAIN
from hofunc.graph.node import Call, Ref
from hofunc.graph.standin import in_transform
from hofunc.graph.tape import is_recording
from hofunc.internals import DisableTorchFunctionSubclass, has_forward_level
from hofunc.plan.blueprint import Blueprint
from hofunc.plan.chunks import Chunks, joint_of
from hofunc.plan.program import Program, Register

Runner = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


def runner(plan: Blueprint) -> Runner:
    """Return a function from the values of the recorded nodes to the results of a plan."""
    return compiled(plan.program) if plan.chunks is None else in_chunks(plan.chunks)


def in_chunks(chunks: Chunks) -> Runner:
    """Return a function that runs the parts of a program; what runs before the body may return more than it takes.

    What chunks return is written into tensors for all rows. Where something else follows what is computed, it is laid
    together once all are there, which takes memory twice.
    """
    before, after = compiled(chunks.before), compiled(chunks.after, takes_over=True)
    bodies = {size: compiled(body) for size, body in chunks.bodies.items()}
    needed = {given.origin for given in chunks.after.given.values()}

    def parts(held: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
        start = 0
        for size in chunks.sizes:
            yield bodies[size](
                [t if dim is None else t.narrow(dim, start, size) for t, dim in zip(held, chunks.dims, strict=False)]
            )
            start += size

    def run(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        held = before(values)
        joint = (_laid_together if _is_followed(held) else _written)(chunks, parts(held))
        taken: list[Any] = [*joint, *held]
        del held, joint
        for place in range(len(taken)):
            if place not in needed:
                taken[place] = None
        return after(taken)

    return run


def _is_followed(tensors: Sequence[torch.Tensor]) -> bool:
    """Tell whether autograd, a transform of torch.func or another recording follows what is done with tensors."""
    return (
        in_transform()
        or has_forward_level()
        or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
        or is_recording()
    )


def _laid_together(chunks: Chunks, parts: Iterator[list[torch.Tensor]]) -> list[torch.Tensor]:
    return [torch.cat(pieces, dim) for *pieces, dim in zip(*parts, chunks.joints, strict=True)]


def _written(chunks: Chunks, parts: Iterator[list[torch.Tensor]]) -> list[torch.Tensor]:
    """Write what every chunk returns to its place, and hold it no longer."""
    joint: list[torch.Tensor] = []
    rows, start = sum(chunks.sizes), 0
    for size in chunks.sizes:
        part = next(parts)
        joint = joint or [joint_of(piece, dim, size, rows) for piece, dim in zip(part, chunks.joints, strict=True)]
        while part:
            dim, place = chunks.joints[len(part) - 1], joint[len(part) - 1]
            piece = part.pop()
            each = piece.shape[dim] // size
            place.narrow(dim, start * each, size * each).copy_(piece)
            del piece
        start += size
    return joint


def compiled(program: Program, *, takes_over: bool = False) -> Runner:
    """Return a function from the values of the recorded nodes to the program's outputs.

    Registers become local variables, deleted after their last use, and everything else that a step takes becomes a
    name of the function's namespace, so that a call costs no more than if it had been written by hand.

    Args:
        program: The program.
        takes_over: Whether the list of values is emptied, so that nothing holds them beyond their last use.
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
    if takes_over:
        lines.append("values.clear()")
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
        with DisableTorchFunctionSubclass():
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
