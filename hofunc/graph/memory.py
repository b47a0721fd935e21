"""Which values of a graph lie in which memory, and which memory the function allocated itself."""

from typing import Any

import torch

from hofunc.graph.effects import effects
from hofunc.graph.identity import storage_key, tensors_in
from hofunc.graph.ledger import Ledger
from hofunc.graph.node import INPUT
from hofunc.internals import OpOverload, identity_of

aten = torch.ops.aten

_SET_STORAGE = (aten.set_.source_Storage, aten.set_.source_Storage_storage_offset)  # by deepcopy


class Memory:
    """The storages of all that a ledger knows.

    It follows the ledger from where it last left it, and so what a write asks for takes no longer the more was
    recorded before.
    """

    def __init__(self, ledger: Ledger):
        self._ledger = ledger
        self._nodes = self._untracked = 0  # how many of them were entered
        self._values: dict[int, list[int]] = {}  # the nodes whose values lie in a storage
        self._computed: dict[int, int] = {}  # the latest node of which an op allocated the storage
        self._returned: dict[int, torch.Tensor] = {}  # and what no node is
        self._given: set[int] = set()
        self._held: list[Any] = []  # the storages, kept so that no key is used again

    def owner(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the tensor for which an op of the function allocated the storage of another, None if none did."""
        self._follow()
        key = storage_key(tensor)
        if key in self._given:
            return None
        number = self._computed.get(key)
        return self._returned.get(key) if number is None else self._ledger.values[number]

    def values_in(self, tensor: torch.Tensor) -> list[int]:
        """Return the nodes whose values lie in the storage of a tensor."""
        self._follow()
        return self._values.get(storage_key(tensor), [])

    def vacate(self, tensor: torch.Tensor) -> list[int]:
        """Return the same nodes, which are to have other values, in memory of their own."""
        self._follow()
        return self._values.pop(storage_key(tensor), [])

    def _follow(self) -> None:
        """Enter what the ledger has come to know."""
        ledger = self._ledger
        for op, out in ledger.untracked[self._untracked :]:
            if _allocates(op) or is_literal(op, out):
                self._returned.update((self._enter(tensor), tensor) for tensor in tensors_in(out))
        for number in range(self._nodes, len(ledger.nodes)):
            op, key = ledger.nodes[number].op, self._enter(ledger.values[number])
            self._values.setdefault(key, []).append(number)
            if _allocates(op) or is_literal(op, ledger.values[number]):
                self._computed[key] = number
            elif op is INPUT and ledger.spots is not None and ledger.spots.inputs_are_own:
                self._given.add(key)
        self._untracked, self._nodes = len(ledger.untracked), len(ledger.nodes)

    def _enter(self, tensor: torch.Tensor) -> int:
        """Return the key of a tensor's storage, which is kept."""
        held = tensor.untyped_storage() if tensor.layout is torch.strided else tensor
        self._held.append(held)
        return identity_of(held) if held is not tensor else id(tensor)


def _allocates(op: Any) -> bool:
    """Tell whether what an op returns has memory of its own, or memory that Python allocated for it just before."""
    return isinstance(op, OpOverload) and (not effects(op).aliases or op in _SET_STORAGE)


def is_literal(op: Any, tensor: torch.Tensor) -> bool:
    """Tell whether an op makes a tensor known that Python made just before of numbers, or of an array.

    Memory that it shares with an array, which somebody else may look at, cannot be resized.
    """
    return op is aten.lift_fresh.default and tensor.untyped_storage().resizable()
