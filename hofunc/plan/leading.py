"""Which nodes lead halves of second derivatives on to those before, told from sizes and labels alone.

See `hofunc.plan.halves`. A half that stays is multiplied by the directions of its node; one that goes on is multiplied
by the slopes of the node, and then stays, or goes on, where these lead to.
"""

from collections.abc import Iterable
from math import inf, prod

from hofunc.algebra.labels import Label, labels_of
from hofunc.algebra.operators import Delta, Map
from hofunc.algebra.term import Term
from hofunc.plan.widths import ORDER_OF_WAYS, Directions

LARGE = 50_000_000  # multiplications by directions, below which it takes about as long to plan other ways as it saves
TIMES = 4  # as many as by slopes, which take longer for being one by one, from which on it may pay


def leading(directions: Directions, order: int) -> frozenset[int]:
    """Return the nodes through which halves go on, for derivatives up to order two; none if it cannot pay."""
    local = directions.local
    if order != ORDER_OF_WAYS or directions.most < LARGE:
        return frozenset()
    least: dict[int, float] = dict.fromkeys(directions.inputs, 0)  # multiplications of a direction until it stays
    found = set[int]()
    for node in sorted(local):
        stays = directions.sizes[node] * directions.of[node]
        firsts = {key[0]: terms for key, terms in local[node].items() if len(key) == 1}
        goes_on = sum(_multiplications(terms) + least.get(operand, inf) for operand, terms in firsts.items())
        least[node] = min(stays, goes_on)
        if TIMES * goes_on <= stays:
            found.add(node)
    return frozenset(found) if directions.on_both_sides(found) >= LARGE else frozenset()


def _multiplications(terms: Iterable[Term]) -> int:
    """Return how many multiplications take one direction through local derivatives, one factor after the other."""
    count = 0
    for term in terms:
        left: set[Label] = {*labels_of(term.out)}
        inner = {*labels_of(*term.slots)}
        factors = [{*labels_of(each.axes)} for each in term.factors if not isinstance(each.source, Map | Delta)]
        for place, labels in enumerate(factors):
            left |= labels
            count += prod(int(label.size) for label in left)
            left &= inner.union(*factors[place + 1 :])
        count += prod(int(label.size) for label in inner)
    return count
