"""Tensors that are made anew: large ones that take no time to make are not held from one step to a later one."""

from collections.abc import Collection

from hofunc.plan.known import Known
from hofunc.plan.memory import Held
from hofunc.plan.program import Program, Register, Step
from hofunc.plan.slicing import VIEWS, is_cheap
from hofunc.plan.tracing import Trace


def with_remade(known: Known, register: int, later: Collection[int]) -> tuple[Program, Trace] | None:
    """Return a program and its trace in which a tensor is made anew for those who take it later.

    Args:
        known: The program.
        register: The register for which it is allocated.
        later: The registers that are computed later.

    Returns:
        Both; None if it takes long to make, or if nobody or everybody takes it later.
    """
    step, held = known.makers.get(register), known.looks.get(register)
    if step is None or type(held) is not Held or not is_cheap(step.function) or step.function in VIEWS:
        return None
    memory = {*held.memory}
    views = [each for each in known.program.steps if _views(known, each, memory)]
    inside = {register, *(view.target for view in views)}
    users = {user.target for one in inside for user in known.users[one] if user is not None} - inside
    late = users & {*later}
    if not late or late == users or any(None in known.users[one] for one in inside):
        return None
    anew = {one: known.fresh + place for place, one in enumerate(sorted(inside))}
    copies = [step, *views]
    steps = [_renamed(each, anew)._replace(target=anew[each.target]) for each in copies]
    steps += [_renamed(known.makers[target], anew) for target in late]
    return known.changed({each.target: each for each in steps})


def _views(known: Known, step: Step, memory: set) -> bool:
    """Tell whether a step returns a view of some memory."""
    held = known.looks[step.target]
    if step.function not in VIEWS or type(held) is not Held:
        return False
    return not memory.isdisjoint(held.memory)


def _renamed(step: Step, names: dict[int, int]) -> Step:
    """Return a step that takes other registers in place of some."""
    args = tuple([Register(names.get(a.index, a.index)) if type(a) is Register else a for a in step.args])
    return step._replace(args=args)


def computed_after(known: Known, order: Program, place: int) -> set[int]:
    """Return the registers that are computed after a step of a program that does the same in another order.

    What that computes as part of another step is computed with the first that takes it.
    """
    places = {step.target: number for number, step in enumerate(order.steps)}
    for step in reversed(known.program.steps):
        if step.target not in places:
            users = (places[user.target] for user in known.users[step.target] if user is not None)
            places[step.target] = min(users, default=len(order.steps))
    return {target for target, number in places.items() if number > place}
