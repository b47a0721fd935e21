"""The plans of a transform by the form of a call: a bounded number of them, found by what calls are and read.

Calls of one form differ only in the values of tensors and in what the function reads. A plan refuses whatever it was
not made for, and looks at these first, so that to try one which does not fit costs little.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Any, NamedTuple

import torch

from hofunc.callable_plan import Plan
from hofunc.errors import PlanMismatchError
from hofunc.forms import without_values
from hofunc.graph.identity import PLAIN
from hofunc.outline import Subject
from hofunc.plan.values import GONE_BY
from hofunc.run.branches import Branches
from hofunc.run.cache import Due

FEW = 3  # plans, from which on it is told before they are tried which of them fit


class Kept(NamedTuple):
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

    def with_plan(self, plan: Plan, due: Due) -> "Kept":
        """Return the same with another plan of the same calls."""
        return self._replace(plan=plan, by_facts=_goes_by_facts(plan), due=due)


def kept(plan: Plan, reason: str, due: Due, *, may_go_by_indices: bool) -> Kept:
    """Return a plan as it is kept.

    Args:
        plan: The plan.
        reason: Why it was made.
        due: Counts the calls after which it is planned in full.
        may_go_by_indices: Whether it was made so that it may go by the values of indices.
    """
    by_indices = may_go_by_indices and _goes_by_indices(plan)
    return Kept(plan, reason, plan.generators(), by_indices, _goes_by_facts(plan), due)


class Kin:
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


class Entry:
    """The plans for calls of one form.

    Args:
        kin: That of these calls.

    Attributes:
        kin: See above.
        plans: The plans, the one used last first; replaced as a whole.
        branches: These, and maybe some that are not kept any more, by the values that they read.
        is_steady: Whether the plan used last was used before, too.
        unplanned: Why there can be none, if so.
    """

    __slots__ = ("branches", "is_steady", "kin", "plans", "unplanned")

    def __init__(self, kin: Kin) -> None:
        self.kin = kin
        self.plans: tuple[Kept, ...] = ()
        self.branches: Branches[Kept] = Branches()
        self.is_steady = True
        self.unplanned = ""

    def add(self, made: Kept, replaced: Kept | None = None) -> None:
        """Add a plan, in place of another one if there is one; the tree is made anew once most plans of it went."""
        self.plans = _in_order(made, *(each for each in self.plans if each is not replaced))
        is_full = self.branches.count > 2 * len(self.plans)
        self.branches = Branches() if is_full else self.branches
        for each in self.plans if is_full else (made,):
            self.branches.add(each, each.plan._steps.program, each.plan._facts.captured)

    def put_first(self, used: Kept) -> None:
        """Take note that a plan was used."""
        if self.plans[0] is not used and used in self.plans:
            self.plans = _in_order(used, *(other for other in self.plans if other is not used))

    def fitting(self, plans: Sequence[Kept], leaves: Sequence[Any]) -> tuple[Kept | None, Any]:
        """Return the first of its plans that fits a call, and its result; else None, and why the first does not fit.

        That is tried before anything else if it was used twice in a row, and at last, to say why. Of the others, those
        are tried that are left by the values that they read.
        """
        if len(plans) < FEW:
            return first_fitting(plans, leaves)
        is_tried, (used, result) = self.is_steady, (None, "")
        if is_tried:
            used, result = first_fitting(plans[:1], leaves)
        if used is None:
            used, found = first_fitting(self._among(plans[is_tried:], leaves), leaves)
            result = result if used is None else found
        if used is None and not is_tried:
            used, result = first_fitting(plans[:1], leaves)
        self.is_steady = used is plans[0]
        return used, result

    def _among(self, others: Sequence[Kept], leaves: Sequence[Any]) -> list[Kept]:
        """Return those of some plans that a call may fit."""
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not PLAIN.issuperset(map(type, tensors)):
            return [*others]
        states = {generator: generator.get_state() for each in others for generator in each.generators}
        fitting = {*map(id, self.branches.fitting(tensors))}
        for generator, before in states.items():
            generator.set_state(before)
        return [each for each in others if id(each) in fitting]


class KeptPlans:
    """A bounded number of plans by the form of a call, for several threads.

    Args:
        most: How many are kept; that not used for longest goes.

    Attributes:
        latest: The plan used last, None before there is one.
    """

    def __init__(self, most: int) -> None:
        self.latest: Kept | None = None
        self._most = most
        self._entries: OrderedDict[tuple, Entry] = OrderedDict()
        self._last: tuple[tuple, Entry] | None = None  # the form of that plan, with the others for calls of it
        self._lock = Lock()

    def entry(self, form: tuple) -> Entry | None:
        """Return the plans for calls of a form, None if there was no such call.

        Most calls are of the form of the one before. To compare two takes less than to hash one, as a structure has it.
        """
        last = self._last
        return last[1] if last is not None and last[0] == form else self._entries.get(form)

    def entries(self) -> list[Entry]:
        """Return the plans of all forms, that used last at the end."""
        with self._lock:
            return [*self._entries.values()]

    def plans(self) -> list[Kept]:
        """Return all plans, in the order in which they were last used."""
        return [each for entry in self.entries() for each in reversed(entry.plans)]

    @property
    def is_full(self) -> bool:
        """Whether another one takes the place of one; a form of calls that has none is counted as one."""
        return self._size() >= self._most

    def kin(self, form: tuple) -> Kin:
        """Return the kin of calls of a form, that of those which are kept if there are any."""
        bare = without_values(form)
        found = (entry.kin for entry in list(self._entries.values()) if entry.kin.form == bare)
        return next(found, None) or Kin(bare)

    def used(self, form: tuple, entry: Entry, plan: Kept) -> None:
        """Take note that a plan was used."""
        if self.latest is plan:
            return
        with self._lock:
            self.latest = plan
            if form in self._entries:
                self._entries.move_to_end(form)
                self._last = form, entry
            entry.put_first(plan)

    def keep(self, form: tuple, kin: Kin, *plans: Kept, unplanned: str = "") -> None:
        """Keep a plan for calls of a form, or why they have none; drops what was not used for longest."""
        with self._lock:
            entry = self._entries.setdefault(form, Entry(kin))
            self._entries.move_to_end(form)
            self._last = form, entry
            entry.unplanned = unplanned
            for each in plans:
                entry.add(each)
            self.latest = plans[0] if plans else self.latest
            while self._size() > self._most:
                oldest = next(iter(self._entries.values()))
                oldest.plans = oldest.plans[:-1]
                if not oldest.plans:
                    self._entries.popitem(last=False)

    def replace(self, entry: Entry, plan: Kept, other: Kept) -> None:
        """Keep another plan in the place of one."""
        with self._lock:
            entry.add(other, plan)
            self.latest = other if self.latest is plan else self.latest

    def clear(self) -> None:
        """Drop all plans."""
        with self._lock:
            self._entries.clear()
            self.latest = self._last = None

    def _size(self) -> int:
        return sum(len(entry.plans) or 1 for entry in list(self._entries.values()))


def first_fitting(plans: Iterable[Kept], leaves: Sequence[Any]) -> tuple[Kept | None, Any]:
    """Return the first plan that fits a call, and its result; else None, and why the first of them does not fit."""
    why = ""
    for each in plans:
        states = [generator.get_state() for generator in each.generators]
        try:
            return each, each.plan.of_leaves(leaves)
        except PlanMismatchError as error:
            why = why or error.difference
            for generator, before in zip(each.generators, states, strict=True):
                generator.set_state(before)
    return None, why


def _in_order(*plans: Kept) -> tuple[Kept, ...]:
    """Return plans in the order in which they are tried: what goes by indices fits those only, and takes less.

    So does what goes by facts about them, compared with what fits any.
    """
    return tuple(sorted(plans, key=lambda each: (not each.by_indices, not each.by_facts)))


def _goes_by_indices(plan: Plan) -> bool:
    subject = plan._subject
    return isinstance(subject, Subject) and any(
        reading.call.op is GONE_BY for reading in subject.chosen.lowered.decided
    )


def _goes_by_facts(plan: Plan) -> bool:
    return isinstance(plan._subject, Subject) and plan._subject.chosen.goes_by_facts
