"""Sums and multiples: terms of one pattern are added into one, and others stay beside each other."""

from collections.abc import Iterable, Sequence

import torch

from hofunc.algebra.combine import grouped
from hofunc.algebra.operators import Indices
from hofunc.algebra.term import Factor, Term
from hofunc.scatter import core_of
from hofunc.views import Labelled, aligned, each, plus, run_now, times


def summed(terms: Iterable[Term], one: torch.Tensor) -> tuple[Term, ...]:
    """Add terms whose axes are equal and read through the same indices; each has one core at most."""
    groups = grouped([term for term in terms if term.coefficient != 0])
    return tuple([_sum(group, one) if len(group) > 1 else group[0] for group in groups])


def _sum(terms: Sequence[Term], one: torch.Tensor) -> Term:
    """Add terms that differ in their cores only."""
    first, *others = terms
    total = core_or_one(first, one)
    total = total._replace(tensor=times(run_now, total.tensor, first.coefficient))
    for term in others:
        core = core_or_one(term, one)
        labels = (*total.labels, *(label for label in core.labels if label not in total.labels))
        left, right = aligned(run_now, total, labels), aligned(run_now, core, labels)
        total = Labelled(plus(run_now, left, right, term.coefficient), labels)
    return with_core(first._replace(coefficient=1), total)


def core_or_one(term: Term, one: torch.Tensor) -> Labelled:
    """Return the core of a term, the number one if it has none."""
    return core_of(term) or Labelled(one, ())


def with_core(term: Term, core: Labelled) -> Term:
    """Return a term with another core."""
    indices = [factor for factor in term.factors if isinstance(factor.source, Indices)]
    return term._replace(factors=(Factor(core.tensor, each(core.labels)), *indices))


def with_coefficient(term: Term) -> Term:
    """Return a term whose coefficient is part of its core, if it has one."""
    tensors = [
        factor if isinstance(factor.source, Indices) else factor._replace(source=factor.source * term.coefficient)
        for factor in term.factors
    ]
    return term._replace(coefficient=1, factors=tuple(tensors))


def scaled(term: Term, number: float | torch.Tensor, one: torch.Tensor) -> Term:
    """Return a multiple of a term, by a number or by a tensor of no dimension."""
    if not isinstance(number, torch.Tensor):
        return term._replace(coefficient=term.coefficient * number)
    core = core_or_one(term, one)
    return with_core(term, core._replace(tensor=core.tensor * number))
