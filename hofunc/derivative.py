"""The structured result: one block of a derivative as a short sum of labelled terms."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from hofunc.algebra.labels import Axes, Label, extent
from hofunc.algebra.operators import Indices, sources, with_sources
from hofunc.algebra.term import Factor, Term
from hofunc.errors import ArgumentError
from hofunc.graph.standin import as_mapped
from hofunc.internals import default_collate_fn_map, register_pytree_node
from hofunc.sparse import Matrix, as_coo, as_csr, as_matrix, as_scipy
from hofunc.structured.algebra import Structured
from hofunc.structured.dense import template
from hofunc.structured.naming import pattern_of
from hofunc.structured.plotted import magnitudes, plotted
from hofunc.structured.saved import restored_as, stacked, state_of
from hofunc.views import each


class Derivative(Structured):
    """One derivative tensor, kept as a sum of terms in which diagonal (batch) structure takes no memory.

    A term is a core tensor and the labels of its dimensions, of the output's axes and of every slot's. A label that
    several axes bear is a Kronecker delta between them. `hofunc.hod` returns these with ``layout="compact"``.
    It is a pytree whose leaves are the cores, and an empty tensor with the axes by which vmap has mapped them.

    Attributes:
        terms: The terms, as ``hofunc.algebra.term.Term`` with tensors for the sources of factors.
        shapes: Shape of the output, then of the input of every slot.
        kinds: A number for every slot; those of one number are of one input, see `symmetric_in`.
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

    __slots__ = ()

    @property
    def nbytes(self) -> int:
        """Bytes that the cores take, and the indices at which they are, those of several terms once."""
        return nbytes_of(self.terms)

    @property
    def pattern(self) -> str:
        """The axes of every term, output first, in the notation of einops.

        Labels that all slots share are named from b on, the others from i on; ``1`` is an axis of one index, ``()``
        a scalar, ``i[2:5]`` a label that reaches only these indices of its axis, ``(b i)`` a merged axis, ``I[b]`` an
        axis whose index is what a tensor of indices has at ``b``.
        """
        return pattern_of(self.terms)

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
        return as_csr(self._matrix())

    def to_scipy(self) -> Any:
        """Return what `to_sparse_csr` does as a scipy.sparse.csr_array, on the CPU and without a history.

        Raises:
            ArgumentError: As there; or scipy is not installed.
        """
        return as_scipy(self._matrix())

    def _matrix(self) -> Matrix:
        return as_matrix(*self._plainly())

    def _plainly(self) -> tuple[tuple[Term, ...], tuple[tuple[int, ...], ...], torch.Tensor]:
        """Return terms, shapes, and a tensor of their dtype and device, the axes mapped by vmap being the output's."""
        output, *slots = self.shapes
        like = torch.empty((), dtype=self.dtype, device=self.device)
        mapped = each([Label(size) for size in self.mapped])
        return tuple([_widened(term, mapped) for term in self.terms]), ((*self.mapped, *output), *slots), like

    def plot(self, ax: Any = None) -> Any:
        """Draw where entries are and how large: down the first slot, or the output at order 1, across the last one.

        A point is the largest magnitude of all entries there; of more than 512 elements several share one.

        Args:
            ax: Axes of matplotlib to draw in; by default those of a new figure.

        Returns:
            matplotlib's Figure.

        Raises:
            ArgumentError: There is no matplotlib, or the derivative has more elements than torch can number.

        Cost:
            That of `to_sparse`.
        """
        return plotted([(self.pattern, self._magnitudes())], 1, ax)

    def _magnitudes(self) -> torch.Tensor:
        output, *slots = map(len, self.shapes)
        return magnitudes(self.to_sparse().detach(), len(self.mapped) + output, slots)

    def __repr__(self) -> str:
        return f"Derivative({self.pattern!r}, shape={self.shape}, nbytes={self.nbytes})"

    def _repr_html_(self) -> str:
        from hofunc.structured.shown import as_html  # noqa: PLC0415 - few derivatives are shown

        return as_html(self, self.nbytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return loaded, (state_of(self),)


def nbytes_of(terms: Iterable[Term]) -> int:
    """Return the bytes that the tensors of terms take, those of several terms once."""
    tensors = {id(tensor): tensor for tensor in sources(terms) if isinstance(tensor, torch.Tensor)}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def loaded(state: dict[str, Any]) -> Derivative:
    """Return the derivative of which this was saved, by pickle, copy or torch.save; files name this function.

    Raises:
        ArgumentError: It was saved by a newer version of hofunc.
    """
    return restored_as(Derivative, state)


def collated(batch: Sequence[Derivative], *, collate_fn_map: Any = None) -> Derivative:  # noqa: ARG001 - torch passes it
    """Return derivatives of one structure as one, mapped over them, for torch.utils.data.default_collate."""
    return stacked(batch)


def _widened(term: Term, axes: Axes) -> Term:
    """Return a term whose tensors and output have further axes in front; of one index, those of tensors are dropped."""
    ones = tuple([dim for dim, axis in enumerate(axes) if extent(axis) == 1])
    others = tuple([axis for axis in axes if extent(axis) != 1])

    def widened(factor: Factor) -> Factor:
        if isinstance(factor.source, Indices):
            target, *own = factor.axes
            return Factor(Indices(factor.source.tensor.squeeze(ones)), (target, *others, *own))
        return Factor(factor.source.squeeze(ones), (*others, *factor.axes))

    return term._replace(factors=tuple(map(widened, term.factors)), out=(*axes, *term.out)) if axes else term


def _flatten(derivative: Derivative) -> tuple[list[Any], tuple]:
    cores, shape = [*sources(derivative.terms)], (*derivative.mapped, 0)
    if cores and isinstance(cores[0], torch.Tensor):
        mapped = cores[0].new_empty(shape)  # which vmap maps if it maps the core
    else:
        mapped = torch.empty(shape, dtype=derivative.dtype, device=derivative.device)
    return [as_mapped(leaf) for leaf in (*cores, mapped)], (
        template(derivative.terms),
        derivative.shapes,
        derivative.dtype,
        derivative.device,
        derivative.kinds,
    )


def _unflatten(leaves: Any, context: tuple) -> Derivative:
    """Put a derivative together again, with what the last of its leaves says of how vmap has mapped all of them.

    Raises:
        ArgumentError: They were not mapped along the first axis.
    """
    bare, shapes, dtype, device, kinds = context
    *cores, last = leaves
    mapped = tuple(last.shape) if isinstance(last, torch.Tensor) else (0,)
    if mapped[-1:] != (0,):
        raise ArgumentError(
            "hofunc.Derivative: leaving a transform of torch.func",
            got="cores with new axes that are not in front",
            expected="vmap with out_dims=0",
            remedy="Call .dense() inside the function that is transformed.",
        )
    return Derivative(with_sources(bare, iter(cores)), shapes, dtype, device, mapped[:-1], kinds)


default_collate_fn_map[Derivative] = collated
torch.serialization.add_safe_globals([loaded])
register_pytree_node(Derivative, _flatten, _unflatten, serialized_type_name="hofunc.Derivative")
