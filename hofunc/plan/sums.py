"""Sums of products: those of like factors are one product, of factors that are stacked along a label that is summed.

What the nodes of a layer, or of the steps of a sequence, contribute to one derivative are products of the same axes, of
other tensors. To multiply them one by one and to add up takes some calls for each; to stack their factors takes one for
each factor, and one product does the rest.
"""

from collections.abc import Hashable, Iterable, Sequence
from math import prod
from typing import NamedTuple

from hofunc.algebra.labels import Label, extent, full
from hofunc.algebra.term import Factor, Term, visible
from hofunc.plan.accumulate import accumulated
from hofunc.plan.builder import Builder
from hofunc.plan.contract import contract
from hofunc.plan.recipes import axes_of, is_applied, worked
from hofunc.views import stacked

FEW = 3  # terms, below which to stack them takes as many calls
FREE = 4096  # entries that are copied in the time of the calls that are saved
MOST = 1 << 16  # entries that are stacked at once, so that they stay in a cache


class Product(NamedTuple):
    """A term that is not contracted yet.

    Attributes:
        term: The term.
        node: The node that contributes it, None if several do.
    """

    term: Term
    node: int | None


def contributed(builder: Builder, terms: Iterable[Term]) -> list[Product]:
    """Return terms, not contracted yet, as what the node contributes for which steps are asked for now."""
    return [Product(term, builder.node) for term in terms]


def summed(builder: Builder, given: Sequence[Product]) -> list[Term]:
    """Contract terms and add them up: those of the same axes at once, where that is no more work."""
    groups: dict[Hashable, list[Product]] = {}
    for each in given:
        groups.setdefault((each.term.coefficient, axes_of(each.term)), []).append(each)
    terms = []
    for each in [each for alike in groups.values() for each in _stacked(builder, alike)]:
        builder.node = each.node
        terms.append(worked(builder, contract, each.term))
    builder.node = None
    return accumulated(builder, terms)


def _stacked(builder: Builder, alike: Sequence[Product]) -> list[Product]:
    """Return terms, of the same axes and coefficients, whose sum is that of the given ones."""
    first, *_ = [each.term for each in alike]
    if len(alike) < FEW or not first.factors or any(is_applied(each.term) for each in alike):
        return [*alike]
    tensors = [[builder.tensor(*factor) for factor in each.term.factors] for each in alike]
    other = [place for place, each in enumerate(zip(*tensors, strict=True)) if len({*each}) > 1]
    copied = sum(prod(map(extent, first.factors[place].axes)) for place in other)
    made = prod(label.size for label in visible(first))
    if not other or copied > 3 * made + FREE:
        return [*alike]
    most = max(1, MOST // copied)
    found: list[Product] = []
    for start in range(0, len(alike), most):
        some = tensors[start : start + most]
        if len(some) < FEW:
            found += alike[start : start + most]
            continue
        along = (full(Label(len(some))),)
        factors = [Factor(register, axes) for register, (_, axes) in zip(some[0], first.factors, strict=True)]
        for place in other:
            together = builder.emit(stacked, *[each[place] for each in some])
            factors[place] = Factor(together, (along, *factors[place].axes))
        found.append(Product(first._replace(factors=tuple(factors)), None))
    return found
