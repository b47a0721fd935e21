"""In-place ops: the contents of the storages that a function writes to, as nodes of the graph.

While the function runs, its writes take place for real, so that every alias sees them. The graph has values only, so
a storage that is written to gets a node for all the real numbers it holds, with its axes in the order of memory. A
write makes a new such node out of the old one, and a tensor that is used after a write is read from the newest; what
was just written needs none of them, and so they are made when something is read. That needs no inverse of any view, no
second run of the function, and it follows writes inside torch's own composite ops as well.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Any, NamedTuple

import torch

from hofunc.errors import UntracedError
from hofunc.graph.draws import drawn
from hofunc.graph.effects import functional_form, in_place, is_view
from hofunc.graph.execution import Execution
from hofunc.graph.identity import plain, reading_of, root_of, storage_key
from hofunc.graph.layout import (
    COMPUTED_AGAIN,
    Layout,
    in_memory_order,
    memory_order,
    overwritten,
    read_strided,
    unseen,
    write_strided,
)
from hofunc.graph.ledger import Ledger, with_history
from hofunc.graph.memory import Memory
from hofunc.graph.node import CONSTANT, Graph, Ref, call_of
from hofunc.graph.numerals import Op, as_held, as_read, real_layout_of
from hofunc.graph.overlaps import Overlaps, places_of
from hofunc.internals import (
    has_forward_level,
    is_autograd_view,
    maybe_current_level,
    temporarily_clear_interpreter_stack,
)


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy that has the autograd history of a tensor, which copies made below autograd do not have."""
    if not tensor.requires_grad and not has_forward_level():
        return tensor.clone()
    with with_history():
        return tensor.clone()


class _Write(NamedTuple):
    """One write to a storage: where, what the tensor reads there, of which family of aliases, and what was written.

    Attributes:
        layout: Where.
        reading: What the tensor written to reads there, see `reading_of`.
        family: The family of that tensor.
        result: The node of what was written.
        held: The ops that make of it what the storage holds.
    """

    layout: Layout
    reading: tuple
    family: int | None
    result: int
    held: list[Op]

    def is_of(self, tensor: torch.Tensor, family: int | None) -> bool:
        """Tell whether a tensor of a family is what was written."""
        return self.family == family and self.is_all_of(tensor)

    def is_all_of(self, tensor: torch.Tensor) -> bool:
        """Tell whether it was written just where a tensor lies, as that reads it."""
        return self.layout == real_layout_of(tensor) and self.reading == reading_of(tensor)


def _written(tensor: torch.Tensor, family: int | None, result: int) -> _Write:
    """Return the write of a node to a tensor."""
    return _Write(real_layout_of(tensor), reading_of(tensor), family, result, as_held(tensor))


class _Storage:
    """A storage that was written to.

    Autograd relates a tensor to its views, but not to what ``detach`` returned. So each such alias, with its own
    views, is a family, which has the values in common with the others, and its derivatives for itself.

    Attributes:
        owner: The tensor that the storage was allocated for.
        as_made: The same, or what it was before its shape was changed in place.
        layout: Where its real numbers lie.
        order: Their axes in the order of memory.
        is_filled: Whether every place of the storage is an element of the owner.
        was_constant: Whether it held a constant before the first write.
        is_owner: Whether the contents are just what the owner is: it has its axes in the order of memory, too.
        contents: The node of all that the storage held before what is left, by family: that of the owner is None,
            another is the node that detached it.
        whole: A node of what lay where the owner does, if there are no contents of that yet.
        left: What was written since, all of it in the family of the owner, and is not in the contents yet.
        writes: What was written, in order.
        overlaps: Where, in the same order.
    """

    def __init__(self, owner: torch.Tensor, whole: int, *, was_constant: bool):
        self.was_constant = was_constant
        self.owner = self.as_made = owner
        self.layout = real_layout_of(owner)
        self.order = memory_order(self.layout.stride)
        self.is_filled = owner.numel() * owner.element_size() == owner.untyped_storage().nbytes()
        self.is_owner = self.is_filled and self.order == (*range(owner.dim()),) and not as_held(owner)
        self.contents: dict[int | None, int] = {}
        self.whole: int | None = whole
        self.left: list[_Write] = []
        self.writes: list[_Write] = []
        self.overlaps = Overlaps()

    def memory(self) -> torch.Tensor:
        """Return a copy of what the storage now holds: the owner, or a vector with zeros where that has no element."""
        numbers = torch.view_as_real(self.as_made) if self.as_made.is_complex() else self.as_made
        if self.is_filled:
            return in_memory_order(numbers, self.order).clone()
        return write_strided(self.zeros(), numbers, self.layout)

    def leave(self, write: _Write) -> bool:
        """Leave a write out of the contents until these are read, as few are; returns whether that can be."""
        if write.family is not None or self.contents.keys() - {None}:
            return False
        if self.is_filled and write.is_all_of(self.as_made):
            self.whole, self.left = write.result, []
        else:
            self.left.append(write)
        return True

    def latest(self, tensor: torch.Tensor, known: int) -> _Write | None:
        """Return the latest write, of those after the first so many, to some element of a tensor."""
        number = self.overlaps.latest(places_of(real_layout_of(tensor)), known)
        return None if number is None else self.writes[number]

    def note(self, write: _Write) -> None:
        """Note a write."""
        self.writes.append(write)
        self.overlaps.enter(places_of(write.layout))

    def zeros(self) -> torch.Tensor:
        """Return a vector of the size of the storage."""
        dtype = self.owner.dtype.to_real()
        return self.owner.new_zeros(self.owner.untyped_storage().nbytes() // dtype.itemsize, dtype=dtype)


def _check_dtype(tensor: torch.Tensor, owner: torch.Tensor) -> None:
    """Refuse a storage of which a tensor and its owner do not read the same real numbers."""
    if tensor.dtype.to_real() != owner.dtype.to_real():
        raise UntracedError(
            "hofunc: f writes in place to a storage that it sees in two dtypes",
            got=f"{tensor.dtype} in a storage of {owner.dtype}",
            expected="the dtype that the storage was allocated for, or the complex numbers of that",
            remedy="Write to a clone.",
        )


class Storages:
    """The storages that the function wrote to.

    Args:
        ledger: The graph so far.
        execution: What executes the writes.

    Attributes:
        exist: Whether there are any.
        compute: Whether they are computing what they hold, which is no step of the function.
        kept: Tensors that were written to, kept so that no id is used again.
    """

    def __init__(self, ledger: Ledger, execution: Execution):
        self.exist = self.compute = False
        self._ledger, self._memory, self._execution = ledger, Memory(ledger), execution
        self._storages: dict[int, _Storage] = {}
        self._known: dict[int, int] = {}  # how many writes there had been when the node of a tensor was recorded
        self._families: dict[int, int | None] = {}  # of the nodes that writes left, which are no views any more
        self._roots: dict[int, int] = {}  # the families of tensors that are no nodes and no views of any, by their ids
        self._changed: set[int] = set()  # the nodes that were added here, or moved with a history
        self._moved: set[int] = set()  # those of what was written over that had none
        self._filled: dict[int, set[int]] = {}  # the nodes of what was written over such alone, and of these
        self._same: dict[int, torch.Tensor] = {}  # what an alias stands for that was detached inside a forward, by id
        self.kept: list[torch.Tensor] = []

    def note_alias(self, alias: torch.Tensor, tensor: torch.Tensor) -> None:
        """Note that an alias is of the family of a tensor: nobody looks at what is detached where autograd is off."""
        self._same[id(alias)] = tensor
        self.kept.append(alias)

    def owner(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the tensor for which an op of the function allocated the storage of another, None if none did."""
        storage = self._storages.get(storage_key(tensor))
        return self._memory.owner(tensor) if storage is None else storage.owner

    def concerns(self, tensor: torch.Tensor) -> bool:
        """Tell whether a value of the graph lies in the storage of a tensor."""
        return bool(self._memory.values_in(tensor))

    def hold(self, args: Iterable) -> bool:
        """Tell whether a tensor among the arguments of an op lies in a storage that was written to."""
        storages = self._storages
        for arg in args:
            if isinstance(arg, torch.Tensor):
                if storage_key(arg) in storages:
                    return True
            elif type(arg) in (list, tuple) and self.hold(arg):
                return True
        return False

    def rewritten(self, graph: Graph) -> set[int]:
        """Return the nodes of which autograd may not know what the graph says, since something was written to.

        They are those of what is written, of what it is written over, which a step may have saved, and all that follow.
        Of what is written over what has no history autograd knows all; the write itself saves none of that.
        """
        if not self._changed and not self._moved:
            return set()
        reached = set(self._changed)
        calls = {call_of(graph.nodes[number]) for number in reached if graph.nodes[number].output is not None}
        for node in graph.nodes:
            operands = {*node.operands} - self._filled.get(node.number, set())
            is_drawn_with_one = calls and node.output is not None and call_of(node) in calls
            if is_drawn_with_one or not (reached.isdisjoint(operands) and self._moved.isdisjoint(operands)):
                reached.add(node.number)
        return {number for number in reached if not graph.nodes[number].is_given}

    def refresh(self, tensors: Iterable[torch.Tensor]) -> None:
        """Make the ledger know every one of some tensors as it is after the latest write to its storage."""
        if not self.exist:
            return
        before = len(self._ledger.nodes)
        for tensor in tensors:
            if storage_key(tensor) in self._storages:
                self._refresh(tensor)
        self._changed.update(range(before, len(self._ledger.nodes)))

    def _refresh(self, tensor: torch.Tensor) -> None:
        """Make the ledger know one such tensor.

        What was written last at the same place is the tensor; only where it was written to in part, or was not known
        before, is it read from the contents of the storage. A constant beside which something was written, in the same
        storage, is the constant: autograd may know of it what it does not know of the rest, as it relates what
        ``unsafe_chunk`` returns, of which an LSTM or GRU writes to each, neither to one another nor to the whole.
        """
        storage = self._storages[storage_key(tensor)]
        known = self._known.get(id(tensor), 0)
        is_known = id(tensor) in self._ledger.tracked
        if is_known and known == len(storage.writes):
            return
        _check_dtype(tensor, storage.owner)
        family = self._family(tensor)
        write = storage.latest(tensor, known)
        if write is not None and write.is_of(tensor, family):
            self._know(tensor, write.result, len(storage.writes), family)
        elif write is None and storage.was_constant and not is_known:
            self._know(tensor, self._ledger.constant_of(tensor), len(storage.writes), family)
        elif write is not None or not is_known:
            self._know(tensor, self._read(storage, tensor, family), len(storage.writes), family)

    def _read(self, storage: _Storage, tensor: torch.Tensor, family: int | None) -> int:
        """Read a tensor from the contents of its storage, and return the node."""
        index, layout, ops = self._contents(storage, family), real_layout_of(tensor), as_read(tensor)
        if storage.is_owner and layout == storage.layout and not ops and storage.contents.keys() == {None}:
            return index
        if not ops:
            return self._ledger.add(tensor, read_strided, (Ref(index), layout), (index,))
        index = self._computed(read_strided, (index,), layout)
        for op in ops[:-1]:
            index = self._computed(op, (index,))
        return self._ledger.add(tensor, ops[-1], (Ref(index),), (index,))

    def written(self, tensor: torch.Tensor) -> int | None:
        """Return the node of what was written last, if that was just where a tensor lies."""
        storage = self._storages.get(storage_key(tensor))
        write = None if storage is None else storage.latest(tensor, 0)
        return write.result if write is not None and write.is_all_of(tensor) else None

    def adopt(self, tensor: torch.Tensor) -> None:
        """Note that a tensor, just recorded, is what its storage now holds, or what was written there last."""
        storage = self._storages.get(storage_key(tensor))
        if storage is not None:
            family, index = self._family(tensor), self._ledger.tracked[id(tensor)]
            write = storage.latest(tensor, 0)
            if write is not None and write.is_of(tensor, family):
                index = write.result
            self._know(tensor, index, len(storage.writes), family)

    def reshape_in_place(self, op: Any, args: tuple, kwargs: dict) -> Any:
        """Execute an op that changes the shape of its tensor but writes no element, and record it as a view."""
        tensor, ledger = args[0], self._ledger
        index = ledger.index_of(tensor)
        first = len(ledger.nodes)
        with torch.enable_grad():
            before = tensor[...]
        for number in self._memory.values_in(tensor):
            if ledger.values[number] is tensor:
                self._note(tensor, number)
                ledger.values[number] = before
                self._changed.add(number)
        storage = self._storages.get(storage_key(tensor))
        if storage is not None and storage.as_made is tensor:
            storage.as_made = before
        ledger.tracked.pop(id(tensor), None)
        ledger.tracked[id(before)] = index
        self.kept.append(before)
        out = self._execution(op, args, kwargs)
        ledger.enter([(functional_form(op), (before, *args[1:]), kwargs, tensor)])
        self._changed.update(range(first, len(ledger.nodes)))
        self.adopt(tensor)
        return out

    def write(self, op: Any, args: tuple, kwargs: dict, written: Sequence[torch.Tensor]) -> Any:
        """Execute an op that writes to tensors which the graph knows or is to know, and record what it computes.

        Raises:
            UntracedError: No op computes what this one writes.
        """
        known = in_place(op)
        if known is None:
            raise UntracedError(
                "hofunc: f writes in place by an op that has no functional form",
                got=str(op),
                expected="an in-place op with a counterpart that returns its result",
                remedy="Compute a new tensor instead.",
            )
        seen, first = torch.is_grad_enabled(), len(self._ledger.nodes)
        with torch.enable_grad():  # the copies made here are no steps of f
            storages = [*map(self._opened, written)]
            families = [*map(self._family, written)]
            # a constant too may have a history, by what f captured; one without is recorded alike, see `Walk.again`
            before = [None if seen else self._ledger.index_of(tensor) for tensor in written]
            operands: list[int] = []
            passed = known.options(args, kwargs)
            template = self._ledger.encode(args, operands)
            keywords = tuple(zip(passed, self._ledger.encode(passed.values(), operands), strict=True))
            vacated = [*chain.from_iterable(map(self._memory.vacate, written))]
            for number in vacated:
                value = self._ledger.values[number]
                (self._changed if value.requires_grad else self._moved).add(number)
                self.kept.append(value)
                self._note(value, number)
                self._ledger.values[number] = copied(value)
            with torch.set_grad_enabled(seen):
                out = self._execution(op, args, kwargs)
            returned = known.returned_beside(out)
            recorded: Any = overwritten if known.form is torch.ops.aten.copy.default else known.form
            if known.draws:
                recorded, template = drawn, (op, *template)
            places = zip(written, before, families, strict=True)
            for place, (tensor, old, family) in enumerate((*((each, None, None) for each in returned), *places)):
                output = place if known.several else None
                value = plain(tensor)
                if is_autograd_view(tensor):  # the history of which torch may refuse to tell later
                    value = value.clone()
                result = self._ledger.add(value, recorded, template, tuple(operands), keywords, output)
                if not seen:
                    result = self._unseen(old, result)
                if place >= len(returned):
                    self._put(tensor, storages[place - len(returned)], _written(tensor, family, result))
        result = self._ledger.tracked[id(written[0])]
        if seen and self._changed.isdisjoint(vacated) and self._ledger.values[result] is written[0]:
            self._filled[result] = {*vacated}
        self._changed.update([number for number in range(first, len(self._ledger.nodes)) if number not in self._filled])
        return out

    def _family(self, tensor: torch.Tensor) -> int | None:
        """Return the family of a tensor among those that share its storage."""
        index = self._ledger.tracked.get(id(tensor), self._ledger.tracked.get(id(root_of(tensor))))
        if index is None:
            root = root_of(tensor)
            if id(root) in self._same:
                return self._family(self._same[id(root)])
            return None if root is self._storages[storage_key(tensor)].owner else self._unrelated(root)
        nodes, detached = self._ledger.nodes, self._ledger.detached
        while index not in self._families and index not in detached and is_view(nodes[index].op):
            index = nodes[index].operands[0]
        return self._families.get(index, index if index in detached else None)

    def _unrelated(self, root: torch.Tensor) -> int:
        """Return the family of what no op is known to have returned: ``.data``, a parameter, or a detached constant."""
        if id(root) not in self._roots:
            self._roots[id(root)] = -1 - len(self._roots)
            self.kept.append(root)
        return self._roots[id(root)]

    def _unseen(self, before: int | None, result: int) -> int:
        """Record that autograd did not see how a tensor became what it is; returns the node."""
        value = self._ledger.values[result]
        if before is None or not (value.dtype.is_floating_point or value.dtype.is_complex):
            return self._ledger.add(value, torch.ops.aten.detach.default, (Ref(result),), (result,))
        return self._ledger.add(value, unseen, (Ref(before), Ref(result)), (before, result))

    def _opened(self, tensor: torch.Tensor) -> _Storage:
        """Return the storage of a tensor, to which the function may write."""
        key = storage_key(tensor)
        if key not in self._storages and (owner := self._memory.owner(tensor)) is not None:
            index = self._ledger.tracked.get(id(owner))
            whole = self._ledger.index_of(copied(owner)) if index is None else index
            self._note(owner, whole)
            was_constant = self._ledger.nodes[whole].op is CONSTANT
            self._storages[key] = _Storage(owner, whole, was_constant=was_constant)
            self.exist = True
        storage = self._storages[key]
        _check_dtype(tensor, storage.owner)
        return storage

    def _put(self, tensor: torch.Tensor, storage: _Storage, write: _Write) -> None:
        """Note what was written to a tensor, and write it into the contents of its storage if that cannot wait."""
        if not storage.leave(write):
            contents = self._with(self._contents(storage, write.family, is_over=True), write, storage.memory)
            storage.contents = {
                other: contents if other == write.family else self._unseen(node, contents)
                for other, node in storage.contents.items()
            }
        storage.note(write)
        self._know(tensor, write.result, len(storage.writes), write.family)

    def _contents(self, storage: _Storage, family: int | None, *, is_over: bool = False) -> int:
        """Return the node of the contents for a family, which are a constant for a new one.

        Args:
            storage: The storage.
            family: The family.
            is_over: Whether the storage no longer holds them, as it was written to since.
        """
        contents = storage.contents
        if storage.whole is not None:
            contents[None], storage.whole = self._of_whole(storage, storage.whole), None
        for write in storage.left:
            is_last = write is storage.left[-1] and not is_over
            contents[None] = self._with(contents[None], write, storage.memory if is_last else None)
        storage.left = []
        if family not in contents:
            contents[family] = self._unseen(None, next(iter(contents.values())))
        return contents[family]

    def _of_whole(self, storage: _Storage, whole: int) -> int:
        """Add the contents of a storage where it holds just a tensor as the owner is, and return the node."""
        if storage.is_owner:
            return whole
        for op in as_held(storage.owner):
            whole = self._computed(op, (whole,))
        if storage.is_filled:
            return self._computed(in_memory_order, (whole,), storage.order)
        zeros = self._ledger.index_of(storage.zeros())
        return self._computed(write_strided, (zeros, whole), storage.layout)

    def _with(self, contents: int, write: _Write, known: Callable[[], torch.Tensor] | None) -> int:
        """Add the contents of a storage with a write, and return the node; known returns them, if it is given."""
        result = write.result
        for op in write.held:
            result = self._computed(op, (result,))
        return self._computed(write_strided, (contents, result), write.layout, known=known)

    def _computed(
        self,
        op: Callable[..., torch.Tensor],
        operands: tuple[int, ...],
        *others: Any,
        known: Callable[[], torch.Tensor] | None = None,
    ) -> int:
        """Compute what a storage holds, as no step of the function, and return its node."""
        self.compute = True
        try:
            with (
                torch.enable_grad(),
                nullcontext() if maybe_current_level() is None else temporarily_clear_interpreter_stack(),
            ):
                values = [self._ledger.values[operand] for operand in operands]
                value = known() if known else COMPUTED_AGAIN.get(op, op)(*values, *others)
        finally:
            self.compute = False
        return self._ledger.add(value, op, (*map(Ref, operands), *others), operands)

    def _know(self, tensor: torch.Tensor, index: int, writes: int, family: int | None) -> None:
        self._families[index] = family
        self._ledger.tracked[id(tensor)] = index
        self._known[id(tensor)] = writes
        self.kept.append(tensor)
        self._note(tensor, index, is_value=False)

    def _note(self, tensor: torch.Tensor, index: int, *, is_value: bool = True) -> None:
        """Note that a tensor now holds the value of a node, for recordings that go the same way."""
        if self._execution.survey is not None:
            self._execution.survey.note(tensor, index, is_value=is_value)


class Made:
    """What a function made: what its ops returned, and parameters that read memory which its ops allocated."""

    def __init__(self, ledger: Ledger, storages: Storages):
        self._storages = storages
        self._ids = ledger.tracked.keys() | {id(out) for _, out in ledger.untracked}
        computed = [value for node, value in zip(ledger.nodes, ledger.values, strict=True) if not node.is_given]
        returned = [out for _, out in ledger.untracked if isinstance(out, torch.Tensor)]
        self._read = {storage_key(tensor) for tensor in (*computed, *returned)}

    def has(self, tensor: torch.Tensor) -> bool:
        """Tell whether the function made a tensor."""
        if id(tensor) in self._ids:
            return True
        return storage_key(tensor) in self._read and self._storages.owner(tensor) is not None
