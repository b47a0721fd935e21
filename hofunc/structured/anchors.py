"""Terms that autograd is to follow although they are constant: one of them has a core that it follows."""

from torch import Tensor

from hofunc.algebra.labels import Label, Segment, full
from hofunc.algebra.term import Factor, Term
from hofunc.structured.slots import Terms
from hofunc.structured.sums import core_or_one, with_core

Shapes = tuple[tuple[int, ...], ...]


def anchored(terms: Terms, shapes: Shapes, nothing: Tensor) -> Terms:
    """Return terms of the same value with a core that is computed from zero, a tensor of no dimension."""
    if not terms:
        return (_nowhere(shapes, nothing),)
    first, *others = terms
    core = core_or_one(first, nothing.new_ones(()))
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
