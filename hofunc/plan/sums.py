"""Sums of products: those of like factors are one product, of factors that are stacked along a label that is summed.

What the nodes of a layer, or of the steps of a sequence, contribute to one derivative are products of the same axes, of
other tensors. To multiply them one by one and to add up takes some calls for each; to stack their factors takes one for
each factor, and one product does the rest.
"""

from collections.abc import Hashable, Sequence
from math import prod

from hofunc.algebra.labels import Label, extent, full
from hofunc.algebra.term import Factor, Term, visible
from hofunc.plan.accumulate import accumulated
from hofunc.plan.contract import contract
from hofunc.plan.program import Builder
from hofunc.plan.recipes import axes_of, is_applied, worked
from hofunc.views import stacked

FEW = 3  # terms, below which to stack them takes as many calls
FREE = 4096  # entries that are copied in the time of the calls that are saved
MOST = 1 << 16  # entries that are stacked at once, so that they stay in a cache


def summed(builder: Builder, terms: Sequence[Term]) -> list[Term]:
    """Contract terms and add them up: those of the same axes at once, where that is no more work."""
    groups: dict[Hashable, list[Term]] = {}
    for term in terms:
        groups.setdefault((term.coefficient, axes_of(term)), []).append(term)
    products = [term for alike in groups.values() for term in _stacked(builder, alike)]
    return accumulated(builder, [worked(builder, contract, term) for term in products])


def _stacked(builder: Builder, alike: Sequence[Term]) -> list[Term]:
    """Return terms, of the same axes and coefficients, whose sum is that of the given ones."""
    first = alike[0]
    if len(alike) < FEW or not first.factors or any(is_applied(term) for term in alike):
        return [*alike]
    tensors = [[builder.tensor(*factor) for factor in term.factors] for term in alike]
    other = [place for place, each in enumerate(zip(*tensors, strict=True)) if len({*each}) > 1]
    copied = sum(prod(map(extent, first.factors[place].axes)) for place in other)
    made = prod(label.size for label in visible(first))
    if not other or copied > 3 * made + FREE:
        return [*alike]
    most = max(1, MOST // copied)
    found: list[Term] = []
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
        found.append(first._replace(factors=tuple(factors)))
    return found
