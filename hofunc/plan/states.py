"""All states of a recurrence as one tensor, what their derivatives follow from, and the rules of both.

A change of one state changes all after it: the change of each is what its own step adds, and the slope of that step
times the change of the state before. That is one pass over the steps, with a product of a small matrix and a vector at
each of them; its transpose is one from the last step to the first.
"""

from collections.abc import Iterable, Sequence

import torch

from hofunc.algebra.labels import Segment, fresh_axes
from hofunc.algebra.operators import Map
from hofunc.algebra.term import Factor, Term
from hofunc.plan.stepped import part, within
from hofunc.rules.kinds import Linear, Site


def taken(states: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    """Return the state that each step takes, as it was computed.

    It is a function of what follows: the slopes of the steps by these states, what the steps give at those of before,
    the state that the first one takes, and the states of before.
    """
    return states


def given(gives: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    """Return what each step gives, as it is at the states that they take.

    It is a function of what it gives at those that follow last, the slopes, the states that the steps take, and those
    of before.
    """
    return gives


SAME = (taken, given)  # whose values are those that come first


def row(whole: torch.Tensor, number: int, start: int, shape: Sequence[int]) -> torch.Tensor:
    """Return part of what a step gives, as a tensor of some shape."""
    return part(whole[number], start, shape)


def _of_taken(site: Site) -> dict[int, list[Term]]:
    """Return the terms of `taken`."""
    count, width = site.node.shape
    slopes, (_, height) = site.ref(1), site.shapes[2]
    out, (step, state), before = fresh_axes((count, width)), fresh_axes((count, width)), fresh_axes((width,))
    start, at = fresh_axes((width,)), Factor(slopes, (step, state, *before))
    along = Factor(Map(passed, passed_back, (slopes,), 2, 2), (*out, step, state))
    first = Factor(Map(started, started_back, (slopes,), 2, 1), (*out, *start))
    return {
        2: [Term(1, (along,), out, ((step, (state[0]._replace(extent=height),)),))],
        3: [Term(1, (first,), out, (start,))],
        4: [Term(-1, (along, at), out, ((step, *before),))],
    }


def _of_given(site: Site) -> dict[int, list[Term]]:
    """Return the terms of `given`."""
    step, out, state = fresh_axes(site.shapes[1])
    slopes = Factor(site.ref(1), (step, out, state))
    return {
        0: [Term(1, (), (step, out), ((step, out),))],
        2: [Term(1, (slopes,), (step, out), ((step, state),))],
        3: [Term(-1, (slopes,), (step, out), ((step, state),))],
    }


def _of_row(site: Site) -> dict[int, list[Term]]:
    """Return the terms of `row`, to a tensor that has at most one axis of more than one element."""
    axes, (count, width) = fresh_axes(site.node.shape), site.shapes[0]
    _, number, start, _ = site.node.args
    return {0: [Term(1, (), axes, (((Segment(None, number, count),), within(axes, start, width)),))]}


TAKEN, GIVEN, ROW = Linear(_of_taken), Linear(_of_given), Linear(_of_row)


def passed(changes: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """Return the changes of the states that steps take, by those of what they give; both are the last dimensions."""
    lead = changes.shape[:-2]
    columns = _columns(changes, 2)
    found = [torch.zeros_like(columns[0])]
    for change, slope in zip(columns[:-1].unbind(), slopes[:-1].unbind(), strict=True):
        found.append(_next(change, slope, found[-1]))
    return _uncolumned(found, lead)


def passed_back(changes: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """Apply the transpose of `passed`."""
    return _uncolumned(_back(_columns(changes, 2), slopes)[-2::-1], changes.shape[:-2])


def started(change: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """Return the changes of the states that steps take, by that of the first, which is the last dimension."""
    found = [_columns(change, 1)]
    for slope in slopes[:-1].unbind():
        found.append(slope @ found[-1])
    return _uncolumned(found, change.shape[:-1])


def started_back(changes: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """Apply the transpose of `started`."""
    (first,) = _back(_columns(changes, 2), slopes)[-1:]
    return first if changes.dim() == 2 else first.mT.reshape(*changes.shape[:-2], first.shape[0])


def _back(columns: torch.Tensor, slopes: torch.Tensor) -> list[torch.Tensor]:
    """Return zeros, and what the states that steps take have an effect on, from the last step to the first."""
    found = [torch.zeros_like(columns[0])]
    for change, slope in zip(reversed(columns.unbind()), reversed(slopes.mT.unbind()), strict=True):
        found.append(_next(change, slope, found[-1]))
    return found


def _next(change: torch.Tensor, slope: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    return (torch.addmv if change.dim() == 1 else torch.addmm)(change, slope, before)


def _columns(tensor: torch.Tensor, dims: int) -> torch.Tensor:
    """Return a tensor with its first dimensions as one, after the last ones; without any, as it is."""
    if tensor.dim() == dims:
        return tensor
    return tensor.reshape(-1, *tensor.shape[-dims:]).movedim(0, -1)


def _uncolumned(found: Iterable[torch.Tensor], lead: Sequence[int]) -> torch.Tensor:
    """Return what was found of each step as one tensor, with the first dimensions as they were."""
    columns = torch.stack(list(found))
    if not lead:
        return columns
    return columns.movedim(-1, 0).reshape(*lead, *columns.shape[:-1]).contiguous()


PASSES = (passed, passed_back, started, started_back)  # what takes calls for every step
