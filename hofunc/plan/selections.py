"""Axes that are read through indices: selections that stay factors of contracted terms, and how they end.

What reads elements at indices is sparse: of `x[i] - x[j]`, for many pairs of few points, the derivative by the points
is one block for every pair. So a selection whose target is visible stays beside the tensor of a term, which runs over
what is read and not over what could have been. Where a dense tensor is asked for, the entries are added to their places
in it, by all their indices at once.
"""

from collections.abc import Collection, Iterable, Sequence

import torch

from hofunc import scatter
from hofunc.algebra.labels import Axis, Label, labels_of, shape_of
from hofunc.algebra.operators import Selection, selection_of, selections_of
from hofunc.algebra.term import Term, visible
from hofunc.plan.builder import Builder
from hofunc.plan.lookups import elements, elements_along
from hofunc.plan.operators import one_like, transformed
from hofunc.scatter import Entries, positions, range_like, size_of
from hofunc.views import Labelled, aligned, plus, read

LONG = 256  # entries of a row that is added to its place no longer than as many of a tensor are
SMALL = 4096  # entries of a matrix that is multiplied by, at order two, in no longer than reading through indices takes


def small(order: int) -> int:
    """Return up to how many entries of its matrix a selection is multiplied by that, in blocks of an order.

    What is dense along one slot is so along every one, so that the entries of a block go by a power of these.
    """
    return int(SMALL ** (2 / max(2, order)))


def entries_of_matrix(selection: Selection) -> int:
    """Return how many entries the matrix of a selection has."""
    return size_of(dict.fromkeys(labels_of(selection.factor.axes)))


def can_stay(selection: Selection, shown: Collection[Label]) -> bool:
    """Tell whether a selection can be a factor of a contracted term, of which some labels are visible.

    Its target has to be visible as a whole.
    """
    labels = {*labels_of((selection.target,))}
    return bool(labels) and all(segment.is_full for segment in selection.target) and labels <= {*shown}


def without_selections(term: Term) -> Term:
    """Return a term without those of its factors that are selections."""
    return term._replace(factors=tuple(factor for factor in term.factors if selection_of(factor) is None))


def tensor_of(term: Term) -> Labelled | None:
    """Return the tensor of a contracted term, which may run over what its selections read; None if it has none."""
    for factor in term.factors:
        if selection_of(factor) is None:
            return Labelled(factor.source, tuple(labels_of(factor.axes)))
    return None


def entries(term: Term) -> list[Label]:
    """Return the labels of which a contracted term has an entry for all their indices: its own, and what it reads."""
    found = selections_of(term)
    if not found:
        return [*visible(term)]
    targets = {*labels_of(tuple([selection.target for selection in found]))}
    shown = [label for label in visible(term) if label not in targets]
    return [*dict.fromkeys((*shown, *labels_of(*(selection.indexed for selection in found))))]


def read_through(builder: Builder, operands: Sequence[Labelled], selections: Sequence[Selection]) -> list[Labelled]:
    """Read operands at the indices of selections beside them, if all of them together have fewer entries then."""
    result = [*operands]
    for group in _connected(selections):
        targets = {*labels_of(tuple([selection.target for selection in group]))}
        before = dict.fromkeys(label for operand in result for label in operand.labels)
        taken = [selection for selection in group if not before.keys().isdisjoint(labels_of((selection.target,)))]
        indexed = labels_of(*(selection.indexed for selection in taken))
        after = dict.fromkeys((*(label for label in before if label not in targets), *indexed))
        if taken and size_of(after) < size_of(before):
            result = [read_at(builder, operand, taken) for operand in result]
    return result


def read_if_fewer(
    builder: Builder, tensor: Labelled, selections: Sequence[Selection], operands: Sequence[Labelled]
) -> Labelled:
    """Read a tensor at the indices of selections from its labels, if an operand has fewer entries with it then.

    It is what the operand is masked by, which none of the operands need be along these labels.
    """
    for selection in selections:
        targets = {*labels_of((selection.target,))}
        is_alone = all(targets.isdisjoint(operand.labels) for operand in operands)
        if is_alone and targets <= {*tensor.labels} and all(segment.is_full for segment in selection.target):
            read = [*(label for label in tensor.labels if label not in targets), *labels_of(selection.indexed)]
            if _least_with(read, operands) < _least_with(tensor.labels, operands):
                tensor = read_at(builder, tensor, [selection])
    return tensor


def _least_with(labels: Iterable[Label], operands: Sequence[Labelled]) -> int:
    """Return how many entries an operand has with some more labels, of that which has least."""
    every = [dict.fromkeys((*operand.labels, *labels)) for operand in operands]
    return min(map(size_of, every), default=size_of(dict.fromkeys(labels)))


def _connected(selections: Sequence[Selection]) -> list[list[Selection]]:
    """Group selections that have labels of their indices in common, be it through others."""
    groups: list[list[Selection]] = []
    for selection in selections:
        own = {*labels_of(selection.indexed)}
        near = [group for group in groups if any(own & {*labels_of(other.indexed)} for other in group)]
        groups = [group for group in groups if not any(group is other for other in near)]
        groups.append([*(other for group in near for other in group), selection])
    return groups


def read_at(builder: Builder, operand: Labelled, selections: Sequence[Selection]) -> Labelled:
    """Return a tensor as selections read it, as far as it has what they read from.

    Those along the same labels are read at once, as each by itself would run over all pairs of what they read.
    """
    groups: dict[tuple[Label, ...], list[Selection]] = {}
    for selection in selections:
        if not {*operand.labels}.isdisjoint(labels_of((selection.target,))):
            groups.setdefault(tuple(labels_of(selection.indexed)), []).append(selection)
    for alike in groups.values():
        along = {*labels_of(*(selection.indexed for selection in alike))}
        if _have_all(operand, alike) and (len(alike) > 1 or along & {*operand.labels}):
            operand = _read_together(builder, operand, alike)
            continue
        for selection in alike:
            adds = selection.factor.source.adds
            operand = transformed(builder, selection.factor, operand, transposed=adds)
    return operand


def _have_all(operand: Labelled, selections: Sequence[Selection]) -> bool:
    """Tell whether an operand has all labels that selections read from, or that they run over beside."""
    beside = labels_of(*(selection.beside for selection in selections))
    targets = labels_of(tuple([selection.target for selection in selections]))
    return {*targets} <= {*operand.labels} and {*operand.labels}.isdisjoint(beside)


def _read_together(builder: Builder, operand: Labelled, selections: Sequence[Selection]) -> Labelled:
    """Read an operand at the indices of selections along the same labels, of which it may have some itself."""
    found = [indices(builder, selection) for selection in selections]
    along = [label for label in labels_of(selections[0].indexed) if label.size > 1]
    own = [label for label in along if label in operand.labels]
    targets = [labels_of((selection.target,)) for selection in selections]
    rest = [label for label in operand.labels if label not in {*own, *(x for labels in targets for x in labels)}]
    tensor = aligned(builder.emit, operand, (*own, *(label for labels in targets for label in labels), *rest))
    if any(len(labels) > 1 for labels in targets):
        sizes = (*(x.size for x in own), *map(size_of, targets), *(x.size for x in rest))
        tensor = builder.emit(torch.reshape, tensor, sizes)
    labels = (*own, *(label for label in along if label not in own))
    places = [aligned(builder.emit, index, labels) for index in found]
    read = builder.emit(elements_along, tensor, len(own), *places) if own else builder.emit(elements, tensor, *places)
    return Labelled(read, (*labels, *rest))


def solid(builder: Builder, terms: Sequence[Term], shown: Sequence[Label]) -> Labelled:
    """Return the sum of contracted terms as a tensor, adding what they read to the places that it is read from.

    Args:
        builder: Takes the steps.
        terms: Terms of which each has selections, or has all the labels.
        shown: The labels of the result, which are visible in all terms.
    """
    apart: dict[frozenset[Label], list[Term]] = {}
    for term in terms:
        apart.setdefault(_targets_of_long_rows(term, shown), []).append(term)
    found = [
        scatter.solid(builder.emit, builder.like(), [entries_of(builder, term) for term in group], shown)
        for group in apart.values()
    ]
    total = found[0]
    for other in found[1:]:
        total = total._replace(tensor=plus(builder.emit, total.tensor, aligned(builder.emit, other, total.labels), 1))
    return total


def _targets_of_long_rows(term: Term, shown: Sequence[Label]) -> frozenset[Label]:
    """Return the labels that a term reads from, if it has long rows of others for their indices; none for other terms.

    Such rows are added as they are, and the entries of other terms one by one.
    """
    found = selections_of(term)
    targets = frozenset(labels_of(tuple([selection.target for selection in found])))
    along = {*labels_of(*(selection.indexed for selection in found))}
    rest = [label for label in shown if label not in targets and label not in along]
    is_long = len(found) == 1 and size_of(rest) >= LONG and tensor_of(term) is not None
    return targets if is_long else frozenset()


def entries_of(builder: Builder, term: Term) -> Entries:
    """Return the entries of a contracted term, and the indices that its selections read."""
    core, reads = core_and_reads(builder, term)
    return Entries(term.coefficient, core, positions(reads))


def core_and_reads(builder: Builder, term: Term) -> tuple[Labelled, list[tuple[Axis, Labelled]]]:
    """Return the tensor of a contracted term as its selections read it, and the axes that they read with the indices.

    It is one where the term has none.
    """
    found = selections_of(term)
    core = tensor_of(term) or Labelled(builder.emit(one_like, builder.like()), ())
    core = read_at(builder, core, found)
    return core, [(selection.target, indices(builder, selection)) for selection in found]


def indices(builder: Builder, selection: Selection) -> Labelled:
    """Return the indices of what a selection reads, along the axes that it reads."""
    size = shape_of((selection.target,))[0]
    beside = shape_of(selection.beside)
    every = builder.emit(range_like, builder.like(), size)
    every = builder.emit(torch.Tensor.expand, every, (*beside, size)) if beside else every
    shape = shape_of(selection.indexed)
    tensor = builder.apply(selection.function, every, selection.args, shape, torch.long)
    return read(builder.emit, tensor, selection.indexed)
