"""Halves of second derivatives: multiplied by directions on one side, they go on as adjoints do on the other.

A nonlinear node contributes J' M J to a second derivative, with its first derivative J by the inputs, and M, its own
second derivative through its adjoint. To multiply by J on both sides takes the number of its elements times the square
of the number of directions. Where each is made of few others, as those of a convolution are, it takes less to make M J
alone, and to take that back through the nodes before: there all halves that arrive are added, and at the inputs nothing
is left to multiply. Where a node is so narrow that its directions take less, they are multiplied there.

Source: forward over reverse, Griewank and Walther, Evaluating Derivatives (2008), chapter 5.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, product

from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Term, with_slots
from hofunc.plan.accumulate import accumulated
from hofunc.plan.contract import contracted
from hofunc.plan.forward import Group, Polynomials
from hofunc.plan.keys import members


class Halves:
    """Halves by nodes: of each one slot is by the node, and the other is multiplied by directions.

    Args:
        polynomials: Those of the nodes, up to order one.
        nodes: Those through which halves go on.
    """

    def __init__(self, polynomials: Polynomials, nodes: frozenset[int]):
        self._polynomials, self._nodes = polynomials, nodes
        self._halves: dict[int, dict[int, list[Term]]] = defaultdict(lambda: defaultdict(list))

    def take(self, groups: Sequence[Group], outer: Term, keys: Iterable[Key]) -> bool:
        """Take what a node contributes to second derivatives, if it goes on; tell whether it does.

        Args:
            groups: The operands of the slots of its own second derivative.
            outer: That, through its adjoint.
            keys: The pairs of variables that it contributes to.
        """
        operands = [operand for operand, size in groups for _ in range(size)]
        if self._nodes.isdisjoint(operands):
            return False
        both = outer._replace(slots=outer.slots * 2) if len(groups) == 1 else outer
        for place, operand in enumerate(operands):
            open_first = with_slots(both, (place, 1 - place))
            for variable in dict.fromkeys([rest for _, rest in keys]):
                inner = self._polynomials.coefficient(operands[1 - place], (variable,))
                found = self._polynomials.composed(open_first, [[None], inner])
                self._halves[operand][variable] += [with_slots(term, (1, 0)) for term in found]
        return True

    def arrived(self) -> Iterator[tuple[int, Key, list[Term]]]:
        """Yield what halves are where they stay, and all that arrive there are added, from the last node on.

        Yields:
            The node, a key of two variables in ascending order, and products with slots by its second variable and by
            its first, whose sum over all nodes is the second derivative.
        """
        builder, asked = self._polynomials.builder, self._polynomials.asked
        while self._halves:
            node = max(self._halves)
            builder.node = node
            for variable, given in self._halves.pop(node).items():
                halves = accumulated(builder, given)
                if node in self._nodes:
                    self._pass(node, variable, halves)
                    continue
                before = self._polynomials.depends[node] & (2 << variable) - 1
                for key in [(first, variable) for first in members(before) if asked.has((first, variable))]:
                    inner = self._polynomials.coefficient(node, key[:1])
                    products = [self._polynomials.products(half, [[None], inner]) for half in halves]
                    yield node, key, [*chain.from_iterable(products)]
        builder.node = None

    def _pass(self, node: int, variable: int, halves: Sequence[Term]) -> None:
        """Take halves by a node to those by its operands."""
        for operands, terms in self._polynomials.local[node].items():
            if len(operands) == 1:
                pairs = product(halves, terms)
                found = [contracted(self._polynomials.builder, half, [None, term]) for half, term in pairs]
                self._halves[operands[0]][variable] += [term for term in found if term is not None]
