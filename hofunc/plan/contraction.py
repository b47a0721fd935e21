"""Contractions of derivatives: what is asked for, and how each strategy comes to it.

A contraction gives every axis of the output, of the slots and of operands an index; the result is the sum over all
labels that it does not have. Strategies:

- forward: coefficients of all nodes along the slots, up to the output;
- mixed: coefficients along all choices of slots but all of them at once, and adjoints along none;
- reverse: coefficients and adjoints along all slots but one, which is read off where the adjoints arrive;
- blocks: whole derivatives by the strategy reverse, contracted after;
- each: for each of several kinds of results that of the first three which is estimated to be the fastest.

What each sums over is summed as soon as everything that bears it is there.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, product

from hofunc.algebra.labels import fresh_axes, labels_of
from hofunc.algebra.term import Factor, Term
from hofunc.graph.node import Ref, refs
from hofunc.plan.accumulate import accumulated
from hofunc.plan.adjoints import NONE, Adjoints, open_along, subsets
from hofunc.plan.blocks import Blocks, Local, is_nonlinear
from hofunc.plan.builder import Builder
from hofunc.plan.contract import contract
from hofunc.plan.estimate import fastest
from hofunc.plan.jets import Jets
from hofunc.plan.keys import Keys
from hofunc.plan.recipes import composed, worked
from hofunc.plan.reverse import reverse
from hofunc.plan.slots import Bearer, Indices, Slots, multiplying, of_axes, tied
from hofunc.plan.wanted import Contraction, Contractions, InGraph

STRATEGIES = ("mixed", "reverse", "forward", "blocks", "each")


def contracted(builder: Builder, local: dict[int, Local], wanted: Contractions, strategy: str) -> Blocks:
    """Return contracted derivatives, by the output and the number of the contraction.

    Args:
        builder: Takes the steps.
        local: The local derivatives of the nodes.
        wanted: The contractions.
        strategy: One of STRATEGIES.
    """
    graph, contracting = builder.lowered.graph, _Contracting(builder, local)
    blocks: Blocks = {}
    own = {one: fastest(graph, local, kind)[0] for kind in wanted.kinds() for one in kind} if strategy == "each" else {}
    for number, contractions in enumerate(wanted.sums):
        terms: list[Term] = []
        for contraction in contractions:
            name = own.get(contraction, strategy) if contraction.slots else "value"
            terms += [worked(builder, contract, term) for term in contracting.by(name, contraction)]
            builder.node = None
        added = accumulated(builder, terms)
        if added:
            blocks[graph.outputs[contractions[0].output[0]], (number,)] = added
    return blocks


class _Contracting:
    """Computes contractions of one graph, which share coefficients and adjoints.

    Args:
        builder: Takes the steps.
        local: The local derivatives of the nodes.
    """

    def __init__(self, builder: Builder, local: dict[int, Local]):
        self._builder, self._local, self._graph = builder, local, builder.lowered.graph
        self._in_graph = InGraph(self._graph)
        self._jets = Jets(builder, local)
        self._adjoints = Adjoints(self._jets)
        self._whole: dict[int, Blocks] = {}  # derivatives, by order

    def by(self, strategy: str, contraction: Contraction) -> Iterator[Term]:
        """Yield the terms of which a contraction is the sum, not contracted yet, where steps are for their nodes."""
        strategies: dict[str, Callable[[Contraction], Iterator[Term]]] = {
            "value": self._value,
            "forward": self._forward,
            "mixed": self._mixed,
            "reverse": self._reverse,
            "blocks": self._blocks,
        }
        return strategies[strategy](self._in_graph.of(contraction))

    def _value(self, asked: Contraction) -> Iterator[Term]:
        """Yield the contraction of the output itself."""
        node, indices = asked.output
        axes = fresh_axes(self._graph.nodes[node].shape)
        yield from self._finished(asked, Term(1, (Factor(Ref(node), axes),), axes, ()), indices, asked.operands)

    def _forward(self, asked: Contraction) -> Iterator[Term]:
        """Yield the contraction of the coefficient of the output along all slots."""
        (node, indices), whole = asked.output, asked.whole()
        late = _others(asked.operands, (operand.bearer for operand in whole.operands))
        self._jets.fill(self._local, [whole.part(places) for places in subsets(len(whole.slots))[1:]])
        terms = self._jets.coefficient(node, whole)
        if any(_meets_late(term, indices, whole.open) for term in terms):
            yield from self._before_tail(asked, whole)
            return
        for term in terms:
            yield from self._finished(asked, term, (*indices, *whole.open), late)

    def _before_tail(self, asked: Contraction, whole: Slots) -> Iterator[Term]:
        """Yield the same where a label of a slot is one of the output as well, and no other place has both.

        So that no entry is computed that is not asked for, what linear nodes make of others on the way to the output is
        one derivative, and the labels meet as the coefficients of these others are multiplied by it.
        """
        start, tail = asked.start(whole, self._in_graph.sizes(asked)), self._tail(asked.output[0])
        late = _others(asked.operands, chain(start.operands, (operand.bearer for operand in whole.operands)))
        adjoints = Adjoints(self._jets, tail)
        given = {operand for node in tail for key in self._local[node] for operand in key} - tail
        for node in sorted(given or {asked.output[0]}):
            self._builder.node = node
            found = product(adjoints.along(start, node, NONE), self._jets.coefficient(node, whole))
            for term in (composed(self._builder, adjoint, [inner]) for adjoint, inner in found):
                if term is not None:
                    yield from self._finished(asked, term, (*start.open, *whole.open), late)

    def _tail(self, output: int) -> set[int]:
        """Return the linear nodes from which an output is computed by linear nodes alone, and itself if it is one."""
        found, left = set(), [output]
        while left:
            node = left.pop()
            if node not in found and node in self._local and self._is_linear(node):
                found.add(node)
                left.extend(operand for key in self._local[node] for operand in key)
        return found

    def _is_linear(self, node: int) -> bool:
        """Tell whether a node has first derivatives alone, which depend on nothing that is differentiated by."""
        if is_nonlinear(self._local[node]):
            return False
        factors = chain(*(term.factors for terms in self._local[node].values() for term in terms))
        return not any(self._graph.nodes[ref.node].active for factor in factors for ref in refs(factor.source))

    def _mixed(self, asked: Contraction) -> Iterator[Term]:
        """Yield what every nonlinear node adds to it through its adjoint."""
        whole = asked.whole()
        if len(whole.slots) == 1:
            yield from self._reverse(asked)
            return
        start = asked.start(whole, self._in_graph.sizes(asked))
        late = _others(asked.operands, chain(start.operands, (operand.bearer for operand in whole.operands)))
        parts = [whole.part(places) for places in subsets(len(whole.slots))[1:-1]]
        self._jets.fill(self._jets.before_nonlinear, parts)
        self._adjoints.fill(start, NONE)
        for node in sorted(self._local):
            self._builder.node = node
            for term in self._jets.composed(self._adjoints.through(start, node), whole, least=2):
                yield from self._finished(asked, term, (*start.open, *whole.open), late)

    def _reverse(self, asked: Contraction) -> Iterator[Term]:
        """Yield what arrives at the inputs of one slot as adjoints along all others."""
        last, others, start, late = self._in_graph.read_off(asked)
        names = open_along(start, others)
        parts = [others.part(places) for places in subsets(len(others.slots))[1:]]
        self._jets.fill(self._jets.before_nonlinear, parts)
        self._adjoints.fill(start, others)
        for node, indices in asked.slots[last]:
            self._builder.node = node
            operands = multiplying([asked.slots[last]], [(node, indices)], late)
            for term in self._adjoints.along(start, node, others):
                apart = term._replace(slots=(*((axis,) for axis in term.slots[0]), *term.slots[1:]))
                yield from self._finished(asked, apart, (*names.out, *of_axes(indices), *names.slots), operands)

    def _blocks(self, asked: Contraction) -> Iterator[Term]:
        """Yield the contraction of whole derivatives."""
        (output, indices), order = asked.output, len(asked.slots)
        if order not in self._whole:
            self._whole[order] = reverse(self._builder, self._local, Keys((order,), self._graph.inputs))
        for slots in product(*asked.slots):
            inside = sorted(slots, key=lambda bearer: bearer[0])
            operands = multiplying(asked.slots, slots, asked.operands)
            for term in self._whole[order].get((output, tuple([node for node, _ in inside])), ()):
                apart = term._replace(slots=tuple([(axis,) for slot in term.slots for axis in slot]))
                names = tuple(chain(indices, *(of_axes(each) for _, each in inside)))
                yield from self._finished(asked, apart, names, operands)

    def _finished(self, asked: Contraction, term: Term, indices: Indices, operands: Sequence[Bearer]) -> Iterator[Term]:
        """Yield a term with the axes of the result, given the index of each of its axes, unless it vanishes."""
        apart = term._replace(out=(), slots=(*((axis,) for axis in term.out), *term.slots))
        found = tied(self._builder, apart, 0, indices, asked.result, operands, self._in_graph.sizes(asked))
        if found is not None:
            yield found._replace(out=sum(found.slots, ()), slots=())


def _meets_late(term: Term, indices: Indices, names: Sequence[str]) -> bool:
    """Tell whether an axis of the output and a slot have one label, given their indices, but not in a term."""
    axes = dict(zip(names, (axis for (axis,) in term.slots), strict=True))
    return any(
        {*labels_of((axis,))} != {*labels_of((axes[index],))}
        for axis, index in zip(term.out, of_axes(indices), strict=True)
        if index in axes
    )


def _others(operands: Sequence[Bearer], entered: Iterator[Bearer]) -> list[Bearer]:
    """Return the operands that multiply the result, as they have not entered before."""
    before = {*entered}
    return [operand for operand in operands if operand not in before]
