"""Activity: which elements of a node vary with an input, as steps of a program, and derivatives that are settled by it.

An element that varies is marked by a positive number, one that is constant by zero. That is propagated as a tangent
is: the terms of first derivatives lead from the marks of operands to those of results. An element that is used is
marked likewise, and that is propagated as a cotangent is. See NOTE [what varies].
"""

from collections.abc import Callable, Collection, Sequence
from itertools import chain

import torch
from torch import Tensor

from hofunc.algebra.labels import Axes, fresh_axes, labels_of, shape_of
from hofunc.algebra.operators import Delta, Map
from hofunc.algebra.term import Factor, Term
from hofunc.graph.node import Call, Mask, Ref, Weights, fill, refs
from hofunc.plan.accumulate import core
from hofunc.plan.blocks import Local
from hofunc.plan.builder import Builder
from hofunc.plan.contract import contract
from hofunc.plan.operators import one_like, passed_on
from hofunc.plan.program import Register
from hofunc.plan.recipes import by_recipe, interned
from hofunc.rules.kinds import KeepsZeros, OfProducts, site_of
from hofunc.rules.quotient import Quotient
from hofunc.rules.settle import Settling, Settlings, inside, is_mask, leading
from hofunc.views import Labelled, Part, aligned, assembled, each, spread


def settled(
    builder: Builder, local: dict[int, Local], settlings: Settlings, *, masks_come_last: bool
) -> dict[int, Local]:
    """Return local derivatives that are finite where what they are by is constant and where they are not used.

    Args:
        builder: Takes the steps.
        local: The local derivatives of every node, in order.
        settlings: What is to be settled of that.
        masks_come_last: See `hofunc.rules.settle.settling`.
    """
    found = settlings.of(masks_come_last=masks_come_last)
    if not found.settled:
        return local
    activity = _Activity(builder, local, found)
    result = _selecting(builder, local, found.settled) if masks_come_last else dict(local)
    for number in found.settled:
        result[number] = {
            key: [activity.settled(number, key, term) for term in terms] for key, terms in result[number].items()
        }
    return result


def _selecting(builder: Builder, local: dict[int, Local], settled: Collection[int]) -> dict[int, Local]:
    """Return local derivatives in which what masks leave out before some nodes stays zero, whatever comes from these.

    Where something varies, their slopes may be infinite or nan, which a mask as a factor would keep.
    """
    nodes, before = builder.lowered.graph.nodes, {*settled}
    for number in sorted(local, reverse=True):
        if number in before:
            before.update(nodes[number].operands)
    are_masks = {number for number in before & local.keys() if is_mask(builder.lowered.rules[number])}
    return {
        number: {key: [_with_weights(term) for term in terms] for key, terms in blocks.items()}
        if number in are_masks
        else blocks
        for number, blocks in local.items()
    }


def _with_weights(term: Term) -> Term:
    return term._replace(
        factors=tuple(
            factor._replace(source=Weights(*factor.source)) if type(factor.source) is Call else factor
            for factor in term.factors
        )
    )


class _Activity:
    """Marks of the nodes of a graph, computed as they are asked for."""

    def __init__(self, builder: Builder, local: dict[int, Local], found: Settling):
        self._builder = builder
        self._rules = builder.lowered.rules
        self._local = local
        self._limited = found.limited
        self._marks: dict[int, Register] = {}
        self._uses = _uses(local) if found.unused else {}
        self._unused = found.unused
        self._needs: dict[int, Register] = {}

    def settled(self, number: int, key: Sequence[int], term: Term) -> Term:
        """Return a term of a derivative of a node by some operands, finite where one of these is constant."""
        slots = dict.fromkeys((o, axes) for o, axes in zip(key, term.slots, strict=True) if o in self._limited)
        marks = tuple(Factor(self._mark(operand), axes) for operand, axes in slots)
        if number in self._unused:
            marks += (Factor(self._need(number), term.out),)
        return term._replace(factors=tuple(self._settled(number, factor, marks) for factor in term.factors))

    def _settled(self, number: int, factor: Factor, marks: tuple[Factor, ...]) -> Factor:
        """Return a factor of a derivative of a node, given the marks of the slots."""
        builder, source = self._builder, factor.source
        if not marks or isinstance(source, Delta | Mask):
            return factor
        if isinstance(source, Map):
            return factor._replace(source=source._replace(args=self._replaced(source.args, {number}, varying)))
        varies = core(builder, contract(builder, Term(1, marks, factor.axes, ())))
        site = site_of(builder.lowered.graph, builder.lowered.graph.nodes[number])
        if (found := inside(self._rules[number], site, factor)) is not None:
            function, args = found
            whole = spread(builder.emit, varies, factor.axes)
            return factor._replace(source=builder.apply(function, whole, args, shape_of(factor.axes)))
        value = builder.read(source, factor.axes)
        labels = tuple(dict.fromkeys((*value.labels, *varies.labels)))
        is_varying = varies._replace(tensor=builder.emit(is_marked, varies.tensor))
        kept = builder.emit(passed_on, *(aligned(builder.emit, one, labels) for one in (value, is_varying)))
        return Factor(kept, each(labels))

    def _replaced(self, args: tuple, nodes: Collection[int], function: Callable) -> tuple:
        """Replace the Refs to some limited nodes by those to what a function makes of their values and marks."""

        def replaced(ref: Ref) -> Ref:
            if ref.node not in nodes:
                return ref
            value = self._builder.value(ref.node)
            return self._builder.stand_in(self._builder.emit(function, value, self._mark(ref.node)))

        return fill(args, iter([replaced(ref) for ref in refs(args)]))

    def _mark(self, number: int) -> Register:
        """Return the marks of a limited node, after those of the limited nodes before it."""
        nodes = self._builder.lowered.graph.nodes
        waiting = [number]
        while waiting:
            operands = [o for o in nodes[waiting[-1]].operands if o in self._limited and o not in self._marks]
            if operands:
                waiting.extend(operands)
            else:
                ready = waiting.pop()
                self._marks[ready] = self._marks.get(ready) or self._marked(ready)
        return self._marks[number]

    def _marked(self, number: int) -> Register:
        """Return the marks of a node, those of its operands being known."""
        moved = [self._moved(number, key, term) for key, term in leading(self._local[number])]
        if len(moved) == 1 and len(moved[0].factors) == 1 and _is_whole(moved[0]):
            return moved[0].factors[0].source
        if moved:
            return self._joint(moved)
        nothing = self._builder.emit(torch.zeros_like, self._builder.emit(one_like, self._builder.like()))
        axes = fresh_axes(self._builder.lowered.graph.nodes[number].shape)
        return self._builder.emit(marked, spread(self._builder.emit, Labelled(nothing, ()), axes))

    def _joint(self, terms: Sequence[Term]) -> Register:
        """Return marks of what any of some terms marks; that is alike for the nodes of a loop."""
        if any(type(factor.source) is not Register for term in terms for factor in term.factors):
            (found,) = _joint(self._builder, terms)
        else:
            for _ in terms:
                self._builder.spend()
            (found,) = by_recipe(self._builder, _joint, [interned(self._builder, term) for term in terms])
        return found.factors[0].source

    def _moved(self, number: int, key: Sequence[int], term: Term) -> Term:
        """Return the marks to which a term of a derivative of a node leads from those of the operands it is by."""
        factors = self._structures(number, term)
        own = [self._beside(factors, self._marks.get(o), slot) for o, slot in zip(key, term.slots, strict=True)]
        return Term(1, (*factors, *chain(*own)), term.out, ())

    def _beside(self, factors: Sequence[Factor], marks: Register | None, axes: Axes) -> list[Factor]:
        """Return marks as a factor beside others, if there are any, of what maps may take if they do."""
        if any(isinstance(factor.source, Map) for factor in factors):
            one = Labelled(self._builder.emit(one_like, self._builder.like()), ())
            marks = spread(self._builder.emit, one, axes) if marks is None else marks
            marks = self._builder.emit(unlike_each_other, marks)
        return [] if marks is None else [Factor(marks, axes)]

    def _need(self, number: int) -> Register:
        """Return marks of the elements of a node of which some may not be used, where they are."""
        after = sorted(self._unused.intersection(self._after(number)) - self._needs.keys(), reverse=True)
        for node in after:
            uses = self._uses[node]
            self._needs[node] = self._joint([self._back(use) for use in uses])
        return self._needs[number]

    def _after(self, number: int) -> set[int]:
        """Return a node and those that follow it of which some elements may not be used."""
        found: set[int] = set()
        left = [number]
        while left:
            node = left.pop()
            if node not in found:
                found.add(node)
                left.extend(user for user, _ in self._uses[node] if user in self._unused)
        return found

    def _back(self, use: tuple[int, Term]) -> Term:
        """Return the marks to which a term of a first derivative of a node leads back from those of the node."""
        number, term = use
        (slot,) = term.slots
        factors = self._structures(number, term)
        return Term(1, (*factors, *self._beside(factors, self._needs.get(number), term.out)), slot, ())

    def _structures(self, number: int, term: Term) -> list[Factor]:
        """Return what is zero where factors of a term of a derivative of a node are zero for good."""
        return [kept for factor in term.factors for kept in self._structure(number, factor)]

    def _structure(self, number: int, factor: Factor) -> list[Factor]:
        """Return what is zero where a factor of a derivative is zero for good; nothing if that is nowhere."""
        builder, rule, source = self._builder, self._rules[number], factor.source
        if isinstance(source, Map) and source.reach is not None:
            return [factor._replace(source=source._replace(forward=source.reach, transpose=source.reach))]
        if isinstance(source, Delta | Map):
            return [factor]
        if isinstance(rule, Quotient):
            graph = builder.lowered.graph
            if (of_numerator := rule.zeros_of(graph, graph.nodes[number], factor)) is None:
                return []
            factor, source = of_numerator, of_numerator.source
        is_converted = isinstance(source, Ref) and builder.lowered.graph.nodes[source.node].dtype == builder.dtype
        if isinstance(rule, OfProducts | Quotient):
            source = self._of_numbers(source)
        elif not isinstance(rule, KeepsZeros):
            source = None
        if source is None:
            return []
        value = builder.read(source, factor.axes)
        tensor = value.tensor if is_converted else builder.emit(torch.Tensor.to, value.tensor, builder.dtype)
        zeros = builder.emit(marked, tensor)
        return [Factor(zeros, each(value.labels))]

    def _of_numbers(self, source: Ref | Call) -> Ref | Call | Register | None:
        """Return a factor of a product with the number one for elements that vary; None if all do."""
        taken = {ref.node for ref in refs((source,) if isinstance(source, Ref) else source.args)}
        if any(self._builder.lowered.graph.nodes[number].active for number in taken - self._limited):
            return None
        if isinstance(source, Call):
            return source._replace(args=self._replaced(source.args, self._limited, one_if_varying))
        value = self._builder.value(source.node)
        is_limited = source.node in self._limited
        return self._builder.emit(one_if_varying, value, self._mark(source.node)) if is_limited else source


def _joint(builder: Builder, terms: Sequence[Term]) -> list[Term]:
    """Return the marks of what any of some terms marks, as one term."""
    parts = [Part(1, _product(builder, term), term.out) for term in terms]
    found, axes = assembled(builder.emit, parts), fresh_axes(shape_of(terms[0].out))
    if len(parts) > 1:
        found = builder.emit(marked, found)
    return [Term(1, (Factor(found, axes),), axes, ())]


def _product(builder: Builder, term: Term) -> Labelled:
    """Return the product of marks, which are ones and zeros as they are if nothing is added up."""
    found = core(builder, contract(builder, term))
    are_marks = all(type(factor.source) is Register for factor in term.factors)
    if are_marks and {*labels_of(*(factor.axes for factor in term.factors))} <= {*labels_of(term.out)}:
        return found
    return found._replace(tensor=builder.emit(marked, found.tensor))


def _uses(local: dict[int, Local]) -> dict[int, list[tuple[int, Term]]]:
    """Return, for every node, the nodes that take it, each with a term of its first derivative by it."""
    uses: dict[int, list[tuple[int, Term]]] = {}
    for number, blocks in local.items():
        for key, terms in blocks.items():
            for term in terms if len(key) == 1 else ():
                uses.setdefault(key[0], []).append((number, term))
    return uses


def _is_whole(term: Term) -> bool:
    """Tell whether the only factor of a term has the axes of the result, all of them whole and none shared."""
    segments = [segment for axis in term.out for segment in axis]
    return term.factors[0].axes == term.out and all(s.is_full for s in segments) and len({*segments}) == len(segments)


def varying(tensor: Tensor, marks: Tensor) -> Tensor:
    """Return a tensor where it varies, zero elsewhere."""
    return torch.where(marks != 0, tensor, 0)


def one_if_varying(tensor: Tensor, marks: Tensor) -> Tensor:
    """Return a tensor where it is constant, one elsewhere."""
    return torch.where(marks != 0, 1, tensor)


def marked(tensor: Tensor) -> Tensor:
    """Return ones where a tensor is not zero, of its dtype."""
    return (tensor != 0).to(tensor.dtype)


def is_marked(tensor: Tensor) -> Tensor:
    """Tell where a tensor is not zero."""
    return tensor != 0


def unlike_each_other(marks: Tensor) -> Tensor:
    """Return marks as numbers of which no simple sum or difference is zero, as maps may take them."""
    bits = torch.arange(1, marks.numel() + 1, device=marks.device) * 2654435761
    bits = ((bits ^ (bits >> 15)) & 0x7FFFFFFF) * 2246822519
    bits = (bits ^ (bits >> 13)) & 0xFFFFF
    return marks * (1 + bits / 0x100000).to(marks.dtype).reshape(marks.shape)
