"""Wide nodes replaced: narrow nodes by narrow nodes, where the derivatives of wide ones are never multiplied out.

As each score of attention is a query times a key, its derivatives by these are products of few factors, and so are
those of its softmax. They stay products of these, and are multiplied with what follows, where that is narrow again.

Source: preaccumulation of local derivatives, Griewank and Walther, Evaluating Derivatives (2008), chapter 10, and edge
pushing for second derivatives, Gower and Mello, A new framework for the computation of Hessians (2012).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, product

from hofunc.algebra.labels import labels_of
from hofunc.algebra.operators import Delta, Map
from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Factor, Term, visible, with_slots
from hofunc.graph.node import Mask
from hofunc.plan.accumulate import accumulated
from hofunc.plan.blocks import Local
from hofunc.plan.builder import Builder
from hofunc.plan.contract import apart, contract, contracted
from hofunc.plan.recipes import composed, worked
from hofunc.plan.reverse import operands_of
from hofunc.scatter import size_of
from hofunc.views import each

FAR = 3  # times as many entries as its factors have together, from which on a product is not made
MOST = 4  # products by one narrow node, beyond which they are added up


class Replaced:
    """Local derivatives in which wide nodes are replaced.

    Args:
        builder: Takes the steps.
        local: The local derivatives of every node.
        nodes: The wide nodes.

    Attributes:
        local: Those of narrow nodes by narrow nodes, without second derivatives that wide ones have part in.
        starts: The narrow nodes that wide ones are made of.
    """

    def __init__(self, builder: Builder, local: Mapping[int, Local], nodes: frozenset[int]):
        self._builder, self._whole, self._nodes = builder, local, nodes
        self._firsts: dict[int, dict[int, Sequence[Term]]] = {}
        self.local: dict[int, Local] = {}
        for node in sorted(local):
            builder.node = node
            if node in nodes:
                firsts = self._by_narrow(local[node], loosely)
                self._firsts[node] = {start: self._few(terms) for start, terms in firsts.items()}
            elif nodes.isdisjoint(operands_of(local[node])):
                self.local[node] = local[node]
            else:
                firsts = self._by_narrow(local[node], contracted)
                kept = {key: terms for key, terms in local[node].items() if len(key) > 1 and nodes.isdisjoint(key)}
                summed = {(operand,): accumulated(builder, terms) for operand, terms in firsts.items()}
                self.local[node] = summed | kept
        builder.node = None
        self.starts = {start for each in self._firsts.values() for start in each}

    def _few(self, terms: list[Term]) -> Sequence[Term]:
        """Return terms as they are, or added up if they are many."""
        if len(terms) <= MOST:
            return terms
        return accumulated(self._builder, [worked(self._builder, contract, term) for term in terms])

    def _by_narrow(self, local: Local, compose: Callable[..., Term | None]) -> dict[int, list[Term]]:
        """Return the first derivatives of a node by narrow nodes."""
        found: dict[int, list[Term]] = defaultdict(list)
        for key, terms in local.items():
            if len(key) == 1 and key[0] in self._nodes:
                for start, inners in self._firsts[key[0]].items():
                    made = [compose(self._builder, outer, [inner]) for outer, inner in product(terms, inners)]
                    found[start] += [term for term in made if term is not None]
            elif len(key) == 1:
                found[key[0]] += terms
        return found

    def seconds(
        self, adjoints: Mapping[int, Sequence[Term]], beside: Iterable[tuple[Key, list[Term]]]
    ) -> Iterator[tuple[Key, list[Term]]]:
        """Yield pairs of narrow nodes, with what is added to the second derivatives of an output by these.

        Args:
            adjoints: The first derivatives of the output by every node.
            beside: Pairs of nodes, and what is added by others to its second derivatives by these.
        """
        found: dict[Key, list[Term]] = defaultdict(list)
        for key, terms in chain(self._through(adjoints), beside):
            for term in terms:
                for starts, by_starts in self._put(key, term):
                    found[starts].append(by_starts)
        for key, terms in found.items():
            yield key, accumulated(self._builder, terms)

    def _through(self, adjoints: Mapping[int, Sequence[Term]]) -> Iterator[tuple[Key, list[Term]]]:
        """Yield the second derivatives, through adjoints, that wide nodes have part in; they are not contracted yet."""
        for node in sorted(adjoints.keys() & self._whole.keys()):
            self._builder.node = node
            for key, terms in self._whole[node].items():
                if len(key) == 2 and (node in self._nodes or not self._nodes.isdisjoint(key)):
                    found = (composed(self._builder, outer, [term]) for outer, term in product(adjoints[node], terms))
                    yield key, [term for term in found if term is not None]
        self._builder.node = None

    def _put(self, key: Key, outer: Term) -> Iterator[tuple[Key, Term]]:
        """Yield what a second derivative by two nodes is by pairs of narrow ones, in ascending order.

        That by two nodes stands for both orders of them, and so does that by two narrow ones.
        """
        itself: Sequence[Term | None] = [None]
        sides = [self._firsts[operand] if operand in self._nodes else {operand: itself} for operand in key]
        for starts in product(*sides):
            weight = (1 if starts[0] == starts[1] else 0.5) * (1 if key[0] == key[1] else 2)
            weighted = outer._replace(coefficient=outer.coefficient * weight)
            for inners in product(*[side[start] for side, start in zip(sides, starts, strict=True)]):
                term = composed(self._builder, weighted, inners)
                if term is not None:
                    is_turned = inners[0] is not None and inners[1] is None  # as what stays comes first
                    order = (1, 0) if is_turned is (starts[0] <= starts[1]) else (0, 1)
                    yield (min(starts), max(starts)), worked(self._builder, contract, with_slots(term, order))


def loosely(builder: Builder, outer: Term, inners: Sequence[Term | None]) -> Term | None:
    """Compose terms, and contract the composition unless that makes something far larger."""
    term = composed(builder, outer, inners)
    return None if term is None else worked(builder, _loosened, term)


def _loosened(builder: Builder, term: Term) -> Term:
    """Contract a term, or multiply its tensors as far as no product is larger than its factors, if all would be."""
    operators = [factor for factor in term.factors if isinstance(factor.source, Map | Delta | Mask)]
    tensors = [factor for factor in term.factors if not isinstance(factor.source, Map | Delta | Mask)]
    operands = [builder.read(*factor) for factor in tensors]
    if size_of(visible(term)) <= FAR * sum(size_of(operand.labels) for operand in operands):
        return contract(builder, term)
    builder.spend()
    needed = dict.fromkeys((*visible(term), *labels_of(*(factor.axes for factor in operators))))
    left = apart(builder, operands, needed) if operands else []
    return term._replace(factors=(*operators, *[Factor(one.tensor, each(one.labels)) for one in left]))
