"""Functions that ask whether autograd follows their inputs, and those that take gradients by autograd themselves.

Under torch.func's transforms autograd follows what is differentiated. A recording does without, which is faster, and
lets functions write by ``out=`` or compute in inference mode. That shows to a function that reads ``x.requires_grad``
or calls ``torch.autograd.grad``, and so such a function is recorded again, and from then on, on tensors that are
followed. A call that fails for want of a gradient tells it. What is read is seen by watching, which takes longer: so it
is watched when a function is recorded for the first time, and again when it meets a plan that it did not meet before.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from hofunc.graph.draws import drawn_again
from hofunc.graph.identity import PLAIN, are_like, has_no_history, innermost, is_dense
from hofunc.graph.node import Graph
from hofunc.graph.record import made_recordable, may_go_by_calls, record
from hofunc.graph.recording import Function, Recording
from hofunc.graph.saving import is_hooked, unhooked
from hofunc.graph.standin import in_transform, looks_of
from hofunc.graph.trail import NOTHING, Trail
from hofunc.internals import count_dispatch_modes, count_function_modes, form_check, maybe_current_level
from hofunc.options import records_forwards

MOST_TRAILS = 8  # of functions of one source


class _Met:
    """What is known of functions of one source.

    Attributes:
        asks: Whether they ask; None if that is not known.
        trails: What was recorded last of one, for inputs of each kind.
    """

    __slots__ = ("_again", "_latest", "asks", "trails")

    def __init__(self) -> None:
        self.asks: bool | None = None
        self.trails: OrderedDict[tuple, Trail] = OrderedDict()
        self._latest: tuple[tuple | None, Trail] = None, NOTHING
        self._again: _Again | None = None

    def leave(self, key: tuple, graph: Graph, *, are_plain: bool, writes: bool) -> None:
        """Note what was recorded of inputs of a kind.

        Of what writes in place the next recording is surveyed, unless it came to another graph before.
        """
        before = self.trails.get(key)
        self.trails[key] = trail = Trail(
            graph,
            are_known=None not in key,
            are_plain=are_plain,
            writes=writes and before is None,
            before=before,
        )
        self._latest, self._again = (key, trail), None
        if len(self.trails) > MOST_TRAILS:
            self.trails.popitem(last=False)

    def trail_of(self, inputs: Sequence[torch.Tensor], follow: bool) -> Trail:
        """Return what was recorded of inputs of a kind, mostly that of the call before."""
        again = self._again
        if again is not None and again.holds(inputs, follow):
            return again.trail
        key = _key(inputs, follow)
        if key is None:
            return NOTHING
        latest, trail = self._latest
        if latest == key:
            are_strided = not in_transform() and all(x.layout is torch.strided for x in inputs)
            if again is None and trail.are_known and are_strided:
                self._again = _Again(follow, len(inputs), form_check(inputs), trail)
            return trail
        trail = self.trails.get(key, NOTHING)
        if trail is not NOTHING:
            self._latest, self._again = (key, trail), None
        return trail


class _Again(NamedTuple):
    """What tells at once that inputs are like those of the call before, strides included, and what was recorded then.

    Attributes:
        follow: Whether autograd followed them.
        number: How many there were.
        check: Tells whether as many others are like them; no where it cannot tell.
        trail: What was recorded.
    """

    follow: bool
    number: int
    check: Callable[..., bool]
    trail: Trail

    def holds(self, inputs: Sequence[torch.Tensor], follow: bool) -> bool:
        """Tell whether inputs surely are like these; on stand-ins no recording follows another."""
        if self.follow != follow or self.number != len(inputs) or in_transform():
            return False
        return are_like(self.check, inputs)


_met: WeakKeyDictionary[Any, _Met] = WeakKeyDictionary()  # by their sources


def source_of(f: Callable[..., Any]) -> Any:
    """Return what two functions with the same code have in common: the code, or the class of a callable object.

    Of a partial function and of a transform it is that of the function inside.
    """
    while isinstance(f, partial) or (not hasattr(f, "__code__") and hasattr(f, "__wrapped__")):
        f = getattr(f, "__wrapped__", None) or getattr(f, "func")  # noqa: B009
    return getattr(getattr(f, "__func__", f), "__code__", type(f))


def recorded(
    f: Function, source: Any, inputs: Sequence[torch.Tensor], others: Any, *, watch: bool = False, bare: bool = False
) -> Recording:
    """Record a call as `record` does, on inputs that autograd follows if the function needs that.

    Args:
        f: Function of a list of tensors and of anything else.
        source: What `source_of` returns for the user's function.
        inputs: The tensors by which f is to be differentiated.
        others: A pytree that f also takes.
        watch: Whether to notice that f asks; what is recorded of functions with the source for inputs of a kind for
            the first time is watched in any case.
        bare: Whether the recording may be bare, see NOTE [bare] in `hofunc.graph.recording`.

    Returns:
        The recording. It is right if somebody watched, which ``asked`` tells, or else if one of the same structure, of
        a function of the same source, was right.

    Raises:
        RuntimeError: As from `record`, or from torch.
    """
    met, forwards = _met.get(source) or _met.setdefault(source, _Met()), records_forwards()
    if met.asks is None and is_hooked():  # learn how to record it before, since what is recorded twice is saved twice
        with unhooked(), drawn_again(inputs):
            recorded(f, source, inputs, others, watch=watch)
    asks = met.asks  # unless options say that a forward is recorded, in which a context tells of what is followed

    def call(follow: bool) -> Recording:
        if follow and not forwards:
            met.asks = True
        trail = NOTHING if is_hooked() else met.trail_of(inputs, follow)
        watched = watch or forwards or asks is None or trail is NOTHING
        recording = record(f, inputs, others, follow=follow, watch=watched, trail=trail, bare=bare)
        if recording.graph is not trail.graph and (key := _key(inputs, follow)) is not None:
            are_plain = all(map(has_no_history, inputs))
            writes = recording.writes and not in_transform()  # recordings on stand-ins follow no route
            met.leave(key, recording.graph, are_plain=are_plain, writes=writes)
        return recording

    recording = made_recordable(call, follow=forwards or bool(asks))
    if recording.asked and not asks and not forwards:
        recording = made_recordable(call, follow=True)
    if met.asks is None and not forwards:
        met.asks = False
    return recording._replace(asked=True) if met.asks or forwards else recording


def may_repeat(source: Any) -> bool:
    """Tell whether functions of a source may be recorded by `recorded_again`, of inputs like those of before."""
    met = _met.get(source)
    return met is not None and met.asks is False and not records_forwards() and not is_hooked() and may_go_by_calls()


def _key(inputs: Sequence[torch.Tensor], follow: bool) -> tuple | None:
    """Return what recordings have in common that may be equal; a None in it says that inputs may differ even so.

    It is None of one on stand-ins which somebody watches, who may trace it: it follows no other.
    """
    if in_transform():
        if count_dispatch_modes() or count_function_modes():
            return None
        return follow, maybe_current_level(), *[looks_of(x) if _has_looks(x) else None for x in inputs]
    return follow, *[
        (x.shape, x.dtype, x.device, x.requires_grad, x.layout, x.is_inference(), x.is_neg(), x.is_conj())
        if type(x) in PLAIN and not x.is_nested
        else None
        for x in inputs
    ]


def _has_looks(tensor: torch.Tensor) -> bool:
    """Tell whether all of a tensor that matters can be compared, which of some subclass may be symbols."""
    return is_dense(tensor) and type(innermost(tensor)) in PLAIN
