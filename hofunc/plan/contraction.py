"""Contractions of derivatives: what is asked for, and how each strategy comes to it.

A contraction gives every axis of the output, of the slots and of operands an index; the result is the sum over all
labels that it does not have. Strategies:

- forward: coefficients of all nodes along the slots, up to the output;
- mixed: coefficients along all choices of slots but all of them at once, and adjoints along none;
- reverse: coefficients and adjoints along all slots but one, which is read off where the adjoints arrive;
- blocks: whole derivatives by the strategy reverse, contracted after;
- each: for each of several results that of the first three which is estimated to be the fastest.

What each sums over is summed as soon as everything that bears it is there.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, product

from hofunc.algebra.labels import fresh_axes
from hofunc.algebra.term import Factor, Term
from hofunc.graph.node import Ref
from hofunc.plan.accumulate import accumulated
from hofunc.plan.blocks import Blocks, Local
from hofunc.plan.contract import contract
from hofunc.plan.estimate import fastest
from hofunc.plan.jets import NONE, Jets, subsets
from hofunc.plan.program import Builder
from hofunc.plan.slots import Bearer, Indices, multiplying, tied
from hofunc.plan.wanted import Contraction, Contractions

STRATEGIES = ("mixed", "reverse", "forward", "blocks", "each")


def contracted(builder: Builder, local: dict[int, Local], wanted: Contractions, strategy: str) -> Blocks:
    """Return contracted derivatives, by the output and the number of the contraction.

    Args:
        builder: Takes the steps.
        local: The local derivatives of the nodes.
        wanted: The contractions.
        strategy: One of STRATEGIES.
    """
    graph, jets = builder.lowered.graph, Jets(builder, local)
    blocks: Blocks = {}
    for number, contractions in enumerate(wanted.sums):
        terms: list[Term] = []
        for contraction in contractions:
            asked = contraction.of(graph)
            name = fastest(graph, local, contraction)[0] if strategy == "each" else strategy
            terms += _STRATEGIES[name](jets, asked) if asked.slots else _value(jets, asked)
        added = accumulated(builder, [contract(builder, term) for term in terms])
        if added:
            blocks[graph.outputs[contractions[0].output[0]], (number,)] = added
    return blocks


def _value(jets: Jets, asked: Contraction) -> Iterator[Term]:
    """Yield the contraction of the output itself."""
    node, indices = asked.output
    axes = fresh_axes(jets.builder.lowered.graph.nodes[node].shape)
    yield from _finished(jets, asked, Term(1, (Factor(Ref(node), axes),), axes, ()), indices, asked.operands)


def _forward(jets: Jets, asked: Contraction) -> Iterator[Term]:
    """Yield the contraction of the coefficient of the output along all slots."""
    (node, indices), whole = asked.output, asked.whole()
    inner = [operand.bearer for operand in whole.operands]
    late = [bearer for bearer in asked.operands if bearer not in inner]
    jets.fill(jets.local, [whole.part(places) for places in subsets(len(whole.slots))[1:]])
    for term in jets.coefficient(node, whole):
        yield from _finished(jets, asked, term, (*indices, *whole.open), late)


def _mixed(jets: Jets, asked: Contraction) -> Iterator[Term]:
    """Yield what every nonlinear node adds to it through its adjoint."""
    whole = asked.whole()
    if len(whole.slots) == 1:
        yield from _reverse(jets, asked)
        return
    start = asked.start(whole)
    entered = [*start.operands, *(operand.bearer for operand in whole.operands)]
    late = [bearer for bearer in asked.operands if bearer not in entered]
    jets.fill(jets.before_nonlinear(), [whole.part(places) for places in subsets(len(whole.slots))[1:-1]])
    jets.fill_adjoints(start, NONE)
    for node in sorted(jets.local):
        for term in jets.composed(jets.through(start, node), whole, least=2):
            yield from _finished(jets, asked, term, (*start.open, *whole.open), late)


def _reverse(jets: Jets, asked: Contraction) -> Iterator[Term]:
    """Yield what arrives at the inputs of one slot as adjoints along all others."""
    whole = asked.whole()
    start, last = asked.start(whole), asked.widest(jets.builder.lowered.graph)
    others = asked.others(whole, last)
    entered = [*start.operands, *(operand.bearer for operand in others.operands)]
    late = [bearer for bearer in asked.operands if bearer not in entered]
    jets.fill(jets.before_nonlinear(), [others.part(places) for places in subsets(len(others.slots))[1:]])
    jets.fill_adjoints(start, others)
    for node, indices in asked.slots[last]:
        own = multiplying([asked.slots[last]], [(node, indices)], late)
        for term in jets.adjoint(start, node, others):
            apart = term._replace(slots=(*((axis,) for axis in term.slots[0]), *term.slots[1:]))
            yield from _finished(jets, asked, apart, (*start.open, *indices, *others.open), own)


def _blocks(jets: Jets, asked: Contraction) -> Iterator[Term]:
    """Yield the contraction of whole derivatives."""
    (output, indices), order = asked.output, len(asked.slots)
    blocks = jets.blocks(order)
    for slots in product(*asked.slots):
        inside = sorted(slots, key=lambda bearer: bearer[0])
        for term in blocks.get((output, tuple([node for node, _ in inside])), ()):
            apart = term._replace(slots=tuple([(axis,) for slot in term.slots for axis in slot]))
            names = tuple(chain(indices, *(each for _, each in inside)))
            yield from _finished(jets, asked, apart, names, multiplying(asked.slots, slots, asked.operands))


def _finished(
    jets: Jets, asked: Contraction, term: Term, indices: Indices, operands: Sequence[Bearer]
) -> Iterator[Term]:
    """Yield a term with the axes of the result, given the index of each of its axes, unless it vanishes."""
    apart = term._replace(out=(), slots=(*((axis,) for axis in term.out), *term.slots))
    found = tied(apart, 0, indices, asked.result, operands, asked.sizes(jets.builder.lowered.graph))
    if found is not None:
        yield found._replace(out=sum(found.slots, ()), slots=())


_STRATEGIES = {"forward": _forward, "mixed": _mixed, "reverse": _reverse, "blocks": _blocks}
