"""Holomorphic ops on complex numbers as pairs: the rule that they have for real numbers, read over complex ones.

The derivative of a holomorphic function is the formula of the real one, in complex numbers. A term of it is a product
of complex factors, and of one imaginary unit for every slot along which an imaginary part changes. So by parts it is
the product of the parts of all factors with a tensor of signs, which says what of such a product is real.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hofunc.algebra.labels import fresh_axes
from hofunc.algebra.term import Factor, Term
from hofunc.graph.layout import as_complex, as_pairs
from hofunc.graph.node import Call, Node, Ref, refs, with_calls
from hofunc.rules.kinds import Positions, Rule, Site

# The ops that have a rule for real numbers that holds for complex ones.
HOLOMORPHIC: set[Any] = set()


@dataclass(frozen=True, slots=True)
class OnPairs:
    """A function of tensors some of which are complex, as one of pairs; it returns pairs.

    Attributes:
        function: The function.
        are_complex: Which of its tensors, in order of appearance, are.
    """

    function: Callable
    are_complex: tuple[bool, ...]

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Call it."""
        flags = iter(self.are_complex)
        result = self.function(*_complex(args, flags), **{name: _complex(arg, flags) for name, arg in kwargs.items()})
        return as_pairs(result if result.is_complex() else torch.complex(result, torch.zeros_like(result)))

    def __str__(self) -> str:
        return f"{getattr(self.function, '__name__', self.function)} of complex numbers"


def _complex(template: Any, flags: Any) -> Any:
    """Put complex tensors in place of the pairs of nested tuples."""
    if isinstance(template, Tensor):
        return as_complex(template) if next(flags) else template
    return tuple(_complex(item, flags) for item in template) if type(template) is tuple else template


@dataclass(frozen=True, slots=True)
class Holomorphic:
    """A holomorphic op of complex numbers, as one of pairs.

    Attributes:
        rule: The rule of the op.
        are_complex: Which of its operands are complex.
    """

    rule: Rule
    are_complex: tuple[bool, ...]

    def positions(self, site: Site, order: int) -> Iterable[Positions]:
        """See `Rule`."""
        return self.rule.positions(self._over_complex_numbers(site), order)

    def terms(self, site: Site, positions: Positions) -> Sequence[Term]:
        """See `Rule`."""
        terms = self.rule.terms(self._over_complex_numbers(site), positions)
        pairs = {operand.number for operand, flag in zip(site.operands, self.are_complex, strict=True) if flag}
        return [_by_parts(term, {site.node.number, *pairs}, Ref(site.node.number)) for term in terms]

    def _over_complex_numbers(self, site: Site) -> Site:
        flags = zip(site.operands, self.are_complex, strict=True)
        op = site.node.op.function if isinstance(site.node.op, OnPairs) else site.node.op
        node = _whole(site.node)._replace(op=op)
        return Site(node, tuple(_whole(operand) if flag else operand for operand, flag in flags))


def _whole(node: Node) -> Node:
    """Return a node of pairs as one of complex numbers."""
    return node._replace(shape=tuple(node.shape)[:-1], dtype=node.dtype.to_complex())


def _by_parts(term: Term, pairs: set[int], like: Ref) -> Term:
    """Return a term over complex numbers as one of pairs, given the nodes that are."""
    parts = fresh_axes([2] * (1 + len(term.factors) + len(term.slots)))
    out, of_factors, of_slots = parts[0], parts[1 : len(term.factors) + 1], parts[len(term.factors) + 1 :]
    factors = [
        Factor(_source(factor.source, pairs), (*factor.axes, axis))
        for factor, axis in zip(term.factors, of_factors, strict=True)
    ]
    signs = Factor(Call(signs_of_parts, (like, len(parts))), parts)
    slots = tuple((*slot, axis) for slot, axis in zip(term.slots, of_slots, strict=True))
    return Term(term.coefficient, (*factors, signs), (*term.out, out), slots)


def _source(source: Any, pairs: set[int]) -> Any:
    """Return what computes the parts of a factor."""
    if isinstance(source, Ref):
        return source if source.node in pairs else Call(OnPairs(torch.clone, (False,)), (source,), ())
    template = (source.args, source.kwargs)
    flags = tuple(ref.node in pairs for ref in refs(with_calls(template, lambda _: Ref(next(iter(pairs))))))
    args, kwargs = with_calls(template, lambda call: _source(call, pairs))
    return Call(OnPairs(source.op, flags), args, kwargs)


def signs_of_parts(like: Tensor, count: int) -> Tensor:
    """Return what the parts of complex numbers contribute to the parts of their product, which come first."""
    axes = torch.meshgrid([torch.arange(2, device=like.device)] * (count - 1), indexing="ij") if count > 1 else ()
    powers = sum(axes, torch.zeros((2,) * (count - 1), dtype=torch.long, device=like.device)) % 4
    real, imaginary = (1 - powers) * (1 - powers % 2), (2 - powers) * (powers % 2)  # of the imaginary unit's powers
    return torch.stack([real, imaginary]).to(like.dtype)
