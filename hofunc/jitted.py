"""Transforms that are planned once for every form of their arguments, and never go by a plan that does not fit.

A plan refuses whatever it was not made for, and plans are kept by the form of a call, which is all that can be told of
it without calling the function. Here is told which calls run a plan that is kept, which make another one, and how far.
"""

from collections.abc import Callable, Iterable
from functools import update_wrapper
from math import inf
from threading import RLock
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, overload

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
from hofunc.forms import Call, Forms
from hofunc.given import check_amount, check_choice, listed, refuse
from hofunc.graph.derivations import notes
from hofunc.graph.standin import in_transform
from hofunc.graph.tape import is_recording
from hofunc.graph.uncompiled import uncompiled
from hofunc.kept_plans import Entry, Kept, KeptPlans, Kin, first_fitting, kept
from hofunc.methods import Method
from hofunc.notebook import kept_as_html
from hofunc.run.cache import Due, tier
from hofunc.sampling import Estimate
from hofunc.spelling import spelt
from hofunc.transform import Transform

MISSES = ("plan", "warn", "error")
COMPILES = (False, True, "background")
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
        self._kept = KeptPlans(settings.max_plans)
        self._planning = RLock()
        self._crowded = 0  # how many calls in a row were of a new form with no room left
        self._why = ""
        update_wrapper(self, transform, updated=())

    @uncompiled
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the transform returns; see `jit`."""
        if is_dynamo_compiling():
            return self._transform(*args, **kwargs)
        is_recorded = is_recording() or notes() is not None
        call = None if in_transform() or is_recorded else self._forms.taken(args, kwargs)
        if call is None:
            return self._transform(*args, **kwargs)
        entry = self._kept.entry(call.form)
        if entry is None:
            return self._missed(call, (), "")
        tried = entry.plans
        used, result = entry.fitting(tried, call.leaves)
        if used is None:
            return self._missed(call, tried, result)
        self._note_hit(call.form, entry, used)
        used.due.calls -= 1
        if used.due.calls <= 0:
            self._in_full(call, entry, used)
        return result

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """Return the plan that a call with these arguments runs, made if there is none yet, and planned in full.

        Raises:
            ArgumentError: As from the transform's own ``plan``, as are the other errors; or as from a call.
        """
        call = self._forms.taken(args, kwargs)
        if call is None:
            return self._transform.plan(*args, **kwargs)
        entry = self._kept.entry(call.form)
        used, why = (None, "") if entry is None else entry.fitting(entry.plans, call.leaves)
        if entry is None or used is None:
            return self._planned(call, why or self._difference(call), self._kept.kin(call.form), "full").plan
        self._note_hit(call.form, entry, used)
        return (used if used.due.calls == inf else self._in_full(call, entry, used)).plan

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans that are kept, in the order in which they were last used."""
        return tuple([each.plan for each in self._kept.plans()])

    def explain_misses(self) -> str:
        """Return a text that says what each plan was made for, and why the last call that made one fitted no other."""
        plans, refused = self._kept.plans(), [entry.unplanned for entry in self._kept.entries() if entry.unplanned]
        lines = [f"{self._settings.max_plans} plans at most of {_named(self._transform)}, {len(plans)} made:"]
        for number, each in enumerate(plans):
            lines += [f"  {number}  {each.plan.takes}", f"     {each.reason}"]
        lines += [f"  none  {reason}" for reason in refused]
        return "\n".join([*lines, f"The last call that fitted none: {self._why or 'the first one'}"])

    def clear(self) -> None:
        """Drop all plans."""
        self._kept.clear()
        self._crowded, self._why = 0, ""

    def __reduce__(self) -> tuple:
        """Copy or pickle the transform, without its plans."""
        return Jitted, (self._transform, self._settings)

    def __repr__(self) -> str:
        return f"jit({_named(self._transform)}, plans={len(self.plans)})"

    def _repr_html_(self) -> str:
        title = f"{self!r}, of at most {self._settings.max_plans}"
        return kept_as_html(title, [(each.plan, each.reason) for each in self._kept.plans()])

    def _note_hit(self, form: tuple, entry: Entry, used: Kept) -> None:
        """Take note that a plan was used."""
        entry.kin.missed = self._crowded = 0
        self._kept.used(form, entry, used)

    def _missed(self, call: Call, tried: tuple[Kept, ...], why: str) -> Any:
        """Return the result of a call that fitted none of some plans, by one that is made for it."""
        with self._planning:
            entry = self._kept.entry(call.form)
            others = () if entry is None else [each for each in entry.plans if each not in tried]
            used, result = first_fitting(others, call.leaves)  # of those that another thread has made meanwhile
            if used is not None:
                return result
            if self._kept.latest is not None:
                self._why = why = why or self._difference(call)
                self._check_miss(why)
            kin = self._kept.kin(call.form)
            if (entry and entry.unplanned) or not self._is_worth(kin, is_new=entry is None):
                return self._transform(*call.args, **call.kwargs)
            try:
                made = self._planned(call, why, kin, self._tier(entry))
            except UntracedError as error:
                self._kept.keep(call.form, kin, unplanned=str(error))
                warn(f"{_named(self._transform)} has no plan, and is recorded at every call: {error}", PlanningWarning)
                return self._transform(*call.args, **call.kwargs)
        used, result = first_fitting((made,), call.leaves)
        if used is None:  # another thread has changed what the function reads
            return self._transform(*call.args, **call.kwargs)
        return result

    def _difference(self, call: Call) -> str:
        """Tell what of a call does not fit the plan that was used last."""
        latest = self._kept.latest
        if latest is None:
            return ""
        try:
            latest.plan.tensors_of(call.args, call.kwargs)
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

    def _is_worth(self, kin: Kin, *, is_new: bool) -> bool:
        """Take note of a call that fits no plan, maybe of a new form, and tell whether to make one for it."""
        kin.missed += 1
        self._crowded = self._crowded + 1 if is_new and self._kept.is_full else 0
        count = max(kin.missed, self._crowded)
        if count == MANY:
            warn(
                f"{_named(self._transform)}, jitted, was planned for {MANY - 1} calls in a row, and is recorded from "
                f"now on until a call fits a plan: {self._why}. See its explain_misses().",
                PlanningWarning,
            )
        return count < MANY

    def _in_full(self, call: Call, entry: Entry, quick: Kept) -> Kept:
        """Plan in full what was planned quickly for such a call, and keep that in its place; returns it."""
        with self._planning:
            if quick not in entry.plans:  # as another thread has done so
                return quick
            by_indices, for_all = quick.by_indices, self._settings.on_miss != "plan"
            try:
                plan = self._transform.plan_of(call.args, call.kwargs, by_indices=by_indices, for_all=for_all)
            except Exception:  # of a function that is not what it was: what was planned quickly says so, or still fits
                quick.due.calls = inf
                return quick
            full = quick.with_plan(plan, Due(inf))
            self._kept.replace(entry, quick, full)
        return full

    def _tier(self, entry: Entry | None) -> str:
        """Return how far to plan: in full at once, unless it is one of many branches that there may be.

        What is compiled, or has to be fast at every call, is planned in full anyhow.
        """
        is_branch = entry is not None and entry.plans != ()
        return tier() if is_branch and not self._settings.compile and self._settings.on_miss != "error" else "full"

    def _planned(self, call: Call, why: str, kin: Kin, planning: str) -> Kept:
        """Make a plan, and keep it.

        One of a form may go by the values of indices, as calls of the transform do; those after it go by none, and by
        facts about them where others may be made that do not fit these.
        """
        entry, settings = self._kept.entry(call.form), self._settings
        may_miss = not settings.compile and settings.on_miss == "plan"
        may = may_miss and not (entry and any(each.by_indices for each in entry.plans))
        plan = self._transform.plan_of(
            call.args, call.kwargs, by_indices=may, for_all=not may_miss, quick=planning != "full"
        )
        if settings.compile:
            try:
                plan = plan.compile(background=settings.compile == "background")
            except (ArgumentError, UnsupportedOpError) as error:
                warn(f"{_named(self._transform)}, jitted, runs uncompiled: {error}", PlanningWarning)
        due = Due(plan._calls if planning == "auto" else inf)
        made = kept(plan, why or "it was the first", due, may_go_by_indices=may)
        self._kept.keep(call.form, kin, made)
        return made


def _named(transform: Any) -> str:
    return getattr(transform, "__name__", type(transform).__name__)
