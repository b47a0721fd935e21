"""The structured result: one block of a derivative as a short sum of labelled terms."""

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import chain, repeat
from typing import Any, NamedTuple

import torch

from hofunc.algebra.combine import by_pattern
from hofunc.algebra.labels import Axes, Axis, Label, Segment, extent, full, labels_of
from hofunc.algebra.operators import Indices, is_reading, sources, with_sources
from hofunc.algebra.term import Factor, Term, visible
from hofunc.errors import ArgumentError
from hofunc.graph.standin import as_mapped
from hofunc.internals import register_pytree_node
from hofunc.scatter import core_of, entries_of, positions, reads_of, solid
from hofunc.sparse import as_coo, as_csr, as_matrix, as_scipy
from hofunc.views import Labelled, Part, assembled, each


class Derivative:
    """One derivative tensor, kept as a sum of terms in which diagonal (batch) structure takes no memory.

    A term is a core tensor and the labels of its dimensions, of the output's axes and of every slot's. A label that
    several axes bear is a Kronecker delta between them. `hofunc.hod` returns these with ``layout="compact"``.
    It is a pytree whose leaves are the cores, and an empty tensor with the axes by which vmap has mapped them.

    Attributes:
        terms: The terms, as ``hofunc.algebra.term.Term`` with tensors for the sources of factors.
        shapes: Shape of the output, then of the input of every slot.
        mapped: Sizes of the axes that vmap has put in front of every core, where it returned this: the terms and their
            pattern are then those of every row.
        dtype: Dtype of the output.
        device: Device of the output.

    Example:
        >>> x = torch.arange(6.0).reshape(3, 2)
        >>> d2 = hofunc.hod(lambda x: (x**3).sum(), order=2, layout="compact")(x)
        >>> d2.pattern, d2.nbytes, d2.shape
        ('(), b c, b c', 24, (3, 2, 3, 2))
        >>> d2.dense(keep_batch=True)
        tensor([[ 0.,  6.],
                [12., 18.],
                [24., 30.]])
    """

    __slots__ = ("device", "dtype", "mapped", "shapes", "terms")

    def __init__(
        self,
        terms: tuple[Term, ...],
        shapes: tuple[tuple[int, ...], ...],
        dtype: torch.dtype,
        device: torch.device,
        mapped: tuple[int, ...] = (),
    ):
        self.terms = terms
        self.shapes = shapes
        self.dtype = dtype
        self.device = device
        self.mapped = mapped

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the dense tensor: the axes mapped by vmap, that of the output, and then that of every slot."""
        return tuple(size for shape in (self.mapped, *self.shapes) for size in shape)

    @property
    def nbytes(self) -> int:
        """Bytes that the cores take, and the indices at which they are, those of several terms once."""
        tensors = {id(tensor): tensor for tensor in sources(self.terms)}
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())

    @property
    def pattern(self) -> str:
        """The axes of every term, output first, in the notation of einops.

        Labels that all slots share are named from b on, the others from i on; ``1`` is an axis of one index, ``()``
        a scalar, ``i[2:5]`` a label that reaches only these indices of its axis, ``(b i)`` a merged axis, ``I[b]`` an
        axis whose index is what a tensor of indices has at ``b``.
        """
        indices: dict[int, str] = {}
        return " + ".join(_pattern(term, indices) for term in self.terms) or "0"

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
        if self.mapped:
            return torch.func.vmap(partial(Derivative.dense, keep_batch=keep_batch))(self)
        if not self.terms:
            return torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        recipe = _recipe(_template(self.terms), keep_batch)
        tensors = [*sources(self.terms)]
        if recipe.takes_one:
            tensors.append(torch.ones((), dtype=self.dtype, device=self.device))
        return recipe(tensors)

    def to_sparse(self) -> torch.Tensor:
        """Return the derivative as a coalesced tensor of `shape` and of layout torch.sparse_coo, of any order.

        It has an element for every entry of the terms, those of the same indices added, and nothing larger is
        allocated: the cost is that of sorting the entries. It is differentiable.

        Raises:
            ArgumentError: It has 2**63 elements or more, which torch cannot number.

        Example:
            >>> x, i, j = torch.arange(4.0), torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3])
            >>> d2 = hofunc.hod(lambda x: ((x[i] - x[j]) ** 2).sum(), order=2, layout="compact")(x)
            >>> d2.to_sparse().indices()
            tensor([[0, 0, 1, 1, 1, 2, 2, 2, 3, 3],
                    [0, 1, 0, 1, 2, 1, 2, 3, 2, 3]])
        """
        return as_coo(*self._plainly())

    def to_sparse_csr(self) -> torch.Tensor:
        """Return a Jacobian, or the Hessian of one element, as a matrix of layout torch.sparse_csr.

        Its rows are the elements of the output at order 1, of the first slot at order 2; its columns those of the last
        slot.

        Raises:
            ArgumentError: It is of another order, or of order two of several elements.
        """
        return as_csr(as_matrix(*self._plainly()))

    def to_scipy(self) -> Any:
        """Return what `to_sparse_csr` does as a scipy.sparse.csr_array, on the CPU and without a history.

        Raises:
            ArgumentError: As there; or scipy is not installed.
        """
        return as_scipy(as_matrix(*self._plainly()))

    def _plainly(self) -> tuple[tuple[Term, ...], tuple[tuple[int, ...], ...], torch.Tensor]:
        """Return terms, shapes, and a tensor of their dtype and device, the axes mapped by vmap being the output's."""
        output, *slots = self.shapes
        like = torch.empty((), dtype=self.dtype, device=self.device)
        mapped = each([Label(size) for size in self.mapped])
        return tuple([_widened(term, mapped) for term in self.terms]), ((*self.mapped, *output), *slots), like

    def __repr__(self) -> str:
        return f"Derivative({self.pattern!r}, shape={self.shape}, nbytes={self.nbytes})"


def _widened(term: Term, axes: Axes) -> Term:
    """Return a term whose tensors and output have further axes in front."""

    def widened(factor: Factor) -> Factor:
        ahead = 1 if isinstance(factor.source, Indices) else 0
        return Factor(factor.source, (*factor.axes[:ahead], *axes, *factor.axes[ahead:]))

    return term._replace(factors=tuple(map(widened, term.factors)), out=(*axes, *term.out)) if axes else term


def _template(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Return the terms without their tensors."""
    return with_sources(terms, repeat(None))


class _Held:
    """Names a tensor of a recipe by its number."""

    __slots__ = ("number",)

    def __init__(self, number: int):
        self.number = number


class _Recipe(NamedTuple):
    """How to make a dense tensor of cores, as calls; it depends on labels only, and is kept, as finding it takes long.

    Attributes:
        calls: Functions with arguments, of which Helds stand for the cores and then for what the calls return.
        result: The dense tensor.
        takes_one: Whether the last tensor that it takes, after the cores, is the number one.
        is_core: Whether the result is a view of a core.
    """

    calls: list[tuple[Callable, tuple]]
    result: _Held
    takes_one: bool
    is_core: bool

    def __call__(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        for function, args in self.calls:
            tensors.append(function(*[tensors[arg.number] if type(arg) is _Held else arg for arg in args]))
        result = tensors[self.result.number]
        return result.clone(memory_format=torch.contiguous_format) if self.is_core else result


@lru_cache(maxsize=1024)
def _recipe(terms: tuple[Term, ...], keep_batch: bool) -> _Recipe:
    """Return how to make the dense tensor of terms without tensors."""
    batch = _common_batch(terms) if keep_batch else []
    given = sum(len(term.factors) for term in terms)
    takes_one = any(core_of(term) is None for term in terms)
    count = given + takes_one
    calls: list[tuple[Callable, tuple]] = []

    def emit(function: Callable, *args: Any) -> _Held:
        calls.append((function, args))
        return _Held(count + len(calls) - 1)

    named, one = with_sources(terms, map(_Held, range(given))), Labelled(_Held(given), ())
    parts = []
    for alike in by_pattern(named):
        if any(map(is_reading, alike)):
            entries = [entries_of(term, one) for term in alike]
            total = solid(emit, entries[0].core.tensor, entries, [*visible(alike[0])])
            parts.append(Part(1, total, _places(alike[0], batch)))
        else:
            parts += [Part(term.coefficient, core_of(term) or one, _places(term, batch)) for term in alike]
    result = assembled(emit, parts)
    is_core = len(parts) == 1 and parts[0].coefficient == 1 and not is_reading(terms[0])
    return _Recipe(calls, result, takes_one, is_core)


class _Place(NamedTuple):
    """Where a label lies in one group of axes: the axis, and how many of its indices one step of the label skips."""

    axis: int
    stride: int
    size: int


def _place(label: Label, axes: Axes) -> _Place | None:
    """Return the one place at which a label fills its part of an axis; None if there is none, or several."""
    found = []
    for number, axis in enumerate(axes):
        stride = 1
        for segment in reversed(axis):
            if segment.label is label:
                found.append(_Place(number, stride, label.size) if segment.is_full else None)
            stride *= segment.extent
    return found[0] if len(found) == 1 else None


def _batch_places(term: Term) -> dict[tuple, Label]:
    """Return the labels that all slots of a term share, by where they lie in the output and in every slot.

    A label of a single slot is shared only if the output has it.
    """
    result = {}
    for label in dict.fromkeys(labels_of(*term.slots[:1])):
        in_slots = tuple(_place(label, slot) for slot in term.slots)
        in_out = _place(label, term.out)
        is_in_out = label in set(labels_of(term.out))
        if None not in in_slots and (in_out is not None or (len(term.slots) > 1 and not is_in_out)):
            result[in_out, in_slots] = label
    return result


def _common_batch(terms: tuple[Term, ...]) -> list[tuple]:
    """Return the places of the labels that are a batch in every term."""
    tables = [_batch_places(term) for term in terms]
    return [place for place in (tables[0] if tables else {}) if all(place in table for table in tables)]


def _places(term: Term, batch: list[tuple]) -> Axes:
    """Return the axes of the dense tensor of a term, the batch labels once in front."""
    table = _batch_places(term)
    labels = [table[place] for place in batch]
    rest = []
    for axis in (axis for axes in (term.out, *term.slots) for axis in axes):
        left = tuple(segment for segment in axis if segment.label not in labels)
        if left == axis or extent(left) > 1:  # an axis that a batch fills goes, whatever of size one is beside it
            rest.append(left)
    return (*((full(label),) for label in labels), *rest)


def _pattern(term: Term, indices: dict[int, str]) -> str:
    """Name the axes of a term; a tensor of indices is named as in the terms before, by its identity."""
    read, groups = positions(reads_of(term)), (term.out, *term.slots)
    borne = [
        [x for label in labels_of(axes) for x in (read[label].where.labels if label in read else (label,))]
        for axes in groups
    ]
    shared = set.intersection(*map(set, borne[1:]))
    batch_names, other_names = iter("bcdefgh" + "B" * 99), iter("ijklmnopqrstuvwxyz" + "Z" * 99)
    names: dict[Label, str] = {}
    for label in chain(*borne):
        if label not in names:
            names[label] = next(batch_names if label in shared else other_names)
    for label, (where, step, modulus) in read.items():
        name = indices.setdefault(id(where.tensor), (*"IJKLMNOPQRSTUVWXYZ", *["Z"] * 99)[len(indices)])
        names[label] = f"{name}[{' '.join(names[x] for x in where.labels)}]"
        names[label] += f"/{step}" * (step > 1) + f"%{modulus}" * (modulus > 0)

    def segment_name(segment: Segment) -> str:
        if segment.label is None:
            return str(segment.start) if segment.extent > 1 else "1"
        name = names[segment.label]
        return name if segment.is_full else f"{name}[{segment.start}:{segment.start + segment.label.size}]"

    def axis_name(axis: Axis) -> str:
        parts = [segment_name(segment) for segment in axis]
        return parts[0] if len(parts) == 1 else f"({' '.join(parts)})" if parts else "1"

    return ", ".join(" ".join(axis_name(axis) for axis in axes) or "()" for axes in groups)


def _flatten(derivative: Derivative) -> tuple[list[Any], tuple]:
    cores, shape = [*sources(derivative.terms)], (*derivative.mapped, 0)
    if cores and isinstance(cores[0], torch.Tensor):
        mapped = cores[0].new_empty(shape)  # which vmap maps if it maps the core
    else:
        mapped = torch.empty(shape, dtype=derivative.dtype, device=derivative.device)
    return [as_mapped(leaf) for leaf in (*cores, mapped)], (
        _template(derivative.terms),
        derivative.shapes,
        derivative.dtype,
        derivative.device,
    )


def _unflatten(leaves: Any, context: tuple) -> Derivative:
    """Put a derivative together again, with what the last of its leaves says of how vmap has mapped all of them.

    Raises:
        ArgumentError: They were not mapped along the first axis.
    """
    template, shapes, dtype, device = context
    *cores, last = leaves
    mapped = tuple(last.shape) if isinstance(last, torch.Tensor) else (0,)
    if mapped[-1:] != (0,):
        raise ArgumentError(
            "hofunc.Derivative: leaving a transform of torch.func",
            got="cores with new axes that are not in front",
            expected="vmap with out_dims=0",
            remedy="Call .dense() inside the function that is transformed.",
        )
    return Derivative(with_sources(template, iter(cores)), shapes, dtype, device, mapped[:-1])


register_pytree_node(Derivative, _flatten, _unflatten, serialized_type_name="hofunc.Derivative")
