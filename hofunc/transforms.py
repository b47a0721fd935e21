"""The transforms: validate, record, plan, run, assemble."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, update_wrapper
from itertools import chain, product
from typing import Any, NamedTuple

import torch

from hofunc.arguments import (
    Arguments,
    Variables,
    check_alone,
    check_aux,
    check_holomorphic,
    check_limits,
    check_out,
    check_outputs,
    check_transform,
    check_unlimited,
    named_variables,
    refuse,
    split,
)
from hofunc.callable_plan import Plan
from hofunc.chosen import BlocksAsked, Choice, GroupsAsked, Which, checked
from hofunc.complex_tensors import Blocks, is_complex, taken_apart
from hofunc.freeze import Request, freeze
from hofunc.graph.asking import recorded, source_of
from hofunc.graph.draws import drawn_again
from hofunc.graph.record import Recording
from hofunc.graph.uncollected import uncollected
from hofunc.internals import TreeSpec
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

Function = Callable[..., Any]
Argnums = int | Sequence[int]
Names = str | Sequence[str] | None


def hod(
    f: Function,
    order: int = 2,
    argnums: Argnums = 0,
    *,
    wrt: Names = None,
    has_aux: bool = False,
    layout: str = "dense",
    strategy: str = "auto",
    chunk_size: int | None = None,
    max_bytes: int | None = None,
    out: Stream | None = None,
    strict: bool = False,
    holomorphic: bool = False,
    blocks: BlocksAsked = "all",
    groups: GroupsAsked | None = None,
) -> "Transform":
    """Return a function that computes the exact derivative of f of the given order.

    f is recorded at every call, so that it may branch on values; the plan made from the recording is kept and used
    again for every recording of the same structure. The result is differentiable by autograd and under torch.func.

    Args:
        f: Pure function of tensors. With an output of shape (*out) and args[argnums] of shape (*in), the derivative
            has shape (*out, *in, *in, ...), with (*in) order times. Outputs and arguments may be pytrees.
        order: How often to differentiate, at least 1.
        argnums: The positional argument to differentiate by, or a tuple of several; a float or complex number in one
            is passed on as the tensor of torch's default dtype that it stands for. Other arguments and keyword
            arguments are passed on as they are. By a complex tensor f is differentiated by parts: (*in) is then
            (*in, 2), the real part and the imaginary part.
        wrt: In place of argnums, the name of a parameter of f that is passed by position, or one that f gives to an
            intermediate value by `hofunc.tap`, or a tuple of several. A derivative by a tap is that by a change of what
            the tap returns, and one by an argument, or by a tap that others follow, is by all that depends on it, the
            taps that follow included: of ``y = g(x, tap("h", h(x)))`` that by x is dy/dx, and that by h is dg/dh, as
            from ``torch.autograd.grad(y, (x, h))``, and so on at higher orders, by independent changes of both.
        has_aux: Whether f returns a pair of which only the first is differentiated.
        layout: ``"dense"`` for tensors, or ``"compact"`` for a `hofunc.Derivative` in place of each.
        strategy: The direction in which derivatives are propagated: ``"reverse"`` eliminates nodes from the output to
            the input, ``"forward"`` propagates Taylor polynomials from the input to the output, ``"mixed"`` does so up
            to the order below and takes the highest by one adjoint pass; ``"auto"`` plans all and takes the cheapest.
            To measure what optimisations are worth, there is ``"reverse-without-batch"``, which makes every block
            dense, ``"reverse-without-schwarz"``, which computes every order of the slots, and
            ``"reverse-without-either"``; no other use is served by them.
        chunk_size: How many rows, along the first axis of the input, to run at a time, for a function that treats rows
            independently. For a dense layout of any other, of how many coordinates of an input, in the first slot, to
            compute derivatives at a time, as ``torch.func.jacfwd`` has it. None for as many as are fastest.
        max_bytes: How much memory a call, or one of a plan, may hold at once: the values of f, what is computed of
            them, and the results. Rows, or else coordinates, are run in chunks that keep to it, and nothing is computed
            if none do. What autograd keeps for a backward pass comes on top; under it, forward-mode AD and transforms
            of torch.func the results of chunks are held twice, and vmap takes all of it once for every member; f may
            not return complex tensors. None for what is free where f runs, beyond which nothing is computed either.
        out: A `hofunc.Stream` to write dense derivatives to as they are computed, for those larger than memory; then
            max_bytes bounds what is held beside them. Not for complex outputs of f, plans, nor under transforms.
        strict: Whether a derivative that is zero whatever the values, since an output, or a derivative of lower order,
            does not depend on an input, is an error.
        holomorphic: Whether f is a holomorphic function of complex tensors, of which to return complex derivatives of
            shape (*out, *in, *in, ...); derivatives of all orders up to the given one are then checked to have those.
        blocks: Which blocks of the derivative to compute, and nothing else; see docs/blocks.md. A block is the
            derivative by one choice of tensors for the slots. ``"all"``; ``"diagonal"``, those by one tensor alone; or
            a list of tuples of order many entries, such as ``[("w", "w"), ("w", "b")]``. An entry is the number of a
            positional argument as in argnums, a name as in wrt, a key, or a tuple of these, a path such as
            ``("layers", 0, "w")`` or ``(0, "w")``; it stands for all tensors below it. A path that begins with neither
            a number nor a name in wrt lies in the only argument that has it.
        groups: In place of blocks, a list of groups of entries, such as ``[["w", "b"], ["v"]]``: the blocks whose slots
            are all of one group.

    Returns:
        Function with f's signature. Its result nests as that of order nested ``torch.func.jacrev`` does: the
        structure of the output, in it that of the arguments for the first slot, in that for the second, and so on;
        a pair with what f returned beside it if has_aux. In the structure of the output there is, for
        ``blocks="diagonal"``, that of the arguments once; for a list of blocks a tuple of them, each nested by the
        structures of its entries in turn; and for groups a tuple too, of what argnums=group would give. Blocks that
        are equal by Schwarz's theorem, up to the order of their slots, share memory. Dtype and device are those of the
        output, but a compact derivative of a complex one is that of its parts, a real tensor of shape (*out, 2).
        Tensors are of no subclass. Under vmap f draws random numbers as the randomness of the vmap says.

    Raises:
        ArgumentError: An argument is not as described, f returns anything but floating-point or complex tensors, an
            input has more directions than the strategy that is asked for can take, the limits cannot be kept to, an
            output does not depend on an input and strict forbids it, an entry of blocks or groups names nothing or is
            not clear, or f has no complex derivative and holomorphic asks for it.
        MutationError: f writes to an input or to a captured tensor.
        BranchError: f branches on a value that an outer vmap batches.
        UntracedError: f uses a custom autograd.Function, a hook, or torch.autograd.grad without create_graph, or a
            tensor that is sparse, nested, or of a class with a __torch_dispatch__ of its own.
        UnsupportedOpError: f calls an op that can neither be differentiated by a rule nor by the fallback.

    Cost:
        One call of f with about 10 microseconds more per op, and the steps of the plan. For f from (N, d) to a scalar
        or to (N,) that treats rows independently, the compact result takes O(N d^order) memory.

    Source:
        The composition is Algorithms 1 and 3 of the thesis of THOAD (Montes Lorenzo, 2025), on labelled terms.

    Example:
        >>> hofunc.hod(lambda x: x**3, order=3)(torch.tensor(2.0))
        tensor(6.)
        >>> hofunc.hod(lambda w, x: (w @ x).exp(), argnums=(0, 1))(torch.zeros(2), torch.ones(2))[0][1]
        tensor([[1., 0.],
                [0., 1.]])
        >>> by_each = hofunc.hod(lambda p: (p["w"].square() * p["b"].exp()).sum(), blocks="diagonal")
        >>> by_each({"w": torch.ones(2), "b": torch.tensor(0.0)})
        {'w': tensor([[2., 0.],
                [0., 2.]]), 'b': tensor(2.)}
    """
    limits, which = Limits(chunk_size, max_bytes), Which(blocks, groups)
    options = _checked(
        "hod", f, order, argnums, wrt, has_aux, layout, strategy, limits, out, strict, holomorphic, which
    )
    return Transform(f, options, _orders(order, options), _highest)


def derivatives(
    f: Function,
    order: int = 2,
    argnums: Argnums = 0,
    *,
    wrt: Names = None,
    has_aux: bool = False,
    layout: str = "dense",
    strategy: str = "auto",
    chunk_size: int | None = None,
    max_bytes: int | None = None,
    out: Stream | None = None,
    strict: bool = False,
    holomorphic: bool = False,
    blocks: BlocksAsked = "all",
    groups: GroupsAsked | None = None,
) -> "Transform":
    """Return a function that computes f and its derivatives of every order up to the given one, from one recording.

    Args:
        f: As for `hod`.
        order: The highest order, at least 1.
        argnums: As for `hod`.
        wrt: As for `hod`.
        has_aux: As for `hod`.
        layout: As for `hod`.
        strategy: As for `hod`.
        chunk_size: As for `hod`.
        max_bytes: As for `hod`.
        out: As for `hod`.
        strict: As for `hod`.
        holomorphic: As for `hod`.
        blocks: As for `hod`, but a tuple may have any number of entries from one to order: each order has the blocks
            with as many.
        groups: As for `hod`.

    Returns:
        Function with f's signature; its result is the tuple (value, derivative of order 1, ..., of the given order),
        each derivative as from `hod`, or a pair of that tuple and aux.

    Raises:
        ArgumentError: As for `hod`, as are the other errors.

    Cost:
        That of `hod` of the highest order, and what only the lower ones need.

    Example:
        >>> value, slope, curvature = hofunc.derivatives(torch.sin, order=2)(torch.tensor(0.0))
        >>> value, slope, curvature
        (tensor(0.), tensor(1.), tensor(-0.))
    """
    limits, which = Limits(chunk_size, max_bytes), Which(blocks, groups)
    options = _checked(
        "derivatives", f, order, argnums, wrt, has_aux, layout, strategy, limits, out, strict, holomorphic, which
    )
    return Transform(f, options, tuple(range(1, order + 1)), lambda value, computed: (value, *computed))


def jacobian(
    f: Function,
    argnums: Argnums = 0,
    *,
    wrt: Names = None,
    has_aux: bool = False,
    layout: str = "dense",
    strategy: str = "auto",
    chunk_size: int | None = None,
    max_bytes: int | None = None,
    out: Stream | None = None,
    strict: bool = False,
    holomorphic: bool = False,
    blocks: BlocksAsked = "all",
    groups: GroupsAsked | None = None,
) -> "Transform":
    """Return a function that computes the Jacobian of f: `hod` of order 1, with the same arguments and errors.

    Example:
        >>> hofunc.jacobian(lambda x: x**2)(torch.tensor([1.0, 2.0]))
        tensor([[2., 0.],
                [0., 4.]])
    """
    limits, which = Limits(chunk_size, max_bytes), Which(blocks, groups)
    options = _checked(
        "jacobian", f, 1, argnums, wrt, has_aux, layout, strategy, limits, out, strict, holomorphic, which
    )
    return Transform(f, options, (1,), _highest)


def hessian(
    f: Function,
    argnums: Argnums = 0,
    *,
    wrt: Names = None,
    has_aux: bool = False,
    layout: str = "dense",
    strategy: str = "auto",
    chunk_size: int | None = None,
    max_bytes: int | None = None,
    out: Stream | None = None,
    strict: bool = False,
    holomorphic: bool = False,
    blocks: BlocksAsked = "all",
    groups: GroupsAsked | None = None,
) -> "Transform":
    """Return a function that computes the Hessian of f: `hod` of order 2, with the same arguments and errors.

    Example:
        >>> hofunc.hessian(lambda x: x.prod())(torch.tensor([1.0, 2.0, 3.0]))
        tensor([[0., 3., 2.],
                [3., 0., 1.],
                [2., 1., 0.]])
    """
    limits, which = Limits(chunk_size, max_bytes), Which(blocks, groups)
    options = _checked(
        "hessian", f, 2, argnums, wrt, has_aux, layout, strategy, limits, out, strict, holomorphic, which
    )
    return Transform(f, options, _orders(2, options), _highest)


def _highest(_: Any, computed: list) -> Any:
    """Return the derivative of the highest order alone."""
    return computed[-1]


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


def _checked(
    name: str,
    f: Function,
    order: int,
    argnums: Argnums,
    wrt: Names,
    has_aux: bool,
    layout: str,
    strategy: str,
    limits: Limits,
    out: Stream | None,
    strict: bool,
    holomorphic: bool,
    which: Which,
) -> Options:
    check_transform(name, f, order, argnums, layout, strategy, holomorphic)
    check_out(name, out, layout)
    check_limits(name, limits.chunk_size, limits.max_bytes)
    variables, parameters = (argnums, ()) if wrt is None else named_variables(name, f, wrt, argnums)
    chosen = checked(name, which, order, all_orders=name == "derivatives", orders_below=holomorphic)
    is_compact = layout == "compact"
    return Options(name, variables, has_aux, is_compact, strategy, limits, out, strict, holomorphic, parameters, chosen)


def _orders(order: int, options: Options) -> tuple[int, ...]:
    """Return the orders to compute for the highest: all if they are to be checked."""
    return tuple(range(1, order + 1)) if options.holomorphic else (order,)


class Transform:
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
        self._known = Known()
        update_wrapper(self, f, assigned=("__module__", "__name__", "__qualname__"), updated=())

    @uncollected
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Record f at the arguments and return its derivatives; for errors see `hod`."""
        if not self._options.taps and not is_tapping():
            return self._called(args, kwargs)
        with counted_once():
            return self._known.settled(self._options.name, args, kwargs, lambda: self._called(args, kwargs))

    def _called(self, args: tuple, kwargs: dict) -> Any:
        """Compute all derivatives, see above."""
        arguments = self._split(args, kwargs)
        function = partial(arguments.called, self._outputs)
        call, source = (arguments.leaves, arguments.rest), source_of(self._f)
        out = self._options.out
        if out is not None:
            check_alone(self._options.name, "out", arguments.leaves)
        recording = recorded(function, source, *call, watch=out is not None)
        evaluation = self._evaluated(recording, arguments)
        if out is None and source not in evaluation.checked:
            if recording.asked is None:
                with drawn_again(arguments.leaves):
                    again = recorded(function, source, *call, watch=True)
                if again.asked:
                    recording, evaluation = again, self._evaluated(again, arguments)
            evaluation.checked.add(source)
        return self._assembled([_value(tensor) for tensor in evaluation.tensors], recording, arguments, evaluation)

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
    def plan(self, *args: Any, **kwargs: Any) -> Plan:
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
        with counted_once():
            return self._known.settled(self._options.name, args, kwargs, lambda: self._planned(args, kwargs))

    def _planned(self, args: tuple, kwargs: dict) -> Plan:
        """Return a plan, see above."""
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
            lambda output: self._wanted(output, arguments),
            options.compact,
            options.strategy,
            options.limits,
            assemble,
        )
        name = f"{options.name}({_name(self._f)})"
        inputs, _ = arguments.joined(arguments.leaves, arguments.rest)
        return freeze(name, request, tuple(inputs), kwargs)

    def _evaluated(
        self, recording: Recording, arguments: Arguments, limits: Limits | None = None, run: Run | None = None
    ) -> Evaluation:
        """Compute the derivatives of what was recorded, or let them be computed by what is given to run the plan."""
        options, (output, _) = self._options, tree_unflatten(recording.leaves, recording.spec)
        count, out = tree_flatten(output)[1].num_leaves, options.out
        if out is not None and run is None:
            limits = out.limits(options.limits, arguments.leaves[0].device)
            run = partial(out.written, identity_of(f"{options.name} of {_name(self._f)}", recording))
        evaluation = evaluate(
            recording,
            arguments.leaves,
            count,
            self._wanted(output, arguments),
            compact=options.compact,
            strategy=options.strategy,
            limits=limits or options.limits,
            run=run,
        )
        return evaluation if out is None else evaluation._replace(emit=without_memory)

    def _wanted(self, _output: Any, arguments: Arguments) -> Wanted:
        """Return what is asked for, given what f returned to be differentiated, and what it was called with."""
        chosen = self._options.chosen
        return self._orders if chosen is None else chosen.asked(arguments).wanted

    def _split(self, args: tuple, kwargs: dict) -> Arguments:
        """Take the arguments of a call apart, and check them."""
        options = self._options
        forms = self._known.of(args, kwargs, lambda: self._learnt(args, kwargs)) if options.taps else {}
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
        arguments = self._split_by(args, kwargs, dict.fromkeys(self._options.taps, ()))
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
        some_are_complex = check_outputs(options.name, leaves)
        if options.holomorphic:
            check_holomorphic(options.name, "an output of f", leaves, [*map(is_complex, leaves)])
        if not some_are_complex:
            return output, (aux, None)
        if options.out is not None:
            refuse(options.name, "out", "a complex output of f", "real ones", "Return torch.view_as_real(y).")
        if not options.compact:
            check_unlimited(options.name, options.limits.max_bytes)
        return taken_apart(output), (aux, output)

    def _assembled(
        self, tensors: Sequence[Any], recording: Recording, arguments: Arguments, evaluation: Evaluation
    ) -> Any:
        """Nest the result, given the tensors that f returned."""
        value, (aux, returned) = returned_with(tensors, recording)
        spec = tree_flatten(value)[1]
        if self._options.strict:
            check_dependence(self._options.name, value, arguments.names(), self._orders, evaluation)
        listed: Callable[[int], Sequence[Any]] = evaluation.compact if self._options.compact else evaluation.dense
        blocks: Sequence[Sequence[Any]] = [listed(order) for order in self._orders]
        if returned is not None and not self._options.compact:
            outputs = tree_flatten(tree_unflatten(recording.leaves, recording.spec)[1][1])[0]
            blocks = self._put_together(evaluation.emit, blocks, outputs, tensors, arguments)
        computed = self._nested(blocks, spec, arguments)
        chosen = self._choose(value if returned is None else returned, computed)
        return (chosen, aux) if self._options.has_aux else chosen


def returned_with(tensors: Sequence[Any], recording: Recording) -> Any:
    """Return what a recorded function returned, with the given tensors in place of its own."""
    supply = iter(tensors)
    leaves = [next(supply) if isinstance(leaf, torch.Tensor) else leaf for leaf in recording.leaves]
    return tree_unflatten(leaves, recording.spec)


def _name(f: Function) -> str:
    return getattr(f, "__name__", type(f).__name__)


def _value(tensor: torch.Tensor) -> torch.Tensor:
    """Cut the history of a recorded tensor where gradients are off, since recording itself runs with them on."""
    return tensor if torch.is_grad_enabled() else tensor.detach()
