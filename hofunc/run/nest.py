"""Nesting blocks by the structures of what a function returns and of what it takes."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from hofunc.internals import TreeSpec
from hofunc.trees import tree_unflatten

Nest = Callable[[Sequence[Any]], Any]


def nested(blocks: Sequence[Any], specs: Sequence[TreeSpec]) -> Any:
    """Nest blocks by some structures, of which the first is outermost.

    Args:
        blocks: One for every choice of a leaf of each.
        specs: The structures.
    """
    if all(spec.is_leaf() for spec in specs):
        return blocks[0]
    return nesting(specs)(blocks)


def nesting(specs: Sequence[TreeSpec]) -> Nest:
    """Return a function that nests blocks by some structures, see `nested`."""
    if all(spec.is_leaf() for spec in specs):
        return _first
    specs = [spec for spec in specs if not spec.is_leaf()]  # a leaf leaves what is nested in it as it is
    counts = [spec.num_leaves for spec in specs]
    nests = [nest_of(spec) for spec in specs]
    if len(specs) == 1:
        return nests[0]
    levels = [(nests[depth], counts[depth], range(prod(counts[:depth]))) for depth in reversed(range(len(specs)))]

    def nest_all(blocks: Sequence[Any]) -> Any:
        for nest, count, places in levels:
            blocks = [nest(blocks[place * count : (place + 1) * count]) for place in places]
        return blocks[0]

    return nest_all


def _first(blocks: Sequence[Any]) -> Any:
    return blocks[0]


def nest_of(spec: TreeSpec) -> Nest:
    """Return a function that nests leaves in a structure: a plain list, tuple or dict of leaves without a walk.

    Example:
        >>> from torch.utils._pytree import tree_flatten
        >>> nest_of(tree_flatten({"a": 0, "b": 0})[1])([1, 2])
        {'a': 1, 'b': 2}
    """
    count = spec.num_leaves
    if spec.num_nodes == count + 1 and spec.type in (list, tuple):
        return list if spec.type is list else tuple
    if spec.num_nodes == count + 1 and spec.type is dict:
        numbered = tree_unflatten([*range(count)], spec)
        names, places = [*numbered], [*numbered.values()]
        if places == [*range(count)]:
            return lambda leaves: dict(zip(names, leaves, strict=True))
    return lambda leaves: tree_unflatten(leaves, spec)
