"""Transforms that are planned once for every form of their arguments, and never go by a plan that does not fit.

A plan refuses whatever it was not made for. So what is kept is a bounded dictionary from the form of a call to plans:
all that can be told without calling the function is in the key, and plans of one key differ in what the function read,
values of tensors or Python objects. A plan that refuses a call costs little, as it looks at these first.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import update_wrapper
from math import inf
from threading import Lock, RLock
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, overload

import torch
from torch.compiler import is_dynamo_compiling

from hofunc.callable_plan import Plan
from hofunc.errors import (
    ArgumentError,
    PlanMismatchError,
    PlanningWarning,
    UnsupportedOpError,
    UntracedError,
    warn,
)
from hofunc.forms import Call, Forms, without_values
from hofunc.given import check_amount, check_choice, listed, refuse
from hofunc.graph.identity import PLAIN
from hofunc.graph.standin import in_transform
from hofunc.graph.tape import is_recording
from hofunc.graph.uncompiled import uncompiled
from hofunc.methods import Method
from hofunc.notebook import kept_as_html
from hofunc.outline import Subject
from hofunc.plan.values import GONE_BY
from hofunc.run.branches import Branches
from hofunc.run.cache import Due, tier
from hofunc.sampling import Estimate
from hofunc.spelling import spelt
from hofunc.transform import Transform

MISSES = ("plan", "warn", "error")
COMPILES = (False, True, "background")
FEW = 3  # plans, from which on it is told before they are tried which of them fit
MANY = 10  # calls in a row that fit no plan, of which the last is recorded and not planned


class _Options(TypedDict, total=False):
    """The keyword arguments of `jit`."""

    static_argnames: str | Iterable[str]
    compile: bool | Literal["background"]
    max_plans: int
    on_miss: str


@overload
def jit(transform: Estimate, **options: Unpack[_Options]) -> Estimate: ...


@overload
def jit(transform: Callable[..., Any], **options: Unpack[_Options]) -> "Jitted": ...


@uncompiled
@spelt
def jit(
    transform: Callable[..., Any],
    *,
    static_argnames: str | Iterable[str] = (),
    compile: bool | Literal["background"] = False,  # noqa: A002 - as everyone calls it
    max_plans: int = 64,
    on_miss: str = "plan",
) -> "Jitted | Estimate":
    """Return a transform that is planned at its first call, and runs that plan at every later one that it fits.

    A plan is made for shapes, dtypes and devices of tensors, the structure of arguments, the values of those that are
    no tensors, for autocast and defaults of torch, and for what the function reads: globals, closures, attributes, and
    values of tensors, by ``if`` or ``.item()``. A call that differs in any of these finds another plan or makes one, so
    that results are always those of the transform. So does one that goes by the values of tensors of indices, where
    these make a derivative sparse, unless compiled or with another ``on_miss``; where they change, a second one goes by
    how many entries meet, and another one is made where these are too many for it. As a plan does, it calls the
    function while it is made, twice mostly: what the function prints or counts happens then only. That of another
    branch than one before is made quickly, and in full once that is worth it, as `hofunc.options` says; at once if
    compiled, or with ``on_miss="error"``. Under ``torch.func.vmap`` and the like, while another function is recorded,
    and where a function has no plan, the transform itself is called.

    Args:
        transform: What `hofunc.hod`, `hofunc.einsum`, `hofunc.laplacian` or any of their kin return.
        static_argnames: The names of arguments, one or several, that are compared as a whole: they have to be hashable,
            and hold no tensor. All else that is no tensor is compared leaf by leaf.
        compile: Whether plans run through torch.compile: ``True`` compiles at the first call, ``"background"`` in
            another thread, and runs uncompiled until that is done; what reads values is, at the second call that fits.
        max_plans: How many plans are kept; that not used for longest goes.
        on_miss: What happens at a call that fits none of the plans that there are: ``"plan"`` makes one, ``"warn"``
            makes one with a `PlanningWarning` that says what is new, ``"error"`` raises.

    Returns:
        Function that takes what the transform takes and returns what it returns, from several threads too. It has
        ``.plan(...)``, which returns the plan of a call, ``.plans``, ``.explain_misses()`` and ``.clear()``. Of an
        estimate it is the estimate, with what computes with samples as such a function.

    Raises:
        ArgumentError: The transform is none of hofunc, a number or name is not one of those above, an argument that is
            no tensor is not hashable, or one that is static holds a tensor.
        PlanMismatchError: A call fits no plan, with ``on_miss="error"``; the first call never does.
        CompilerError: There is no C++ compiler to compile with.

    Cost:
        Beyond that of the plan, some microseconds a call. Where nine calls in a row, alike but for values or of new
        forms for which others have to make room, each took a plan of its own, further ones are recorded as by the
        transform, with a `PlanningWarning`, until one fits.

    Source:
        ``jax.jit``, of which this has the contract, but that no call has to be pure by promise.

    Example:
        >>> hessian = hofunc.jit(hofunc.hessian(lambda x: (x**3).sum() if x.sum() > 0 else (x**2).sum()))
        >>> hessian(torch.tensor([1.0, 2.0]))
        tensor([[ 6.,  0.],
                [ 0., 12.]])
        >>> hessian(torch.tensor([-1.0, -2.0]))
        tensor([[2., 0.],
                [0., 2.]])
        >>> len(hessian.plans)
        2
    """
    if is_dynamo_compiling():
        return transform  # type: ignore[return-value]  # of which the steps become part of what is compiled
    if not isinstance(transform, Transform | Estimate):
        got, expected = type(transform).__name__, "a transform, as hofunc.hod(f, 2) returns it"
        refuse(
            "jit", "transform", got, expected, "Wrap the transform, not the function: hofunc.jit(hofunc.hessian(f))."
        )
    check_choice("jit", "compile", compile, COMPILES, "Leave it out if in doubt.")
    check_amount("jit", "max_plans", max_plans, 1, "64 unless given.")
    check_choice("jit", "on_miss", on_miss, MISSES, "'plan' unless given.")
    names = _names(static_argnames)
    settings = _Settings(names, compile, max_plans, on_miss)
    if isinstance(transform, Estimate):
        return transform.over(lambda exact: Jitted(exact, settings))
    return Jitted(transform, settings)


def _names(given: Any) -> tuple[str, ...]:
    """Return the names of static arguments, one or several."""
    remedy = "Name arguments, as static_argnames=('steps',)."
    return (
        (given,)
        if isinstance(given, str)
        else listed("jit", "static_argnames", given, "the name of an argument, or several", remedy)
    )


class _Settings(NamedTuple):
    """What `jit` is given beside the transform."""

    static_argnames: tuple[str, ...]
    compile: bool | str
    max_plans: int
    on_miss: str


class _Made(NamedTuple):
    """A plan, and why it was made.

    Attributes:
        plan: The plan.
        reason: What of the call did not fit another one.
        generators: The random generators from which it draws.
        by_indices: Whether it goes by the values of indices, and so is tried before others.
        by_facts: Whether it goes by facts about indices, and is tried next.
        due: Counts the calls after which it is planned in full.
    """

    plan: Plan
    reason: str
    generators: tuple[torch.Generator, ...]
    by_indices: bool
    by_facts: bool
    due: Due


class _Kin:
    """Calls that differ in values alone, of arguments or of what the function reads.

    Args:
        form: That of all of them, without values.

    Attributes:
        form: See above.
        missed: How many of them in a row fitted no plan.
    """

    __slots__ = ("form", "missed")

    def __init__(self, form: tuple) -> None:
        self.form = form
        self.missed = 0


class _Entry:
    """The plans for calls of one form.

    Args:
        kin: That of these calls.

    Attributes:
        kin: See above.
        made: The plans, the one used last first; replaced as a whole.
        branches: These, and maybe some that are not kept any more, by the values that they read.
        is_steady: Whether the plan used last was used before, too.
        unplanned: Why there can be none, if so.
    """

    __slots__ = ("branches", "is_steady", "kin", "made", "unplanned")

    def __init__(self, kin: _Kin) -> None:
        self.kin = kin
        self.made: tuple[_Made, ...] = ()
        self.branches: Branches[_Made] = Branches()
        self.is_steady = True
        self.unplanned = ""

    def add(self, made: _Made, replaced: _Made | None = None) -> None:
        """Add a plan, in place of another one if there is one; the tree is made anew once most plans of it went."""
        self.made = _in_order(made, *(each for each in self.made if each is not replaced))
        is_full = self.branches.count > 2 * len(self.made)
        self.branches = Branches() if is_full else self.branches
        for each in self.made if is_full else (made,):
            self.branches.add(each, each.plan._steps.program, each.plan._facts.captured)

    def fitting(self, plans: Sequence[_Made], leaves: Sequence[Any]) -> tuple[_Made | None, Any]:
        """Return the first of its plans that fits a call, and its result; else None, and why the first does not fit.

        That is tried before anything else if it was used twice in a row, and at last, to say why. Of the others, those
        are tried that are left by the values that they read.
        """
        if len(plans) < FEW:
            return _first_fitting(plans, leaves)
        is_tried, (made, result) = self.is_steady, (None, "")
        if is_tried:
            made, result = _first_fitting(plans[:1], leaves)
        if made is None:
            made, found = _first_fitting(self._among(plans[is_tried:], leaves), leaves)
            result = result if made is None else found
        if made is None and not is_tried:
            made, result = _first_fitting(plans[:1], leaves)
        self.is_steady = made is plans[0]
        return made, result

    def _among(self, others: Sequence[_Made], leaves: Sequence[Any]) -> list[_Made]:
        """Return those of some plans that a call may fit."""
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not PLAIN.issuperset(map(type, tensors)):
            return [*others]
        states = {generator: generator.get_state() for made in others for generator in made.generators}
        fitting = {*map(id, self.branches.fitting(tensors))}
        for generator, before in states.items():
            generator.set_state(before)
        return [made for made in others if id(made) in fitting]


class Jitted(Method):
    """A transform with the plans that were made of it, as `jit` returns it; see there.

    Args:
        transform: The transform.
        settings: How it is planned.
    """

    __name__: str

    def __init__(self, transform: Transform, settings: _Settings):
        self._transform, self._settings = transform, settings
        self._forms = Forms(transform, settings.static_argnames)
        self._entries: OrderedDict[tuple, _Entry] = OrderedDict()
        self._lock, self._planning = Lock(), RLock()
        self._latest: _Made | None = None
        self._crowded = 0  # how many calls in a row were of a new form with no room left
        self._why = ""
        update_wrapper(self, transform, updated=())

    @uncompiled
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the transform returns; see `jit`."""
        if is_dynamo_compiling():
            return self._transform(*args, **kwargs)
        call = None if in_transform() or is_recording() else self._forms.taken(args, kwargs)
        if call is None:
            return self._transform(*args, **kwargs)
        entry = self._entries.get(call.form)
        if entry is None:
            return self._missed(call, (), "")
        tried = entry.made
        made, result = entry.fitting(tried, call.leaves)
        if made is None:
            return self._missed(call, tried, result)
        self._note_hit(call.form, entry, made)
        made.due.calls -= 1
        if made.due.calls <= 0:
            self._in_full(call, entry, made)
        return result

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """Return the plan that a call with these arguments runs, made if there is none yet, and planned in full.

        Raises:
            ArgumentError: As from the transform's own ``plan``, as are the other errors; or as from a call.
        """
        call = self._forms.taken(args, kwargs)
        if call is None:
            return self._transform.plan(*args, **kwargs)
        entry = self._entries.get(call.form)
        made, why = (None, "") if entry is None else entry.fitting(entry.made, call.leaves)
        if entry is None or made is None:
            return self._planned(call, why or self._difference(call), self._kin_of(call.form), "full").plan
        self._note_hit(call.form, entry, made)
        return (made if made.due.calls == inf else self._in_full(call, entry, made)).plan

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans that are kept, in the order in which they were last used."""
        return tuple([made.plan for made in self._made()])

    def _made(self) -> list[_Made]:
        """Return the plans that are kept, in the order in which they were last used."""
        with self._lock:
            return [made for entry in self._entries.values() for made in reversed(entry.made)]

    def explain_misses(self) -> str:
        """Return a text that says what each plan was made for, and why the last call that made one fitted no other."""
        made = self._made()
        with self._lock:
            refused = [entry.unplanned for entry in self._entries.values() if entry.unplanned]
        lines = [f"{self._settings.max_plans} plans at most of {_named(self._transform)}, {len(made)} made:"]
        for number, (plan, reason, *_) in enumerate(made):
            lines += [f"  {number}  {plan.takes}", f"     {reason}"]
        lines += [f"  none  {reason}" for reason in refused]
        return "\n".join([*lines, f"The last call that fitted none: {self._why or 'the first one'}"])

    def clear(self) -> None:
        """Drop all plans."""
        with self._lock:
            self._entries.clear()
            self._latest, self._crowded, self._why = None, 0, ""

    def __reduce__(self) -> tuple:
        """Copy or pickle the transform, without its plans."""
        return Jitted, (self._transform, self._settings)

    def __repr__(self) -> str:
        return f"jit({_named(self._transform)}, plans={len(self.plans)})"

    def _repr_html_(self) -> str:
        title = f"{self!r}, of at most {self._settings.max_plans}"
        return kept_as_html(title, [(plan, reason) for plan, reason, *_ in self._made()])

    def _note_hit(self, form: tuple, entry: _Entry, made: _Made) -> None:
        """Take note that a plan was used."""
        entry.kin.missed = self._crowded = 0
        if self._latest is made:
            return
        with self._lock:
            self._latest = made
            if form in self._entries:
                self._entries.move_to_end(form)
            if entry.made[0] is not made and made in entry.made:
                entry.made = _in_order(made, *(other for other in entry.made if other is not made))

    def _missed(self, call: Call, tried: tuple[_Made, ...], why: str) -> Any:
        """Return the result of a call that fitted none of some plans, by one that is made for it."""
        with self._planning:
            entry = self._entries.get(call.form)
            others = () if entry is None else [made for made in entry.made if made not in tried]
            made, result = _first_fitting(others, call.leaves)  # of those that another thread has made meanwhile
            if made is not None:
                return result
            if self._latest is not None:
                self._why = why = why or self._difference(call)
                self._check_miss(why)
            kin = self._kin_of(call.form)
            if (entry and entry.unplanned) or not self._is_worth(kin, is_new=entry is None):
                return self._transform(*call.args, **call.kwargs)
            try:
                made = self._planned(call, why, kin, self._tier(entry))
            except UntracedError as error:
                self._keep(call.form, kin, unplanned=str(error))
                warn(f"{_named(self._transform)} has no plan, and is recorded at every call: {error}", PlanningWarning)
                return self._transform(*call.args, **call.kwargs)
        made, result = _first_fitting((made,), call.leaves)
        if made is None:  # another thread has changed what the function reads
            return self._transform(*call.args, **call.kwargs)
        return result

    def _difference(self, call: Call) -> str:
        """Tell what of a call does not fit the plan that was used last."""
        if self._latest is None:
            return ""
        try:
            self._latest.plan.tensors_of(call.args, call.kwargs)
        except PlanMismatchError as error:
            return error.difference
        return "options of hofunc, or its rules: got other ones, expected those that the last plan was made with"

    def _check_miss(self, why: str) -> None:
        """Warn of a call that fits no plan, or refuse it."""
        if self._settings.on_miss == "error":
            what, got = f"jit of {_named(self._transform)}, with on_miss='error'", f"a call that fits no plan: {why}"
            remedy = "Make its plan before, by .plan(...), or call the transform itself."
            raise PlanMismatchError(what, got=got, expected="one that a plan was made for", remedy=remedy)
        if self._settings.on_miss == "warn":
            warn(f"{_named(self._transform)} is planned once more: {why}.", PlanningWarning)

    def _is_worth(self, kin: _Kin, *, is_new: bool) -> bool:
        """Take note of a call that fits no plan, maybe of a new form, and tell whether to make one for it."""
        kin.missed += 1
        self._crowded = self._crowded + 1 if is_new and self._size() >= self._settings.max_plans else 0
        count = max(kin.missed, self._crowded)
        if count == MANY:
            warn(
                f"{_named(self._transform)}, jitted, was planned for {MANY - 1} calls in a row, and is recorded from "
                f"now on until a call fits a plan: {self._why}. See its explain_misses().",
                PlanningWarning,
            )
        return count < MANY

    def _kin_of(self, form: tuple) -> _Kin:
        """Return the kin of calls of a form, that of those which are kept if there are any."""
        bare = without_values(form)
        kept = (entry.kin for entry in list(self._entries.values()) if entry.kin.form == bare)
        return next(kept, None) or _Kin(bare)

    def _keep(self, form: tuple, kin: _Kin, *made: _Made, unplanned: str = "") -> None:
        """Keep a plan for calls of a form, or why they have none; drops what was not used for longest."""
        with self._lock:
            entry = self._entries.setdefault(form, _Entry(kin))
            self._entries.move_to_end(form)
            entry.unplanned = unplanned
            for each in made:
                entry.add(each)
            self._latest = made[0] if made else self._latest
            while self._size() > self._settings.max_plans:
                oldest = next(iter(self._entries.values()))
                oldest.made = oldest.made[:-1]
                if not oldest.made:
                    self._entries.popitem(last=False)

    def _size(self) -> int:
        """Return how many plans there are, a form of calls that has none counted as one."""
        return sum(len(entry.made) or 1 for entry in list(self._entries.values()))

    def _in_full(self, call: Call, entry: _Entry, made: _Made) -> _Made:
        """Plan in full what was planned quickly for such a call, and keep that in its place; returns it."""
        with self._planning:
            if made not in entry.made:  # as another thread has done so
                return made
            by_indices, for_all = made.by_indices, self._settings.on_miss != "plan"
            try:
                plan = self._transform.plan_of(call.args, call.kwargs, by_indices=by_indices, for_all=for_all)
            except Exception:  # of a function that is not what it was: what was planned quickly says so, or still fits
                made.due.calls = inf
                return made
            full = made._replace(plan=plan, by_facts=_goes_by_facts(plan), due=Due(inf))
            with self._lock:
                entry.add(full, made)
                self._latest = full if self._latest is made else self._latest
        return full

    def _tier(self, entry: _Entry | None) -> str:
        """Return how far to plan: in full at once, unless it is one of many branches that there may be.

        What is compiled, or has to be fast at every call, is planned in full anyhow.
        """
        is_branch = entry is not None and entry.made != ()
        return tier() if is_branch and not self._settings.compile and self._settings.on_miss != "error" else "full"

    def _planned(self, call: Call, why: str, kin: _Kin, planning: str) -> _Made:
        """Make a plan, and keep it.

        One of a form may go by the values of indices, as calls of the transform do; those after it go by none, and by
        facts about them where others may be made that do not fit these.
        """
        entry, settings = self._entries.get(call.form), self._settings
        may_miss = not settings.compile and settings.on_miss == "plan"
        may = may_miss and not (entry and any(made.by_indices for made in entry.made))
        plan = self._transform.plan_of(
            call.args, call.kwargs, by_indices=may, for_all=not may_miss, quick=planning != "full"
        )
        if self._settings.compile:
            try:
                plan = plan.compile(background=self._settings.compile == "background")
            except (ArgumentError, UnsupportedOpError) as error:
                warn(f"{_named(self._transform)}, jitted, runs uncompiled: {error}", PlanningWarning)
        reason, by_indices = why or "it was the first", may and _goes_by_indices(plan)
        due = Due(plan._calls if planning == "auto" else inf)
        made = _Made(plan, reason, plan.generators(), by_indices, _goes_by_facts(plan), due)
        self._keep(call.form, kin, made)
        return made


def _goes_by_indices(plan: Plan) -> bool:
    subject = plan._subject
    return isinstance(subject, Subject) and any(
        reading.call.op is GONE_BY for reading in subject.chosen.lowered.decided
    )


def _goes_by_facts(plan: Plan) -> bool:
    return isinstance(plan._subject, Subject) and plan._subject.chosen.goes_by_facts


def _in_order(*made: _Made) -> tuple[_Made, ...]:
    """Return plans in the order in which they are tried: what goes by indices fits those only, and takes less.

    So does what goes by facts about them, compared with what fits any.
    """
    return tuple(sorted(made, key=lambda each: (not each.by_indices, not each.by_facts)))


def _first_fitting(plans: Iterable[_Made], leaves: Sequence[Any]) -> tuple[_Made | None, Any]:
    """Return the first plan that fits a call, and its result; else None, and why the first of them does not fit."""
    why = ""
    for made in plans:
        states = [generator.get_state() for generator in made.generators]
        try:
            return made, made.plan.of_leaves(leaves)
        except PlanMismatchError as error:
            why = why or error.difference
            for generator, before in zip(made.generators, states, strict=True):
                generator.set_state(before)
    return None, why


def _named(transform: Any) -> str:
    return getattr(transform, "__name__", type(transform).__name__)
