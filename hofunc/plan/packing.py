"""Packed slots: all slots of one variable in a term as one axis, and back.

A packed slot of order m of a variable has the variable's batch axes, each once, and one axis of the monomials of its
other axes. Two slots of a variable can be packed only if they share their batch axes, that is if rows do not mix.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import factorial, prod

import torch

from hofunc.algebra import packed
from hofunc.algebra.labels import Axes, Axis, Label, full, labels_of
from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Factor, Term
from hofunc.errors import ArgumentError
from hofunc.internals import is_autograd_view
from hofunc.plan.accumulate import core
from hofunc.plan.builder import Builder
from hofunc.plan.places import Factorials, Places
from hofunc.plan.program import Register
from hofunc.plan.recipes import by_recipe
from hofunc.views import each, spread


@dataclass(frozen=True)
class Variable:
    """An input to differentiate by, and which of its axes are a batch.

    Attributes:
        shape: Its shape.
        batch: Numbers of the axes that every slot shares.
    """

    shape: tuple[int, ...]
    batch: frozenset[int]

    @classmethod
    def of(cls, shape: Sequence[int]) -> "Variable":
        """Take all axes for a batch, until one turns out to be none."""
        return cls(tuple(shape), frozenset(range(len(shape))))

    def without(self, axes: Iterable[int]) -> "Variable":
        """Take some axes for a batch no longer."""
        return Variable(self.shape, self.batch.difference(axes))

    @property
    def directions(self) -> tuple[int, ...]:
        """Sizes of the axes that are not a batch."""
        return tuple(size for dim, size in enumerate(self.shape) if dim not in self.batch)

    @property
    def count(self) -> int:
        """Number of directions in which it is differentiated."""
        return prod(self.directions)

    def slot(self, batch: Axes, directions: Sequence[Axis]) -> Axes:
        """Put the axes of a slot in the order that the variable has them."""
        batch_axes, others = iter(batch), iter(directions)
        return tuple(next(batch_axes if dim in self.batch else others) for dim in range(len(self.shape)))


Variables = dict[int, Variable]


MAX_ENTRIES = 10_000_000


class DirectionsError(ArgumentError):
    """A variable has more directions than packed axes pay for; it reaches the user who asked for a packed strategy.

    Args:
        directions: How many it has.
        order: The order that was to be packed.
    """

    def __init__(self, directions: int, order: int):
        super().__init__(
            "hofunc: strategy",
            got=f"{directions} directions to differentiate an input in, at order {order}",
            expected=f"so few that they make at most {MAX_ENTRIES} products",
            remedy="Use strategy='reverse', which takes any number, or 'auto', which leaves out what does not apply.",
        )
        self.directions, self.order = directions, order


class RowsMixError(Exception):
    """Axes that were taken for a batch have two different indices in the slots of one variable.

    It is caught where the plan is made, and never reaches a user.

    Args:
        variable: The variable.
        axes: The numbers of its axes.
    """

    def __init__(self, variable: int, axes: tuple[int, ...]):
        super().__init__(variable, axes)
        self.variable, self.axes = variable, axes


def seed(variable: Variable, axes: Axes) -> Term:
    """Return the derivative of a variable by itself, its slot packed."""
    batch = tuple(axis for dim, axis in enumerate(axes) if dim in variable.batch)
    directions = tuple(axis for dim, axis in enumerate(axes) if dim not in variable.batch)
    return Term(1, (), axes, ((*batch, sum(directions, ())),))


def joined(builder: Builder, variables: Variables, term: Term, orders: Sequence[Key]) -> Term:
    """Multiply the polynomials that the packed slots of a contracted term stand for into one slot for each variable.

    Args:
        builder: Takes the steps.
        variables: The variables.
        term: Contracted term with packed slots.
        orders: For each factor of the product, the variables of its slots, each as often as its order says.

    Returns:
        Contracted term with one packed slot for every variable, in ascending order.

    Raises:
        RowsMixError: Two slots of a variable differ in their batch axes.
    """
    if len(orders) == 1 and len({*orders[0]}) == 1:
        return term
    owners = tuple([(variable, order.count(variable)) for order in orders for variable in dict.fromkeys(order)])
    found = dict.fromkeys([variable for variable, _ in owners])
    if len(found) == len(owners):
        return _in_order(owners, term)
    known = tuple([(variable, variables[variable]) for variable in found])
    (result,) = by_recipe(builder, _joined, [term], owners, known)
    return result


Owners = Sequence[tuple[int, int]]


def _in_order(owners: Owners, term: Term) -> Term:
    """Return a term, given the variable and the order of every slot, with its slots in ascending order of these."""
    places = sorted(range(len(owners)), key=owners.__getitem__)
    return term._replace(slots=tuple([term.slots[place] for place in places]))


def _joined(
    builder: Builder, terms: Sequence[Term], slots: Owners, variables: Sequence[tuple[int, Variable]]
) -> list[Term]:
    """Multiply the slots that a variable has in a term, given the variable and the order of every slot."""
    (term,), owners, known = terms, [*slots], dict(variables)
    place = 0
    while place < len(owners):
        variable, order = owners[place]
        other = next((q for q in range(place + 1, len(owners)) if owners[q][0] == variable), None)
        if other is None:
            place += 1
            continue
        _check_batch(known[variable], variable, term.slots[place], term.slots[other])
        term = _merged(builder, known[variable].count, term, (place, order), (other, owners[other][1]))
        owners[place] = (variable, order + owners[other][1])
        del owners[other]
    return [_in_order(owners, term)]


def _check_batch(variable: Variable, number: int, left: Axes, right: Axes) -> None:
    ends = zip(sorted(variable.batch), left[:-1], right[:-1], strict=True)
    mixed = tuple(axis for axis, one, other in ends if one != other)
    if mixed:
        raise RowsMixError(number, mixed)


def _merged(builder: Builder, n: int, term: Term, left: tuple[int, int], right: tuple[int, int]) -> Term:
    """Replace two slots of a variable of n directions, each given by place and order, by that of their product."""
    (place, order), (other, other_order) = left, right
    *batch, axis = term.slots[place]
    other_axis = term.slots[other][-1]
    slots = [slot for number, slot in enumerate(term.slots) if number != other]
    if n == 1:
        return term._replace(slots=tuple(slots))
    product_axis: Axis = (full(Label(packed.count(n, order + other_order))),)
    if packed.count(n, order) * packed.count(n, other_order) > MAX_ENTRIES:
        raise DirectionsError(n, order + other_order)
    slots[place] = (*batch, product_axis)
    tensor, rest = axes_first(builder, term, (axis, other_axis), (term.out, *slots))
    places = builder.constant(Places(n, (order, other_order)))
    tensor = builder.emit(collected, tensor, places, packed.count(n, order + other_order))
    return term._replace(slots=tuple(slots), factors=(Factor(tensor, (product_axis, *each(rest))),))


def axes_first(builder: Builder, term: Term, axes: Axes, others: Sequence[Axes]) -> tuple[Register, list[Label]]:
    """Lay a contracted term's tensor out with the given axes first, and then one dimension for each other label.

    A label that the axes share with the others stays among the latter, and the axes are diagonal in it.
    """
    given, own = core(builder, term), {*labels_of(axes)}
    kept = dict.fromkeys(labels_of(*others))
    shared = [label for label in kept if label in own and label.size > 1]
    rest = list(dict.fromkeys([*(label for label in given.labels if label in kept), *shared]))
    return spread(builder.emit, given, (*axes, *each(rest))), rest


def collected(tensor: torch.Tensor, places: torch.Tensor, size: int) -> torch.Tensor:
    """Add the entries of the first two dimensions up into one, at the given places."""
    flat = tensor.flatten(0, 1)
    return torch.index_add(tensor.new_zeros(size, *flat.shape[1:]), 0, places, flat)


def scratch(tensor: torch.Tensor, result: torch.Tensor) -> int:
    """Return the bytes that `collected` holds beside its result: zeros, and what it merges where that is a copy."""
    flat = tensor.flatten(0, 1)
    copied = 0 if is_autograd_view(flat) else flat.numel()
    return (result.numel() + copied) * result.element_size()


def opened(builder: Builder, variables: Variables, term: Term, parts: Sequence[Key]) -> Term:
    """Return the derivative that a contracted term of Taylor coefficients stands for, with a slot for each variable.

    Args:
        builder: Takes the steps.
        variables: The variables.
        term: Contracted term with packed slots.
        parts: For each polynomial of which it is a coefficient, the variables, in ascending order; the slots of the
            result are those of the parts in turn.
    """
    place = 0
    for part in parts:
        for variable in dict.fromkeys(part):
            order = part.count(variable)
            term = _opened(builder, variables[variable], order, term, place)
            place += order
    return term


def _opened(builder: Builder, variable: Variable, order: int, term: Term, place: int) -> Term:
    """Replace the packed slot at a place by as many as its order."""
    *batch, axis = term.slots[place]
    sizes = variable.directions
    before, after = term.slots[:place], term.slots[place + 1 :]
    if order == 1 and [segment.extent for segment in axis] == [size for size in sizes if size > 1 or len(axis) > 1]:
        segments = iter(axis)
        axes = tuple((next(segments),) if size > 1 or len(axis) == len(sizes) else () for size in sizes)
        return term._replace(slots=(*before, variable.slot(tuple(batch), axes), *after))
    n = variable.count
    new = [tuple((full(Label(size)),) for size in sizes) for _ in range(order)]
    slots = tuple(variable.slot(tuple(batch), axes) for axes in new)
    if n == 1:
        return term._replace(coefficient=term.coefficient * factorial(order), slots=(*before, *slots, *after))
    if order > 1 and n**order > MAX_ENTRIES:
        raise DirectionsError(n, order)
    tensor, rest = axes_first(builder, term, (axis,), (term.out, tuple(batch), *before, *after))
    if order > 1:
        weights = builder.constant(Factorials(n, order))  # of packed entries, which are fewer
        tensor = builder.emit(scaled_rows, tensor, weights)
        tensor = builder.emit(torch.index_select, tensor, 0, builder.constant(Places.unpacked(n, order)))
    shown = [label for label in (*labels_of(*new), *rest) if label.size > 1]
    tensor = builder.emit(torch.reshape, tensor, tuple(label.size for label in shown))
    factor = Factor(tensor, each(shown))
    return term._replace(slots=(*before, *slots, *after), factors=(factor,))


def scaled_rows(tensor: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Multiply each entry of the first dimension by a number of its own."""
    return tensor * weights.reshape(-1, *[1] * (tensor.dim() - 1))
