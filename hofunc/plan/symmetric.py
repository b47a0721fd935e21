"""Coefficients that are symmetric tensors, kept by the entries that differ: one packed slot for slots that are alike.

An entry of the packed slot is the entry of the slots at the places of a monomial, in ascending order; what is linear
takes the packed slot as it is, and a product of two coefficients is multiplied entry by entry of its own packed slot.
"""

from collections.abc import Sequence

import torch

from hofunc.algebra import packed
from hofunc.algebra.extents import Rows
from hofunc.algebra.labels import Axis, Label, full, labels_of
from hofunc.algebra.term import Factor, Term
from hofunc.plan.builder import Builder
from hofunc.plan.packing import axes_first
from hofunc.plan.places import Places
from hofunc.views import each

LEAST = 3  # places of a slot, below which packing does not pay for taking the entries


class Symmetry:
    """Slots that may be exchanged, all of one size.

    Args:
        builder: Takes the steps.
        size: How many places each has.
        count: How many slots there are.
    """

    def __init__(self, builder: Builder, size: int, count: int):
        self._builder, self.size, self.count = builder, size, count
        self.entries = packed.count(size, count)

    def gathered(self, term: Term, places: Sequence[int], positions: Sequence[int]) -> Term | None:
        """Take the entries of a packed slot from slots of a contracted term that are some of the symmetric ones.

        Args:
            term: The term.
            places: Where these slots are in it.
            positions: Which of the symmetric ones they are.

        Returns:
            The term with the packed slot last and without these; None if it has other structure in them, or fewer
            places.
        """
        axes = tuple([term.slots[place][0] for place in places])
        left = tuple([slot for place, slot in enumerate(term.slots) if place not in places])
        own = labels_of(axes)
        borne = labels_of(*(factor.axes for factor in term.factors))
        if not all(len(axis) == 1 and axis[0].is_full for axis in axes) or len({*own}) < len(own):
            return None
        if {*own} & {*labels_of(term.out, *left)} or not {*own} <= {*borne}:
            return None
        tensor, rest = axes_first(self._builder, term, axes, (term.out, *left))
        places_in = tuple(
            sum(monomial[position] * self.size**power for power, position in enumerate(reversed(positions)))
            for monomial in packed.monomials(self.size, self.count)
        )
        if len(axes) > 1:
            shape = (self.size ** len(axes), *(label.size for label in rest))
            tensor = self._builder.emit(torch.reshape, tensor, shape)
        tensor = self._builder.emit(torch.index_select, tensor, 0, self._builder.constant(places_in))
        axis: Axis = (full(Label(self.entries)),)
        return term._replace(slots=(*left, (axis,)), factors=(Factor(tensor, (axis, *each(rest))),))

    def opened(self, term: Term, places: Sequence[int]) -> Term:
        """Return a contracted term with all slots in place of the packed one, which is its last."""
        *left, (axis,) = term.slots
        axes: list[Axis] = [(full(Label(self.size)),) for _ in range(self.count)]
        tensor, rest = axes_first(self._builder, term, (axis,), (term.out, *left))
        places_in = Places.unpacked(self.size, self.count)
        tensor = self._builder.emit(torch.index_select, tensor, 0, self._builder.constant(places_in))
        tensor = self._builder.emit(torch.reshape, tensor, (*[self.size] * self.count, *(label.size for label in rest)))
        slots = list(left)
        for place, own in sorted(zip(places, axes, strict=True)):
            slots.insert(place, (own,))
        return term._replace(slots=tuple(slots), factors=(Factor(tensor, (*axes, *each(rest))),))


def pays(size: int, count: int) -> bool:
    """Tell whether slots are worth packing."""
    return count > 1 and not isinstance(size, Rows) and size >= LEAST
