"""In-place ops: the contents of the storages that a function writes to, as nodes of the graph.

While the function runs, its writes take place for real, so that every alias sees them. The graph has values only, so
a storage that is written to gets a node for all it holds, as a vector in the order of memory. A write makes a new
such node out of the old one, and a tensor that is used after a write is read from the newest. That needs no inverse
of any view, no second run of the function, and it follows writes inside torch's own composite ops as well.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from hofunc.errors import UntracedError
from hofunc.graph.ledger import Ledger
from hofunc.graph.node import Ref


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy that has the autograd history of a tensor, which copies made below autograd do not have."""
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False):
        return tensor.clone()


class Layout(NamedTuple):
    """Where the elements of a tensor lie in a vector."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def layout_of(tensor: torch.Tensor) -> Layout:
    """Return where the elements of a tensor lie in its storage."""
    return Layout(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))


def read_strided(contents: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return the tensor that lies in a vector at a layout."""
    return contents.index_select(0, places(layout, contents.device)).reshape(layout.size)


def write_strided(contents: torch.Tensor, value: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return the vector with a tensor written into it at a layout."""
    return contents.index_copy(0, places(layout, contents.device), value.reshape(-1))


def overwritten(
    tensor: torch.Tensor,
    source: torch.Tensor,
    non_blocking: bool = False,  # noqa: ARG001 - as of copy_
) -> torch.Tensor:
    """Return what a tensor is once another was copied into it: aten.copy, which autograd cannot differentiate."""
    return source.to(tensor).expand(tensor.shape)


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


def disjoint(one: Layout, other: Layout) -> bool:
    """Tell whether two layouts surely have no place in common: some digit of the places differs for all of them."""
    dims = [dim for layout in (one, other) for dim in zip(layout.stride, layout.size, strict=True)]
    strides = sorted({stride for stride, size in dims if stride and size > 1})
    if 0 in one.size or 0 in other.size:
        return True
    spans, other_spans = _digits(one, strides), _digits(other, strides)
    if spans is None or other_spans is None:
        return False
    return any(a.stop <= b.start or b.stop <= a.start for a, b in zip(spans, other_spans, strict=True))


def _digits(layout: Layout, strides: Sequence[int]) -> list[range] | None:
    """Return the range of each digit of a layout's places, in the mixed radix of the strides; None if they carry."""
    steps = dict.fromkeys(strides, 0)
    for stride, size in zip(layout.stride, layout.size, strict=True):
        if stride and size > 1:
            steps[stride] += size - 1
    digits, rest = [], layout.offset
    for place in reversed(range(len(strides))):
        stride = strides[place]
        above = strides[place + 1] if place + 1 < len(strides) else None
        start, rest = divmod(rest, stride)
        stop = start + steps[stride] + 1
        if above is not None and (above % stride or stop > above // stride):
            return None
        digits.append(range(start, stop))
    return [*digits, range(rest, rest + 1)]


class Effects(NamedTuple):
    """What the schema of an op says: the names of the arguments it writes, and whether what it returns is a view."""

    op: OpOverload
    writes: tuple[str, ...]
    aliases: bool


def effects(op: OpOverload) -> Effects:
    """Read the effects of an op from its schema."""
    known = _EFFECTS.get(id(op))
    if known is None:
        arguments, returns = op._schema.arguments, op._schema.returns
        writes = tuple(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)
        aliases = any(r.alias_info is not None for r in returns) or "unsafe_" in op._schema.name
        known = _EFFECTS[id(op)] = Effects(op, writes, aliases)
    return known


_EFFECTS: dict[int, Effects] = {}  # by id, since the hash of an op is slow; an op lives as long as its entry


@cache
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


def _completed(op: OpOverload, form: OpOverload, args: tuple, kwargs: dict) -> dict:
    """Return the keyword arguments with the defaults of an in-place op that its functional form does not have."""
    needed = {argument.name for argument in form._schema.arguments if not argument.has_default_value()}
    left_out = [a for a in op._schema.arguments[len(args) :] if a.name in needed and a.name not in kwargs]
    return {**{argument.name: argument.default_value for argument in left_out}, **kwargs}


def returned_beside(op: OpOverload, out: Any) -> list[torch.Tensor]:
    """Return the new tensors that an op returned beside those that it wrote to: batch_norm writes to its statistics."""
    outputs = out if isinstance(out, list | tuple) else (out,)
    return [value for value, returns in zip(outputs, op._schema.returns, strict=True) if returns.alias_info is None]


class _Write(NamedTuple):
    """One write to a storage: where, the node of what was written, and the node of all contents after it."""

    layout: Layout
    result: int
    contents: int


class _Storage:
    """A storage that was written to: the tensor that owns it, its contents at first, and the writes in order."""

    def __init__(self, owner: torch.Tensor, contents: int):
        self.owner = owner
        stride = owner.stride()
        self.order = tuple(sorted(range(owner.dim()), key=lambda dim: -stride[dim]))
        self.first = contents
        self.writes: list[_Write] = []

    @property
    def contents(self) -> int:
        """Node of the latest contents."""
        return self.writes[-1].contents if self.writes else self.first

    def vector(self) -> torch.Tensor:
        """Return a copy of what the storage now holds."""
        return in_memory_order(self.owner, self.order).clone()


def _check_dtype(tensor: torch.Tensor, owner: torch.Tensor) -> None:
    """Refuse a storage that is seen in two dtypes, or of which the tensor that owns it is only a part."""
    size = owner.untyped_storage().nbytes()
    if tensor.dtype != owner.dtype or owner.numel() * owner.element_size() != size:
        raise UntracedError(
            "hofunc: f writes in place to a storage that its tensor does not fill",
            got=f"{tensor.dtype} in {size} bytes of {owner.dtype}",
            expected="a tensor of the dtype and size that its storage was allocated for",
            remedy="Write to a clone.",
        )


class Storages:
    """The storages that the function wrote to.

    Attributes:
        exist: Whether there are any.
    """

    def __init__(self, ledger: Ledger):
        self.exist = False
        self._ledger = ledger
        self._storages: dict[int, _Storage] = {}
        self._known: dict[int, int] = {}  # how many writes there had been when the node of a tensor was recorded
        self._kept: list[torch.Tensor] = []  # so that no id is used again

    def allocated(self) -> dict[int, torch.Tensor]:
        """Return the tensors whose storages were allocated by ops of the function itself, by storage."""
        ledger = self._ledger
        made = [(op, t) for op, out in ledger.untracked for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        made += [(n.op, v) for n, v in zip(ledger.nodes, ledger.values, strict=True) if isinstance(n.op, OpOverload)]
        fresh = {storage_key(t): t for op, t in made if not effects(op).aliases}
        return {**fresh, **{key: storage.owner for key, storage in self._storages.items()}}

    def refresh(self, args: Any) -> None:
        """Make the ledger know every tensor among the arguments as it is after the latest write to its storage."""
        for arg in tree_leaves(args):
            if isinstance(arg, torch.Tensor) and storage_key(arg) in self._storages:
                self._refresh(arg)

    def _refresh(self, tensor: torch.Tensor) -> None:
        """Make the ledger know one such tensor.

        What was written last at the same place is the tensor; only where it was written to in part, or was not known
        before, is it read from the contents of the storage.
        """
        storage, layout = self._storages[storage_key(tensor)], layout_of(tensor)
        _check_dtype(tensor, storage.owner)
        known = self._known.get(id(tensor), 0)
        for write in reversed(storage.writes[known:]):
            if write.layout == layout:
                self._know(tensor, write.result, len(storage.writes))
                return
            if not disjoint(write.layout, layout):
                break
        else:
            if id(tensor) in self._ledger.tracked:
                return
        contents = storage.contents
        index = self._ledger.add(tensor, read_strided, (Ref(contents), layout), (contents,))
        self._know(tensor, index, len(storage.writes))

    def adopt(self, tensor: torch.Tensor) -> None:
        """Note that a tensor, just recorded, was computed from what its storage now holds."""
        if storage_key(tensor) in self._storages:
            self._know(tensor, self._ledger.tracked[id(tensor)], len(self._storages[storage_key(tensor)].writes))

    def reshape_in_place(self, op: Any, args: tuple, kwargs: dict) -> Any:
        """Execute an op that changes the shape of its tensor but writes no element, and record it as a view."""
        tensor = args[0]
        operands: list[int] = []
        template = self._ledger.encode(args, operands)
        self._ledger.values = [value.view_as(value) if value is tensor else value for value in self._ledger.values]
        out = op(*args, **kwargs)
        self._ledger.add(tensor, functional_form(op), template, tuple(operands), tuple(kwargs.items()))
        self.adopt(tensor)
        return out

    def write(self, op: Any, args: tuple, kwargs: dict, written: Sequence[torch.Tensor]) -> Any:
        """Execute an op that writes to tensors which the graph knows or is to know, and record what it computes.

        Raises:
            UntracedError: No op computes what this one writes.
        """
        form = functional_form(op)
        if form is None:
            raise UntracedError(
                "hofunc: f writes in place by an op that has no functional form",
                got=str(op),
                expected="an in-place op with a counterpart that returns its result",
                remedy="Compute a new tensor instead.",
            )
        for tensor in written:
            self._open(tensor)
        operands: list[int] = []
        completed = _completed(op, form, args, kwargs)
        passed = {name: value for name, value in completed.items() if name not in effects(op).writes}
        template = self._ledger.encode(args, operands)
        keywords = tuple(zip(passed, self._ledger.encode(passed.values(), operands), strict=True))
        keys = {storage_key(tensor) for tensor in written}
        self._kept += [value for value in self._ledger.values if storage_key(value) in keys]
        self._ledger.values = [copied(v) if storage_key(v) in keys else v for v in self._ledger.values]
        out = op(*args, **kwargs)
        returned = returned_beside(op, out)  # the functional form returns it first
        for place, tensor in enumerate([*returned, *written]):
            output = place if len(form._schema.returns) > 1 else None
            value = tensor if place < len(returned) else tensor.clone()
            recorded = overwritten if form is torch.ops.aten.copy.default else form
            result = self._ledger.add(value, recorded, template, tuple(operands), keywords, output)
            if place >= len(returned):
                self._put(tensor, result)
        return out

    def _open(self, tensor: torch.Tensor) -> None:
        """Give the storage of a tensor a node for its contents, if it has none yet."""
        key = storage_key(tensor)
        if key not in self._storages:
            owner = self.allocated()[key]
            index = self._ledger.tracked.get(id(owner))
            if index is None:
                index = self._ledger.index_of(copied(owner))
            self.exist = True
            storage = self._storages[key] = _Storage(owner, -1)
            storage.first = self._ledger.add(storage.vector(), in_memory_order, (Ref(index), storage.order), (index,))
        _check_dtype(tensor, self._storages[key].owner)

    def _put(self, tensor: torch.Tensor, result: int) -> None:
        """Write a result into the contents of a storage."""
        storage, layout = self._storages[storage_key(tensor)], layout_of(tensor)
        before = storage.contents
        args = (Ref(before), Ref(result), layout)
        contents = self._ledger.add(storage.vector(), write_strided, args, (before, result))
        storage.writes.append(_Write(layout, result, contents))
        self._know(tensor, result, len(storage.writes))

    def _know(self, tensor: torch.Tensor, index: int, writes: int) -> None:
        self._ledger.tracked[id(tensor)] = index
        self._known[id(tensor)] = writes
        self._kept.append(tensor)
