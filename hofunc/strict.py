"""strict=True: an error in place of a derivative that is zero whatever the values."""

from collections.abc import Sequence
from itertools import product
from typing import Any

from hofunc.errors import ArgumentError
from hofunc.internals import keystr, tree_flatten_with_path
from hofunc.plan.blocks import reached_nodes
from hofunc.run.evaluate import Evaluation


def check_dependence(name: str, value: Any, inputs: Sequence[str], orders: Sequence[int], computed: Evaluation) -> None:
    """Check that every output, and every derivative of it that is differentiated further, depends on every input.

    Where some blocks are asked for, that is what these are of.

    Args:
        name: Name of the transform.
        value: What f returned, to be differentiated.
        inputs: The names of the inputs.
        orders: The orders wanted.
        computed: Their evaluation.

    Raises:
        ArgumentError: One does not.
    """
    graph = computed.plan.lowered.graph
    keys = [tuple(sorted(block)) for order in orders for block in computed.blocks(order)]
    keys = [key for key in dict.fromkeys(keys) if all(computed.inputs[number].numel() for number in key)]
    numbers = sorted({number for key in keys for number in key})
    outputs = [f"the output{keystr(path)}" for path, _ in tree_flatten_with_path(value)[0]]
    labels = {place: label for place, label in enumerate(outputs) if computed.tensors[place].numel()}
    for (place, label), number in product(labels.items(), numbers):
        if graph.inputs[number] not in reached_nodes(graph._replace(outputs=(graph.outputs[place],))):
            _refuse(name, label, inputs[number])
    for order, (place, label) in product(orders, labels.items()):
        for key in (key for key in keys if len(key) == order):
            if computed.vanishes(place, key):
                by = ", ".join(inputs[number] for number in key[:-1])
                _refuse(name, f"the derivative of {label} by {by}" if by else label, inputs[key[-1]])


def _refuse(name: str, what: str, of: str) -> None:
    raise ArgumentError(
        f"{name}: strict=True",
        got=f"{what}, which does not depend on {of}",
        expected="a dependence on every input by ops that have a derivative",
        remedy="Leave strict out to have zeros, or leave the input out of argnums.",
    )
