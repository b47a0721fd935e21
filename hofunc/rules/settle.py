"""Singularities behind what is constant, as in ``x.clamp(-1, 1).acos()``: which derivatives are to be settled, and how.

Where clamp returns a limit the derivative is zero, whatever acos does there. But the chain rule multiplies that zero by
the slope of acos at 1, which is infinite, and gets nan. torch's reverse mode gets zero, since its masks come last and
select; its forward mode gets nan. So where an operand is constant, the derivatives by it, which nobody needs, are
taken at a number inside the domain instead: they are then finite, and zero times them is zero, by every strategy and at
every order. It is the "double where" that one writes by hand to keep nan out of gradients of torch and JAX.

The same holds before a mask, as in ``torch.where(x > 0, x.log(), 0)`` at zero, where torch's reverse mode gets nan:
what the mask leaves out is not used, and so its derivatives are taken at a number inside the domain likewise.

NOTE [what varies]: an element of a node is constant if its derivative by every input is zero because of where masks
are, whatever the values of the other elements: it is what linear and piecewise linear ops leave out. Everything else
hands it on by the terms of its first derivative, so that this is a property of a term and not of an op: an element of
the result varies if a term leads there from one that does, and one of an operand is used if a term leads from there to
one that is. Of what is zero wherever it is computed, as the changes of NOTE [expansions], first derivatives of products
vanish, and a term of a higher one leads from elements that all vary. See `hofunc.plan.activity`, which computes it.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hofunc.algebra.labels import labels_of
from hofunc.algebra.operators import Delta, Map
from hofunc.algebra.term import Factor, Term
from hofunc.graph.node import Call, Graph, Mask, Node, Ref, refs
from hofunc.rules.kinds import (
    Elementwise,
    ElementwisePair,
    Linear,
    Opaque,
    PiecewiseLinear,
    Rule,
    Site,
    params_of,
    promoted,
)
from hofunc.rules.quotient import Quotient
from hofunc.rules.registry import POSITIVE, REAL, RULES
from hofunc.rules.signs import Sign, sign_where_it_varies, signs_of

Terms = Mapping[tuple[int, ...], list[Term]]  # derivatives of one node, by the sorted tuple of its operands
Singular = dict[int, Sign]  # nodes whose derivatives may be infinite, and the signs of what they are of


@dataclass(frozen=True, slots=True)
class Settling:
    """What of a graph is to be settled.

    Attributes:
        limited: The nodes of which some elements may be constant, if any are to be settled at all; likewise the unused.
        settled: Those with derivatives that may be infinite, by an operand that is limited.
        exposed: Those of them behind masks of which the derivatives may be so where nothing is constant, too.
        unused: The nodes of which some elements may not reach an output, whatever they are. Those with derivatives
            that may be infinite are to be settled, too.
    """

    limited: frozenset[int]
    settled: frozenset[int]
    exposed: frozenset[int]
    unused: frozenset[int]


def settling(
    graph: Graph,
    rules: Mapping[int, Rule],
    local: Mapping[int, Terms],
    *,
    masks_come_last: bool,
    singular: Singular | None = None,
) -> Settling:
    """Tell which nodes of a lowered graph are to be settled.

    Args:
        graph: The graph.
        rules: The rule of every active node that is not given.
        local: The local derivatives of those on which an output depends, in order.
        masks_come_last: Whether derivatives meet masks after what follows those, so that nan and infinite numbers that
            are there already, other than slopes, are left out by `hofunc.graph.node.Mask`.
        singular: What `singularities` returns, if that is known.
    """
    return Settlings(graph, rules, local, singular).of(masks_come_last=masks_come_last)


class Settlings:
    """What of a graph is to be settled, whether masks come last or not, of which most is told only once.

    Args:
        graph: The graph.
        rules: The rule of every active node that is not given.
        local: The local derivatives of those on which an output depends, in order.
        singular: What `singularities` returns, if that is known.

    Attributes:
        are_finite: Whether all derivatives of the ops of the graph are finite where the values are, for all that is
            known.
    """

    def __init__(
        self, graph: Graph, rules: Mapping[int, Rule], local: Mapping[int, Terms], singular: Singular | None = None
    ):
        self._singular = singularities(graph, rules) if singular is None else singular
        self._with_infinity = _with_infinity(graph)
        self.are_finite = not (self._singular or self._with_infinity)
        self._graph, self._rules, self._local = graph, rules, local
        self._known: dict[bool, Settling] = {}

    @cached_property
    def _bounds(self) -> "_Bounds":
        return _bounds(self._graph, self._rules, self._local)

    def of(self, *, masks_come_last: bool) -> Settling:
        """Tell which nodes are to be settled, see `settling`."""
        if masks_come_last not in self._known:
            self._known[masks_come_last] = self._of(masks_come_last)
        return self._known[masks_come_last]

    def _of(self, masks_come_last: bool) -> Settling:
        if self.are_finite and (masks_come_last or not any(map(_selects, self._local.values()))):
            return Settling(*[frozenset[int]()] * 4)  # whatever is constant, nothing infinite is multiplied with it
        given = self._graph, self._rules, self._local
        return _settling(*given, self._bounds, self._singular, self._with_infinity, masks_come_last=masks_come_last)


class _Bounds(NamedTuple):
    """What of a graph may be constant, what masks make so, what takes that, and what may not be used."""

    limited: set[int]
    masked: set[int]
    behind: set[int]
    unused: set[int]


def _bounds(graph: Graph, rules: Mapping[int, Rule], local: Mapping[int, Terms]) -> _Bounds:
    limited = _limited(graph, rules, local)
    masked = _reached(graph, local, {number for number in limited if _is_masked(rules[number], local[number])})
    behind = {number for number in local if not limited.isdisjoint(graph.nodes[number].operands)}
    return _Bounds(limited, masked, behind, _unused(graph, rules, local))


def _settling(
    graph: Graph,
    rules: Mapping[int, Rule],
    local: Mapping[int, Terms],
    bounds: _Bounds,
    singular: Singular,
    with_infinity: set[int],
    *,
    masks_come_last: bool,
) -> Settling:
    limited, masked, behind, unused = bounds
    if not (behind or unused):
        singular, with_infinity = {}, set()
    settled = behind.intersection(singular)
    if masks_come_last:  # and so select what a slope by a numerator is multiplied by
        settled = {number for number in settled if _limited_below(graph.nodes[number], rules[number], limited)}
    exposed = {number for number in settled if singular[number] < Sign.TINY}
    exposed = {number for number in exposed if not masked.isdisjoint(graph.nodes[number].operands)}
    somewhere = singular.keys() | with_infinity
    infinite = _reached(graph, range(len(graph.nodes)), settled if masks_come_last else somewhere)
    settled |= {number for number in behind if not infinite.isdisjoint(_read(local[number]))}
    if not masks_come_last:
        settled |= {number for number in behind & _behind_selections(graph, local) if [*_read(local[number])]}
    settled |= unused & _reached(graph, range(len(graph.nodes)), somewhere)
    return Settling(frozenset(limited), frozenset(settled), frozenset(exposed), frozenset(unused))


def _limited_below(node: Node, rule: Rule, limited: Collection[int]) -> bool:
    """Tell whether some of the denominators of a node may be constant, if it is a quotient."""
    return not isinstance(rule, Quotient) or rule.denominator(node) in limited


def is_mask(rule: Rule) -> bool:
    """Tell whether a factor of the first derivative, where it is zero, makes the result constant."""
    return isinstance(rule, Linear | PiecewiseLinear)


def _limited(graph: Graph, rules: Mapping[int, Rule], local: Mapping[int, Terms]) -> set[int]:
    """Return the nodes of which some elements may be constant: those that linear ops leave out, and what follows.

    What is added to something that varies everywhere, as by a residual connection, varies everywhere.
    """
    limited: set[int] = set()
    for number, derivatives in local.items():
        node = graph.nodes[number]
        if is_mask(rules[number]) or not limited.isdisjoint(node.operands):
            first = ((key[0], term) for key, terms in derivatives.items() if len(key) == 1 for term in terms)
            if sum(_reach(term) for operand, term in first if operand not in limited) < prod(node.shape):
                limited.add(number)
    return limited


def _unused(graph: Graph, rules: Mapping[int, Rule], local: Mapping[int, Terms]) -> set[int]:
    """Return the nodes all whose elements reach an output by way of a mask only, which may leave some of them out."""
    taken: set[int] = set()
    used = {*graph.outputs}
    for number in sorted(local, reverse=True):
        for key, term in leading(local[number]):
            taken.update(key)
            if len(key) > 1 or (number in used and not (is_mask(rules[number]) and _has_mask(term))):
                used.update(key)
    return (local.keys() & taken) - used


def leading(local: Terms) -> Iterator[tuple[tuple[int, ...], Term]]:
    """Yield the terms by which a node first varies with its operands, each with these.

    They are the terms of first derivatives, and those of higher ones by an operand of which the first derivative
    vanishes, as it does by each of two that are zero of their product.
    """
    first = {operand for key, terms in local.items() if len(key) == 1 and terms for operand in key}
    for key, terms in local.items():
        if len(key) == 1 or not first.issuperset(key):
            for term in terms:
                yield key, term


def _reach(term: Term) -> int:
    """Return how many elements of the result a term leads to for sure."""
    if _has_mask(term) or not all(_covers(factor.source) for factor in term.factors):
        return 0
    return prod(label.size for label in {*labels_of(term.out)})


def _covers(source: Hashable) -> bool:
    return not isinstance(source, Map) or source.selects or source.covers


def _has_mask(term: Term) -> bool:
    """Tell whether a term has a tensor for a factor that may be zero, and is not summed: an extreme is some element."""
    shown = {*labels_of(term.out)}
    tensors = (factor for factor in term.factors if not isinstance(factor.source, Delta | Map))
    return any(shown.issuperset(labels_of(factor.axes)) for factor in tensors)


def _is_masked(rule: Rule, local: Terms) -> bool:
    """Tell whether first derivatives of a node have masks."""
    return is_mask(rule) and any(_has_mask(term) for key, terms in local.items() if len(key) == 1 for term in terms)


def _behind_selections(graph: Graph, local: Mapping[int, Terms]) -> set[int]:
    """Return the nodes that follow a mask which selects, and so may be there to leave out what is infinite or nan."""
    selecting = {number for number, terms in local.items() if _selects(terms)}
    after = _reached(graph, local, selecting)
    return {number for number in local if not after.isdisjoint(graph.nodes[number].operands)}


def _selects(local: Terms) -> bool:
    return any(isinstance(source, Mask) for terms in local.values() for term in terms for source, _ in term.factors)


def singularities(graph: Graph, rules: Mapping[int, Rule]) -> Singular:
    """Return the nodes, constant ones too, whose derivatives may be infinite, and the signs of what they are of."""
    ruled = [(node, _rule(node, rules)) for node in graph.nodes]
    found = {node.number: _singular_at_zero(rule, node) for node, rule in ruled if is_singular(rule, node)}
    signs = signs_of(graph, rules, {at for at in found.values() if at is not None})
    at_limits = {
        number: Sign.ANY if at is None else max(signs[at], sign_where_it_varies(graph, at, signs))
        for number, at in found.items()
    }
    return {number: sign for number, sign in at_limits.items() if sign < Sign.POSITIVE}


def _singular_at_zero(rule: object, node: Node) -> int | None:
    """Return the operand of a singular op at the zeros of which alone its derivatives are infinite; None for others."""
    if isinstance(rule, Quotient):
        return rule.denominator(node)
    return node.operands[0] if getattr(rule, "domain", None) == POSITIVE else None


def _rule(node: Node, rules: Mapping[int, Rule]) -> object:
    return rules.get(node.number) or (None if node.is_given or node.dtype.is_complex else RULES.get(node.op))


def is_singular(rule: object, node: Node) -> bool:
    """Tell whether derivatives of an op may be infinite."""
    if isinstance(rule, Quotient):
        return rule.denominator(node) is not None
    if isinstance(rule, Elementwise):
        is_polynomial = rule.degree(*params_of(Site(node, ())), **dict(node.kwargs)) is not None
        return rule.domain != REAL and not is_polynomial
    return isinstance(rule, Opaque) or (isinstance(rule, ElementwisePair) and rule.domain != REAL)


def _with_infinity(graph: Graph) -> set[int]:
    """Return the nodes of ops that are given a number that is infinite or nan, other than to compare with it."""
    return {
        node.number
        for node in graph.nodes
        if (node.dtype.is_floating_point or node.dtype.is_complex)
        and any(isinstance(arg, float) and not isfinite(arg) for arg in node.args)
    }


def _reached(graph: Graph, numbers: Iterable[int], start: Collection[int]) -> set[int]:
    """Return some nodes, and those of the given numbers, in order, that are computed from them."""
    found = {*start}
    for number in numbers if found else ():
        if not found.isdisjoint(graph.nodes[number].operands):
            found.add(number)
    return found


def _read(local: Terms) -> Iterator[int]:
    """Yield the nodes that factors of local derivatives read."""
    for terms in local.values():
        for term in terms:
            for source, _ in [factor for factor in term.factors if not isinstance(factor.source, Mask)]:
                yield from (ref.node for ref in _refs(source))


def _refs(source: Hashable) -> list[Ref]:
    if isinstance(source, Call | Map):
        source = (source.args, getattr(source, "kwargs", ()))
    return refs(source)


# Derivatives at a number inside the domain, where an operand is constant.


def inside(rule: Rule, site: Site, factor: Factor) -> tuple[Callable, tuple] | None:
    """Return what computes a factor of a derivative, given where its operands vary, and its further arguments.

    Args:
        rule: The rule of a node.
        site: The node.
        factor: A factor of one of its derivatives.

    Returns:
        ``function(varies, *args)``; None if the factor can only be put to zero.
    """
    if not isinstance(factor.source, Call):
        return None
    middle = sum(getattr(rule, "domain", ())) / 2
    call = factor.source
    if type(rule) is Elementwise and call.op is rule.derivative:
        place = site.node.args.index(site.ref(0))
        order, *params = call.args[2:]
        return of_one, (rule.derivative, site.node.op, middle, place, order, tuple(params), call.kwargs, site.ref(0))
    if isinstance(rule, ElementwisePair):
        args = call.args[1:] if call.op is promoted else call.args
        return of_two, (rule.derivative, middle, call.kwargs, *args)
    return None


def of_one(
    varies: Tensor,
    derivative: Callable,
    op: Callable,
    middle: float,
    place: int,
    order: int,
    params: tuple,
    keywords: tuple[tuple[str, Any], ...],
    x: Tensor,
) -> Tensor:
    """Return a derivative of an op at x, its argument at place; at the middle of its domain where x is constant."""
    x = torch.where(varies != 0, x, middle)
    y = op(*params[:place], x, *params[place:], **dict(keywords))
    return derivative(x, y, order, *params, **dict(keywords))


def of_two(
    varies: Tensor,
    derivative: Callable,
    middle: float,
    keywords: tuple[tuple[str, Any], ...],
    x: Tensor,
    z: Tensor,
    *args: Any,
) -> Tensor:
    """Return a derivative of a function of two numbers; at the middle of its domain where what it is by is constant."""
    dtype = torch.result_type(x, z)
    x, z = (torch.where(varies != 0, tensor.to(dtype), middle) for tensor in (x, z))
    return derivative(x, z, *args, **dict(keywords))
