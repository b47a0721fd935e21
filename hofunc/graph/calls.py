"""The calls of torch's functions that a function makes, by which it is told that it comes to the same graph again.

NOTE [calls]: A tape sees ops from below, where each takes three times as long as it does by itself. What a function
does shows above as well: in the calls of torch's functions and methods, which a mode of these sees at a fraction of
that, and which are fewer. An op takes the same course wherever its arguments have the same forms and are the same but
for numbers in tensors. So where a function makes the very calls that it made before, of tensors of the same forms, its
graph is the one that was recorded then, and the values of nodes are what these calls return; those that only ops
inside of a call made are computed if they are asked for.

That holds as long as nothing is computed past these calls, by a transform inside the function, a script, an extension:
what they return would be taken for captured. So every tensor that a call takes has to be an input, to be returned by an
earlier call, to be an argument beside the inputs, to be the very object that was captured before, or to be reached by
the function before it is called. And where values
decide, in the middle of a call, which ops are made, where a call writes, or draws random numbers, where autocast casts
what ops inside of a call take, or where somebody follows what is done, there is nothing to go by. Where a function does
something else than expected, it is stopped, and recorded as ever.

A derivative that the function takes by a transform of hofunc shows as two calls: one up to where the function inside
is called, which is told by what is to be derived by what, and one from where that has returned, see `Derived`. Between
them are the calls of the function inside, and if these are the same, what the transform does is as well: the ops that
it made are made again, without recording, planning or assembling anything.

Under a transform of torch.func the function is recorded on stand-ins, see `hofunc.graph.standin`, and makes its calls
again on the tensors that these stand for, without any stand-in: what the calls return are the values of nodes then, as
if the graph had been replayed. What it captured of the transforms around it are other objects each time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hofunc.graph.captured import Captured, Given
from hofunc.graph.identity import PLAIN
from hofunc.graph.node import Graph, exact
from hofunc.graph.route import Other, Seen, Several
from hofunc.graph.standin import looks_of
from hofunc.graph.uncompiled import uncompiled
from hofunc.graph.values import Recomputed
from hofunc.internals import (
    OpOverload,
    TreeSpec,
    count_function_modes,
    function_modes,
    getter_of,
    is_any_autocast_enabled,
    pop_function_mode_temporarily,
    times_written,
)
from hofunc.trees import tree_flatten, tree_unflatten

# What returns no tensor, and leaves all as it is: nothing of it is part of a graph.
READS = {
    *(Tensor.dim, Tensor.size, Tensor.numel, Tensor.stride, Tensor.is_floating_point, Tensor.is_complex),
    *(Tensor.item, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.__len__),
    *map(getter_of, ("shape", "ndim", "dtype", "device", "layout", "itemsize")),
}


Function = Callable[[Sequence[Tensor]], Any]  # inside of a transform: of tensors as it sees these
Derivatives = Callable[[Function], tuple[Any, bool]]  # of what is called in its place, and whether whatever the values


class _LostError(BaseException):
    """A function does something else than is expected; no error that it might catch."""


class Lifted(NamedTuple):
    """Stands for a tensor that transforms of torch.func wrap, which the function captured, coming along first.

    Attributes:
        place: Its place among all of these.
        looks: What it looks like, see `hofunc.graph.standin.looks_of`.
    """

    place: int
    looks: Any


class New(NamedTuple):
    """Stands for a tensor that a call returned and that did not come along before."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Derived(NamedTuple):
    """A transform of hofunc as what is called, up to where it calls the function inside, with tensors as it sees these.

    Its arguments are the tensors to differentiate by, and operands.

    Attributes:
        key: What tells it, and the arguments but for tensors, from others.
    """

    key: Any


class Returned(NamedTuple):
    """The same from where the function inside has returned up to where it returns itself.

    Its arguments are the tensors that the function inside returned.

    Attributes:
        spec: How these were nested.
    """

    spec: TreeSpec


class Nested:
    """How what a transform returned is nested, as a kind of sequence.

    Args:
        spec: The structure of that.
    """

    def __init__(self, spec: TreeSpec):
        self.spec = spec

    def __call__(self, leaves: list[Tensor]) -> Any:
        """Return the pytree of such leaves."""
        return tree_unflatten(leaves, self.spec)


class Inside(NamedTuple):
    """An op inside of a call, which is made in its place where the values that it returns are those of nodes.

    Attributes:
        op: The op.
        own: Tensors that it takes of what a plan keeps, or that a list of indices became, which come along first.
        runs: What computes it.
        args: What stands for its positional arguments.
        kwargs: What it takes by name, which are no tensors.
        known: Which of its arguments are tensors that came along, and their numbers.
        nested: Which of them are sequences with such.
        new: Which of the tensors that it returns did not come along before.
    """

    op: OpOverload
    own: tuple[Tensor, ...]
    runs: Callable[..., Any]
    args: tuple
    kwargs: dict[str, Any]
    known: tuple[tuple[int, int], ...]
    nested: tuple[tuple[int, Any], ...]
    new: tuple[int, ...]

    def __call__(self, seen: Sequence[Tensor]) -> Any:
        """Return what it returns, given the tensors that came along."""
        args = [*self.args]
        for at, number in self.known:
            args[at] = seen[number]
        for at, each in self.nested:
            args[at] = _filled(each, seen)
        try:
            return self.runs(*args, **self.kwargs)
        except TypeError:  # it may take fewer forms of arguments than the op does
            return self.op(*args, **self.kwargs)


def _filled(each: Any, seen: Sequence[Tensor]) -> Any:
    """Return that for which something stands."""
    kind = type(each)
    if kind is Seen:
        return seen[each.number]
    return each.kind([_filled(item, seen) for item in each.items]) if kind is Several else each.value


class Call(NamedTuple):
    """A call that is expected.

    Attributes:
        function: What is called.
        arity: The number of its positional arguments.
        known: Which of these are tensors that came along before, and their numbers.
        given: Which are tensors that the function captured, coming along first, and their numbers.
        others: Which are no tensors, their types, and what they are.
        named: Likewise of its keyword arguments.
        rest: What stands for each of the others, by place or name.
        names: The names of its keyword arguments.
        result: What stands for what it returns.
        inside: The ops to make in its place, see `Inside`; none if it is called itself.
    """

    function: Any
    arity: int
    known: tuple[tuple[int, int], ...] = ()
    given: tuple[tuple[int, Given], ...] = ()
    others: tuple[tuple[int, type, Any], ...] = ()
    named: tuple[tuple[str, type, Any], ...] = ()
    rest: tuple[tuple[int | str, Any], ...] = ()
    names: tuple[str, ...] = ()
    result: Any = None
    inside: tuple[Inside, ...] = ()


_NO_CALL = Call(None, -1)


class Calls:
    """The calls of a recording, and where the values of its graph are to be found.

    Args:
        graph: The graph.
        inputs: What is compared of its inputs.
        steps: The calls.
        outputs: The numbers of the tensors that were returned.
        places: By node, the number of the tensor that holds its value, where one does.

    Attributes:
        graph: What was given, as the others are.
        computed: What computes the values of the other nodes.
        own: The tensors of plans that are taken.
        captured: What the function captured.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[Any],
        steps: Sequence[Call],
        outputs: Sequence[int],
        places: Sequence[tuple[int, int]],
    ):
        self.graph, self.inputs, self.outputs, self.places = graph, inputs, outputs, places
        self.steps = [*steps, _NO_CALL]
        self.computed = Recomputed(graph, frozenset(node for node, _ in places))
        derived = [step for step in steps if type(step.function) in (Derived, Returned)]
        self.own = [tensor for step in derived for op in step.inside for tensor in op.own]
        taken = (each for step in steps for _, each in (*step.given, *step.rest))
        self.captured = Captured([given for each in taken for given in _given(each)])

    def start_from(self, inputs: Sequence[Any]) -> bool:
        """Tell whether inputs are such as these calls were made of, given what is to be compared of each."""
        return inputs == self.inputs

    def made_again(
        self,
        inputs: Sequence[Tensor],
        others: Callable[[], Sequence[Any]],
        before: Mapping[int, Tensor],
        run: Callable[[], Any],
    ) -> tuple[Any, "Again"]:
        """Return what a function returns that makes these calls, and what went along, lost if it makes others.

        Args:
            inputs: The inputs, as the function sees them.
            others: Returns what the function is given beside.
            before: The tensors that it reaches before it is called, by id.
            run: Calls it.
        """
        again, result = Again(self, inputs, others, before), None
        try:
            with again:
                result = run()
        except (Exception, _LostError):  # it is called again, and fails again if not for want of a tape
            again.is_lost = True
        return result, again


class Again(TorchFunctionMode):
    """Compares calls of torch's functions with those that are expected.

    Args:
        calls: Those.
        inputs: The inputs, as the function sees them.
        others: Returns what the function is given beside.
        before: The tensors that it reaches before it is called, by id.

    Attributes:
        is_lost: Whether another call was made.
        met: The tensors that were met in the place of captured ones, and that the function reached before, by number.
        is_unknown: Whether one was met, of the form of a captured one, of which nobody knows where it is from.
        lifted: The tensors for which `Lifted` stand that came along, by place.
    """

    def __init__(
        self,
        calls: Calls,
        inputs: Sequence[Tensor],
        others: Callable[[], Sequence[Any]],
        before: Mapping[int, Tensor],
    ):
        super().__init__()
        self.is_lost = self.is_unknown = False
        self.met: dict[int, Tensor] = {}
        self.lifted: dict[int, Tensor] = {}
        self._before = before
        self._calls, self._steps, self._place = calls, calls.steps, 0
        self._seen = [*inputs]
        self._others = others
        self._captured = calls.captured.unchanged()
        self._times = sum(map(times_written, inputs))

    @uncompiled
    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def] # noqa: C901, PLR0912 - for speed
        step, seen = self._steps[self._place], self._seen
        function, arity, known, given, others, named, rest, names, result, inside = step  # faster than by their names
        if func is not function and (self.is_lost or func != function):
            if self.is_lost or func in READS:
                return func(*args, **kwargs) if kwargs else func(*args)
            self.lose()
        if len(args) != arity or is_any_autocast_enabled() or not torch.is_grad_enabled():
            self.lose()
        for at, number in known:
            if args[at] is not seen[number]:
                self.lose()
        for at, expected in given:
            captured = self._captured.get(expected.number)
            if captured is not None and args[at] is captured:
                self._number(captured)
            elif not self._is_met(expected, args[at]):
                self.lose()
        for at, kind, other in others:
            if type(args[at]) is not kind or args[at] != other:
                self.lose()
        if kwargs or names:
            if kwargs is None or (*kwargs,) != names:
                self.lose()
            for name, kind, other in named:
                if type(kwargs[name]) is not kind or kwargs[name] != other:
                    self.lose()
        for where, expected in rest:
            if not self._is_met(expected, args[where] if type(where) is int else kwargs[where]):
                self.lose()
        self._place += 1
        if inside:
            return self._made(step)
        out = func(*args, **kwargs) if kwargs else func(*args)
        if type(result) is New and type(out) is Tensor:
            shape, dtype = result
            if out.shape != shape or out.dtype is not dtype:
                self.lose()
            seen.append(out)
            self._times += times_written(out)
        elif not self._is_met(result, out):
            self.lose()
        return out

    def _made(self, step: Call) -> Any:
        """Return what a call returns, made op by op."""
        seen, before = self._seen, len(self._seen)
        for op in step.inside:
            seen += op.own
            out = op(seen)
            if type(out) is Tensor:
                seen += (out,) if op.new else ()
            else:
                seen += [out[place] for place in op.new]
        self._times += sum(map(times_written, seen[before:]))
        return _filled(step.result, seen)

    def derived(self, key: Any, leaves: Sequence[Tensor], inside: Function, compute: Derivatives) -> Any:
        """Return the derivatives of a function inside by the ops that are expected; see `CallNotes.derived`."""
        if self.is_lost:
            with pop_function_mode_temporarily():
                return compute(inside)[0]
        seen = self._made_of(Derived(key), leaves)
        leaves, spec = tree_flatten(inside(seen)[0])
        return self._made_of(Returned(spec), leaves)

    def _made_of(self, function: Derived | Returned, args: Sequence[Any]) -> Any:
        """Return what is made of some tensors by a call that is none of torch's."""
        expected = self._steps[self._place].function
        if expected != function:
            self.lose()
        with pop_function_mode_temporarily():
            return self.__torch_function__(expected, (), args)

    def _number(self, tensor: Tensor) -> None:
        self._seen.append(tensor)
        self._times += times_written(tensor)

    def lose(self) -> NoReturn:
        """Stop the function, which does something else than is expected."""
        self.is_lost = True
        raise _LostError

    def _is_met(self, expected: Any, value: Any) -> bool:
        """Tell whether something is what is expected, and number the tensors that are new."""
        kind = type(expected)
        if kind is Seen:
            return value is self._seen[expected.number]
        if kind is Several:
            if type(value) is not expected.kind:
                return False
            items = parts(value)
            return len(items) == len(expected.items) and all(map(self._is_met, expected.items, items))
        if kind is Other:
            return (
                type(value) is expected.kind
                and (exact(value) if expected.kind in (float, complex) else value) == expected.value
            )
        if kind is Given:
            is_met = type(value) in PLAIN and expected.form.is_of(value) and self._is_captured(expected.number, value)
        elif kind is Lifted:
            is_met = isinstance(value, Tensor) and self._was_there(value) and looks_of(value) == expected.looks
            self.lifted[expected.place] = value
        else:
            is_met = type(value) is Tensor and value.shape == expected.shape and value.dtype is expected.dtype
        if is_met:
            self._number(value)
        return is_met

    def _is_captured(self, number: int, value: Tensor) -> bool:
        """Tell whether a tensor was surely there before the function was called, in the place of a captured one."""
        if self._calls.captured.is_known(number, value) or any(value is other for other in self._others()):
            return True
        if self._before.get(id(value)) is value:
            self.met[number] = value
            return True
        self.is_unknown = True
        return False

    def _was_there(self, value: Any) -> bool:
        """Tell whether a tensor was there before the function was called, which it was given, or reaches."""
        return self._before.get(id(value)) is value or any(value is other for other in self._others())

    def held(self, outputs: Sequence[Tensor]) -> dict[int, Tensor] | None:
        """Return values of nodes, if all calls were made and these tensors are what was returned.

        The values of others are computed from these.
        """
        calls, seen = self._calls, self._seen
        is_over = self._place == len(self._steps) - 1 and len(outputs) == len(calls.outputs)
        if not is_over or any(
            output is not seen[number] for output, number in zip(outputs, calls.outputs, strict=True)
        ):
            return None
        if sum(map(times_written, seen)) != self._times:
            return None
        return {node: seen[number] for node, number in calls.places}


def _given(each: Any) -> Iterator[Given]:
    """Yield what stands for tensors that were captured in what stands for an argument."""
    if type(each) is Given:
        yield each
    elif type(each) is Several:
        for item in each.items:
            yield from _given(item)


def parts(value: Any) -> Sequence[Any]:
    """Return the parts of a sequence or a slice."""
    return (value.start, value.stop, value.step) if type(value) is slice else value


def stop_if_expected() -> None:
    """Stop a function that does what no call shows, if it was expected to make the calls that it made before."""
    for mode in function_modes() if count_function_modes() else ():
        if isinstance(mode, Again) and not mode.is_lost:
            mode.lose()
