"""What can be done with a sum of labelled terms without making it dense: the algebra of structured derivatives."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import torch

from hofunc.algebra.labels import shape_of
from hofunc.algebra.operators import Indices, sources
from hofunc.algebra.term import Factor, Term, with_slots
from hofunc.given import check_flag
from hofunc.graph.followed import has_history
from hofunc.graph.uncompiled import uncompiled
from hofunc.structured import checks
from hofunc.structured.anchors import anchored
from hofunc.structured.batch import batch_first, batch_of, common_batch
from hofunc.structured.dense import dense
from hofunc.structured.packed import packed
from hofunc.structured.rows import Index, at_rows
from hofunc.structured.slots import Terms, contracted, on_diagonal, traced
from hofunc.structured.sums import scaled, summed
from hofunc.trees import tree_flatten, tree_unflatten

S = TypeVar("S", bound="Structured")
Shapes = tuple[tuple[int, ...], ...]


class Structured:
    """A sum of labelled terms, and the operations that keep its structure.

    Attributes:
        terms: The terms, as ``hofunc.algebra.term.Term`` with tensors for the sources of factors.
        shapes: Shape of the output, then of the input of every slot.
        mapped: Sizes of the axes that vmap has put in front of every core.
        kinds: A number for every slot; those of one number are of the same input.
        dtype: Dtype of the output.
        device: Device of the output.
    """

    __slots__ = ("device", "dtype", "kinds", "mapped", "shapes", "terms")

    __array_ufunc__ = None  # so that a number of numpy times one is left to it

    def __init__(
        self,
        terms: Terms,
        shapes: Shapes,
        dtype: torch.dtype,
        device: torch.device,
        mapped: tuple[int, ...] = (),
        kinds: tuple[int, ...] | None = None,
    ):
        self.terms = terms
        self.shapes = shapes
        self.dtype = dtype
        self.device = device
        self.mapped = mapped
        self.kinds = tuple(range(len(shapes) - 1)) if kinds is None else kinds

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the dense tensor, with axes mapped by vmap, those of the output, and then those of every slot."""
        return tuple(size for shape in (self.mapped, *self.shapes) for size in shape)

    @uncompiled
    def dense(self, *, keep_batch: bool = False) -> torch.Tensor:
        """Return the derivative as one tensor.

        Args:
            keep_batch: Whether a label that all slots share, and the output if it has it, stands once, in front, as
                in a derivative that is mapped by hand over independent rows. Nothing larger is allocated. At order 1
                these are the labels that the output shares. Several stand in the order of the first input's axes,
                wherever the output has them.

        Returns:
            Tensor of `shape`; with keep_batch, of the batch sizes and then what is left of `shape` without them.

        """
        check_flag("hofunc.Derivative.dense", "keep_batch", keep_batch)
        if self.mapped:
            return torch.func.vmap(partial(type(self).dense, keep_batch=keep_batch))(self)
        if not self.terms:
            return torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        return dense(self.terms, self._one, keep_batch=keep_batch)

    @property
    def symmetric_in(self) -> tuple[tuple[int, ...], ...]:
        """The slots that may be exchanged with each other, in groups, by Schwarz's theorem those of the same input.

        Every slot is in one group, alone if it may not be exchanged.
        """
        groups: dict[int, list[int]] = {}
        for slot, kind in enumerate(self.kinds):
            groups.setdefault(kind, []).append(slot)
        return tuple(map(tuple, groups.values()))

    def block(self: S, *entries: Any) -> S:
        """Return the derivative itself, which is by one tensor and has one block, 0 in every slot.

        That of several tensors is a `hofunc.Blocks`, whose method of this name returns one.

        Raises:
            ArgumentError: An entry is anything else, or there are not as many as slots.
        """
        checks.check_block(entries, len(self.kinds))
        return self

    @uncompiled
    def contract(self: S, *vectors: torch.Tensor | None) -> "S | torch.Tensor":
        """Sum over slots, multiplied by vectors.

        Args:
            *vectors: For every slot a tensor of its shape, or None to leave the slot open, as are those that no
                vector is given for. One with the axes mapped by vmap in front is taken apart along these.

        Returns:
            What is left with the open slots; a tensor, of the shape of the output, if there are none.

        Raises:
            ArgumentError: A vector is not of the shape, the dtype or the device of its slot, or there are too many.

        Cost:
            For every term one product of its core with the vectors. Where a slot shares all its labels with others,
            it is elementwise. Nothing is allocated that is larger than the cores, the vectors and the result.

        Example:
            >>> x = torch.arange(4.0)
            >>> d2 = hofunc.hessian(lambda x: (x**3).sum(), layout="compact")(x)
            >>> d2.contract(torch.ones(4), torch.ones(4))
            tensor(36.)
            >>> d2.contract(torch.ones(4)).dense()
            tensor([ 0.,  6., 12., 18.])
        """
        checks.check_vectors(vectors, self.shapes[1:], self.mapped, self.dtype, self.device)
        if self.mapped:
            dims = [
                0 if vector is not None and vector.dim() > len(shape) else None
                for vector, shape in zip(vectors, self.shapes[1:], strict=False)
            ]
            return torch.func.vmap(type(self).contract, in_dims=(0, *dims))(self, *vectors)
        filled = {slot: vector for slot, vector in enumerate(vectors) if vector is not None}
        return self._left(contracted(self.terms, filled, self._one()), filled)

    @uncompiled
    def diagonal(self: S) -> S:
        """Return what it is where all slots have equal indices, with one slot.

        Raises:
            ArgumentError: The slots are not all of one shape.

        Cost:
            A view of every core, or one product where that is read through indices.

        Example:
            >>> hofunc.hessian(lambda x: x.prod(), layout="compact")(torch.ones(3)).diagonal().dense()
            tensor([0., 0., 0.])
        """
        checks.check_alike("diagonal", self.shapes[1:])
        if self.mapped:
            return torch.func.vmap(type(self).diagonal)(self)
        shapes = self.shapes[:2]
        return self._with(on_diagonal(self.terms, self._one()), shapes, self.kinds[:1])._led(self._followed)

    @uncompiled
    def trace(self: S, *pairs: tuple[int, int]) -> "S | torch.Tensor":
        """Sum over where the indices of two slots are equal, for pairs of slots.

        Args:
            *pairs: Pairs of numbers of slots; without any, the first two, the two after them and so on.

        Returns:
            What is left with the other slots; a tensor, of the shape of the output, if there are none.

        Raises:
            ArgumentError: There is no pair, a slot is not there or in two pairs, or two are not of one shape.

        Cost:
            One sum over a view of every core.

        Example:
            >>> d4 = hofunc.hod(lambda x: (x**4).sum(), order=4, layout="compact")(torch.ones(3))
            >>> d4.trace(), d4.trace((0, 3)).dense()[0, 0]
            (tensor(72.), tensor(24.))
        """
        checked = checks.checked_pairs(pairs, self.shapes[1:])
        if self.mapped:
            return torch.func.vmap(lambda each: each.trace(*checked))(self)
        taken = {slot for pair in checked for slot in pair}
        return self._left(traced(self.terms, checked, self._one()), taken)

    @uncompiled
    def packed(self, *, keep_batch: bool = False) -> torch.Tensor:
        """Return the different entries of a derivative that is symmetric in all slots.

        Of n elements of the input, there are C(n + k - 1, k) at order k: one for all non-decreasing choices of k of
        the elements in row-major order, in lexicographic order, (0, 0), (0, 1), (0, 2), ..., (1, 1), (1, 2), ... for
        order 2. `hofunc.unpack` is the inverse.

        Args:
            keep_batch: Whether labels that all slots share stand in front, as for `dense`; n is then the number of
                elements of the input that are left beside them.

        Returns:
            Tensor of the shape of the output, and of the batch in front of it, with one axis for the entries.

        Raises:
            ArgumentError: Slots may not be exchanged.

        Cost:
            That of the result, for every term, and of as many integers as there are entries for every slot. The dense
            tensor is not made, but for what is read through indices.

        Example:
            >>> hofunc.hessian(lambda x: x.prod(), layout="compact")(torch.tensor([1.0, 2.0, 3.0])).packed()
            tensor([0., 3., 2., 0., 1., 0.])
        """
        check_flag("hofunc.Derivative.packed", "keep_batch", keep_batch)
        checks.check_symmetric(self.symmetric_in, self.shapes)
        if self.mapped:
            return torch.func.vmap(lambda each: each.packed(keep_batch=keep_batch))(self)
        terms, shapes = self.terms, self.shapes
        batch = common_batch(terms) if keep_batch else []
        if batch:
            terms = tuple([batch_first(term, batch) for term in terms])
            shapes = (shape_of(terms[0].out), *map(shape_of, terms[0].slots))
            checks.check_alike("packed", shapes[1:])
        return packed(terms, shapes, self._one())

    @uncompiled
    def to(self: S, *args: Any, **kwargs: Any) -> S:
        """Return it with another dtype, on another device or both; arguments are those of `torch.Tensor.to`.

        Raises:
            ArgumentError: The dtype is not a floating-point one.

        Example:
            >>> hofunc.hessian(torch.sin, layout="compact")(torch.tensor(0.5)).to(torch.float64).dtype
            torch.float64
        """
        like = torch.empty(0, dtype=self.dtype, device=self.device).to(*args, **kwargs)
        checks.check_dtype(like.dtype)

        def moved(factor: Factor) -> Factor:
            if isinstance(factor.source, Indices):
                return factor._replace(source=Indices(factor.source.tensor.to(like.device)))
            return factor._replace(source=factor.source.to(*args, **kwargs))

        terms = tuple([term._replace(factors=tuple(map(moved, term.factors))) for term in self.terms])
        return type(self)(terms, self.shapes, like.dtype, like.device, self.mapped, self.kinds)

    @uncompiled
    def detach(self: S) -> S:
        """Return it with the same entries and without their history, as `torch.Tensor.detach` does.

        It is what to keep of a step of training, as a history keeps all that the derivative was computed from.

        Example:
            >>> x = torch.tensor(0.5, requires_grad=True)
            >>> hofunc.hessian(torch.sin, layout="compact")(x).detach().dense().requires_grad
            False
        """

        def detached(factor: Factor) -> Factor:
            is_index = isinstance(factor.source, Indices)
            return factor if is_index else factor._replace(source=factor.source.detach())

        return self.with_terms([term._replace(factors=tuple(map(detached, term.factors))) for term in self.terms])

    def with_slots(self: S, order: Sequence[int]) -> S:
        """Return it with its slots in another order: the slot t of the result is the slot ``order[t]``."""
        terms = tuple([with_slots(term, order) for term in self.terms])
        shapes = (self.shapes[0], *(self.shapes[1:][slot] for slot in order))
        return self._with(terms, shapes, tuple([self.kinds[slot] for slot in order]))

    @uncompiled
    def __getitem__(self: S, index: Any) -> S:
        """Return the derivative of some rows: those of the labels that all slots share, in order.

        Args:
            index: For each of these labels, as far as they are given, an int, which drops it, a slice, a list or a
                tensor of numbers of rows, or a mask of them. Axes mapped by vmap come first.

        Raises:
            ArgumentError: No label is shared by all slots, there are fewer of them, or there is no such row.

        Cost:
            One indexing of every core.

        Example:
            >>> rows = hofunc.hessian(lambda x: (x.prod(1) ** 2).sum(), layout="compact")(torch.ones(5, 2))
            >>> rows.shape, rows[3].shape, rows[1:4].shape
            ((5, 2, 5, 2), (2, 2), (3, 2, 3, 2))
        """
        indices = checks.plain_indices(index)
        count = len(self.mapped)
        found = self._at_mapped(checks.checked_indices(indices[:count], self.mapped))
        return found._rows(indices[count:]) if indices[count:] else found

    def __iter__(self: S) -> Iterator[S]:
        """Yield the derivative of every row; see `__getitem__`."""
        batch = common_batch(self.terms)[:1]
        if not self.mapped:
            checks.check_batch(len(batch), [slice(None)])
        count = self.mapped[0] if self.mapped else batch_of(self.terms[0], batch)[0].size
        return (self[row] for row in range(count))

    def __neg__(self: S) -> S:
        return self * -1

    def __pos__(self: S) -> S:
        return self

    @uncompiled
    def __mul__(self: S, number: Any) -> S:
        number = checks.checked_number(number, self.dtype, self.device)
        if self.mapped and isinstance(number, torch.Tensor):
            return torch.func.vmap(lambda each: each * number)(self)
        one = self._one()
        return self._with(tuple([scaled(term, number, one) for term in self.terms]), self.shapes, self.kinds)

    __rmul__ = __mul__

    def __truediv__(self: S, number: Any) -> S:
        number = checks.checked_number(number, self.dtype, self.device)
        return self * (number.reciprocal() if isinstance(number, torch.Tensor) else 1 / number)

    @uncompiled
    def __add__(self: S, other: Any) -> S:
        checks.check_sum(self, other)
        if self.mapped:
            return torch.func.vmap(type(self).__add__)(self, other)
        pairs = [*zip(self.kinds, other.kinds, strict=True)]
        kinds = self.kinds if self.kinds == other.kinds else tuple(map(pairs.index, pairs))
        return self._with(summed((*self.terms, *other.terms), self._one()), self.shapes, kinds)

    def __radd__(self: S, other: Any) -> S:
        return self if isinstance(other, int) and other == 0 else self + other  # `sum` starts from zero

    def __sub__(self: S, other: Any) -> S:
        checks.check_sum(self, other)
        return self + -other

    def _one(self) -> torch.Tensor:
        return torch.ones((), dtype=self.dtype, device=self.device)

    def with_terms(self: S, terms: Iterable[Term]) -> S:
        """Return it with other terms of the same axes."""
        return self._with(tuple(terms), self.shapes, self.kinds)

    def _with(self: S, terms: Terms, shapes: Shapes, kinds: tuple[int, ...]) -> S:
        return type(self)(terms, shapes, self.dtype, self.device, self.mapped, kinds)

    def _led(self: S, leads_to: Callable[[], Sequence[torch.Tensor]]) -> S:
        """Return it as autograd follows it somewhere, to what is told if it led nowhere; see NOTE [history]."""
        terms = anchored(self.terms, self.shapes, self._one, leads_to)
        return self if terms is self.terms else self.with_terms(terms)

    def _followed(self) -> list[torch.Tensor]:
        """Return what autograd follows it to, which is what is left of it is to lead to."""
        return [source for source in sources(self.terms) if has_history(source)]

    def _left(self: S, terms: Terms, taken: Collection[int]) -> "S | torch.Tensor":
        """Return terms without some slots, as a tensor if none is left."""
        slots = [slot for slot in range(len(self.kinds)) if slot not in taken]
        shapes = (self.shapes[0], *(self.shapes[1:][slot] for slot in slots))
        left = self._with(terms, shapes, tuple([self.kinds[slot] for slot in slots]))._led(self._followed)
        return left if slots else left.dense()

    def _at_mapped(self: S, indices: Sequence[Index]) -> S:
        """Return the members of what vmap has mapped that some indices take."""
        if not indices:
            return self
        leaves, spec = tree_flatten(self)
        for dim in reversed(range(len(indices))):
            leaves = [leaf[(*[slice(None)] * dim, indices[dim])] for leaf in leaves]
        return tree_unflatten(leaves, spec)

    def _rows(self: S, indices: Sequence[Any]) -> S:
        """Return the rows of the first labels that all slots share, see `__getitem__`."""
        if self.mapped:
            return torch.func.vmap(lambda each: each._rows(indices))(self)
        batch = common_batch(self.terms)[: len(indices)]
        checks.check_batch(len(batch), indices)
        checked = checks.checked_indices(indices, [label.size for label in batch_of(self.terms[0], batch)])
        one = self._one()
        terms = tuple([at_rows(term, batch_of(term, batch), checked, one) for term in self.terms])
        shapes = (shape_of(terms[0].out), *map(shape_of, terms[0].slots))
        return self._with(terms if 0 not in {*chain(*shapes)} else (), shapes, self.kinds)._led(self._followed)
