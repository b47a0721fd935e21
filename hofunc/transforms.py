"""The transforms of whole derivatives; each checks its options, which are those of `hod`."""

from collections.abc import Sequence
from typing import Any

from hofunc.arguments import (
    check_limits,
    check_out,
    check_transform,
    named_variables,
)
from hofunc.chosen import BlocksAsked, GroupsAsked, Which, checked
from hofunc.dynamo import compilable
from hofunc.given import check_flag
from hofunc.plan.blueprint import Limits
from hofunc.stream import Stream
from hofunc.transform import Function, Options, Transform

Argnums = int | Sequence[int]
Names = str | Sequence[str] | None


@compilable
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
        layout: ``"dense"`` for tensors, or ``"compact"`` for a `hofunc.Derivative` in place of each, nested in a
            `hofunc.Blocks` unless it is the only one.
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
        blocks: Which blocks of the derivative to compute, and nothing else; see docs/how-to/blocks.md. A block is the
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


@compilable
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
    return Transform(f, options, tuple(range(1, order + 1)), _all)


@compilable
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


@compilable
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


def _all(value: Any, computed: list) -> tuple[Any, ...]:
    return value, *computed


def _highest(_: Any, computed: list) -> Any:
    """Return the derivative of the highest order alone."""
    return computed[-1]


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
    check_flag(name, "has_aux", has_aux)
    check_flag(name, "strict", strict)
    check_out(name, out, layout)
    check_limits(name, limits.chunk_size, limits.max_bytes)
    variables, parameters = (argnums, ()) if wrt is None else named_variables(name, f, wrt, argnums)
    chosen = checked(name, which, order, all_orders=name == "derivatives", orders_below=holomorphic)
    is_compact = layout == "compact"
    return Options(name, variables, has_aux, is_compact, strategy, limits, out, strict, holomorphic, parameters, chosen)


def _orders(order: int, options: Options) -> tuple[int, ...]:
    """Return the orders to compute for the highest: all if they are to be checked."""
    return tuple(range(1, order + 1)) if options.holomorphic else (order,)
