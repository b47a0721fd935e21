"""What hofunc says of a sample: the number that the oracles say too, and by which rules."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

import hofunc
from hofunc.graph.node import Graph, Node
from hofunc.graph.record import record
from hofunc.plan.blocks import reached_nodes
from hofunc.rules.kinds import Composite, Opaque
from hofunc.rules.lower import lower
from hofunc.rules.registry import FUSIONS, RULES
from verification.conformance.lines import ORDERS, Directions, origin
from verification.conformance.sample import Sample
from verification.oracles import contracted

# The derivative tensor itself is made up to this many entries, 3 MB at most: a function from 5 x 5 to 5 x 5 at order 3.
# Of a larger one it is enough to see the number along the lines, which hofunc can compute by itself.
DENSE = 400_000


class Rules(NamedTuple):
    """The rules by which hofunc differentiates a sample.

    Attributes:
        kinds: The kind of the rule of every recorded op on which the output depends, or of the form of it that is
            recognised; "decomposed" for an op that torch takes apart.
        fallback: The ops that are left to nested torch.func.
    """

    kinds: frozenset[str]
    fallback: frozenset[str]


def derivative(sample: Sample, directions: Directions, order: int) -> float:
    """Return hofunc's derivative along the directions, contracted from the derivative tensor if it is small."""
    if sample.entries > DENSE:
        along_lines = hofunc.hod(directions.line(sample), order)(origin())
        return along_lines[tuple(range(order))].item()
    blocks = hofunc.hod(sample.f, order, tuple(range(len(sample.inputs))))(*sample.inputs)
    slots = [[slot[..., place] for slot in directions.slots] for place in range(order)]
    outputs = contracted(tuple(tree_map(Tensor.double, blocks)), slots, range(len(sample.inputs)))
    return (outputs @ torch.cat([weight.double().reshape(-1) for weight in directions.weights])).item()


def _kind(graph: Graph, node: Node) -> str:
    """Name the kind of the rule of a node: that of its form, if that is one that is recognised, or else of its op."""
    found = (recognise(graph, node) for recognise in FUSIONS.get(node.op, ()))
    own = next((rule for rule in found if rule is not None and not isinstance(rule, Composite)), RULES.get(node.op))
    return "decomposed" if own is None else type(own).__name__.lower()


def rules_of(sample: Sample) -> Rules:
    """Return the rules by which a sample is differentiated.

    Raises:
        HofuncError: It cannot be.
    """
    recording = record(lambda inputs, _: sample.f(*inputs), sample.inputs)
    graph = recording.graph
    recorded = [graph.nodes[number] for number in reached_nodes(graph) if not graph.nodes[number].is_given]
    kinds = {_kind(graph, node) for node in recorded}
    lowered = lower(recording.graph, recording.values, max(ORDERS))
    opaque = {str(lowered.graph.nodes[node].op) for node, rule in lowered.rules.items() if isinstance(rule, Opaque)}
    return Rules(frozenset(kinds), frozenset(opaque))
