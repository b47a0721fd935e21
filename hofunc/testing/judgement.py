"""The comparison of a derivative by hod with its oracles, and what is said where they differ."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from hofunc.errors import HodcheckError
from hofunc.testing.differences import Estimate
from hofunc.testing.entries import Mismatch, largest, worst
from hofunc.testing.oracles import Leaves, Subject


class Tolerances(NamedTuple):
    """How far off an entry may be: relative to the largest of its tensor, and besides."""

    rtol: float
    atol: float

    def allowed(self, *sizes: Sequence[float]) -> list[float]:
        """Return what is allowed in each tensor, given the largest entries of tensors that it is measured by."""
        return [self.atol + self.rtol * max(size) for size in zip(*sizes, strict=True)]


class Nested(NamedTuple):
    """What nested torch.func says: its tensors, nan where it fails, and why it does."""

    leaves: Leaves
    failure: str

    def opinion(self, mismatch: Mismatch) -> str:
        """Return its opinion on an entry."""
        entry = float(self.leaves[mismatch.tensor][mismatch.index])
        return f"nested torch.func.jacrev {self.failure or f'has {entry:.17g}'}"


def check(subject: Subject, order: int, below: Leaves, found: Leaves, tolerances: Tolerances) -> None:
    """Compare the derivative of an order, as found by hod, with its oracles.

    Args:
        subject: The function and the point.
        order: The order.
        below: The derivative of the order below.
        found: The derivative.
        tolerances: How far off it may be.

    Raises:
        HodcheckError: An entry is off, or not confirmed by any oracle.
    """
    shapes = [leaf.shape + x.shape for leaf in below for x in subject.arguments.leaves]
    if [leaf.shape for leaf in found] != shapes:
        _raise_misshapen(order, found, shapes)
    sizes = [largest([leaf]) for leaf in found]
    count = len(subject.inputs)
    rough = tolerances.allowed(sizes, [largest([leaf]) for leaf in below for _ in range(count)])
    nested = _nested(subject, order, found)
    is_confirmed = not nested.failure and worst(found, nested.leaves, tolerances.allowed(sizes)) is None
    if is_confirmed and _agrees_along_a_direction(subject, order, found, rough):
        return
    differences = subject.differences(order)
    is_judged = [estimate.error <= limit for estimate, limit in zip(differences, rough, strict=True)]
    limits = [limit + estimate.error for estimate, limit in zip(differences, rough, strict=True)]
    wrong = worst(found, [estimate.value for estimate in differences], limits, is_judged)
    if wrong is not None:
        _raise_wrong(subject, order, wrong, differences[wrong.tensor], nested.opinion(wrong))
    is_open = [~judged for judged in is_judged]
    doubtful = worst(found, nested.leaves, tolerances.allowed(sizes), is_open)
    if doubtful is not None:
        _raise_undecided(subject, order, doubtful, differences[doubtful.tensor], nested.opinion(doubtful))


def _nested(subject: Subject, order: int, found: Leaves) -> Nested:
    try:
        return Nested(subject.nested(order), "")
    except Exception as error:  # f is anybody's, and torch need not be able to differentiate it
        reason = (str(error).splitlines() or [""])[0]
        missing = [torch.where(leaf.isnan(), 0.0, torch.nan) for leaf in found]  # which nothing agrees with
        return Nested(missing, f"fails with {type(error).__name__} ({reason})")


def _agrees_along_a_direction(subject: Subject, order: int, found: Leaves, limits: Sequence[float]) -> bool:
    """Compare the derivative along one direction with differences, where these can judge it.

    An entry that is not finite leaves a sum that says nothing of the others, and so nothing is agreed.
    """
    generator = torch.Generator().manual_seed(order)
    direction = [
        (torch.rand(x.shape, generator=generator, dtype=torch.float64) + 0.5).to(x) for x in subject.arguments.leaves
    ]
    for number, estimate in enumerate(subject.along(order, direction)):
        got, limit = torch.zeros_like(estimate.value), 0.0
        for slot, v in enumerate(direction):
            block = found[number * len(direction) + slot]
            got = got + torch.tensordot(block, v.double(), v.dim())
            limit += limits[number * len(direction) + slot] * v.numel()
        off = worst([got], [estimate.value], [limit + estimate.error], [estimate.error <= limit])
        if off is not None or not got.isfinite().all():
            return False
    return True


def _raise_misshapen(order: int, found: Leaves, shapes: list[torch.Size]) -> None:
    raise HodcheckError(
        f"hodcheck: the derivative of order {order}",
        got=f"tensors of shapes {[tuple(leaf.shape) for leaf in found]}",
        expected=f"{[tuple(shape) for shape in shapes]}",
        remedy="This is a bug of hofunc: please report it, with f and args.",
    )


def _raise_wrong(subject: Subject, order: int, entry: Mismatch, estimate: Estimate, opinion: str) -> None:
    raise HodcheckError(
        f"hodcheck: {subject.name(entry.tensor, entry.index, order)} is {entry}",
        got=f"{entry.got:.17g}",
        expected=f"{entry.expected:.17g} by differences of order {order - 1}, which are good to "
        f"{float(estimate.error[entry.index]):.1g}; {opinion}",
        remedy="If f is smooth there and has no .detach() or .item(), this is a bug of hofunc: please report it.",
    )


def _raise_undecided(subject: Subject, order: int, entry: Mismatch, estimate: Estimate, opinion: str) -> None:
    raise HodcheckError(
        f"hodcheck: no oracle confirms {subject.name(entry.tensor, entry.index, order)}",
        got=f"{entry.got:.17g}",
        expected=f"a second opinion, but {opinion}, and differences of order {order - 1} have "
        f"{float(estimate.value[entry.index]):.17g}, good to {float(estimate.error[entry.index]):.1g} only",
        remedy="Pass float64, and args at least 0.05 from where f is not smooth, or check a lower order.",
    )
