"""The meaning of a term as a dense array, element by element: an oracle that shares no code with how hofunc lowers."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from hofunc.algebra.labels import Axes, Axis, Label, Segment, full, labels_of, shape_of
from hofunc.algebra.operators import DELTA
from hofunc.algebra.term import Factor, Term

Tensors = Mapping[Any, np.ndarray]


def materialised(term: Term, tensors: Tensors) -> np.ndarray:
    """Return the array that a term stands for, by going through all values of all its labels."""
    labels = list(dict.fromkeys(labels_of(term.out, *term.slots, *(factor.axes for factor in term.factors))))
    sizes = [label.size for label in labels]
    values = dict(zip(labels, np.indices(sizes, dtype=np.intp), strict=True))
    total = np.full(sizes, float(term.coefficient))
    for source, axes in term.factors:
        places = tuple(_index(axis, values) for axis in axes)
        total = total * (places[0] == places[1] if source is DELTA else tensors[source][places])
    result = np.zeros([size for axes in (term.out, *term.slots) for size in shape_of(axes)])
    places = tuple(_index(axis, values) for axes in (term.out, *term.slots) for axis in axes)
    np.add.at(result, tuple(np.broadcast_to(place, sizes) for place in places), total if places else total.sum())
    return result


def _index(axis: Axis, values: Mapping[Label, np.ndarray]) -> Any:
    index: Any = 0
    for label, start, extent in axis:
        index = index * extent + start + (0 if label is None else values[label])
    return index


def contracted(outer: np.ndarray, out: int, slots: Sequence[int], inners: Sequence[np.ndarray | None]) -> np.ndarray:
    """Return the chain rule for dense arrays: what `compose` is to return for terms.

    Args:
        outer: Array whose first dimensions are those of the output, then those of every slot.
        out: Number of dimensions of the output.
        slots: Number of dimensions of every slot.
        inners: For every slot the array to contract it with, over the array's first dimensions, or None.
    """
    numbers = count()
    subscripts = [next(numbers) for _ in range(outer.ndim)]
    operands: list[Any] = [outer, subscripts]
    kept, new, start = subscripts[:out], [], out
    for dims, inner in zip(slots, inners, strict=True):
        own = subscripts[start : start + dims]
        start += dims
        if inner is None:
            kept = kept + own
            continue
        added = [next(numbers) for _ in range(inner.ndim - dims)]
        operands += [inner, own + added]
        new += added
    return np.einsum(*operands, kept + new)


class RandomTerms:
    """Draws terms of every kind: shared labels, parts, merged axes, single indices, hidden labels, several factors.

    Attributes:
        tensors: The arrays of the factors of all terms drawn so far.
    """

    def __init__(self, seed: int):
        self.tensors: dict[Any, np.ndarray] = {}
        self._random = np.random.default_rng(seed)

    def shape(self, rank: int) -> tuple[int, ...]:
        """Draw the shape of a tensor of at most this rank."""
        return tuple(int(n) for n in self._random.choice([1, 2, 3, 4, 6], size=self._random.integers(0, rank + 1)))

    def term(self, out: Sequence[int], *slots: Sequence[int]) -> Term:
        """Draw a term of the given shapes."""
        pool: list[Label] = []
        axes = [tuple(self._axis(size, pool) for size in shape) for shape in (out, *slots)]
        factors = tuple(self._factor(pool) for _ in range(self._random.integers(0, 3)))
        return Term(int(self._random.integers(1, 4)), factors, axes[0], tuple(axes[1:]))

    def _axis(self, size: int, pool: list[Label]) -> Axis:
        cuts = [n for n in (2, 3) if size % n == 0 and size > n]
        if cuts and self._random.random() < 0.4:
            inner = int(self._random.choice(cuts))
            return (*self._axis(size // inner, pool), *self._axis(inner, pool))
        if size == 1 and self._random.random() < 0.5:
            return ()
        return (self._segment(size, pool),)

    def _segment(self, size: int, pool: list[Label]) -> Segment:
        kind, fitting = self._random.random(), [label for label in pool if label.size <= size]
        label: Label | None = Label(size)
        if kind < 0.1:
            label = None
        elif kind < 0.55 and fitting:
            label = fitting[self._random.integers(0, len(fitting))]
        elif kind < 0.7:
            label = Label(int(self._random.integers(1, size + 1)))
        if label is not None and label not in pool:
            pool.append(label)
        return Segment(label, int(self._random.integers(0, size - (label.size if label else 1) + 1)), size)

    def _factor(self, pool: list[Label]) -> Factor:
        hidden = [Label(2)] if self._random.random() < 0.5 else []
        chosen = [label for label in pool if self._random.random() < 0.5] + hidden
        return self.factor(tuple((full(label),) for label in chosen))

    def factor(self, axes: Axes) -> Factor:
        """Draw the array of a factor with these axes."""
        source = f"tensor {len(self.tensors)}"
        self.tensors[source] = self._random.standard_normal(shape_of(axes))
        return Factor(source, axes)
