"""What all transforms do: record, plan, run, assemble."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial, update_wrapper
from itertools import chain, product
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.compiler import is_dynamo_compiling, is_exporting

from hofunc import repeat
from hofunc.arguments import (
    Arguments,
    Variables,
    as_input,
    check_alone,
    check_aux,
    check_holomorphic,
    check_outputs,
    check_unlimited,
    split,
)
from hofunc.blockwise import with_names
from hofunc.chosen import Choice
from hofunc.complex_tensors import Blocks, is_complex, taken_apart
from hofunc.dynamo import derived, exported
from hofunc.given import refuse
from hofunc.graph.asking import may_repeat, recorded, source_of
from hofunc.graph.derivations import notes
from hofunc.graph.draws import drawn_again
from hofunc.graph.node import Graph
from hofunc.graph.record import recorded_again
from hofunc.graph.recording import Recording
from hofunc.graph.saving import unhooked
from hofunc.graph.uncollected import uncollected
from hofunc.graph.uncompiled import uncompiled
from hofunc.internals import TreeSpec, count_dispatch_modes, pop_function_mode_temporarily
from hofunc.methods import Method
from hofunc.plan.blueprint import Blueprint, Limits
from hofunc.plan.wanted import Wanted, blocks_of
from hofunc.run.evaluate import Evaluation, Run, evaluate
from hofunc.run.nest import nested
from hofunc.run.pieces import Piece, pieces_of
from hofunc.stream import Stream, identity_of, in_pieces, without_memory
from hofunc.strict import check_dependence
from hofunc.taps import Forms, Known, Tapping, counted_once, is_tapping
from hofunc.trees import tree_flatten, tree_unflatten
from hofunc.views import Emit

if TYPE_CHECKING:
    from hofunc.callable_plan import Plan
    from hofunc.taken import Request

Function = Callable[..., Any]


class Options(NamedTuple):
    """The checked options of a transform."""

    name: str
    argnums: Variables
    has_aux: bool
    compact: bool
    strategy: str
    limits: Limits
    out: Stream | None
    strict: bool
    holomorphic: bool
    parameters: tuple[str, ...] = ()
    chosen: Choice | None = None

    @property
    def taps(self) -> tuple[str, ...]:
        """The names of the taps among what is differentiated by."""
        variables = (self.argnums,) if isinstance(self.argnums, int | str) else self.argnums
        return tuple([each for each in variables if isinstance(each, str)])


class Transform(Method):
    """A function with the signature of f that computes derivatives of f, as the transforms return it.

    Args:
        f: The function.
        options: Those of the transform.
        orders: The orders to compute.
        choose: Given the value of f and the list of its derivatives of these orders, returns the result.
    """

    __name__: str
    _keywords: tuple[str, ...] = ()  # of arguments that are inputs as well, which f does not take

    def __init__(self, f: Function, options: Options, orders: tuple[int, ...], choose: Callable[[Any, list], Any]):
        self._f, self._options, self._orders, self._choose = f, options, orders, choose
        self._taps, self._known = options.taps, Known()
        self._told: tuple[Any, ...] = (type(self), options, orders, choose)  # from others, of whatever function
        update_wrapper(self, f, assigned=("__module__", "__name__", "__qualname__"), updated=())

    @uncompiled
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Record f at the arguments and return its derivatives; for errors see `hod`."""
        if is_dynamo_compiling():
            return derived(_of, ((self,), {}), self._f, args, kwargs)
        if is_exporting():
            return exported(self, args, kwargs)
        return self._call(args, kwargs)

    @uncollected
    def _call(self, args: tuple, kwargs: dict) -> Any:
        """Compute all derivatives, see above."""
        if not self._taps and not is_tapping():
            repeated = self._repeated(args, kwargs)
            return self._called(args, kwargs) if repeated is None else repeated[0]
        with counted_once():
            passed = self._passed(kwargs)
            return self._known.settled(self._options.name, args, passed, lambda: self._called(args, kwargs))

    def _called(self, args: tuple, kwargs: dict) -> Any:
        """Compute all derivatives, see above."""
        noted = notes()
        if noted is None:
            return self._computed(self._split(args, kwargs), kwargs=kwargs)[0]
        with pop_function_mode_temporarily():  # what is asked of tensors here is no call of what is recorded
            arguments = self._split(args, kwargs)
            key = self._key_of(arguments)
        inside = partial(arguments.called, self._outputs)
        return noted.derived(
            key,
            arguments.leaves,
            lambda leaves: inside(leaves, arguments.rest),
            lambda noted: self._computed(arguments, lambda leaves, _: noted(leaves)),
        )

    def _repeated(self, args: tuple, kwargs: dict) -> tuple[Any] | None:
        """Return what a call returns that repeats an earlier one, see NOTE [repeat] in `hofunc.repeat`; else None."""
        source = source_of(self._f)
        found = repeat.repeated(source, self._told, args, kwargs) if may_repeat(source) else None
        if found is None:
            return None
        known, arguments = found
        function = partial(arguments.called, self._outputs)
        recording = recorded_again(function, arguments.leaves, arguments.rest, known.trail)
        if recording is None:
            return None
        if recording.spec != known.spec:
            recording, evaluation = self._checked(recording, arguments, function)
        else:
            evaluation = self._evaluated_as(recording, arguments, known.outputs, known.wanted, self._options.limits)
        return (self._assembled(evaluation.values(), recording, arguments, evaluation),)

    def _computed(
        self,
        arguments: Arguments,
        function: Callable[..., Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[Any, bool]:
        """Compute all derivatives, and tell, if somebody takes note of it, whether they are so whatever the values.

        Args:
            arguments: Those of the call.
            function: Calls f with leaves and the other arguments, and takes note of it; None if nobody does.
            kwargs: The keyword arguments of the call, if others may repeat it.
        """
        out = self._options.out
        if out is not None:
            check_alone(self._options.name, "out", arguments.leaves)
        is_tight = (
            out is not None or self._options.limits.max_bytes is not None
        )  # so that f does not run beside results
        recording = self._recorded(arguments, watch=is_tight, bare=True, function=function)
        recording, evaluation = self._checked(recording, arguments, function)
        result = self._assembled(evaluation.values(), recording, arguments, evaluation)
        if kwargs is not None and not is_tight and recording.trail.calls is not None:
            self._keep(kwargs, arguments, recording, evaluation)
        return result, function is None or not (evaluation.plan.lowered.decided or evaluation.plan.goes_by_facts)

    def _keep(
        self, kwargs: Mapping[str, Any], arguments: Arguments, recording: Recording, evaluation: Evaluation
    ) -> None:
        """Keep a call for others that repeat it."""
        output, (_, returned) = tree_unflatten(recording.leaves, recording.spec)
        if returned is None:
            source, count = source_of(self._f), tree_flatten(output)[1].num_leaves
            told, names = self._told, self._keywords
            repeat.keep(source, told, names, kwargs, arguments, recording, count, evaluation.wanted)

    @uncollected
    def followed_by(self, args: tuple, kwargs: dict, given: "Callable[[Any], tuple[Transform, dict[str, Any]]]") -> Any:
        """Return what another transform of f returns, of one recording for both where that can be.

        Both differentiate by the same arguments, beside operands, of which f knows nothing.

        Args:
            args: Positional arguments of both.
            kwargs: Keyword arguments of this one.
            given: Returns the other one and its keyword arguments, given what this one returns.
        """
        is_seen = count_dispatch_modes() or notes() is not None
        if self._taps or is_tapping() or is_dynamo_compiling() or is_exporting() or is_seen:
            other, others = given(self(*args, **kwargs))
            return other(*args, **others)
        arguments = self._split(args, kwargs)
        recording = self._recorded(arguments, watch=False)
        kept = recording.copy()
        latest, evaluation = self._checked(recording, arguments)
        other, others = given(self._assembled(evaluation.values(), latest, arguments, evaluation))
        found = other._of(kept, arguments, args, others) if kept and latest is recording else None
        return other(*args, **others) if found is None else found

    def _of(self, recording: Recording, before: Arguments, args: tuple, kwargs: dict) -> Any:
        """Return the derivatives of what was recorded of f with other operands; None if that has to be done again."""
        arguments = self._split(args, kwargs)
        count = sum(spec.num_leaves for spec in arguments.specs)
        if any(old is not new for old, new in zip(before.leaves[:count], arguments.leaves[:count], strict=True)):
            return None
        recording = recording.exchanged(arguments.leaves, count)
        evaluation, source = self._evaluated(recording, arguments), source_of(self._f)
        if source not in evaluation.checked:
            if recording.asked is None:
                return None
            evaluation.checked.add(source)
        return self._assembled(evaluation.values(), recording, arguments, evaluation)

    def _recorded(
        self,
        arguments: Arguments,
        *,
        watch: bool,
        bare: bool = False,
        function: Callable[..., Any] | None = None,
    ) -> Recording:
        """Record f, or what calls it; for the other options see `hofunc.graph.asking.recorded`."""
        function = function or partial(arguments.called, self._outputs)
        return recorded(function, source_of(self._f), arguments.leaves, arguments.rest, watch=watch, bare=bare)

    def _checked(
        self, recording: Recording, arguments: Arguments, function: Callable[..., Any] | None = None
    ) -> tuple[Recording, Evaluation]:
        """Evaluate a recording, or another one if f was not watched as it has to be where it meets a new plan."""
        evaluation, source = self._evaluated(recording, arguments), source_of(self._f)
        if self._options.out is None and source not in evaluation.checked:
            if recording.asked is None:
                with unhooked(), drawn_again(arguments.leaves):
                    again = self._recorded(arguments, watch=True, function=function)
                if again.asked:
                    recording, evaluation = again, self._evaluated(again, arguments)
            evaluation.checked.add(source)
        return recording, evaluation

    def _key_of(self, arguments: Arguments) -> tuple[Any, ...] | None:
        """Return what tells from others what is computed of what f does; None if more than tensors takes part in it."""
        options = self._options
        is_more = options.has_aux or options.compact or options.out or options.strict or options.holomorphic
        if is_more or options.parameters or options.chosen or True in arguments.are_complex:
            return None
        return *self._told, arguments.form, arguments.variables, arguments.spec, arguments.specs

    def inputs(self, args: tuple) -> tuple:
        """Return the positional arguments of a call, with tensors for the numbers that it is differentiated by."""
        argnums, taken = self._options.argnums, list(args)
        for number in (argnums,) if isinstance(argnums, int | str) else argnums:
            if isinstance(number, int) and -len(args) <= number < len(args):
                leaves, spec = tree_flatten(args[number])
                taken[number] = tree_unflatten([*map(as_input, leaves)], spec)
        return tuple(taken)

    def tapped(self, name: str, args: tuple, kwargs: Mapping[str, Any]) -> Any:
        """Return what looks like what f taps by a name, of zeros, where it is called with some arguments."""
        return self._forms_of(args, kwargs)[name].change()

    def _forms_of(self, args: tuple, kwargs: Mapping[str, Any]) -> Forms:
        """Return the forms of what f taps, of which it is recorded to learn them if they are not known."""
        return self._known.of(args, passed := self._passed(kwargs), lambda: self._learnt(args, passed))

    def _passed(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments that f takes."""
        return {keyword: value for keyword, value in kwargs.items() if keyword not in self._keywords}

    @uncollected
    def pieces(self, *args: Any, **kwargs: Any) -> Iterator[Piece]:
        """Record f at the arguments and return an iterator over its dense derivatives, some coordinates at a time.

        What is held at once is one chunk, of chunk_size coordinates or of as many as max_bytes allows: a GiB if neither
        is given, or half of what is free if that is less. Derivatives that vanish are left out.

        Args:
            *args: Positional arguments of f.
            **kwargs: Keyword arguments of f.

        Returns:
            Iterator over every `hofunc.Piece`, which is computed when it is asked for.

        Raises:
            ArgumentError: As from a call; or the layout is compact, f returns complex tensors, or a transform of
                torch.func is running. So are the other errors.

        Cost:
            As of a call; a piece takes what a product of the derivative with a vector takes, for each coordinate.
        """
        options, arguments = self._options, self._split(args, kwargs)
        check_alone(options.name, "pieces", arguments.leaves)
        call = (arguments.leaves, arguments.rest)
        recording = recorded(partial(arguments.called, self._outputs), source_of(self._f), *call, watch=True)
        if tree_unflatten(recording.leaves, recording.spec)[1][1] is not None:
            refuse(options.name, "pieces", "a complex output of f", "real ones", "Return torch.view_as_real(y).")
        limits, taken = in_pieces(options.limits, arguments.leaves[0].device), []

        def take(made: Blueprint, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            taken.append((made, values))
            return []

        self._evaluated(recording, arguments, limits, take)
        return (piece for _, pieces in pieces_of(*taken[0]) for piece in pieces)

    def _joint_bytes(self, outputs: Any, arguments: Arguments) -> int:
        """Return the bytes of the results that are put together from those of the parts of complex outputs."""
        inputs, wanted = arguments.leaves, self._wanted(None, arguments)
        blocks = chain(*(blocks_of(wanted, order, len(inputs)) for order in self._orders))
        entries = sum(prod(inputs[number].numel() for number in block) for block in blocks)
        return entries * sum(output.nbytes for output in tree_flatten(outputs)[0] if output.is_complex())

    def _put_together(
        self,
        emit: Emit,
        parts: Sequence[Sequence[Any]],
        outputs: Sequence[torch.Tensor],
        values: Sequence[Any],
        arguments: Arguments,
    ) -> list[list[Any]]:
        """Put together dense derivatives by parts, given in a list for every order."""
        inputs, wanted = arguments.leaves, self._wanted(None, arguments)
        orders = [
            [*product(range(len(outputs)), blocks_of(wanted, order, len(inputs)))]  # what each is a derivative of
            for order in self._orders
        ]
        found = dict(zip(chain.from_iterable(orders), chain.from_iterable(parts), strict=True))
        forms = [(leaf.dim() + leaf.is_complex(), leaf.is_complex()) for leaf in outputs]
        name = self._options.name if self._options.holomorphic else None
        dims = [each.dim() for each in inputs]
        blocks = Blocks(emit, lambda output, slots: found[output, tuple(slots)], values, forms, dims, name)
        return [[blocks.block(output, slots) for output, slots in order] for order in orders]

    def _nested(self, parts: Sequence[Sequence[Any]], spec: TreeSpec, arguments: Arguments) -> list[Any]:
        """Nest the blocks of every order, given the structure of what f returned."""
        orders = zip(parts, self._orders, strict=True)
        if self._options.chosen is None:
            return [nested(blocks, [spec, *[arguments.spec] * order]) for blocks, order in orders]
        asked = self._options.chosen.asked(arguments)
        return [asked.nested(blocks, order, spec) for blocks, order in orders]

    @uncollected
    def plan(self, *args: Any, **kwargs: Any) -> "Plan":
        """Record f at the arguments and return a plan that computes its derivatives without recording it again.

        Args:
            *args: Positional arguments of f; of their tensors, and of those of keyword arguments, only the shapes,
                dtypes and devices will matter, unless f branches on values.
            **kwargs: Keyword arguments of f.

        Returns:
            `hofunc.Plan`, to be called with arguments that differ only in the values of tensors.

        Raises:
            ArgumentError: As from a call; or a transform of torch.func is running. So are the other errors.

        Cost:
            A call of f and the planning: milliseconds to seconds, and nothing is taken from the cache of plans.
            A call of the plan costs its steps and about 2 microseconds.

        Example:
            >>> plan = hofunc.hessian(lambda x, w: (w * x.exp()).sum()).plan(torch.zeros(2), torch.ones(2))
            >>> plan(torch.zeros(2), torch.tensor([1.0, 3.0]))
            tensor([[1., 0.],
                    [0., 3.]])
        """
        return self.plan_of(args, kwargs)

    def plan_of(
        self, args: tuple, kwargs: dict, *, by_indices: bool = False, for_all: bool = True, quick: bool = False
    ) -> "Plan":
        """Return a plan, as `plan` does.

        Args:
            args: As of a call.
            kwargs: Likewise.
            by_indices: Whether it may go by the values of integers among the arguments.
            for_all: Whether it may not refuse other indices where it goes by none.
            quick: Whether to plan by the strategies alone that are likely to be the fastest.
        """
        from hofunc.freeze import check_values  # noqa: PLC0415 - few transforms are planned for other calls

        check_values(self._options.name, args, kwargs)

        def planned() -> "Plan":
            return self.planned(args, kwargs, by_indices=by_indices, for_all=for_all, quick=quick)

        with counted_once():
            return self._known.settled(self._options.name, args, self._passed(kwargs), planned)

    def planned(
        self, args: tuple, kwargs: dict, *, by_indices: bool = False, for_all: bool = True, quick: bool = False
    ) -> "Plan":
        """Return a plan, as `plan_of`, for tensors that may have no elements and a function that taps nothing new."""
        from hofunc.freeze import freeze  # noqa: PLC0415 - likewise

        name, requested = f"{self._options.name}({_name(self._f)})", self._requested(args, kwargs)
        return freeze(name, *requested, by_indices=by_indices, for_all=for_all, quick=quick)

    def graph(self, args: tuple, kwargs: dict) -> Graph:
        """Return the graph of which `planned` makes a plan."""
        from hofunc.freeze import graph_of  # noqa: PLC0415 - likewise

        return graph_of(*self._requested(args, kwargs))

    def _requested(self, args: tuple, kwargs: dict) -> tuple["Request", tuple, dict]:
        """Return what is asked of a plan, and its arguments."""
        from hofunc.taken import Request  # noqa: PLC0415 - likewise

        options = self._options
        if options.out is not None:
            refuse(options.name, "out", "a plan", "a call", "Call the transform itself.")
        arguments = self._split(args, kwargs)

        def assemble(values: Sequence[Any], recording: Recording, evaluation: Evaluation) -> Any:
            return self._assembled(values, recording, arguments, evaluation)

        request = Request(
            options.name,
            self._f,
            self._outputs,
            arguments,
            self._keywords,
            lambda given: self._wanted(differentiated(given), arguments),
            options.compact,
            options.strategy,
            options.limits,
            assemble,
        )
        inputs, _ = arguments.joined(arguments.leaves, arguments.rest)
        return request, tuple(inputs), kwargs

    def of(self, f: Function) -> "Transform":
        """Return the same transform of another function, which takes and returns what f does."""
        other = copy(self)
        other._f = f
        return other

    def in_graph(self, count: int) -> tuple[Sequence[str], list[int], bool]:
        """Return the keywords that f does not take, by which of so many arguments to differentiate, if within a memory.

        Raises:
            ArgumentError: It is no graph: it is differentiated by what it taps, or returns what is no tensor.
        """
        for is_asked, what in ((self._taps, f"wrt={self._taps}"), (self._options.compact, "layout='compact'")):
            if is_asked:
                expected, remedy = "derivatives by arguments, as tensors", "Call it outside of what is compiled."
                refuse(self._options.name, f"{what} in a graph of torch.compile", "no graph", expected, remedy)
        argnums = self._options.argnums
        numbers = (argnums,) if isinstance(argnums, int) else argnums
        places = [number % count for number in numbers if isinstance(number, int)]
        return self._keywords, places, self._options.limits.max_bytes is not None

    def _evaluated(
        self, recording: Recording, arguments: Arguments, limits: Limits | None = None, run: Run | None = None
    ) -> Evaluation:
        """Compute the derivatives of what was recorded, or let them be computed by what is given to run the plan."""
        options, given = self._options, tree_unflatten(recording.leaves, recording.spec)
        (output, (_, returned)), out = given, options.out
        count = tree_flatten(output)[1].num_leaves
        limits = limits or options.limits
        if out is not None and run is None:
            limits = out.limits(options.limits, arguments.leaves[0].device)
            run = partial(out.written, identity_of(f"{options.name} of {_name(self._f)}", recording))
        if limits.max_bytes is not None and returned is not None and not options.compact:
            limits = limits._replace(made_after=self._joint_bytes(returned, arguments))
        wanted = self._wanted(differentiated(given), arguments)
        evaluation = self._evaluated_as(recording, arguments, count, wanted, limits, run)
        return evaluation if out is None else evaluation._replace(emit=without_memory)

    def _evaluated_as(
        self,
        recording: Recording,
        arguments: Arguments,
        count: int,
        wanted: Wanted,
        limits: Limits,
        run: Run | None = None,
    ) -> Evaluation:
        """Compute what is wanted of so many tensors that were returned, likewise."""
        options, inputs = self._options, arguments.leaves
        how: Any = {"compact": options.compact, "strategy": options.strategy}
        return evaluate(recording, inputs, count, wanted, limits=limits, run=run, **how)

    def _wanted(self, _output: Any, arguments: Arguments) -> Wanted:
        """Return what is asked for, given what f returned to be differentiated, and what it was called with."""
        chosen = self._options.chosen
        return self._orders if chosen is None else chosen.asked(arguments).wanted

    def _split(self, args: tuple, kwargs: dict) -> Arguments:
        """Take the arguments of a call apart, and check them."""
        options = self._options
        forms = self._forms_of(args, kwargs) if self._taps else {}
        arguments = self._split_by(args, kwargs, {name: form.change() for name, form in forms.items()})
        if options.holomorphic:
            check_holomorphic(options.name, "an input to differentiate by", arguments.leaves, arguments.are_complex)
        return arguments

    def _split_by(self, args: tuple, kwargs: dict, changes: Mapping[str, Any]) -> Arguments:
        """Take the arguments of a call apart, and the changes of what is tapped."""
        options = self._options
        return split(options.name, args, kwargs, options.argnums, changes, options.parameters)

    def _learnt(self, args: tuple, kwargs: dict) -> Forms:
        """Record f to learn the forms of what it taps."""
        arguments = Transform._split_by(self, args, kwargs, dict.fromkeys(self._taps, ()))
        runs: list[Tapping | None] = []

        def function(leaves: Sequence[torch.Tensor], rest: tuple[tuple, dict]) -> Any:
            args, kwargs = arguments.joined(leaves, rest)
            with arguments.tapped(None) as run:
                runs.append(run)
                return self._outputs(*args, **kwargs)

        with drawn_again(arguments.leaves):
            recorded(function, source_of(self._f), arguments.leaves, arguments.rest)
        return {} if runs[-1] is None else runs[-1].forms

    def _outputs(self, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, Any]]:
        """Return what is differentiated of what f returns, aux, and what f returned if it has complex tensors."""
        options, result = self._options, self._f(*args, **kwargs)
        output, aux = check_aux(options.name, result) if options.has_aux else (result, None)
        leaves = tree_flatten(output)[0]
        some_are_complex = check_outputs(options.name, output, leaves)
        if options.holomorphic:
            check_holomorphic(options.name, "an output of f", leaves, [*map(is_complex, leaves)])
        if not some_are_complex:
            return output, (aux, None)
        if options.out is not None:
            refuse(options.name, "out", "a complex output of f", "real ones", "Return torch.view_as_real(y).")
        if options.holomorphic:
            check_unlimited(options.name, options.limits.max_bytes)
        return taken_apart(output), (aux, output)

    def _assembled(
        self, tensors: Sequence[Any], recording: Recording, arguments: Arguments, evaluation: Evaluation
    ) -> Any:
        """Nest the result, given the tensors that f returned."""
        value, (aux, returned) = recording.returned_with(tensors)
        spec = tree_flatten(value)[1]
        if self._options.strict:
            check_dependence(self._options.name, value, arguments.names(), self._orders, evaluation)
        listed: Callable[[int], Sequence[Any]] = evaluation.compact if self._options.compact else evaluation.dense
        blocks: Sequence[Sequence[Any]] = [listed(order) for order in self._orders]
        if returned is not None and not self._options.compact:
            outputs = tree_flatten(tree_unflatten(recording.leaves, recording.spec)[1][1])[0]
            blocks = self._put_together(evaluation.emit, blocks, outputs, tensors, arguments)
        elif True in arguments.are_complex and not self._options.compact:  # so that view_as_complex takes the last axis
            blocks = [[evaluation.emit(torch.Tensor.contiguous, block) for block in order] for order in blocks]
        computed = self._nested(blocks, spec, arguments)
        if self._options.compact:
            found = zip(computed, blocks, strict=True)
            computed = [with_names(tree, spec, arguments) if of else tree for tree, of in found]
        chosen = self._choose(value if returned is None else returned, computed)
        return (chosen, aux) if self._options.has_aux else chosen


def differentiated(given: tuple[Any, tuple[Any, Any]]) -> Any:
    """Return what f returned to be differentiated, with complex tensors as they were, given all that is recorded."""
    value, (_, returned) = given
    return value if returned is None else returned


def _of(f: Function, transform: Transform) -> Transform:
    return transform.of(f)


def _name(f: Function) -> str:
    return getattr(f, "__name__", type(f).__name__)
