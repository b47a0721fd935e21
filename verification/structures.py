"""Random structured derivatives, made of terms by hand, and what they stand for, written out index by index."""

from collections.abc import Sequence
from itertools import product
from math import prod
from random import Random

import torch
from torch import Tensor

from hofunc import Derivative
from hofunc.algebra.labels import Axes, Axis, Label, Segment, full, labels_of
from hofunc.algebra.operators import Indices
from hofunc.algebra.term import Factor, Term, visible

SIZES = [2, 3, 4]
COEFFICIENTS = [1, 2.5, -1]

Shapes = tuple[tuple[int, ...], ...]


class Structure:
    """A random derivative.

    Args:
        seed: What it is made from.

    Attributes:
        random: What it was made with, to make what is put into it.
        derivative: The derivative.
    """

    def __init__(self, seed: int):
        self.random = Random(seed)  # noqa: S311 - it keeps no secrets
        order = self.random.choice([1, 2, 2, 3])
        dims = self.random.choice([1, 1, 2]) if order < 3 else 1
        slots = [tuple(self.random.choice(SIZES) for _ in range(dims))] * order
        if self.random.random() < 0.3:
            slots = [(self.random.choice(SIZES),) for _ in range(order)]
        shapes = tuple(self.random.choice(SIZES) for _ in range(self.random.choice([0, 1]))), *slots
        terms = tuple(self._term(shapes) for _ in range(self.random.choice([1, 1, 2])))
        kinds = tuple(slots.index(slot) for slot in slots)
        self.derivative = Derivative(terms, shapes, torch.float64, torch.device("cpu"), kinds=kinds)

    def tensor(self, shape: Sequence[int]) -> Tensor:
        """Return a tensor of random numbers."""
        numbers = [self.random.gauss(0, 1) for _ in range(prod(shape))]
        return torch.tensor(numbers, dtype=torch.float64).reshape(tuple(shape))

    def _term(self, shapes: Shapes) -> Term:
        pool: list[Label] = []
        out, *slots = (tuple(self._axis(size, pool) for size in shape) for shape in shapes)
        indices = self._indices(Term(1, (), out, tuple(slots)))
        targets = labels_of(*(factor.axes[:1] for factor in indices))
        labels = labels_of(out, *slots, *(factor.axes[1:] for factor in indices))
        borne = [x for x in dict.fromkeys(labels) if x not in targets and x.size > 1 and self.random.random() < 0.7]
        self.random.shuffle(borne)
        core = Factor(self.tensor([label.size for label in borne]), tuple((full(label),) for label in borne))
        factors = (core, *indices) if self.random.random() < 0.85 else indices
        return Term(self.random.choice(COEFFICIENTS), factors, out, tuple(slots))

    def _axis(self, size: int, pool: list[Label]) -> Axis:
        """Return an axis: a label, a single index, part of a range, or two labels."""
        kind = self.random.random()
        if kind < 0.1:
            return (Segment(None, self.random.randrange(size), size),)
        if kind < 0.2:
            count = self.random.randrange(1, size)
            return (Segment(self._label(count, pool), self.random.randrange(size - count + 1), size),)
        if kind < 0.35 and size == 4:
            left = self._label(2, pool)
            return full(left), full(self._label(2, [label for label in pool if label is not left]))
        return (full(self._label(size, pool)),)

    def _label(self, size: int, pool: list[Label]) -> Label:
        """Return a label that there is, or a new one."""
        found = [label for label in pool if label.size == size]
        label = self.random.choice(found) if found and self.random.random() < 0.7 else Label(size)
        pool.append(label)
        return label

    def _indices(self, term: Term) -> tuple[Factor, ...]:
        """Return indices through which some axes are read, which run over a label of their own and maybe another."""
        if self.random.random() < 0.5:
            return ()
        run, factors = Label(self.random.choice([1, 3, 5])), list[Factor]()
        runs, targets = {run}, set[Label]()
        for axis in (axis for axes in (term.out, *term.slots) for axis in axes):
            own = {*labels_of((axis,))}
            is_whole = all(segment.is_full and segment.extent > 1 for segment in axis) and len(own) == len(axis)
            if is_whole and own.isdisjoint(targets | runs) and self.random.random() < 0.6:
                others = [x for x in visible(term) if x not in targets | own and x.size > 1]
                beside = [self.random.choice(others)] if others and self.random.random() < 0.3 else []
                labels = [label for label in (run, *beside) if label.size > 1]
                shape, extent = tuple(label.size for label in labels), prod(segment.extent for segment in axis)
                index = [self.random.randrange(extent) for _ in range(prod(shape))]
                tensor = torch.tensor(index, dtype=torch.long).reshape(shape)
                factors.append(Factor(Indices(tensor), (axis, *((full(label),) for label in labels))))
                targets |= own
                runs |= {*labels}
        return tuple(factors)


def written_out(derivative: Derivative) -> Tensor:
    """Return a derivative as a dense tensor, computed index by index."""
    total = torch.zeros(derivative.shape, dtype=torch.float64)
    for term in derivative.terms:
        axes = sum((term.out, *term.slots), ())
        labels = [*dict.fromkeys(labels_of(axes, *(factor.axes for factor in term.factors)))]
        for values in product(*(range(label.size) for label in labels)):
            index = dict(zip(labels, values, strict=True))
            total[_at(axes, index)] += term.coefficient * prod(_value(factor, index) for factor in term.factors)
    return total


def _at(axes: Axes, index: dict[Label, int]) -> tuple[int, ...]:
    found = []
    for axis in axes:
        place = 0
        for label, start, extent in axis:
            place = place * extent + start + (0 if label is None else index[label])
        found.append(place)
    return tuple(found)


def _value(factor: Factor, index: dict[Label, int]) -> float:
    if isinstance(factor.source, Indices):
        target, *own = _at(factor.axes, index)
        return float(factor.source.tensor[tuple(own)] == target)
    return float(factor.source[_at(factor.axes, index)])
