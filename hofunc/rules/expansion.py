"""Ops known by the power series of their change, about whatever point they are differentiated at.

NOTE [expansions]: an inverse, a factorisation or a solution of an equation is no short formula of other ops, but what
a change of its operands does to it is a series whose parts follow from one another: with Y the inverse of A, that of
A + H is Y - Y H Y + Y H Y H Y - ... The part with m factors H is all that the m-th derivative depends on, so that a
plan of order k needs the parts up to degree k, made of products, sums and masks, whose derivatives are known.

Such a function is recorded with the values of the operands and of the op's results, by which it is not
differentiated, and with changes that are zero: plain zeros, which do not depend on the operands for autograd either.
So an autograd pass through a derivative goes by the values only, of which the derivative is a function. Terms that
have a change for a factor vanish, and are left out.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hofunc.algebra.labels import fresh_axes
from hofunc.algebra.term import Term, identity
from hofunc.errors import HofuncError
from hofunc.graph.identity import has_elements
from hofunc.graph.node import Call, Graph, Node, Ref
from hofunc.rules.kinds import Linear, Multilinear, Positions, Rule, Site


class Operand(NamedTuple):
    """A tensor argument of an op that is known by its expansion.

    Attributes:
        value: Where the op is expanded.
        change: How far from there; zeros in value.
    """

    value: Tensor
    change: Tensor


@dataclass(frozen=True, slots=True)
class Expansion:
    """An op known by the series of its change.

    Attributes:
        function: ``function(order, outputs, *args, **kwargs)``, the op's arguments with Operands in place of tensors,
            returns the change of each of its outputs, up to that power of the operands' changes: None for one that
            is a constant, an error for one that cannot be differentiated.
    """

    function: Callable

    def changed(self, order: int, node: Node, outputs: int, *tensors: Tensor) -> list[Tensor | HofuncError | None]:
        """Return the outputs of a node's op, each with its change added.

        Args:
            order: The highest order of derivatives that is wanted.
            node: A node that the op computes.
            outputs: How many outputs the op has.
            tensors: Its outputs, the values of its operands, and their changes.
        """
        values, rest = tensors[:outputs], tensors[outputs:]
        operands = map(Operand, rest[: len(rest) // 2], rest[len(rest) // 2 :])
        function = Call(self.function, (order, values, *node.args), node.kwargs)
        changes = function(*operands)
        changes = changes if isinstance(changes, tuple) else (changes,)
        return [
            value + change if isinstance(change, Tensor) else change
            for value, change in zip(values, changes, strict=False)
        ]


def itself(x: Tensor) -> Tensor:
    """Return a tensor; a node of this op is the value of an operand by which nothing is differentiated."""
    return x


def unchanged(x: Tensor) -> Tensor:
    """Return the change of an operand, which is zero and the derivative of which is one."""
    return torch.zeros_like(x.detach())


def change_again(x: Tensor) -> Tensor:
    """Return what `unchanged` does, by ops: what torch records of it is made a node of that again."""
    return x - x.detach()


def with_changes(graph: Graph) -> Graph:
    """Return a recorded graph in which what `change_again` has computed is computed by `unchanged`."""
    nodes = graph.nodes
    changes = {}
    for node in nodes:
        if node.op is torch.ops.aten.sub.Tensor and len(node.operands) == 2:
            x, value = node.operands
            if nodes[value].op is torch.ops.aten.detach.default and nodes[value].operands == (x,):
                changes[node.number] = node._replace(op=unchanged, args=(Ref(x),), operands=(x,))
    return graph._replace(nodes=tuple([changes.get(node.number, node) for node in nodes]))


CHANGE = Linear(lambda site: {0: [identity(fresh_axes(site.node.shape))]})


@dataclass(frozen=True, slots=True)
class Vanishing:
    """A rule of an op of which some operands are zero, without the terms that have one for a factor.

    Attributes:
        rule: The rule.
        zeros: Positions of these operands.
    """

    rule: Rule
    zeros: tuple[int, ...]

    def positions(self, site: Site, order: int) -> Iterable[Positions]:
        """See `Rule`."""
        return self.rule.positions(site, order)

    def terms(self, site: Site, positions: Positions) -> Sequence[Term]:
        """See `Rule`."""
        zeros = [site.ref(place) for place in self.zeros]
        terms = self.rule.terms(site, positions)
        return [term for term in terms if not any(factor.source in zeros for factor in term.factors)]


def vanishes(rule: object, zeros: Sequence[bool], value: Tensor) -> bool:
    """Tell whether an op is zero for all values of its other operands.

    Args:
        rule: Its rule.
        zeros: For each of its operands, whether that is zero.
        value: What it is here.
    """
    if isinstance(rule, Multilinear):
        return any(zeros)
    return isinstance(rule, Linear) and all(zeros) and has_elements(value) and not value.any()
