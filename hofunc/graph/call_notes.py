"""Taking note of the calls of torch's functions that a function makes while it is recorded, see NOTE [calls]."""

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Self
from weakref import ref

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hofunc.graph.calls import (
    READS,
    Call,
    Calls,
    Derivatives,
    Derived,
    Function,
    Inside,
    Lifted,
    Nested,
    New,
    Returned,
    parts,
)
from hofunc.graph.captured import Given
from hofunc.graph.draws import is_random
from hofunc.graph.effects import effects
from hofunc.graph.identity import PLAIN, storage_key, tensors_in
from hofunc.graph.layout import layout_of
from hofunc.graph.node import Graph, Node, exact
from hofunc.graph.parts import executed
from hofunc.graph.quick import QUICK
from hofunc.graph.route import ATOMS, Other, Seen, Several, form_of, held, unheld
from hofunc.graph.uncompiled import UncompiledMode, uncompiled
from hofunc.internals import (
    OpOverload,
    TreeSpec,
    is_any_autocast_enabled,
    kernel_of,
    maybe_current_level,
    pop_function_mode_temporarily,
)
from hofunc.trees import tree_flatten

Made = tuple[Any, tuple, dict, Any]

_ATOMS = ATOMS | {type(...)}
_SEQUENCES = (tuple, list, torch.Size)
_FUNCTIONS = frozenset(
    type(each)
    for each in (torch.mm, Tensor.tanh, Tensor.__getitem__, Tensor.shape.__get__, torch.einsum)  # type: ignore[attr-defined]
)


_READER = torch.functional.tensordot  # of axes in a tensor, which it makes a list of


class _UntoldError(Exception):
    """Something takes part that cannot be compared."""


class CallNotes(TorchFunctionMode):
    """Takes note of the calls of torch's functions while a function is recorded, and of the ops inside of each.

    It is entered around the tape, which makes ops within.

    Args:
        inputs: The inputs, as the function sees them.
    """

    def __init__(self, inputs: Sequence[Tensor]):
        super().__init__()
        self._ops = _OpNotes()
        self._inputs = inputs
        self._calls: list[tuple[Made, list[Made]]] = []
        self._is_told = True
        self._level = maybe_current_level()

    def __enter__(self) -> Self:
        self._ops.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *args: object) -> None:
        super().__exit__(*args)
        self._ops.__exit__(*args)
        self._is_told = self._is_told and not self._ops.made  # past all calls

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Take no note of the ops within, which the function does not make."""
        count = len(self._ops.made)
        yield
        del self._ops.made[count:]

    @uncompiled
    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        before, self._ops.made = self._ops.made, []
        out = func(*args, **(kwargs or {}))
        made, self._ops.made = self._ops.made, []
        if func not in READS:
            self._is_told = self._is_told and not before and _is_torchs(func) and self._follows(made)
            self._calls.append(((func, args, kwargs or {}, out), made))
        return out

    def derived(self, key: Any, leaves: Sequence[Tensor], inside: Function, compute: Derivatives) -> Any:
        """Return the derivatives of a function inside, and take note of them as of two calls, see NOTE [calls].

        Args:
            key: What tells what is computed, but for tensors, from others; None if nothing does.
            leaves: The tensors to differentiate by, and operands.
            inside: Calls the function with such tensors, and returns a pair of which the first is to be differentiated.
            compute: Returns the derivatives, given what to call in its place, and whether they are computed so whatever
                the values.
        """
        outputs: list[tuple[list[Any], TreeSpec]] = []

        def noted(seen: Sequence[Tensor]) -> Any:
            self._note(Derived(key), leaves, [*seen])
            with self._back():
                result = inside(seen)
            outputs.append(tree_flatten(result[0]))
            return result

        with pop_function_mode_temporarily():
            self._is_told = self._is_told and key is not None and not self._ops.made
            result, is_same = compute(noted)
            self._is_told = self._is_told and is_same and len(outputs) == 1  # not called again, as where it asks
            (returned, nested), (found, spec) = outputs[-1], tree_flatten(result)
            self._note(Returned(nested), returned, Several(Nested(spec), (*found,)))
        return result

    @contextmanager
    def _back(self) -> Iterator[None]:
        """Take note of calls again, where it was taken off the stack of modes."""
        super().__enter__()
        try:
            yield
        finally:
            super().__exit__(None, None, None)

    def _note(self, function: Any, args: Sequence[Any], out: Any) -> None:
        """Take note of all ops since the last call as of one of what is not torch's."""
        made, self._ops.made = self._ops.made, []
        self._is_told = self._is_told and bool(made) and self._follows(made)
        self._calls.append(((function, (*args,), {}, out), made))

    def _follows(self, made: Sequence[Made]) -> bool:
        """Tell whether the ops of a call, and what they do, follow from the forms of what the call takes.

        If not, that has to show in the shape of what it returns.
        """
        return (
            torch.is_grad_enabled()
            and maybe_current_level() == self._level
            and not is_any_autocast_enabled()
            and all(
                isinstance(op, OpOverload)
                and not is_random(op, args, kwargs)
                and torch.Tag.data_dependent_output not in op.tags
                and (torch.Tag.dynamic_output_shape not in op.tags or place == len(made))
                for place, (op, args, kwargs, _) in enumerate(made, 1)
            )
        )

    def _derives(self) -> bool:
        """Tell whether derivatives were taken."""
        return any(type(function) is Derived for (function, *_), _ in self._calls)

    def _taken(self) -> Iterator[Tensor]:
        """Yield the tensors that transforms of hofunc took, of which calls of the function inside may return none."""
        for (function, *_), made in self._calls:
            for op in made if type(function) in (Derived, Returned) else ():
                yield from tensors_in((op[1],))

    def _leads_outside(self) -> bool:
        """Tell whether what autograd follows leads to inputs and captured tensors, and to none that was made."""
        return all(
            not any(tensor.requires_grad for tensor in tensors_in((out,)))
            or any(tensor.requires_grad for tensor in tensors_in((args, kwargs)))
            for (_, args, kwargs, out), _ in self._calls
        )

    def calls(
        self,
        graph: Graph,
        values: Sequence[Tensor],
        outputs: Sequence[Tensor],
        inputs: Sequence[Any],
        lifted: Mapping[int, Lifted] = MappingProxyType({}),
    ) -> Calls | None:
        """Return the calls of a recording; None if there is nothing to go by.

        Args:
            graph: What was recorded.
            values: The value of each of its nodes.
            outputs: What was returned.
            inputs: What is to be compared of the inputs.
            lifted: What stands for captured tensors that are inputs of the graph, by id.
        """
        if not self._is_told:
            return None
        pairs = [*zip(graph.nodes, values, strict=True)]
        wanted = [value for node, value in pairs if not _is_view(node)]
        seen = _Numbering(self._inputs, [*wanted, *self._taken()], lifted)
        try:
            steps = [seen.call(call, [(*each, held(out)) for *each, out in made]) for call, made in self._calls]
            returned = [seen.numbers[id(output)] for output in outputs]
        except (_UntoldError, KeyError):
            return None
        if any(tensor.is_complex() for tensor in seen.tensors) or not self._leads_outside():
            return None
        if self._derives() and any(tensor.requires_grad for tensor in seen.tensors):
            return None  # what is computed of a derivative by hofunc has other histories than its ops make
        numbers = [(node, seen.holder(value)) for node, value in pairs]
        if any(number is None and node.is_given for node, number in numbers):
            return None
        places = [(node.number, number) for node, number in numbers if number is not None]
        return Calls(graph, inputs, steps, returned, places)


class _OpNotes(UncompiledMode):
    """Takes note of ops.

    Attributes:
        made: The calls of these.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Made] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = executed(func, args, kwargs or {})
        self.made.append((func, args, kwargs or {}, unheld(out) if effects(func).makes else out))
        return out


def _is_view(node: Node) -> bool:
    """Tell whether the value of a node is a view, which takes next to nothing to make again."""
    return not node.is_given and effects(node.op).aliases


def _place_of(tensor: Tensor) -> tuple[Any, ...]:
    """Return what two tensors have in common that are the same memory, read in the same way."""
    return storage_key(tensor), layout_of(tensor), tensor.dtype


def _places_of(tensors: Sequence[Tensor]) -> Set[tuple]:
    """Return these of all tensors that are in memory."""
    return {_place_of(tensor) for tensor in tensors if _is_in_memory(tensor)}


def _is_in_memory(tensor: Tensor) -> bool:
    """Tell whether a tensor is an array of elements in memory."""
    return tensor.layout is torch.strided and not tensor.is_nested


def _is_torchs(function: Any) -> bool:
    """Tell whether a function is one of torch's own, which are no ops of others, and reads numbers by ops alone."""
    return (
        type(function) in _FUNCTIONS
        and function is not _READER
        and (getattr(function, "__module__", None) or "torch").split(".")[0] == "torch"
    )


class _Numbering:
    """Numbers tensors as they come along.

    Args:
        inputs: Those that are there first.
        wanted: What has to be seen.
        lifted: What stands for captured tensors that are inputs of the graph, by id.

    Attributes:
        tensors: The tensors.
        numbers: Their numbers, by id.
    """

    def __init__(self, inputs: Sequence[Tensor], wanted: Sequence[Tensor], lifted: Mapping[int, Lifted]):
        self._lifted = lifted
        self.tensors: list[Tensor] = []
        self.numbers: dict[int, int] = {}
        self._places: dict[tuple, int] = {}  # of what was not given
        self._storages: set[int] = set()  # the keys of the memory of all,
        self._given: set[int] = set()  # and of what was given, where another tensor may lie at the next call
        self._wanted, self._wanted_places = {*map(id, wanted)}, {*map(_place_of, wanted)}
        for tensor in inputs:
            self._enter(tensor, is_given=True)

    def _enter(self, tensor: Tensor, *, is_given: bool) -> int:
        self.numbers[id(tensor)] = number = len(self.tensors)
        self.tensors.append(tensor)
        storage = storage_key(tensor)
        self._storages.add(storage)
        if is_given:
            self._given.add(storage)
        elif storage not in self._given:
            self._places.setdefault(_place_of(tensor), number)
        return number

    def holder(self, value: Tensor) -> int | None:
        """Return the number of the tensor that holds a value, being that or what was made in its place; else None."""
        number = self.numbers.get(id(value))
        if number is None and storage_key(value) not in self._given:
            number = self._places.get(_place_of(value))
        return number

    def call(self, call: Made, made: Sequence[Made]) -> Call:
        """Return what stands for a call, given the ops inside of it."""
        function, args, kwargs, out = call
        known, given, others, named, before = [], [], [], [], len(self.tensors)
        rest: list[tuple[int | str, Any]] = []
        for at, arg in enumerate(args):
            each = self._of(arg, is_given=True)
            if type(each) is Seen and each.number < before:
                known.append((at, each.number))
            elif _is_told_by_equality(each):
                others.append((at, each.kind, arg))
            elif type(each) is Given and not rest:  # which are numbered before those in the rest
                given.append((at, each))
            else:
                rest.append((at, each))
        for name, value in kwargs.items():
            each = self._of(value, is_given=True)
            if _is_told_by_equality(each):
                named.append((name, each.kind, value))
            else:
                rest.append((name, each))
        self._check_written(made)
        is_derived = type(function) in (Derived, Returned)
        has_own = is_derived or (function is Tensor.__getitem__ and self._takes_more(made))
        inside = tuple([self._inside(*op, has_own) for op in made]) if has_own or self._hides(made, out) else ()
        result = self._returned(out) if is_derived else self._of(out, is_given=False)
        told = (*known,), (*given,), (*others,), (*named,), (*rest,)
        return Call(function, len(args), *told, (*kwargs,), result, inside)

    def _returned(self, out: Any) -> Several:
        """Return what stands for what hofunc returned, a list or the leaves of a tree, of tensors that came along."""
        kind, items = (out.kind, out.items) if type(out) is Several else (list, out)
        if any(id(tensor) not in self.numbers for tensor in tensors_in(items)):
            raise _UntoldError
        return Several(kind, tuple([self._of(item, is_given=False) for item in items]))

    def _check_written(self, made: Sequence[Made]) -> None:
        """Check that a call of such ops writes to nothing but what it has made itself."""
        written = {storage_key(tensor) for op in made for tensor in _written(*op)}
        if not written.isdisjoint(self._storages):
            raise _UntoldError

    def _takes_more(self, made: Sequence[Made]) -> bool:
        """Tell whether ops take more tensors than came along: those that torch makes of lists of indices."""
        known = {*self.numbers}
        for _, args, _, out in made:
            if not known.issuperset(map(id, tensors_in(args))):
                return True
            known.update(map(id, tensors_in((out,))))
        return False

    def _hides(self, made: Sequence[Made], out: Any) -> bool:
        """Tell whether a call of such ops computes what has to be seen and is not returned."""
        returned = tensors_in((out,))
        ids, places = {*map(id, returned)}, _places_of(returned)
        for *_, each in made:
            for tensor in tensors_in((each,)):
                if id(tensor) in ids or id(tensor) in self.numbers or not _is_in_memory(tensor):
                    continue
                if storage_key(tensor) in self._given:
                    is_hidden = id(tensor) in self._wanted
                else:
                    place = _place_of(tensor)
                    is_hidden = place in self._wanted_places and not (place in places or place in self._places)
                if is_hidden:
                    return True
        return False

    def _inside(
        self, op: OpOverload, args: tuple, kwargs: dict[str, Any], out: Any, may_be_own: bool = False
    ) -> Inside:
        """Return what stands for an op inside of a call, which may take what did not come along if that is the same."""
        own = [each for each in tensors_in(args) if id(each) not in self.numbers]
        if tensors_in((*kwargs.values(),)) or (own and not may_be_own):
            raise _UntoldError
        for each in own:
            self._of(each, is_given=True)
        stand = [(at, self._of(arg, is_given=True)) for at, arg in enumerate(args)]
        known = tuple([(at, each.number) for at, each in stand if type(each) is Seen])
        nested = tuple([(at, each) for at, each in stand if type(each) is Several and tensors_in(args[at])])
        new = tuple([place for place, tensor in enumerate(tensors_in((out,))) if id(tensor) not in self.numbers])
        for place in new:
            self._enter(tensors_in((out,))[place], is_given=False)
        runs, plain = QUICK.get(op) or kernel_of(op), tuple([None if tensors_in((arg,)) else arg for arg in args])
        return Inside(op, (*own,), runs, plain, kwargs, known, nested, new)

    def _of(self, value: Any, *, is_given: bool) -> Any:
        kind = type(value)
        if isinstance(value, Tensor):
            if id(value) in self.numbers:
                return Seen(self.numbers[id(value)])
            if kind not in PLAIN or value.layout is not torch.strided or value.is_nested or value.is_inference():
                raise _UntoldError
            number = self._enter(value, is_given=is_given)
            if id(value) in self._lifted:
                return self._lifted[id(value)]
            return Given(number, form_of(value), ref(value)) if is_given else New(tuple(value.shape), value.dtype)
        if kind in _SEQUENCES or kind is slice or kind.__module__ == "torch.return_types":
            return Several(kind, tuple([self._of(item, is_given=is_given) for item in parts(value)]))
        if kind in (float, complex):
            return Other(kind, exact(value))
        if kind not in _ATOMS:
            raise _UntoldError
        return Other(kind, value)


def _is_told_by_equality(each: Any) -> bool:
    """Tell whether what stands for an argument is of something that another of its type is, or is not, equal to."""
    return type(each) is Other and (each.kind in _ATOMS or (type(each.value) is float and each.value != 0))


def _written(op: OpOverload, args: tuple, kwargs: dict[str, Any], _: Any) -> list[Tensor]:
    """Return the tensors that an op writes to."""
    names, places = effects(op).writes, effects(op).places
    return tensors_in(
        [args[at] if at < len(args) else kwargs.get(name) for name, at in zip(names, places, strict=True)]
    )
