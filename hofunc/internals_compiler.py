"""What hofunc reads of torch.compile: how that takes an operator which makes a function of another one.

It imports the compiler, which takes seconds, and so is imported where something is compiled, and not before.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import torch
from torch._dynamo import config
from torch._dynamo.exc import ObservedException, TorchDynamoException, TorchRuntimeError, unimplemented
from torch._dynamo.graph_break_hints import SUPPORTABLE
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import ConstantSource
from torch._dynamo.variables import LazyVariableTracker, UserDefinedObjectVariable
from torch._dynamo.variables.builder import SourcelessBuilder, wrap_fx_proxy
from torch._dynamo.variables.higher_order_ops import (
    TorchHigherOrderOperatorVariable,
    _hop_name_to_variable_class,
    speculate_subgraph_with_auto_output_flattening,
)
from torch._dynamo.variables.tensor import SymNodeVariable
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from hofunc.internals import (
    DisableAutocast,
    HigherOrderOperator,
    TreeSpec,
    autocast_devices,
    get_inplace_requires_grad_allowed,
    operator_utils,
    set_inplace_requires_grad_allowed,
    tree_leaves,
)
from hofunc.internals_files import few_files_of_graph, prepare_compiler
from hofunc.internals_loops import fuse_rightly
from hofunc.internals_strides import tell_strides
from hofunc.internals_types import tell_types

_ALIAS, _CLONE, _VIEW = torch.ops.aten.alias.default, torch.ops.aten.clone.default, torch.ops.aten.view.default
_EXPAND = torch.ops.aten.expand.default
_SIZE = torch.ops.aten.sym_size.int
_RESOLVED = {
    torch.Tensor.is_conj: torch.ops.aten.resolve_conj.default,
    torch.Tensor.is_neg: torch.ops.aten.resolve_neg.default,
}


# How a function is traced, of which the graph is recorded and not compiled: floats are numbers, as a symbol for one
# would be known in that graph alone; layers with states are ops that have rules; gradients taken inside are recorded.
_WITHIN = {"specialize_float": True, "allow_rnn": True, "trace_autograd_ops": True}

_REASON = "Explanation:"  # of what ends a graph


class Place(NamedTuple):
    """A leaf that is one of the tensors that a graph returns."""

    number: int


class Tree(NamedTuple):
    """A pytree taken apart."""

    leaves: Sequence[Any]
    spec: TreeSpec


class Traced(NamedTuple):
    """A function that was traced once, for some arguments.

    Attributes:
        arguments: Its arguments; tensors as the compiler has them, without elements, None for what it does not know.
        captured: Other tensors that the function takes, likewise, and numbers.
        call: The function, of the tensors among the arguments, and what it captured.
        returned: What it returned, its tensors as places.
        operators: The names of operators that take functions in it.
        values: The tensors and numbers in it.
    """

    arguments: Tree
    captured: Sequence[Any]
    call: Callable[[Sequence[Any]], Sequence[torch.Tensor]]
    returned: Tree
    operators: frozenset[str]
    values: Sequence[Any]

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        """The tensors among the arguments."""
        return [leaf for leaf in self.arguments.leaves if isinstance(leaf, torch.Tensor)]


class Size(NamedTuple):
    """A size: a captured number, or that of a tensor along an axis, by their place among what a graph takes."""

    place: int
    axis: int | None = None


class Lowered(NamedTuple):
    """What stands in the place of a call.

    Attributes:
        graph: A graph of ops.
        inputs: What that takes: the numbers of tensors among those of the arguments and then captured ones; or tensors;
            or sizes.
        returned: What the call returns, its tensors as places.
    """

    graph: GraphModule
    inputs: Sequence[int | torch.Tensor | Size]
    returned: Tree


class Asked(NamedTuple):
    """What a call of the operator asks for.

    Attributes:
        keywords: The names of keyword arguments that are not passed to the function.
        followed: Which leaves of the arguments autograd follows where the function sees them.
        lower: Returns what stands in its place.
    """

    keywords: Sequence[str]
    followed: frozenset[int]
    lower: Callable[[Traced], Lowered]


def compile_by(operator: HigherOrderOperator, ask: Callable[[Tree, TreeSpec], Asked]) -> None:
    """Tell the compiler what becomes of a call of an operator.

    Args:
        operator: The operator. It is called with a pytree of constants, taken apart, which says what is asked for; a
            function of names of keyword arguments that it is to leave out, and of the leaves of its arguments, that
            returns a pytree, taken apart; those leaves, and their structure. A call returns a pytree, taken apart.
        ask: Given the constants and the structure of the arguments, returns what is asked for. What it raises, and what
            lowering raises, ends the graph before the call, which then runs as it is.
    """

    class Variable(TorchHigherOrderOperatorVariable):
        _HOP_NAME = operator.name()
        _ALLOW_FALLBACK_TO_EAGER = True

        def _call_function(self, tx: Any, args: Any, kwargs: Any) -> Any:  # noqa: ARG002 - there are no keywords
            return _Call(tx, operator, ask).called(*LazyVariableTracker.realize_all(tuple(args)))

    _hop_name_to_variable_class[operator.name()] = Variable
    tell_strides()
    tell_types()


class _Body(NamedTuple):
    """What a function was traced to.

    Attributes:
        graph: Its graph.
        order: What that takes: the numbers of tensors of arguments, and then of what it captured.
        captured: What it captured.
        returned: What it returned, its tensors as places.
    """

    graph: GraphModule
    order: Sequence[int]
    captured: Sequence[Any]
    returned: Tree

    def called(self, tensors: Sequence[Any]) -> Sequence[torch.Tensor]:
        """Call it with the tensors of arguments, and what it captured."""
        return self.graph(*[tensors[number] for number in self.order])


class _Call:
    """A call of the operator that is being compiled."""

    def __init__(self, tx: Any, operator: HigherOrderOperator, ask: Callable[[Tree, TreeSpec], Asked]):
        self._tx, self._operator, self._ask = tx, operator, ask

    def called(self, what: Any, function: Any, leaves: Any, spec: Any) -> Any:
        """Put into the graph what stands in the place of the call; returns what that returns."""
        few_files_of_graph()
        fuse_rightly()
        if getattr(self._tx.output.compiler_fn, "_compiler_name", None) == "inductor":
            prepare_compiler()
        constants, form = what.items
        structure = spec.as_python_constant()
        with _uncompiled():
            given = Tree([*map(_constant, constants.items)], form.as_python_constant())
            asked = self._ask(given, structure)
        own = [leaf.as_proxy() for leaf in leaves.items if leaf.is_tensor()]
        aliases = [self._alias(leaf, place in asked.followed) for place, leaf in enumerate(leaves.items)]
        body = self._traced(function, [_made(self._tx, (*asked.keywords,)), *aliases])
        with _uncompiled():
            arguments = Tree([*map(_seen, aliases)], structure)
            captured = [_example(proxy.node) for proxy in body.captured]
            operators = frozenset(map(HigherOrderOperator.name, _operators(body.graph)))
            values = [*_values(body.graph)]
            lowered = asked.lower(Traced(arguments, captured, body.called, body.returned, operators, values))
        found = self._put(lowered, [*own, *body.captured])
        for alias in reversed([alias for alias in aliases if alias.is_tensor()]):
            self._tx.output.remove_node(alias.as_proxy().node)
        return found

    def _alias(self, leaf: Any, is_followed: bool) -> Any:
        """Return a tensor in the place of an argument, so that it is not taken for one that the function captured."""
        if not leaf.is_tensor():
            return leaf
        proxy = self._tx.output.create_proxy("call_function", _CLONE, (leaf.as_proxy(),), {})
        return wrap_fx_proxy(self._tx, proxy, example_value=_like(_example(leaf.as_proxy().node), is_followed))

    def _traced(self, function: Any, arguments: list[Any]) -> "_Body":
        """Trace a function for some arguments.

        Its graph takes every tensor among these, so that what the compiler reads of them, as by ``x.T``, is in it.
        """
        try:
            with config.patch(_WITHIN):
                found: Any = speculate_subgraph_with_auto_output_flattening(
                    self._tx,
                    function,
                    arguments,
                    {},
                    self._operator.name(),
                    source_target=self._operator,
                    set_subgraph_inputs="automatic_with_forced_inputs",
                    enable_grad=True,
                    supports_input_mutation=False,
                )
        except (TorchRuntimeError, ObservedException) as error:  # maybe of an op on what autograd follows only here
            _end_graph(error)
        output, graph, lifted, results, _ = found
        outer = {inner.node: proxy for proxy, inner in lifted.items()}
        taken = [node for node in graph.nodes if node.op == "placeholder"]
        given = [node for node in taken if node not in outer]
        others = [node for node in taken if node in outer]
        numbers = {node: number for number, node in enumerate([*given, *others])}
        order = [numbers[node] for node in taken]
        captured = [outer[node] for node in others]
        module = GraphModule(self._tx.output.nn_modules, graph)
        with _uncompiled():
            return _Body(module, order, captured, _returned(output, [*map(id, results)]))

    def _put(self, lowered: Lowered, proxies: Sequence[Any]) -> Any:
        """Put the ops of a graph into that which is being made; returns what it returns."""
        made: dict[Node, Any] = {}
        known: dict[Node, Any] = {}
        given = iter(lowered.inputs)
        with self._without_autocast():
            for node in lowered.graph.graph.nodes:
                if node.op == "placeholder":
                    known[node] = self._given(next(given), proxies)
                elif node.op == "get_attr":
                    known[node] = self._held(getattr(lowered.graph, node.target))
                elif node.op == "call_function":
                    args = map_arg((node.args, node.kwargs), known.__getitem__)
                    made[node] = self._op(node.target, *args)
                    known[node] = made[node].as_proxy()
        ends: Any = lowered.graph.graph.output_node().args[0]
        tensors = [made[end] if end in made else self._op(_ALIAS, (known[end],), {}) for end in ends]
        leaves = [tensors[leaf.number] if isinstance(leaf, Place) else leaf for leaf in lowered.returned.leaves]
        return _made(self._tx, (_made(self._tx, leaves), _made(self._tx, lowered.returned.spec)))

    def _op(self, op: Any, args: Any, kwargs: Any) -> Any:
        return wrap_fx_proxy(self._tx, self._tx.output.create_proxy("call_function", op, args, kwargs))

    def _given(self, given: int | torch.Tensor | Size, proxies: Sequence[Any]) -> Any:
        """Return what stands for an input."""
        if isinstance(given, torch.Tensor):
            return self._held(given)
        if isinstance(given, int):
            return self._resolved(proxies[given])
        proxy = proxies[given.place]
        return proxy if given.axis is None else self._op(_SIZE, (proxy, given.axis), {}).as_proxy()

    def _resolved(self, proxy: Any) -> Any:
        """Return a tensor of its own in the place of one that is a conjugate or negative view of another."""
        value = _example(proxy.node)
        for is_view, resolve in _RESOLVED.items():
            if isinstance(value, torch.Tensor) and is_view(value):
                proxy = self._op(resolve, (proxy,), {}).as_proxy()
        return proxy

    def _held(self, tensor: torch.Tensor) -> Any:
        """Return what stands for a tensor that the graph is to hold.

        The compiler would guard the value of one without axes, and sizes where these are symbols, though it has no
        name in the caller's code. So sizes are marked as static, which `mark_static` does not do while it compiles.
        What is repeated along an axis is held once and expanded, as steps may view it by its strides.
        """
        output = self._tx.output
        name = f"hofunc_tensor_{len(output.nn_modules)}"
        once = tensor[tuple([slice(0, 1) if not step else slice(None) for step in tensor.stride()])]
        kept = once.reshape(once.shape or 1).clone()  # not a view, of which the compiler would take the base
        vars(kept)["_dynamo_static_indices"] = {*range(kept.dim())}
        held = output.register_attr_or_module(kept, name, source=ConstantSource(name)).as_proxy()
        if once.shape != tensor.shape:
            return self._op(_EXPAND, (held, [*tensor.shape]), {}).as_proxy()
        return held if tensor.dim() else self._op(_VIEW, (held, []), {}).as_proxy()

    @contextmanager
    def _without_autocast(self) -> Iterator[None]:
        """Let what is put into the graph, which has its conversions, run with autocast off."""
        devices = [device for device in autocast_devices() if torch.is_autocast_enabled(device)]
        create = self._tx.output.create_node
        entered = [create("call_function", _enter_autocast, (device, None, False, False), {}) for device in devices]
        with DisableAutocast():
            yield
        for each in reversed(entered):
            create("call_function", _exit_autocast, (each,), {})


@contextmanager
def _uncompiled() -> Iterator[None]:
    """End the graph where an error arises: what is not compiled runs as it is, and raises it if it is one."""
    try:
        yield
    except Exception as error:
        _end_graph(error)


def _end_graph(error: Exception) -> NoReturn:
    unimplemented(
        gb_type="hofunc: a derivative that is no graph",
        context=type(error).__name__,
        explanation=str(error),
        hints=[*SUPPORTABLE],
        from_exc=error,
    )


class NoGraph(Exception):  # noqa: N818 - what becomes of it is an error
    """A call is no graph, for a reason that it tells; what was raised in it, if that is it, is its cause."""


def called_compiled(function: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
    """Call a function through torch.compile where ops are noted to be exported, so that those of its graph are.

    Raises:
        NoGraph: It is none.
    """
    try:
        return operator_utils._hop_compile_and_call(function, args, kwargs)
    except TorchDynamoException as error:
        reason = getattr(error, "msg", None) or str(error)
        told = [line.split(":", 1)[1].strip() for line in reason.splitlines() if line.lstrip().startswith(_REASON)]
        kind = type(error.__cause__ or error).__name__
        raise NoGraph(f"{kind}: {(told or reason.splitlines() or [''])[0]}") from error.__cause__


def _constant(variable: Any) -> Any:
    """Return the object that a variable stands for; what is compiled holds for that alone."""
    if isinstance(variable, SymNodeVariable):
        return variable.evaluate_expr()
    if isinstance(variable, UserDefinedObjectVariable):
        if variable.source is None:
            raise TypeError(f"a {variable.python_type()} that is made in what is compiled")
        install_guard(variable.source.make_guard(GuardBuilder.ID_MATCH))
        return variable.value
    return variable.as_python_constant()


def _seen(variable: Any) -> Any:
    """Return what is known of an argument."""
    if variable.is_tensor():
        return _example(variable.as_proxy().node)
    return _constant(variable) if isinstance(variable, SymNodeVariable) or variable.is_python_constant() else None


def _returned(output: Any, results: Sequence[int]) -> Tree:
    """Return what a function returned, given the ids of the variables that stand for tensors in it."""
    leaves, spec = LazyVariableTracker.realize_all(output).items
    each = [Place(results.index(id(leaf))) if leaf.is_tensor() else _constant(leaf) for leaf in leaves.items]
    return Tree(each, spec.as_python_constant())


def _operators(module: GraphModule) -> Iterator[HigherOrderOperator]:
    """Yield the operators that take functions in a graph, and in the graphs that these take."""
    return (node.target for node in _nodes(module) if isinstance(node.target, HigherOrderOperator))


def _values(module: GraphModule) -> Iterator[Any]:
    """Yield the tensors and numbers in a graph, and in the graphs that operators in it take."""
    for node in _nodes(module):
        yield from tree_leaves(node.meta.get("example_value"))


def _nodes(module: GraphModule) -> Iterator[Node]:
    for each in module.modules():
        yield from each.graph.nodes if isinstance(each, GraphModule) else ()


def _like(tensor: torch.Tensor, is_followed: bool) -> torch.Tensor:
    """Return another tensor that lies in memory as a tensor does, which autograd follows if that is asked for."""
    before = get_inplace_requires_grad_allowed()
    set_inplace_requires_grad_allowed(True)  # under a transform of torch.func, too
    try:
        like = tensor.detach().new_empty_strided(tensor.shape, tensor.stride())
        followed = is_followed and (tensor.is_floating_point() or tensor.is_complex())
        return like.requires_grad_(followed or tensor.requires_grad)
    finally:
        set_inplace_requires_grad_allowed(before)


def _example(node: Node) -> Any:
    return node.meta["example_value"]


def _made(tx: Any, value: Any) -> Any:
    return SourcelessBuilder.create(tx, value)
