"""Pytrees taken apart and put together as torch does it, in a fraction of the time where they are plain.

Every call takes several of them apart, mostly one tensor or a dict of some. What is of tensors, numbers, tuples, lists
and dicts by strings is walked through here, and its structure is the same object whenever it is met; all else is left
to torch.
"""

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch.nn import Parameter

from hofunc import internals
from hofunc.internals import TreeSpec, tree_is_leaf

MOST_STRUCTURES = 4096  # that are kept

_LEAF = internals.tree_flatten(torch.empty(0))[1]
_LEAVES = frozenset(type(one) for one in (torch.empty(0), Parameter(), None, 0, 0.0, False) if tree_is_leaf(one))


_Value = TypeVar("_Value")


class Kept(Generic[_Value]):
    """What was found for keys that have structures in them, which take long to hash.

    Most keys are equal to the one before, of which a structure that is the same object is told at once.

    Args:
        most: For how many keys it is kept.
    """

    __slots__ = ("_found", "_latest", "_most")

    def __init__(self, most: int):
        self._most = most
        self._found: dict[Hashable, _Value] = {}
        self._latest: tuple[Hashable, _Value | None] = (None, None)

    def of(self, key: Hashable) -> _Value | None:
        """Return what is kept for a key, None if there is nothing."""
        latest, found = self._latest
        if latest == key:
            return found
        found = self._found.get(key)
        if found is not None:
            self._latest = key, found
        return found

    @property
    def latest(self) -> _Value | None:
        """What was found or kept last."""
        return self._latest[1]

    def keep(self, key: Hashable, found: _Value) -> None:
        """Keep what was found for a key, and drop all else if there is too much of it."""
        if len(self._found) >= self._most:
            self._found.clear()
        self._found[key] = found
        self._latest = key, found


class _Structure(NamedTuple):
    """A structure that was met, with those of its children, which it keeps, so that they are known by identity."""

    spec: TreeSpec
    children: Sequence[TreeSpec]


_known: dict[tuple, _Structure] = {}  # by what they are, and the children; by how many there are if all are leaves
_NAMES = frozenset((str,))


def tree_flatten(tree: Any) -> tuple[list[Any], TreeSpec]:
    """Return the leaves of a pytree and its structure, as torch's own function of that name does.

    Example:
        >>> leaves, spec = tree_flatten({"a": 1, "b": (2, 3)})
        >>> leaves, spec is tree_flatten({"a": 0, "b": (0, 0)})[1]
        ([1, 2, 3], True)
    """
    if type(tree) in _LEAVES:
        return [tree], _LEAF
    leaves: list[Any] = []
    spec = _walked(tree, leaves)
    return internals.tree_flatten(tree) if spec is None else (leaves, spec)


def _walked(tree: Any, leaves: list[Any]) -> TreeSpec | None:
    """Append the leaves of a tree and return its structure; None if it is not plain."""
    kind = type(tree)
    if kind in _LEAVES:
        leaves.append(tree)
        return _LEAF
    names: Any = None
    items: Collection[Any] = tree
    if kind is dict:
        names, items = tuple(tree), tree.values()
        if not _NAMES.issuperset(map(type, names)):  # of which equal ones may not be the same, as 1 and True
            return None
    elif kind is not tuple and kind is not list:
        return None
    start, children = len(leaves), []
    if _LEAVES.issuperset(map(type, items)):  # as most are
        leaves += items
        key = (kind, names, None, len(items))
        known = _known.get(key)
        return _met(key, tree, (), leaves[start:]) if known is None else known.spec
    for item in items:
        child = _walked(item, leaves)
        if child is None:
            return None
        children.append(child)
    key = (kind, names, *map(id, children))
    known = _known.get(key)
    return _met(key, tree, children, leaves[start:]) if known is None else known.spec


def _met(key: tuple, tree: Any, children: Sequence[TreeSpec], walked: Sequence[Any]) -> TreeSpec | None:
    """Keep the structure of a tree, as torch has it; None if torch has its leaves in another order."""
    leaves, spec = internals.tree_flatten(tree)
    if len(leaves) != len(walked) or any(one is not other for one, other in zip(leaves, walked, strict=True)):
        return None
    if len(_known) >= MOST_STRUCTURES:
        _known.clear()
    _known[key] = _Structure(spec, children)
    return spec


def tree_unflatten(leaves: Iterable[Any], spec: TreeSpec) -> Any:
    """Return the pytree of a structure that has these leaves, as torch's own function of that name does.

    Example:
        >>> tree_unflatten([1, 2, 3], tree_flatten({"a": 0, "b": (0, 0)})[1])
        {'a': 1, 'b': (2, 3)}
    """
    given = leaves if isinstance(leaves, list | tuple) else [*leaves]
    return internals.tree_unflatten(given, spec) if len(given) != spec.num_leaves else _joined(given, spec)


def _joined(leaves: Sequence[Any], spec: TreeSpec) -> Any:
    """Return the pytree of a structure that has these leaves, which are as many as it has."""
    kind = spec.type
    if kind is None:
        return leaves[0]
    parts = leaves
    if spec.num_nodes > spec.num_leaves + 1 or not spec.num_leaves:
        parts, start = [], 0
        for child in spec.children():
            parts.append(_joined(leaves[start : start + child.num_leaves], child))
            start += child.num_leaves
    if kind is dict:
        return dict(zip(spec.context, parts, strict=True))
    return kind(parts) if kind is tuple or kind is list else internals.joined_node(kind, parts, spec.context)
