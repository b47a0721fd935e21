"""The ops that stand for the steps of a recurrence, and what leads to and from their vectors, with their rules."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

import torch

from hofunc.algebra.labels import Axes, Axis, Segment, fresh_axes, labels_of
from hofunc.algebra.term import Factor, Term
from hofunc.graph.node import Ref
from hofunc.rules.kinds import Linear, Positions, Site


@dataclass(frozen=True, slots=True, eq=False)
class Stepped:
    """The rule of the steps of a recurrence, each a function of one vector, whose derivatives are values of nodes.

    Attributes:
        like: Their terms of every order that does not vanish; of each step they have the same axes.
        first: For every such order the node that has the derivative of the first step, before those of the others.
    """

    like: list[Term]
    first: list[int]

    def positions(self, _: Site, order: int) -> Iterable[Positions]:
        """See `hofunc.rules.kinds.Rule`."""
        return [(0,) * order] if order <= len(self.like) else []

    def terms(self, site: Site, positions: Positions) -> Sequence[Term]:
        """See `hofunc.rules.kinds.Rule`."""
        like, (_, step, _) = self.like[len(positions) - 1], site.node.args
        (factor,) = like.factors
        return [like._replace(factors=(Factor(Ref(self.first[len(positions) - 1] + step), factor.axes),))]


def term_like(height: int, width: int, order: int) -> Term:
    """Return the term of the derivative of a function of vectors."""
    out, slots = fresh_axes((height,)), tuple([fresh_axes((width,)) for _ in range(order)])
    return Term(1, (Factor(None, (*out, *sum(slots, ()))),), out, slots)


def stepped(_vector: torch.Tensor, _number: int, given: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return what a step comes to, as one vector, from what its nodes were computed to; it is a function of another."""
    return joined(given)


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return tensors as one vector."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def part(vector: torch.Tensor, start: int, shape: Sequence[int]) -> torch.Tensor:
    """Return part of a vector as a tensor of some shape."""
    return vector.narrow(0, start, prod(shape)).reshape(shape)


def _of_joined(site: Site) -> dict[int, list[Term]]:
    """Return the terms of `joined`, of tensors that have at most one axis of more than one element."""
    terms, start, (width,) = {}, 0, site.node.shape
    for position, shape in enumerate(site.shapes):
        axes, size = fresh_axes(shape), prod(shape)
        terms[position] = [Term(1, (), (within(axes, start, width),), (axes,))]
        start += size
    return terms


def _of_part(site: Site) -> dict[int, list[Term]]:
    """Return the terms of `part`, to such a tensor."""
    axes, (width,) = fresh_axes(site.node.shape), site.shapes[0]
    return {0: [Term(1, (), axes, ((within(axes, site.node.args[1], width),),))]}


def within(axes: Axes, start: int, width: int) -> Axis:
    """Return part of a longer axis, for the only axis of some that has more than one element."""
    label = next((label for label in labels_of(axes) if label.size > 1), None)
    return (Segment(label, start, width),)


JOINED, PART = Linear(_of_joined), Linear(_of_part)


def is_line(shape: Sequence[int]) -> bool:
    """Tell whether a tensor has at most one axis of more than one element."""
    return sum(size > 1 for size in shape) <= 1
