"""Recording a function, with real values or with stand-ins."""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch.nn import Parameter

from hofunc.errors import HofuncError
from hofunc.graph import control as _control  # noqa: F401 - gives operators that take functions their meaning
from hofunc.graph import linearized as _linearized  # noqa: F401 - has linear functions recorded
from hofunc.graph import scripted as _scripted  # noqa: F401 - has scripts run op by op
from hofunc.graph.by_calls import calls_of, note_calls, recorded_by_calls, stood_in_by_calls
from hofunc.graph.call_notes import CallNotes
from hofunc.graph.calls import stop_if_expected
from hofunc.graph.draws import DrawsError, Undrawn, differs_by_row, drawn_again, draws
from hofunc.graph.functions import as_op
from hofunc.graph.identity import PLAIN, is_looked_on, lasting, plain, tensors_in, variable_of, variables_of
from hofunc.graph.lines import LineNotes, is_detecting, noting_lines
from hofunc.graph.node import CONSTANT
from hofunc.graph.picks import Picks
from hofunc.graph.purity import FunctionMet, check_claim, claims_of, refuse_function
from hofunc.graph.reads import Reads
from hofunc.graph.recording import Function, Recording, replay, replayed
from hofunc.graph.saving import unseen_hooks
from hofunc.graph.spots import Spots
from hofunc.graph.standin import Lift, in_transform, looks_of, outside_transforms, stand_in, wrappers_in
from hofunc.graph.storage import Made
from hofunc.graph.swaps import check_swap
from hofunc.graph.tape import Tape, is_recording
from hofunc.graph.trail import NOTHING, Trail
from hofunc.graph.values import Values
from hofunc.graph.walk import Walk
from hofunc.graph.world import without_autocast
from hofunc.internals import function_refused, has_forward_level, has_setup_context, tree_map, tree_map_only
from hofunc.options import records_forward, records_forwards
from hofunc.trees import tree_flatten

Result = TypeVar("Result")
# What errors say where the reason may be that autograd does not follow the inputs: those of torch, and of hofunc.
# The last is what layers of torch.nn make of a mask of padding in a kernel that they take for inputs without history.
_UNFOLLOWED = (
    "does not require grad",
    "doesn't require grad",
    "requires_grad=False",
    "a backward pass that autograd does not record",
    "got a nested tensor",
)


class NotFollowedError(Exception):
    """A function failed that had asked whether autograd follows its inputs, as it would under torch.func."""


def check_asked(error: Exception, *, asked: bool, follow: bool) -> None:
    """Tell that a function which failed may not do so on inputs that autograd follows.

    Args:
        error: How it did; what hofunc itself refuses it does not do for want of these.
        asked: Whether it asked.
        follow: Whether they were followed.

    Raises:
        NotFollowedError: It asked, and was told that they are not.
    """
    if asked and not follow and not isinstance(error, HofuncError):
        raise NotFollowedError


def made_recordable(recorded: Callable[[bool], Result], *, follow: bool = False) -> Result:
    """Return what is recorded of a function, again where it turns out that it has to be recorded otherwise.

    It may take gradients of its inputs by autograd, so that these have to be followed, or apply a custom Function.

    Args:
        recorded: Records it, on inputs that are followed or not.
        follow: Whether they are known to have to be.
    """
    met_before: set[Any] = set()
    while True:
        try:
            return recorded(follow)
        except FunctionMet as met:
            if met.function in met_before:
                refuse_function(met.function, met)
            if follow or has_setup_context(met.function):
                as_op(met.function)
                met_before.add(met.function)
            follow = follow or not has_setup_context(met.function)  # what f does may depend on it, as what that does
        except NotFollowedError:
            follow = True
        except RuntimeError as error:
            check_swap(error)
            if (function := function_refused(error)) is not None:
                if not records_forward(function):
                    refuse_function(function, error)
                as_op(function)
            elif follow or not any(text in str(error) for text in _UNFOLLOWED):
                raise
            else:
                follow = True


def record(
    f: Function,
    inputs: Sequence[torch.Tensor],
    others: Any = (),
    *,
    follow: bool = False,
    watch: bool = False,
    trail: Trail = NOTHING,
    bare: bool = False,
) -> Recording:
    """Call ``f(inputs, others)`` and record it.

    Args:
        f: Function of a list of tensors and of anything else.
        inputs: The tensors by which f is to be differentiated.
        others: A pytree that f also takes.
        follow: Whether autograd follows the inputs where f sees them, as under torch.func's transforms: for functions
            that ask for it, or take gradients by autograd themselves.
        watch: Whether to notice that f asks; under an outer transform that is noticed, and f called again, in any case.
        trail: What was recorded of f before, from which it may differ.
        bare: Whether the recording may be bare, see NOTE [bare] in `hofunc.graph.recording`.

    Raises:
        MutationError: f writes to an input or to a captured tensor.
        BranchError: f needs a single value of a tensor that vmap batches.
        UntracedError: f computes in a way that cannot be followed.
    """
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):  # in it, factories would detach in place what they have made
            inputs, others = [*map(lasting, inputs)], _with_lasting(others)
            return record(f, inputs, others, follow=follow, watch=watch, trail=trail, bare=bare)
    stop_if_expected()
    if not in_transform():
        return _record_values(f, inputs, others, follow, watch, trail, bare)
    tells = trail.are_known and torch.is_grad_enabled() and not (follow or is_detecting())
    if tells and not watch and (by_calls := stood_in_by_calls(f, inputs, others, trail)) is not None:
        return by_calls
    recording = _record_stand_ins(f, inputs, others, follow, trail, tells=tells)
    if recording.asked and not follow:
        recording = _record_stand_ins(f, inputs, others, True)
    _check_claims(recording)
    return recording


def may_go_by_calls() -> bool:
    """Tell whether a call may be recorded by the calls that were made before: nobody sees more of it than these."""
    return not (in_transform() or is_looked_on() or is_detecting() or torch.is_inference_mode_enabled())


def recorded_again(f: Function, inputs: Sequence[torch.Tensor], others: Any, trail: Trail) -> Recording | None:
    """Record a call, maybe bare, by the calls that were made before, where it may go by these; None if it makes others.

    Args:
        f: As of `record`.
        inputs: As there, like those of the trail.
        others: As there.
        trail: What was recorded before.
    """
    return recorded_by_calls(f, inputs, others, trail, bare=bool(trail.is_bare and torch.is_grad_enabled()))


def _with_lasting(others: Any) -> Any:
    """Return a pytree of such tensors; the same one, if it is of these."""
    is_lasting = not any(tensor.is_inference() for tensor in tensors_in(others))
    return others if is_lasting else tree_map_only(torch.Tensor, lasting, others)


def _recorded_bare(
    f: Function, inputs: Sequence[torch.Tensor], others: Any, trail: Trail, *, tells: bool
) -> Recording | None:
    """Record a call bare; None if that comes to another graph, or fails, or draws."""
    tape = Tape(trail)
    tape.generators = Undrawn()
    aliases = [tensor.detach() for tensor in inputs]
    tape.ledger.add_inputs(aliases)
    calls = CallNotes(aliases) if tells and trail.may_tell_calls() else None
    try:
        with unseen_hooks(), noting_lines() as notes, calls or nullcontext(), tape:
            result = f(tape.seen(aliases, inputs), others)
        recording = _recording(tape, result, notes, None)
    except (Exception, DrawsError):  # as it may for want of history: it is called again, and fails again if not
        return None
    if recording.trail is not trail:
        return None
    if calls is not None:
        note_calls(calls, tape, recording, inputs, trail)
    if True in [value.requires_grad for value in recording.values]:  # by what the function captured
        tape.check_hooks()
    values = [*inputs, *recording.values[len(inputs) :]]
    return recording._replace(values=values, is_bare=True)


def _record_values(
    f: Function, inputs: Sequence[torch.Tensor], others: Any, follow: bool, watch: bool, trail: Trail, bare: bool
) -> Recording:
    is_seen = watch or follow or is_looked_on()
    is_bare = bool(bare and trail.is_bare and torch.is_grad_enabled()) and not is_seen
    tells = trail.are_known and not (is_seen or is_detecting())
    if tells and (recording := recorded_by_calls(f, inputs, others, trail, bare=is_bare)) is not None:
        return recording
    if is_bare:
        recording = _recorded_bare(f, inputs, others, trail, tells=tells)
        if recording is not None:
            return recording
        trail.is_bare = None
    tape, has_grad = Tape(trail), torch.is_grad_enabled()
    tape.is_followed = follow
    asked: list[bool] = []
    with torch.enable_grad():
        aliases = variables_of(inputs, follow=follow, are_plain=trail.are_plain)
        tape.ledger.add_inputs(aliases)
        calls = CallNotes(aliases) if tells and trail.may_tell_calls() else None
        watching = _watching(tape, asked) if watch else nullcontext()
        try:
            with unseen_hooks(), noting_lines() as notes, calls or nullcontext(), tape, watching:
                result = f(tape.seen(aliases, inputs), others)
        except Exception as error:
            check_asked(error, asked=any(asked), follow=follow)
            raise
    recording = _recording(tape, result, notes, any(asked) if watch else None)
    if calls is not None and recording.graph is trail.graph:
        note_calls(calls, tape, recording, inputs, trail)
    if tape.arrived is not None and isinstance(recording.values, Values):
        return recording._replace(values=_values_along(tape, tape.arrived, recording.values, has_grad))
    are_followed = [value.requires_grad for value in recording.values]
    has_history = True in are_followed
    if has_history:
        tape.check_hooks()
        has_history = any(tensor.requires_grad for tensor in inputs) or _leads_outside_again(
            recording, tape, trail, are_followed
        )
        if not has_history and not is_recording():  # which would take what is detached for constants
            values = [value.detach() if value.requires_grad else value for value in recording.values]
            recording = recording._replace(values=values)
    tape.leave_behind(leads_outside=has_history)
    is_followed = (has_grad and has_history) or has_forward_level()
    if is_followed and (hidden := tape.histories_hidden(recording.graph)):
        recording = recording._replace(values=without_autocast(replayed, recording, inputs, hidden))
    return recording


def _values_along(tape: Tape, walk: Walk, values: Values, has_grad: bool) -> Values:
    """Return the values of a recording that went along a route, with the history that they need to have."""
    if not walk.route.followed:
        return values
    tape.check_hooks()
    if has_grad and walk.route.leads_outside:
        return walk.with_histories()
    return values.detached() if has_grad else values


def _watching(tape: Tape, asked: list[bool]) -> Reads:
    """Return what notes whether a function asks, and what is read past the ops by it or by a custom Function."""
    if records_forwards():
        return Reads(tape.read, _noting(tape, asked), tape.replaced)
    return Reads(tape.left, _noting(tape, asked))


def _noting(tape: Tape, asked: list[bool]) -> Callable[[torch.Tensor, str], None]:
    """Return what notes whether a tensor of which somebody asks if autograd follows it depends on an input."""
    return lambda tensor, _: asked.append(tape.knows(tensor))


def _leads_outside_again(recording: Recording, tape: Tape, trail: Trail, are_followed: list[bool]) -> bool:
    """Tell whether the outputs may have derivatives by what the function captured, as they had at an earlier call.

    If the function has made since what it captured then, history is kept that nobody needs; not the other way round.
    """
    is_known = recording.graph is trail.graph and not tape.hides_history
    if is_known and trail.leads_outside == are_followed:
        return True
    found = _has_outer_history(recording, tape)
    if is_known and found:
        trail.leads_outside = are_followed
    return found


def _has_outer_history(recording: Recording, tape: Tape) -> bool:
    """Tell whether the outputs may have derivatives by what the function captured."""
    made = tape.made()
    if any(type(value) is Parameter and not made.has(value) for value in recording.values):
        return True
    # what autograd knows of outputs may end at a write, and then what the function captured tells
    given = (node.number for node in recording.graph.nodes if tape.hides_history and node.op is CONSTANT)
    return _leads_outside([*recording.outputs, *(recording.values[number] for number in given)], made)


def _leads_outside(tensors: Sequence[torch.Tensor], made: Made) -> bool:
    """Tell whether autograd leads from some tensors to what the function did not itself make require gradients."""
    followed = [tensor for tensor in tensors if tensor.requires_grad]
    if any(tensor.grad_fn is None and not made.has(tensor) for tensor in followed):
        return True  # of leaves torch tells no node in inference mode
    waiting = deque(tensor.grad_fn for tensor in followed if tensor.grad_fn is not None)
    seen = set(waiting)
    while waiting:
        function = waiting.popleft()
        leaf = getattr(function, "variable", None)
        if leaf is not None and not made.has(leaf):
            return True
        following = {node for node, _ in function.next_functions if node is not None} - seen
        seen |= following
        waiting.extend(following)
    return has_forward_level()  # of which there may be tangents


def _record_stand_ins(
    f: Function,
    inputs: Sequence[torch.Tensor],
    others: Any,
    follow: bool,
    trail: Trail = NOTHING,
    *,
    tells: bool = False,
) -> Recording:
    tape = Tape()
    tape.is_followed = follow
    tape.ledger.draws_again, tape.ledger.draws_by_row = True, differs_by_row()
    tape.ledger.spots = Spots(inputs_are_own=True)
    with drawn_again(inputs) as tape.generators, outside_transforms() as depth, torch.enable_grad():
        picks = Picks(tape.varies, tape.picked)
        lift = Lift(depth, lambda plain, batched: tape.ledger.add_input(plain, active=False, batched=batched), picks)
        members = []
        for tensor in inputs:
            member, batched = stand_in(tensor)
            member = variable_of(member, follow=follow)
            tape.ledger.add_input(member, active=True, batched=batched)
            members.append(member)
        beside = wrappers_in(tensors_in(others))
        members += map(lift.swap, beside)
        plain_others = tree_map(lift.swap, others)
        calls = CallNotes(members) if tells and trail.may_tell_calls() and len(lift.wrappers) == len(beside) else None
        if calls is not None:
            lift.aside = calls.aside
        asked: list[bool] = []
        reads = Reads(tape.read, _noting(tape, asked), tape.replaced)
        try:
            with unseen_hooks(), noting_lines() as notes, calls or nullcontext(), tape, reads, lift:
                result = f(tape.seen(members[: len(inputs)], inputs), plain_others)
        except Exception as error:
            check_asked(error, asked=any(asked), follow=follow)
            raise
        tape.picked.check_read(tensors_in(result))
        recording = _recording(tape, tree_map(lift.swap, result), notes, any(asked))
        if trail.are_known and recording.graph == trail.graph:
            recording = recording._replace(graph=trail.met_again())
        if calls is not None and recording.graph is trail.graph:
            looks = [*map(looks_of, (*inputs, *beside))]
            trail.note_calls(calls_of(calls, recording, lift, looks))
        if any(value.requires_grad for value in recording.values):
            tape.check_hooks()
            recording = recording._replace(values=_without_own_leaves(recording.values, tape.made()))
    return recording._replace(wrappers=[*map(plain, inputs), *lift.wrappers])


def _check_claims(recording: Recording) -> None:
    """Check that what f was told of whole batches, by one member of each, is so.

    Raises:
        BranchError: It is not.
    """
    graph, values = recording.graph, recording.values
    claims = claims_of(graph)
    if claims and recording.wrappers is not None:
        needed = {node.number for node in graph.nodes if node in claims or draws(node)}
        for node in reversed(graph.nodes):
            needed.update(node.operands if node.number in needed else ())
        part = graph._replace(nodes=tuple([node for node in graph.nodes if node.number in needed]))
        known = {node.number: values[node.number] for node in graph.nodes if node.op is CONSTANT}
        with drawn_again(recording.wrappers):  # as they are for what is computed of this recording
            of_all = without_autocast(replay, part, recording.wrappers, known)
        for node, value in zip(part.nodes, of_all, strict=True):
            if node in claims:
                check_claim(node, values[node.number], value)


def _without_own_leaves(values: Sequence[torch.Tensor], made: Made) -> list[torch.Tensor]:
    """Return values without the history that leads to nothing but what the function made."""
    return [value if not value.requires_grad or _leads_outside([value], made) else value.detach() for value in values]


def _recording(tape: Tape, result: Any, notes: LineNotes | None, asked: bool | None) -> Recording:
    leaves, spec = tree_flatten(result)
    graph = tape.graph([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])
    values = tape.values
    lines = {} if notes is None else notes.of(values)
    if tape.arrived is None and not PLAIN.issuperset(map(type, values)):
        values = [*map(plain, values)]
    trail = tape.ledger.trail if graph is tape.ledger.trail.graph and not tape.hides_history else NOTHING
    return Recording(graph, values, leaves, spec, None, asked, lines, tape.writes, trail)
