"""The tape: records a function, while it runs, as a graph of aten ops with their real values.

The tape is a dispatch mode below autograd and torch.func, so the values that it keeps carry autograd history, nested
transforms inside the function arrive as the plain ops they are made of, and branches are simply taken.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch

from hofunc.graph.draws import Generators, is_random, may_be_random
from hofunc.graph.effects import effects, is_view
from hofunc.graph.execution import Execution
from hofunc.graph.identity import PLAIN, seen_as, storage_key, tensors_in
from hofunc.graph.leaving import LEAVING, check_leaving
from hofunc.graph.ledger import Ledger
from hofunc.graph.node import Graph, Ref
from hofunc.graph.parts import CONJUGATING
from hofunc.graph.picks import Picked
from hofunc.graph.purity import (
    BackwardPass,
    Hooks,
    check_branch,
    check_forward,
    check_replaced,
    check_unbatched,
    check_written,
    depends_on_batch,
    is_in_forward,
    is_in_recorded_forward,
)
from hofunc.graph.quick import QUICK
from hofunc.graph.route import Route, held, unheld
from hofunc.graph.storage import Made, Storages, copied
from hofunc.graph.survey import Survey
from hofunc.graph.trail import NOTHING, Trail
from hofunc.graph.uncompiled import UncompiledMode
from hofunc.graph.values import Values
from hofunc.graph.walk import MISSED, Walk
from hofunc.internals import (
    DisableTorchFunctionSubclass,
    count_dispatch_modes,
    count_function_modes,
    disable_current_modes,
    dispatch_modes,
    has_forward_level,
    hides_conjugation,
    is_forward_mode_on,
    is_torch_function_enabled,
    kernel_of,
    maybe_current_level,
    schema_of,
    shown_conjugation,
    tree_leaves,
    without_views,
)
from hofunc.internals_scripts import Script

_ALIAS, _DETACH = torch.ops.aten.alias.default, torch.ops.aten.detach.default
# What runs each op that was met and only computes, None for others: by its id, since `effects` holds all that were met.
_RUNS: dict[int, Callable[..., Any] | None] = {}


class Tape(UncompiledMode):
    """Records every op that depends on an input into a ledger.

    An op that only computes is executed and logged, and the log is entered into the ledger later, all at once; one
    that writes, takes what was written to, or runs where autograd is off is looked at first.

    Args:
        trail: What was recorded of the function before.

    Attributes:
        ledger: The graph so far.
        level: The level of torch.func's transforms at which the function runs, None outside of all.
        generators: Takes note of the generators that are drawn from, if the graph is computed again; else None.
        is_followed: Whether autograd follows the inputs where the function sees them.
        captured: The ids of the inputs that the function captured, where these are inputs.
        is_guarded: Whether the functions by which subclasses override ops are kept from ops that arrive here. These
            functions have had their turn, and what they return no tape around this one would know.
        is_plain: Whether an op that only computes needs no look: the inputs are plain tensors with values of their own.
        writes: Whether the function wrote in place, if only to constants that it made.
        picked: Takes note of what is picked by numbers of which each member of a batch has its own.
    """

    def __init__(self, trail: Trail = NOTHING) -> None:
        super().__init__()
        self.ledger = Ledger(trail)
        self.level: int | None = None
        self.generators: Generators | None = None
        self.is_followed = False
        self.captured: set[int] = set()
        self.is_guarded = count_dispatch_modes() > 0
        self.is_plain = False
        self.writes = False
        self.picked = Picked()
        self._log: list[tuple[Any, tuple, dict, Any]] = []
        self._is_unheld = False  # whether it has an Unheld
        self._hides_history = False
        self._forward_mode = is_forward_mode_on()  # which is off inside a custom Function
        self._given_back: list[torch.Tensor] = []  # what autograd may have saved while the tape did not look
        self._execution = Execution()
        self._walk: Walk | None = None
        self._route: Route | None = None
        self._storages = Storages(self.ledger, self._execution)
        self._backward_pass = BackwardPass()
        self._hooks = Hooks()

    def __enter__(self) -> Self:
        self.level = maybe_current_level()
        super().__enter__()
        return self

    def runs(self, script: Script) -> None:
        """Note that a function or a method of TorchScript is about to run, of which Python sees nothing."""

    def seen(self, aliases: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return aliases of the inputs, or stand-ins for them, as the function is to see them."""
        if PLAIN.issuperset(map(type, inputs)):
            self.is_plain = not self.ledger.draws_again
            self._set_out(aliases)
            return [*aliases]
        self.is_guarded = True
        return [seen_as(alias, tensor) for alias, tensor in zip(aliases, inputs, strict=True)]

    def _set_out(self, aliases: Sequence[torch.Tensor]) -> None:
        """Go along what was recorded before of a function that writes in place, or take note of it for the next time.

        Nothing may look on.
        """
        trail = self.ledger.trail
        if (
            not trail.writes
            or trail.is_untold
            or not self.is_plain
            or self.is_followed
            or self.generators is not None  # of a bare recording, see NOTE [bare] in `hofunc.graph.recording`
            or not self._forward_mode  # in which a custom Function could not be told
            or count_dispatch_modes() > 1
            or has_forward_level()
        ):
            return
        route = trail.route  # which a call in another thread may take away
        if route is not None and route.starts_from(aliases):
            self._walk = Walk(route, aliases)
        else:
            self._execution.survey, self.is_plain = Survey(aliases), False

    def _leave(self) -> None:
        """Enter what was done along a route, as the function does something else now."""
        walk, self._walk = self._walk, None
        if walk is None:
            return
        self.ledger.trail.route = None
        with disable_current_modes(), torch.enable_grad(), without_views():  # as where ops arrive
            for call, has_grad in walk.again():
                with torch.set_grad_enabled(has_grad):
                    self._enter_over(*call)
            self._settle()
            values = self.ledger.values
            known, storages = walk.known(len(values)), walk.storages()
            for number, value in enumerate(values):
                if storage_key(value) not in storages:  # a copy, of what was overwritten since
                    if self.ledger.nodes[number].is_given:
                        self.ledger.aliases.append(value)
                        given = known[number]  # with the history that it had
                        values[number] = copied(given) if self._storages.hold((given,)) else given
                    else:
                        value.detach().copy_(known[number])

    def _enter_over(self, op: Any, args: tuple, kwargs: dict, out: Any) -> None:
        """Enter a call that was made, and returned what is given."""
        self._execution.is_over, self._execution.returned = True, out
        try:
            self._looked_at(op, (), args, kwargs)
        finally:
            self._execution.is_over, self._execution.returned = False, None

    @property
    def arrived(self) -> Walk | None:
        """The walk along a route, if all that was recorded is that route; else None."""
        return None if self._walk is None or self._walk.values is None else self._walk

    @property
    def values(self) -> list[torch.Tensor] | Values:
        """The values of the nodes of what was recorded."""
        found = None if self._walk is None else self._walk.values
        return self.ledger.values if found is None else found

    @property
    def hides_history(self) -> bool:
        """Whether autograd knows other histories of the values than the graph: where there were writes, or forwards."""
        return self._storages.exist or self._hides_history

    def histories_hidden(self, graph: Graph) -> set[int]:
        """Return the nodes of what was recorded of which autograd may know another history than the graph."""
        if self._hides_history:
            return {node.number for node in graph.nodes if not node.is_given}
        return self._storages.rewritten(graph)

    def graph(self, outputs: Sequence[torch.Tensor]) -> Graph:
        """Return what was recorded, as the graph of the given outputs.

        Raises:
            UntracedError: The function computed out of sight.
        """
        if self._walk is not None and self._walk.arrives(outputs):
            return self._walk.route.graph
        with DisableTorchFunctionSubclass():
            if self._storages.exist:
                self._settle()
            self._flush()
            self._storages.refresh(outputs)
            graph, trail = self.ledger.graph(outputs), self.ledger.trail
            if graph is trail.graph:
                trail.writes, trail.hides_history = self.writes, self.hides_history
                if self._execution.survey is not None:
                    hidden = self.histories_hidden(graph)
                    self._route = self._execution.survey.route(graph, self.ledger.values, outputs, hidden)
                    trail.is_untold = self._route is None
            return graph

    def leave_behind(self, *, leads_outside: bool) -> None:
        """Leave the route that was surveyed, if one was, to the recordings to come.

        Args:
            leads_outside: See `Route`.
        """
        if self._route is not None:
            self._route.leads_outside = leads_outside
            self.ledger.trail.route = self._route

    def made(self) -> Made:
        """Return what the function has made."""
        return Made(self.ledger, self._storages)

    def check_hooks(self) -> None:
        """Check that the function registered no hook with what it computed.

        Raises:
            UntracedError: It did.
        """
        if self.arrived is not None:
            self._hooks.check(self.arrived.followed(), self.captured)
            return
        known = (*self.ledger.values, *self.ledger.aliases, *self._storages.kept)
        self._hooks.check(known, self.ledger.constants.keys() | self.captured)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if self._walk is not None:
            out = self._walk.along(func, args, kwargs)
            if out is not MISSED:
                if self._walk.is_lost:
                    self._leave()
                    self._enter_over(func, args, kwargs or {}, out)
                return out
        if self.is_guarded and is_torch_function_enabled():
            with DisableTorchFunctionSubclass():
                return self.__torch_dispatch__(func, types, args, kwargs)
        runs = _RUNS.get(id(func))
        if (
            runs is not None
            and self.is_plain
            and self._walk is None
            and not self._storages.exist
            and torch.is_grad_enabled()
            and is_forward_mode_on() == self._forward_mode
            and not count_function_modes()
        ):
            try:
                out = runs(*args, **kwargs) if kwargs else runs(*args)
            except TypeError:  # it may take fewer forms of arguments than the op does
                out = func(*args, **(kwargs or {}))
            self._log.append((func, args, kwargs or {}, out))
            return out
        return self._looked_at(func, types, args, kwargs or {})

    def _looked_at(self, func: Any, types: Any, args: tuple, kwargs: dict) -> Any:  # noqa: PLR0911 - for speed
        """Execute an op of which it is not known that it only computes, or while more than that has to be known."""
        if self._storages.compute:
            return func(*args, **kwargs)
        if self.generators is not None and is_random(func, args, kwargs):
            return self._draw(self.generators, func, types, args, kwargs)
        if id(func) in CONJUGATING and hides_conjugation():
            with shown_conjugation():
                return self.__torch_dispatch__(func, types, args, kwargs)
        known = effects(func)
        if known.in_parts is not None:
            with self:
                return known.in_parts(*args, **kwargs)
        self._leave()
        survey = self._execution.survey
        if survey is None:
            return self._taken(func, args, kwargs)
        if self._is_in_function() or self._backward_pass.is_on:
            self._execution.survey, self.ledger.trail.is_untold = None, True
            return self._taken(func, args, kwargs)
        out = self._taken(func, args, kwargs)
        survey.enter(func, args, kwargs, out)
        return out

    def _taken(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Execute an op, and look at what it does where that may be more than computing."""
        known = effects(func)
        careful = self.ledger.batched or self.ledger.draws_by_row or known.writes or self._is_hidden()
        if careful or (self._storages.exist and self._storages.hold((*args, *kwargs.values()))):
            with DisableTorchFunctionSubclass():
                return self._dispatch_with_care(func, args, kwargs)
        out = self._execution(func, args, kwargs)
        self._enter_log(func, args, kwargs, out)
        if id(func) not in _RUNS:
            _RUNS[id(func)] = None if known.makes or _is_special(func) else QUICK.get(func) or kernel_of(func)
        return out

    def _enter_log(self, op: Any, args: tuple, kwargs: dict, out: Any) -> None:
        """Log a call without holding what it made, if that is a plain tensor which is new."""
        self._is_unheld = effects(op).makes or self._is_unheld
        self._log.append((op, args, kwargs, unheld(out) if effects(op).makes else out))

    def _draw(self, generators: Generators, op: Any, types: Any, args: tuple, kwargs: dict) -> Any:
        """Record an op that draws random numbers, and take note of their generator."""
        self.generators = None
        try:
            with generators.drawing(args, kwargs):
                return self.__torch_dispatch__(op, types, args, kwargs)
        finally:
            self.generators = generators

    def _is_hidden(self) -> bool:
        """Tell whether autograd may not see the op that runs: gradients are off, or a custom Function is running."""
        return not torch.is_grad_enabled() or self._is_in_function()

    def _is_in_function(self) -> bool:
        """Tell whether a custom Function is running; none was where an op was executed before."""
        return not self._execution.is_over and is_forward_mode_on() != self._forward_mode

    def enter(self, op: Any, args: tuple, out: Any) -> Any:
        """Log a call that was executed elsewhere, and return what it returned."""
        self._execution.survey = None
        self._settle()
        self._storages.refresh(tensors_in(args))
        return self._entered(op, args, {}, out)

    def knows(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor is an input or depends on one."""
        self._execution.survey = None
        self._settle()
        return self.ledger.node_of(tensor) is not None

    def has_computed(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor is an input to differentiate by, or was computed by the function."""
        self._execution.survey = None
        self._settle()
        index = self.ledger.node_of(tensor)
        return index is not None and (self.ledger.nodes[index].active or not self.ledger.nodes[index].is_given)

    def varies(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor stands for a batch of values, one of each member."""
        self._execution.survey = None
        self._settle()
        self._storages.refresh((tensor,))
        return depends_on_batch(self.ledger, (tensor,))

    def read(self, tensors: Sequence[torch.Tensor], by: str) -> None:
        """Note that the numbers in tensors are read past the ops.

        Raises:
            BranchError: One depends on an input that stands for a batch, and so has no single values.
            UntracedError: Or on any, and a forward that is recorded reads it, or what leaves torch has a derivative.
        """
        self._execution.survey = None
        self._settle()
        self._storages.refresh(tensors)
        check_unbatched(self.ledger, tensors, by)
        check_forward(is_lost=bool(self.ledger.nodes_of(tensors)), by=by)
        check_leaving(self.ledger, tensors, by)

    def left(self, tensors: Sequence[torch.Tensor], by: str) -> None:
        """Note that the numbers in tensors are read past the ops, where none of them are to be compared later.

        Raises:
            UntracedError: What leaves torch has a derivative.
        """
        if by in LEAVING:
            self._settle()
            self._storages.refresh(tensors)
            check_leaving(self.ledger, tensors, by)

    def replaced(self, tensor: torch.Tensor, _: torch.Tensor) -> None:
        """Note that a tensor is given the data of another.

        Raises:
            MutationError: The graph knows it by those that it had.
        """
        check_forward(is_lost=True, by="setting the data")
        self._execution.survey = None
        self._flush()
        self._storages.refresh((tensor,))
        check_replaced(self.ledger, tensor)

    def _flush(self) -> None:
        self._leave()
        log, self._log = self._log, []
        if self._is_unheld:
            self._is_unheld = False
            log = [(op, args, kwargs, held(out)) for op, args, kwargs, out in log]
        self.ledger.enter(log)

    def _settle(self) -> None:
        """Bring the ledger up to date, what was detached included."""
        self._flush()
        while self._given_back:
            self.ledger.recover(self._given_back.pop())
        for number in self.ledger.settle(self._storages.written):
            self._storages.adopt(self.ledger.values[number])

    def _dispatch_with_care(self, op: Any, args: tuple, kwargs: dict) -> Any:
        self._settle()
        tensors = tensors_in((args, kwargs))
        self.picked.check_read(tensors)
        self._storages.refresh(tensors)
        operands = self.ledger.nodes_of(tensors)
        is_over = self._execution.is_over  # and nothing of what runs now ran then
        if operands and not torch.is_grad_enabled() and not is_over:
            self._backward_pass.check()
        if not operands and op is not _DETACH and not effects(op).writes and not self.ledger.draws_again:
            out = self._execution(op, args, kwargs)
            self._enter_log(op, args, kwargs, out)
            return out
        if not operands and op is _DETACH and is_in_recorded_forward():
            out = self._executed(op, args, kwargs, False)
            self._storages.note_alias(out, args[0])
            return out
        if operands and self._is_hidden() and not is_over and is_in_forward():
            self._hides_history = True
            if _reads_number(op, args):
                check_forward(is_lost=True, by="a number")
            with torch.enable_grad():
                return self._executed(_ALIAS if op is _DETACH else op, args, kwargs, True)
        return self._executed(op, args, kwargs, bool(operands))

    def _executed(self, op: Any, args: tuple, kwargs: dict, tracked: bool) -> Any:
        """Execute an op and enter it, the log being empty, and return what it returned."""
        if effects(op).writes:
            return self._write(op, args, kwargs, tracked)
        out = self._execution(op, args, kwargs)
        if self.ledger.batched:
            check_branch(self.ledger, op, args, kwargs, out)
        return self._entered(op, args, kwargs, out)

    def _entered(self, op: Any, args: tuple, kwargs: dict, out: Any) -> Any:
        """Enter a call that writes nothing, the log being empty, and return what it returned."""
        ledger = self.ledger
        before = len(ledger.nodes)
        ledger.enter([(op, args, kwargs, out)])
        self._note_draws(op, args, kwargs, before)
        if op is _DETACH:
            self._given_back.append(out)
        for node in [node for node in ledger.nodes[before:] if not node.is_given]:
            value = ledger.values[node.number]
            if not torch.is_grad_enabled():
                cut = ledger.add(value, _DETACH, (Ref(node.number),), (node.number,))
                if is_view(op):
                    ledger.detached.add(cut)
            self._storages.adopt(value)
        return out

    def _note_draws(self, op: Any, args: tuple, kwargs: dict, before: int) -> None:
        """Note that each row has numbers of its own in the nodes of an op, if it draws them."""
        if self.ledger.draws_by_row and is_random(op, args, kwargs):
            self.ledger.batched.update(range(before, len(self.ledger.nodes)))

    def _write(self, op: Any, args: tuple, kwargs: dict, tracked: bool) -> Any:
        """Execute an op that writes, and record it if it concerns a tensor that the graph knows."""
        written, self.writes = check_written(op, args, kwargs, self._storages.owner), True
        self.picked.check_written(written)
        self._hooks.check(written, ())  # the write takes them from the tensor
        is_drawn = self.ledger.draws_again and is_random(op, args, kwargs)
        if not tracked and not is_drawn and not any(map(self._storages.concerns, written)):
            out = self._execution(op, args, kwargs)
            self.ledger.untracked.append((op, out))
            return out
        if torch.Tag.inplace_view in op.tags:
            return self._storages.reshape_in_place(op, args, kwargs)
        before = len(self.ledger.nodes)
        out = self._storages.write(op, args, kwargs, written)
        self._note_draws(op, args, kwargs, before)
        return out


def _is_special(op: Any) -> bool:
    """Tell whether an op that writes nothing may have to be looked at nevertheless."""
    return id(op) in CONJUGATING or effects(op).in_parts is not None or may_be_random(op)


def _reads_number(op: Any, args: tuple) -> bool:
    """Tell whether an op returns a number that may be computed with, and not only whether something holds."""
    if torch.Tag.data_dependent_output not in op.tags or isinstance(schema_of(op).returns[0].type, torch.BoolType):
        return False
    return any(map(torch.is_floating_point, tree_leaves(args)))


def innermost_tape() -> Tape | None:
    """Return the tape on which a function is being recorded, the innermost of several; None outside of all."""
    tapes = [mode for mode in dispatch_modes() if isinstance(mode, Tape)]
    return tapes[-1] if tapes else None


def is_recording() -> bool:
    """Tell whether a function is being recorded."""
    return count_dispatch_modes() > 0 and innermost_tape() is not None
