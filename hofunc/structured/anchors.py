"""What autograd is to follow although it is constant: it is added a sum of nothing of what it is to lead to."""

from collections.abc import Callable, Iterable, Sequence
from functools import reduce

import torch
from torch import Tensor

from hofunc.algebra.labels import Label, Segment, full
from hofunc.algebra.operators import sources
from hofunc.algebra.term import Factor, Term
from hofunc.graph.followed import has_history
from hofunc.structured.slots import Terms
from hofunc.structured.sums import core_or_one, with_core

Shapes = tuple[tuple[int, ...], ...]


def with_history(result: Tensor, origins: Iterable[Tensor]) -> Tensor:
    """Return a result that leads to some tensors beside those that it leads to."""
    nothings = [_nothing(origin, result) for origin in origins]
    return result + reduce(torch.add, nothings) if nothings else result


def _nothing(origin: Tensor, like: Tensor) -> Tensor:
    """Return zero, of the dtype and the device of a tensor, as the sum of no elements of another one."""
    none = origin.unsqueeze(0).narrow(0, 0, 0)
    none = none.abs() if none.is_complex() else none
    return none.sum(dtype=like.dtype).to(like.device)


def anchored(
    terms: Terms, shapes: Shapes, one: Callable[[], Tensor], leads_to: Callable[[], Sequence[Tensor]]
) -> Terms:
    """Return terms of the same value that lead somewhere: if they led nowhere, one of them has a core that does.

    Args:
        terms: The terms.
        shapes: The shapes of the output and of the slots.
        one: Returns the number one, of the dtype and on the device of the cores.
        leads_to: Returns what they are to lead to, if they lead nowhere.
    """
    if any(map(has_history, sources(terms))) or not (origins := leads_to()):
        return terms
    number = one()
    nothing = with_history(torch.zeros_like(number), origins)
    if not terms:
        return (_nowhere(shapes, nothing),)
    first, *others = terms
    core = core_or_one(first, number)
    return (with_core(first, core._replace(tensor=core.tensor + nothing)), *others)


def _nowhere(shapes: Shapes, nothing: Tensor) -> Term:
    """Return a term that reaches no index of any axis, of which the core has no elements; if there are axes."""
    labels: list[Label] = []

    def axis(size: int) -> tuple[Segment, ...]:
        if size == 1:
            return ()
        labels.append(Label(0))
        return (Segment(labels[-1], 0, size),)

    out, *slots = [tuple([axis(size) for size in shape]) for shape in shapes]
    core = nothing.expand((0,) * len(labels))
    return Term(1, (Factor(core, tuple([(full(label),) for label in labels])),), out, tuple(slots))
