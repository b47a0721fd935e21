"""The ops that stand for all steps of a recurrence at once, with their rules.

All states are one tensor, with a row for each step, and so is what all steps give.

A change of one state changes all after it: the change of each is what its own step adds, and the slope of that step
times the change of the state before. That is one pass over the steps, with a product of a small matrix and a vector at
each of them; its transpose is one from the last step to the first.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from math import prod

import torch

from hofunc.algebra.labels import Axes, Axis, Segment, extent, fresh_axes, labels_of
from hofunc.algebra.operators import Map
from hofunc.algebra.term import Factor, Term
from hofunc.rules.kinds import Linear, Positions, Site


def taken(states: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    """Return the state that each step takes, as it was computed.

    It is a function of what follows: the slopes of the steps by these states, what the steps add by themselves, and the
    state that the first one takes.
    """
    return states


def stepped(gives: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    """Return what each step gives, as it was computed, of which the change by the states is taken apart.

    It is a function of what follows, a vector of what it takes for each step, and of the derivatives by that which come
    then: of order one by the last of its elements only, as of what changes by the states the slopes tell, and of higher
    orders by those from the number between on, as it is linear in others.
    """
    return gives


def added(gives: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    """Return what each step gives, as it was computed, of which the change by what it takes is taken apart.

    It is a function of all that it gives, and of slopes, by which that is taken away, and what they are by: the states
    alone, or all that changes.
    """
    return gives


def given(gives: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    """Return what each step gives, as it was computed.

    It is a function of the same but for what changes by what it takes, of slopes, by which that is added, and of what
    they are by.
    """
    return gives


SAME = (taken, stepped, added, given)  # whose values are those that come first


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return tensors as one vector."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def row(whole: torch.Tensor, number: int, start: int, shape: Sequence[int]) -> torch.Tensor:
    """Return part of what a step gives, as a tensor of some shape."""
    return whole[number].narrow(0, start, prod(shape)).reshape(shape)


def _of_taken(site: Site) -> dict[int, list[Term]]:
    """Return the terms of `taken`."""
    count, width = site.node.shape
    slopes, (_, height) = site.ref(1), site.shapes[2]
    out, (step, state), start = fresh_axes((count, width)), fresh_axes((count, width)), fresh_axes((width,))
    along = Factor(Map(passed, passed_back, (slopes,), 2, 2), (*out, step, state))
    first = Factor(Map(started, started_back, (slopes,), 2, 1), (*out, *start))
    return {
        2: [Term(1, (along,), out, ((step, (state[0]._replace(extent=height),)),))],
        3: [Term(1, (first,), out, (start,))],
    }


def _with_slopes(coefficient: int, site: Site) -> dict[int, list[Term]]:
    """Return the terms of what steps give, and what slopes make of what they take, some times."""
    out = fresh_axes(site.node.shape)
    found = {0: [Term(1, (), out, (out,))]}
    for place in range(1, len(site.operands), 2):
        axes = step, _, *varied = fresh_axes(site.shapes[place])
        slopes = Factor(site.ref(place), axes)
        found[place + 1] = [Term(coefficient, (slopes,), axes[:2], ((step, *varied),))]
    return found


class _OfSteps:
    """The rule of `stepped`."""

    def positions(self, site: Site, order: int) -> Iterable[Positions]:
        """See `hofunc.rules.kinds.Rule`."""
        return [(1,) * order] if order + 1 < len(site.operands) else []

    def terms(self, site: Site, positions: Positions) -> Sequence[Term]:
        """See `hofunc.rules.kinds.Rule`."""
        order, (_, width) = len(positions), site.shapes[1]
        step, out, *varied = fresh_axes(site.shapes[1 + order])
        start = width - extent(varied[0]) if order == 1 else site.node.args[2]
        slots = tuple([(step, within((axis,), start, width)) for axis in varied])
        return [Term(1, (Factor(site.ref(1 + order), (step, out, *varied)),), (step, out), slots)]


def _of_joined(site: Site) -> dict[int, list[Term]]:
    """Return the terms of `joined`, of tensors that have at most one axis of more than one element."""
    terms, start, (width,) = {}, 0, site.node.shape
    for position, shape in enumerate(site.shapes):
        axes, size = fresh_axes(shape), prod(shape)
        terms[position] = [Term(1, (), (within(axes, start, width),), (axes,))]
        start += size
    return terms


def _of_row(site: Site) -> dict[int, list[Term]]:
    """Return the terms of `row`, to a tensor that has at most one axis of more than one element."""
    axes, (count, width) = fresh_axes(site.node.shape), site.shapes[0]
    _, number, start, _ = site.node.args
    return {0: [Term(1, (), axes, (((Segment(None, number, count),), within(axes, start, width)),))]}


def within(axes: Axes, start: int, width: int) -> Axis:
    """Return part of a longer axis, for the only axis of some that has more than one element."""
    label = next((label for label in labels_of(axes) if label.size > 1), None)
    return (Segment(label, start, width),)


def is_line(shape: Sequence[int]) -> bool:
    """Tell whether a tensor has at most one axis of more than one element."""
    return sum(size > 1 for size in shape) <= 1


TAKEN, STEPPED, JOINED, ROW = Linear(_of_taken), _OfSteps(), Linear(_of_joined), Linear(_of_row)
ADDED, GIVEN = Linear(partial(_with_slopes, -1)), Linear(partial(_with_slopes, 1))


def passed(changes: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """Return the changes of the states that steps take, by those of what they give; both are the last dimensions."""
    rows = _rows(changes, 2).unbind(-2)
    found = _along(torch.zeros_like(rows[0]), rows[:-1], _turned(slopes[:-1], rows[0]).unbind())
    return torch.stack(found, -2).reshape(changes.shape)


def passed_back(changes: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """Apply the transpose of `passed`."""
    return torch.stack(_back(changes, slopes)[-2::-1], -2).reshape(changes.shape)


def started(change: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """Return the changes of the states that steps take, by that of the first, which is the last dimension."""
    found = [_rows(change, 1)]
    for slope in _turned(slopes[:-1], found[0]).unbind():
        found.append(slope @ found[-1] if change.dim() == 1 else found[-1] @ slope)
    return torch.stack(found, -2).reshape(*change.shape[:-1], *slopes.shape[:2])


def started_back(changes: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """Apply the transpose of `started`."""
    return _back(changes, slopes)[-1].reshape(*changes.shape[:-2], changes.shape[-1])


def _back(changes: torch.Tensor, slopes: torch.Tensor) -> list[torch.Tensor]:
    """Return zeros, and what the states that steps take have an effect on, from the last step to the first."""
    rows = _rows(changes, 2).unbind(-2)
    return _along(torch.zeros_like(rows[0]), rows[::-1], _turned(slopes.mT, rows[0]).unbind()[::-1])


def _along(first: torch.Tensor, changes: Sequence[torch.Tensor], slopes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return rows step by step: those of the step before, multiplied by a slope, and what changes beside."""
    found = [first]
    for change, slope in zip(changes, slopes, strict=True):
        before = found[-1]
        found.append(torch.addmv(change, slope, before) if before.dim() == 1 else torch.addmm(change, before, slope))
    return found


def _turned(slopes: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return slopes as rows are multiplied by them; a single one is by columns, which takes less."""
    return slopes if rows.dim() == 1 else slopes.mT


def _rows(tensor: torch.Tensor, dims: int) -> torch.Tensor:
    """Return a tensor with all dimensions but the last ones as one, if there are any."""
    return tensor if tensor.dim() == dims else tensor.reshape(prod(tensor.shape[:-dims]), *tensor.shape[-dims:])


PASSES = (passed, passed_back, started, started_back)  # what takes calls for every step


def calls_of_pass(count: int) -> float:
    """Return how many calls a pass over so many steps takes: each reads a part of two tensors, and multiplies them."""
    return 3 + 1.6 * count
