"""Late: what is soon computed comes after what takes many steps, and right before it is read, so that less is held."""

from collections import defaultdict
from typing import Any

from hofunc.plan.adding import added_in_pieces
from hofunc.plan.lookups import products_added
from hofunc.plan.memory import memory_of
from hofunc.plan.order import is_first
from hofunc.plan.program import Program, Register, depth_first, frees_of
from hofunc.plan.tracing import Trace

_ONTO = (added_in_pieces, products_added)  # what adds to what one before has made, which may be written over

_Place = tuple[int, int]  # before which of the steps, and how many others are put off to there after it, negative


def deepest_first(program: Program, trace: Trace) -> tuple[Program, Trace]:
    """Return a program and its trace in which of the arguments of a step those come first that take most steps.

    What draws random numbers or checks something stays in its order, before all else.

    Args:
        program: The program.
        trace: What its registers hold.
    """
    makers = {step.target: step for step in program.steps}
    depths = dict.fromkeys(program.given, 0)
    for step in program.steps:
        depths[step.target] = 1 + max((depths[a.index] for a in step.args if type(a) is Register), default=0)
    effects = {step.target: effect for step, effect in zip(program.steps, trace.effects, strict=True)}
    first = [step.target for step in program.steps if is_first(step, effects[step.target])]
    steps = tuple(depth_first(makers, [*first, *program.outputs], depths))
    if len(steps) < len(program.steps):
        return program, trace
    other = program._replace(steps=steps, frees=frees_of(steps, program.outputs)[0])
    return other, Trace(trace.values, [effects[step.target] for step in steps], trace.known)


def put_off(program: Program, trace: Trace) -> tuple[Program, Trace]:
    """Return a program and its trace in which steps run as late as they can that take more memory than they give up.

    What a step takes is held until it runs, so that it stays where it is if that is more than what it makes.

    Args:
        program: The program.
        trace: What its registers hold.
    """
    memories = {register: memory_of(value) for register, value in trace.values.items()}
    own = [*range(len(program.steps))]
    places: list[_Place] = [(place, 0) for place in own]
    end = (len(own), 0)
    first: dict[int, _Place] = {}  # reader of a register, of those that are looked at already
    last: dict[Any, _Place] = defaultdict(lambda: (-1, 0))  # reader of a memory
    for register in program.outputs:
        last |= dict.fromkeys(memories[register], end)
    for register in program.given:
        last |= dict.fromkeys(memories[register], end)  # others hold it as well
    for number in reversed(own):
        step, effect = program.steps[number], trace.effects[number]
        reads = {arg.index for arg in step.args if type(arg) is Register}
        taken = {name: size for register in reads for name, size in memories[register].items()}
        reader = first.get(step.target)
        if reader is not None and reader[0] > number and effect.result is not None and not is_first(step, effect):
            goes_on = step.function in _ONTO and type(step.args[0]) is Register
            total = memories[step.args[0].index] if goes_on else {}  # which is put off too
            made = sum(size for name, size in memories[step.target].items() if name not in taken)
            kept = sum(size for name, size in taken.items() if last[name] < reader and name not in total)
            if made > kept or not (made or kept):  # a view, which would hold back what it is a view of
                places[number] = (reader[0], reader[1] - 1)
        for register in reads:
            first[register] = min(first.get(register, places[number]), places[number])
        for name in taken:
            last[name] = max(last[name], places[number])
    order = sorted(own, key=lambda number: (*places[number], number))
    if order == own:
        return program, trace
    steps = tuple([program.steps[number] for number in order])
    other = program._replace(steps=steps, frees=frees_of(steps, program.outputs)[0])
    return other, Trace(trace.values, [trace.effects[number] for number in order], trace.known)
