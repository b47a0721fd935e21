"""Contraction: from a term with many factors to one with at most one, lowered to mm, bmm and mul at plan time."""

from collections.abc import Collection, Sequence
from math import inf, prod

import torch

from hofunc.algebra.extents import Rows
from hofunc.algebra.labels import Label, extent, labels_of
from hofunc.algebra.operators import Delta, Map, Selection, selection_of, with_merged_selections
from hofunc.algebra.term import Factor, Term, visible
from hofunc.graph.node import Mask
from hofunc.plan.builder import Builder
from hofunc.plan.chains import with_chains
from hofunc.plan.convolving import convolved_pair, is_of_windows
from hofunc.plan.devices import rates_of
from hofunc.plan.joins import joined
from hofunc.plan.lookups import product_at
from hofunc.plan.operators import applied, applied_to_diagonals, masked_by, matrix, summable
from hofunc.plan.paths import SHORT_VECTOR, SMALL_PRODUCT, Path, best_path
from hofunc.plan.program import Register
from hofunc.plan.recipes import composed_and
from hofunc.plan.selections import can_stay, entries_of_matrix, read_if_fewer, read_through
from hofunc.views import Labelled, aligned, each, folded, permuted

Labels = tuple[Label, ...]

NARROW = 16  # columns of a product of matrices, below which it is better turned, and many products are better one
MANY = 32  # such products, below which they may be faster all the same,
FEW_FACTORS = 4096  # and entries of their left matrices in all, below which they are
SMALL_PART = 8  # times as large as an operand a product is, beside which a copy of the operand is nothing


def contract(builder: Builder, term: Term) -> Term:
    """Return an equal term with at most one tensor, whose labels are all visible or of selections that stay beside it.

    Its steps go to the builder.
    """
    builder.spend()
    term = with_merged_selections(with_chains(builder, term))
    if not term.factors:
        return term
    operators, operands = _parted(builder, term.factors)
    shown = visible(term)
    operators, operands = joined(builder, operators, operands, shown, product)
    beside: list[Selection] = []
    put_off: list[Selection] = []
    while operators:
        place = _next(operators, shown, spreading=builder.small)
        if place is None and (beside := _staying(operators, put_off, shown, builder.small)):
            shown = dict.fromkeys((*shown, *labels_of(*(selection.factor.axes for selection in beside))))
            break
        place = _next(operators, shown) if place is None else place
        operator = operators.pop(_built(operators, shown, builder.small) if place is None else place)
        if isinstance(operator.source, Mask):
            mask = builder.read(operator.source, operator.axes)
            found = [one for other in operators if (one := selection_of(other)) is not None]
            mask = read_if_fewer(builder, mask, [*found, *put_off], operands)
            operands = masked_by(builder, operator, mask, operands)
            continue
        if (convolution := convolved_pair(builder, [*operators, operator], operands, shown)) is not None:
            operators, operands = convolution
            continue
        needed = {*shown, *labels_of(*(other.axes for other in operators))}
        transformed = applied(builder, operator, _multiplied(builder, operator, operands, needed), needed)
        if transformed is not None:
            operands = transformed
        elif (selection := _large(operator, shown, builder.small)) is not None and _is_apart(
            selection, [*operators, *(other.factor for other in put_off)]
        ):
            put_off.append(selection)
            shown = dict.fromkeys((*shown, *labels_of(operator.axes)))
        elif isinstance(operator.source, Map) and operator.source.parts and not {*labels_of(operator.axes)} <= {*shown}:
            inner, others = _parted(builder, operator.source.parts(operator.axes, *operator.source.args))
            operators, operands = operators + inner, operands + others
        else:
            along = applied_to_diagonals(builder, operator, operands, needed)
            operands = [*operands, matrix(builder, operator)] if along is None else along
    kept = tuple([selection.factor for selection in (*beside, *put_off)])
    if kept:
        operands = read_through(builder, operands, [*beside, *put_off])
    if not operands:
        return term._replace(factors=kept)
    result = product(
        builder, operands, {*shown} if kept else shown
    )  # whose axes are in no order where some stay beside
    return term._replace(factors=(Factor(result.tensor, each(result.labels)), *kept))


def _next(operators: Sequence[Factor], shown: Collection[Label], spreading: int | None = None) -> int | None:
    """Return the place of the last operator that can be applied now, None if none can.

    Args:
        operators: The operators.
        shown: The labels that are visible.
        spreading: If given, those that spread few elements out are left, but for matrices of so many entries.
    """
    for place in reversed(range(len(operators))):
        others = (other.axes for number, other in enumerate(operators) if number != place)
        if isinstance(operators[place].source, Mask):
            return place
        waits = spreading is not None and _spreads(operators[place], shown, spreading)
        if not waits and summable(operators[place], {*shown, *labels_of(*others)}):
            return place
    return None


def _built(operators: Sequence[Factor], shown: Collection[Label], small: int) -> int:
    """Return the place of the operator of which to build the matrix: the last, but for selections that could stay."""
    for place in reversed(range(len(operators))):
        if _large(operators[place], shown, small) is None:
            return place
    return len(operators) - 1


def _spreads(operator: Factor, shown: Collection[Label], small: int) -> bool:
    """Tell whether an operator adds few elements to their places among many, of which most stay zero."""
    selection = _large(operator, shown, small)
    return selection is not None and extent(selection.target) > extent(selection.read)


def _large(operator: Factor, shown: Collection[Label], small: int) -> Selection | None:
    """Return the selection that an operator is, if it could stay and its matrix is not small; None otherwise."""
    selection = selection_of(operator)
    if selection is None or entries_of_matrix(selection) <= small or not can_stay(selection, shown):
        return None
    return selection


def _staying(
    operators: Sequence[Factor], put_off: Sequence[Selection], shown: Collection[Label], small: int
) -> list[Selection]:
    """Return the operators that stay beside the tensor of a term: all of them, if all are selections that can.

    Where the matrices of all are small, it takes less to multiply by them. None may read from what another one reads
    along, be it one that was put off: what everything else is read at there would be lost to that.
    """
    found = [selection for operator in operators if (selection := selection_of(operator)) is not None]
    every = [*found, *put_off]
    targets = labels_of(tuple([selection.target for selection in every]))
    indexed = {*labels_of(*(selection.indexed for selection in every))}
    is_apart = len({*targets}) == len(targets) and indexed.isdisjoint(targets)
    can = is_apart and len(found) == len(operators) and all(can_stay(selection, shown) for selection in found)
    return found if can and any(entries_of_matrix(selection) > small for selection in found) else []


def _is_apart(selection: Selection, others: Sequence[Factor]) -> bool:
    """Tell whether neither a selection itself nor another operator reads along what it reads from."""
    target = {*labels_of((selection.target,))}
    along = [selection.indexed, *(other.axes for other in others)]
    return all(target.isdisjoint(labels_of(axes)) for axes in along)


def _multiplied(builder: Builder, operator: Factor, operands: list[Labelled], needed: set[Label]) -> list[Labelled]:
    """Multiply the operands that an operator is contracted with, if that makes nothing larger than its matrix."""
    whole = _size(tuple(dict.fromkeys(labels_of(operator.axes))))
    for contracted_labels in summable(operator, needed):
        hosts = [operand for operand in operands if contracted_labels & {*operand.labels}]
        others = [operand for operand in operands if operand not in hosts]
        keep = {*needed, *labels_of(operator.axes), *(label for operand in others for label in operand.labels)}
        union = tuple(dict.fromkeys(label for host in hosts for label in host.labels if label in keep))
        if len(hosts) > 1 and _size(union) < whole:
            return [*others, product(builder, hosts, keep)]
    return operands


def contracted(builder: Builder, outer: Term, inners: Sequence[Term | None]) -> Term | None:
    """Compose terms, see `compose`, and contract the composition; None if it vanishes."""
    return composed_and(builder, contract, outer, inners)


def _parted(builder: Builder, factors: Sequence[Factor]) -> tuple[list[Factor], list[Labelled]]:
    """Part factors into operators and tensors, and read the latter; windows come first, as the last is applied first.

    What else is applied before them is done to what is not laid out in windows yet.
    """
    operators = [factor for factor in factors if isinstance(factor.source, Delta | Map | Mask)]
    operators.sort(key=is_of_windows, reverse=True)
    tensors = [factor for factor in factors if not isinstance(factor.source, Delta | Map | Mask)]
    return operators, [builder.read(factor.source, factor.axes) for factor in tensors]


def product(builder: Builder, operands: Sequence[Labelled], keep: dict[Label, None] | set[Label]) -> Labelled:
    """Multiply labelled tensors and sum over the labels that are not to be kept."""
    (whole,) = apart(builder, operands, keep, inf)
    return whole


def apart(
    builder: Builder, operands: Sequence[Labelled], keep: dict[Label, None] | set[Label], most: float = 1
) -> list[Labelled]:
    """Multiply labelled tensors as `product` does, as long as each product has few entries beside its factors.

    Args:
        builder: Takes the steps.
        operands: The tensors.
        keep: The labels that are not to be summed over.
        most: How many times as many entries as both factors it may have.

    Returns:
        Tensors whose product it is, those that are left of the operands among them.
    """
    left = list(operands)
    for place, operand in enumerate(left):
        others = {label for other in (*left[:place], *left[place + 1 :]) for label in other.labels}
        left[place] = _summed(builder, operand, {*keep, *others})
    for first, second in _path(builder, left, keep):
        one, other = left[first], left[second]
        rest = [operand for place, operand in enumerate(left) if place not in (first, second)]
        needed = {*keep, *(label for operand in rest for label in operand.labels)}
        if most < inf:
            made = tuple([label for label in {*one.labels, *other.labels} if label in needed])
            if _size(made) > most * (_size(one.labels) + _size(other.labels)):
                break
        order = [*keep] if isinstance(keep, dict) else []
        left = [*rest, _pair(builder, one, other, needed, order)]
    return left


def _summed(builder: Builder, operand: Labelled, keep: set[Label]) -> Labelled:
    dims = tuple(dim for dim, label in enumerate(operand.labels) if label not in keep)
    if not dims:
        return operand
    return Labelled(builder.emit(torch.sum, operand.tensor, dims), tuple(x for x in operand.labels if x in keep))


def _path(builder: Builder, operands: Sequence[Labelled], keep: dict[Label, None] | set[Label]) -> Path:
    if len(operands) < 3:
        return [(0, 1)] * (len(operands) - 1)
    numbers = {label: n for n, label in enumerate(dict.fromkeys(x for operand in operands for x in operand.labels))}
    subscripts = tuple(tuple(numbers[label] for label in operand.labels) for operand in operands)
    result = tuple(number for label, number in numbers.items() if label in keep)
    sizes = tuple(int(label.size) for label in numbers)
    return best_path(subscripts, result, sizes, rates_of(builder.device).of(builder.dtype), builder.dtype.itemsize)


def _pair(builder: Builder, one: Labelled, other: Labelled, keep: set[Label], order: Sequence[Label] = ()) -> Labelled:
    """Multiply two labelled tensors, summing the labels that both have and that are not kept.

    The product of two matrices takes as long either way round, so that it has the order in which its axes are wanted,
    unless it would have a short axis last, with which it takes up to twice as long.
    """
    one, other = _summed(builder, one, {*keep, *other.labels}), _summed(builder, other, {*keep, *one.labels})
    if _size(other.labels) > _size(one.labels):
        one, other = other, one
    summed = tuple(label for label in one.labels if label in other.labels and label not in keep)
    if not summed:
        if len(other.labels) == 1 and _leads(other.labels[0], one):
            one = _last(builder, one)
        labels = tuple(label for label in other.labels if label not in one.labels) + one.labels
        if labels and {*labels} <= {*order} and len(labels) == len(one.labels) + len(other.labels):
            wanted = tuple(sorted(labels, key=order.index))  # as what else has both lies, mostly
            labels = wanted if wanted[-1].size >= NARROW else labels
        tensors = [aligned(builder.emit, operand, labels) for operand in (one, _in_order(builder, other, one, labels))]
        factors = [builder.broadcast(tensor, len(labels)) for tensor in tensors]
        return Labelled(builder.emit(torch.mul, *factors), labels)
    batch = tuple(label for label in one.labels if label in other.labels and label in keep)
    rows = tuple(label for label in one.labels if label not in other.labels)
    columns = tuple(label for label in other.labels if label not in one.labels)
    if len(batch) == 1 and (found := product_at(builder, one, other, batch[0], (rows, columns), summed)) is not None:
        return found
    if not rows and not columns:
        factors = [aligned(builder.emit, operand, one.labels) for operand in (one, other)]
        return _summed(builder, Labelled(builder.emit(torch.mul, *factors), one.labels), set(batch))
    entries = _size(rows) * _size(columns)
    lies_last = one.labels[-1] in batch  # so that each matrix would be read across all others
    is_vector = 1 in (_size(rows), _size(columns))
    if batch and (entries <= SMALL_PRODUCT or (is_vector and (lies_last or entries <= SHORT_VECTOR))):
        shared = tuple(label for label in one.labels if label in other.labels)  # as they lie, or sums take long
        labels = (*rows, *columns, *shared)
        factors = [aligned(builder.emit, operand, labels) for operand in (one, other)]
        return _summed(builder, Labelled(builder.emit(torch.mul, *factors), labels), {*rows, *columns, *batch})
    if not batch and (split := _around(one.labels, summed)) is not None and _are_apart(split, summed, columns):
        return _inner_product(builder, one, other, split, summed, columns)
    if not batch and _is_led_by(one.labels, summed) and _size(columns) < _size(rows):
        one, other, rows, columns = other, one, columns, rows  # so that nothing is turned, and the last axis is long
    is_long = _size(rows) >= min(NARROW, _size(columns))
    if not batch and len(rows) == len(columns) == 1 and is_long and _is_before(columns[0], rows[0], order):
        one, other, rows, columns = other, one, columns, rows
    folded_product = None if batch else _folded(builder, one, other, (rows, columns), summed)
    return folded_product or _product_of_matrices(builder, one, other, batch, (rows, columns), summed)


def _product_of_matrices(
    builder: Builder, one: Labelled, other: Labelled, batch: Labels, free: tuple[Labels, Labels], summed: Labels
) -> Labelled:
    """Multiply tensors laid out as matrices, or as batches of them."""
    rows, columns = free
    left = _matrix(builder, one, batch, rows, summed)
    right = _matrix(builder, other, batch, columns, summed, transposed=True)
    result = builder.emit(torch.bmm if batch else torch.mm, left, right)
    return _unmerged(builder, result, (batch, rows, columns) if batch else (rows, columns))


def _folded(
    builder: Builder, one: Labelled, other: Labelled, free: tuple[Labels, Labels], summed: Labels
) -> Labelled | None:
    """Multiply a vector, or what has several labels before that of a matrix, as it is; None for other operands."""
    rows, columns = free
    is_product_of_matrices = len(rows) == len(columns) == 1
    is_folded = len(rows) < 2 or one.labels[-1:] == summed
    if len(summed) > 1 or len(columns) > 1 or is_product_of_matrices or not is_folded:
        return None
    left = _matrix(builder, one, (), rows, summed) if len(rows) == 1 else one.tensor
    right = _matrix(builder, other, (), columns, summed, transposed=True) if columns else other.tensor
    return Labelled(builder.emit(folded if len(rows) > 1 else torch.matmul, left, right), (*rows, *columns))


def _in_order(builder: Builder, operand: Labelled, other: Labelled, labels: Labels) -> Labelled:
    """Copy an operand as the labels of a product are, if a far larger product would lie as the operand does.

    Torch puts that of two axes first which the first operand with both of them has first: this one, where it has one by
    itself, which is to come first, after one that both have.
    """
    shared = [label in other.labels for label in operand.labels]
    if shared == sorted(shared) or _size(labels) < SMALL_PART * _size(operand.labels):
        return operand
    own = tuple([label for label in labels if label in operand.labels])
    turned = permuted(builder.emit, operand.tensor, tuple(map(operand.labels.index, own)))
    return Labelled(builder.emit(torch.Tensor.contiguous, turned), own)


def _leads(label: Label, operand: Labelled) -> bool:
    """Tell whether an operand runs over a label first, and over more elements for each index of it than it has.

    Rows, which are not summed later on, stay where they are.
    """
    is_row = isinstance(label.size, Rows)
    return not is_row and operand.labels[:1] == (label,) and _size(operand.labels[1:]) > label.size


def _last(builder: Builder, operand: Labelled) -> Labelled:
    """Put the first label last, so that a vector along it is multiplied as it is, and so are those that follow.

    Where there are more elements for each index than indices, what is multiplied by a matrix then keeps that order.
    """
    labels = (*operand.labels[1:], operand.labels[0])
    return Labelled(permuted(builder.emit, operand.tensor, (*range(1, len(labels)), 0)), labels)


def _is_before(one: Label, other: Label, order: Sequence[Label]) -> bool:
    """Tell whether a label comes before another in an order that has both."""
    return one in order and other in order and order.index(one) < order.index(other)


def _is_led_by(labels: Labels, summed: Labels) -> bool:
    """Tell whether the first labels are those that are summed."""
    return {*labels[: len(summed)]} == {*summed}


def _around(labels: Labels, summed: Labels) -> tuple[Labels, Labels] | None:
    """Return the labels before and after the summed ones, if these stand together in the middle; None otherwise."""
    places = [labels.index(label) for label in summed]
    start, stop = min(places), max(places) + 1
    is_inside = start > 0 and stop < len(labels) and stop - start == len(summed)
    return (labels[:start], labels[stop:]) if is_inside else None


def _are_apart(around: tuple[Labels, Labels], summed: Labels, columns: Labels) -> bool:
    """Tell whether to multiply by a matrix for each of the leading labels, rather than turn what is multiplied by it.

    With few columns a product takes as long as with NARROW: 128 by a matrix of 64 x 64 take ten times as long as one.
    """
    before, after = around
    few = _size(before) < MANY and _size(before) * _size(summed) * _size(columns) < FEW_FACTORS
    return few or _size(after) >= NARROW


def _inner_product(
    builder: Builder, one: Labelled, other: Labelled, around: tuple[Labels, Labels], summed: Labels, columns: Labels
) -> Labelled:
    """Multiply from the left by a matrix that is the same along the leading labels, so that nothing is permuted."""
    before, after = around
    summed = tuple(label for label in one.labels if label in summed)
    matrix = _matrix(builder, other, (), columns, summed)
    count, size = _size(before), _size(summed)
    matrix = builder.emit(torch.Tensor.expand, matrix, (count, _size(columns), size))
    tensor = one.tensor
    if len(one.labels) != 3:
        tensor = builder.emit(torch.reshape, tensor, (count, size, _size(after)))
    return _unmerged(builder, builder.emit(torch.bmm, matrix, tensor), (before, columns, after))


def _size(labels: Labels) -> int:
    return prod(label.size for label in labels)


def _unmerged(builder: Builder, tensor: Register, groups: Sequence[Labels]) -> Labelled:
    """Give a matrix product, which has a dimension per group of labels, one per label."""
    labels = tuple(label for group in groups for label in group)
    if any(len(group) != 1 for group in groups):
        tensor = builder.emit(torch.reshape, tensor, tuple(label.size for label in labels))
    return Labelled(tensor, labels)


def _matrix(
    builder: Builder, operand: Labelled, batch: Labels, free: Labels, summed: Labels, *, transposed: bool = False
) -> Register:
    """Lay an operand out as (batch, free, summed), or (batch, summed, free) if transposed; a matrix without a batch.

    Of the two orders of the matrix dimensions the one nearer to the operand's own is reshaped, and the result is
    turned by a view. If what is summed has the operand's last label it comes last, so that runs of it are copied.
    """
    position = operand.labels.index
    summed_last = not free or operand.labels[-1] in summed or position(summed[0]) > position(free[0])
    groups = [free, summed] if summed_last else [summed, free]
    groups = [batch, *groups] if batch else groups
    order = tuple(position(label) for group in groups for label in group)
    tensor = permuted(builder.emit, operand.tensor, order)
    if any(len(group) != 1 for group in groups):
        tensor = builder.emit(torch.reshape, tensor, tuple(_size(group) for group in groups))
    return builder.emit(torch.transpose, tensor, -2, -1) if summed_last == transposed else tensor
