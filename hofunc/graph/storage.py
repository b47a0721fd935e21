"""In-place ops: the contents of the storages that a function writes to, as nodes of the graph.

While the function runs, its writes take place for real, so that every alias sees them. The graph has values only, so
a storage that is written to gets a node for all it holds, as a vector in the order of memory. A write makes a new
such node out of the old one, and a tensor that is used after a write is read from the newest. That needs no inverse
of any view, no second run of the function, and it follows writes inside torch's own composite ops as well.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from hofunc.errors import MutationError, UntracedError
from hofunc.graph.node import Ref

if TYPE_CHECKING:
    from hofunc.graph.tape import Tape


class Layout(NamedTuple):
    """Where the elements of a tensor lie in a vector."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def layout_of(tensor: torch.Tensor) -> Layout:
    """Return where the elements of a tensor lie in its storage."""
    return Layout(tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


def read_strided(contents: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return the tensor that lies in a vector at a layout."""
    return contents.index_select(0, places(layout, contents.device)).reshape(layout.size)


def write_strided(contents: torch.Tensor, value: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return the vector with a tensor written into it at a layout."""
    return contents.index_copy(0, places(layout, contents.device), value.reshape(-1))


def in_memory_order(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Return the elements of a tensor as a vector, the axes taken in the given order."""
    return tensor.permute(order).reshape(-1)


def places(layout: Layout, device: torch.device) -> torch.Tensor:
    """Return the places of a tensor's elements in the vector, in the order of its own elements."""
    places = torch.tensor(layout.offset, device=device)
    for size, stride in zip(layout.size, layout.stride, strict=True):
        places = places[..., None] + stride * torch.arange(size, device=device)
    return places.reshape(-1)


def storage_key(tensor: torch.Tensor) -> int:
    """Return what identifies the storage of a tensor while it is alive."""
    return tensor.untyped_storage()._cdata


class Effects(NamedTuple):
    """What the schema of an op says: the names of the arguments it writes, and whether what it returns is a view."""

    writes: tuple[str, ...]
    aliases: bool


@lru_cache(maxsize=None)
def effects(op: torch._ops.OpOverload) -> Effects:
    """Read the effects of an op from its schema."""
    schema = op._schema
    return Effects(
        tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write),
        any(r.alias_info is not None for r in schema.returns) or "unsafe_" in schema.name,
    )


@lru_cache(maxsize=None)
def functional_form(op: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """Return the op that computes what an in-place or out-variant op writes; None if there is none."""
    wanted = [a.name for a in op._schema.arguments if not (a.kwarg_only and a.name in effects(op).writes)]
    name = op._schema.name.split("::")[1]
    for candidate in (name.removesuffix("_"), f"{name.removesuffix('_')}_functional"):
        packet = getattr(getattr(torch.ops, op.namespace), candidate, None)
        for overload in packet.overloads() if packet is not None else ():
            form = getattr(packet, overload)
            names = [argument.name for argument in form._schema.arguments]
            types = [str(argument.type) for argument in form._schema.arguments]
            expected = [str(a.type) for a in op._schema.arguments if a.name in wanted]
            if not effects(form).writes and names == wanted and types == expected:
                return form
    return None


class Storages:
    """The storages that the function wrote to, for one tape."""

    def __init__(self, tape: "Tape"):
        self._tape = tape
        self._contents: dict[int, int] = {}
        self._owners: dict[int, torch.Tensor] = {}
        self._read_from: dict[int, int] = {}
        self._kept: list[torch.Tensor] = []

    def __bool__(self) -> bool:
        return bool(self._contents)

    @property
    def owners(self) -> dict[int, torch.Tensor]:
        """The tensors that own these storages."""
        return self._owners

    def holds(self, tensor: torch.Tensor) -> bool:
        """Tell whether the tensor lies in a storage that was written to."""
        return storage_key(tensor) in self._contents

    def refresh(self, tensor: torch.Tensor) -> None:
        """Make the tape know a tensor as it is after the latest write to its storage."""
        contents = self._contents[storage_key(tensor)]
        if self._read_from.get(id(tensor)) != contents:
            index = self._tape.add(tensor, read_strided, (Ref(contents), layout_of(tensor)), (contents,))
            self._know(tensor, index, contents)

    def adopt(self, tensor: torch.Tensor) -> None:
        """Note that a tensor, just recorded, was computed from what its storage now holds."""
        if self.holds(tensor):
            self._read_from[id(tensor)] = self._contents[storage_key(tensor)]
            self._kept.append(tensor)

    def reshape_in_place(self, op: Any, args: tuple, kwargs: dict) -> Any:
        """Execute an op that changes the shape of its tensor but writes no element, and record it as a view."""
        tensor = args[0]
        operands: list[int] = []
        template = self._tape.encode(args, operands)
        self._tape.values = [value.view_as(value) if value is tensor else value for value in self._tape.values]
        out = op(*args, **kwargs)
        del self._tape.tracked[id(tensor)]
        self._tape.add(tensor, functional_form(op), template, tuple(operands), tuple(kwargs.items()))
        self.adopt(tensor)
        return out

    def _know(self, tensor: torch.Tensor, index: int, contents: int) -> None:
        self._tape.tracked[id(tensor)] = index
        self._read_from[id(tensor)] = contents
        self._kept.append(tensor)

    def write(self, op: Any, args: tuple, kwargs: dict, written: Sequence[torch.Tensor]) -> Any:
        """Execute an op that writes to tensors which the graph knows or is to know, and record what it computes."""
        form = functional_form(op)
        if form is None:
            raise UntracedError(
                "hofunc: f writes in place by an op that has no functional form",
                got=str(op),
                expected="an in-place op with a counterpart that returns its result",
                remedy="Compute a new tensor instead.",
            )
        passed = {name: value for name, value in kwargs.items() if name not in effects(op).writes}
        for tensor in written:
            self._open(tensor)
        operands: list[int] = []
        template = self._tape.encode(args, operands)
        keywords = tuple(zip(passed, self._tape.encode(passed.values(), operands), strict=True))
        keys = {storage_key(tensor) for tensor in written}
        for index, value in enumerate(self._tape.values):
            if storage_key(value) in keys:
                self._tape.values[index] = value.clone()
        out = op(*args, **kwargs)
        several = len(form._schema.returns) > 1
        for place, tensor in enumerate(written):
            output = place if several else None
            result = self._tape.add(tensor.clone(), form, template, tuple(operands), keywords, output)
            self._put(tensor, result)
        return out

    def _open(self, tensor: torch.Tensor) -> None:
        """Give the storage of a tensor a node for its contents, if it has none yet."""
        key = storage_key(tensor)
        if key in self._contents:
            return
        owner = self._tape.allocated()[key]
        order = tuple(sorted(range(owner.dim()), key=lambda dim: -owner.stride(dim)))
        vector = owner.permute(order).reshape(-1)
        if vector.numel() * vector.element_size() != owner.untyped_storage().nbytes():
            raise MutationError(
                "hofunc: f writes to part of a storage",
                got=f"a tensor of layout {layout_of(owner)}",
                expected="a tensor that fills its storage",
                remedy="Write to a clone.",
            )
        index = self._tape.tracked.get(id(owner))
        if index is None:
            index = self._tape.index_of(owner.clone())
        self._owners[key] = owner
        self._contents[key] = self._tape.add(vector.clone(), in_memory_order, (Ref(index), order), (index,))

    def _put(self, tensor: torch.Tensor, result: int) -> None:
        """Write a result into the contents of a storage."""
        key = storage_key(tensor)
        before, owner = self._contents[key], self._owners[key]
        order = tuple(sorted(range(owner.dim()), key=lambda dim: -owner.stride(dim)))
        value = owner.permute(order).reshape(-1).clone()
        args = (Ref(before), Ref(result), layout_of(tensor))
        contents = self._tape.add(value, write_strided, args, (before, result))
        self._contents[key] = contents
        self._know(tensor, result, contents)
