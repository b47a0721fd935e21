"""Programs as FX graphs of plain aten ops."""

from collections.abc import Mapping, Sequence
from itertools import chain
from types import MappingProxyType

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from hofunc.complex_tensors import Holomorphic
from hofunc.errors import UnsupportedOpError
from hofunc.graph.functions import FunctionOp
from hofunc.graph.node import Call
from hofunc.internals import FakeTensor, FakeTensorMode
from hofunc.plan.constants import with_tables
from hofunc.plan.primal import Guard, same_shape
from hofunc.plan.program import Program, Step
from hofunc.plan.tables import required
from hofunc.rules.lower import isolated, read_by
from hofunc.rules.opaque import is_transformed, nested_derivative
from hofunc.run.executor import compiled
from hofunc.structured.anchors import with_history

Missing = Mapping[int, Sequence[int | torch.Tensor]]


def traced(
    program: Program, inputs: Sequence[tuple], missing: Missing = MappingProxyType({})
) -> tuple[GraphModule, list[torch.Tensor]]:
    """Return a program as a graph of functional aten ops.

    Args:
        program: The program.
        inputs: Shape, dtype and device of each tensor that it takes.
        missing: By the place of a result the tensors, or the places of those taken, to which it is to lead as well.

    Returns:
        The graph, which takes these tensors and then those that the program has of its own, and the latter.

    Raises:
        UnsupportedOpError: The steps depend on values of tensors.
    """
    check_static(program.steps)
    program = with_tables(program)
    origins = (*(given.origin for given in program.given.values()), *chain.from_iterable(missing.values()))
    own = list({id(origin): origin for origin in origins if isinstance(origin, torch.Tensor)}.values())
    places = {id(tensor): len(inputs) + place for place, tensor in enumerate(own)}
    given = {
        register: g._replace(origin=places[id(g.origin)]) if isinstance(g.origin, torch.Tensor) else g
        for register, g in program.given.items()
    }
    run = compiled(program._replace(given=given))
    led = {place: [places.get(id(each), each) for each in origins] for place, origins in missing.items()}

    def leading(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = run(tensors)
        for place, origins in led.items():
            results[place] = with_history(results[place], [tensors[number] for number in origins])
        return tuple(results)

    with isolated(), torch.no_grad():
        mode, fakes = _fakes(own)
        with mode:
            examples = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype, device, *_ in inputs] + fakes
            module = make_fx(torch.func.functionalize(leading))(*examples)
    module.graph.eliminate_dead_code()
    _write_factors(module)
    module.recompile()
    return module, own


def _write_factors(module: GraphModule) -> None:
    """Write the factors of sums as products.

    Inductor makes one op of a sum with a product of matrices, and leaves out the factor: in torch 2.13 that is how
    ``torch.add(a @ b, c, alpha=0.5)`` is wrong.
    """
    for node in module.graph.nodes:
        if node.target is torch.ops.aten.add.Tensor and (factor := node.kwargs.get("alpha", 1)) != 1:
            term = node.args[1]
            with module.graph.inserting_before(node):
                scaled = module.graph.call_function(torch.ops.aten.mul.Tensor, (term, factor))
            if isinstance(term, Node):
                scaled.meta["val"] = term.meta["val"]
            node.args, node.kwargs = (node.args[0], scaled), {}


def _fakes(tensors: Sequence[torch.Tensor]) -> tuple[FakeTensorMode, list[torch.Tensor]]:
    """Return tensors without elements for some, so that nothing is computed and values do not matter, and their mode.

    Those that have none, as of a function that is being compiled, stand for themselves.
    """
    mode = next((tensor.fake_mode for tensor in tensors if isinstance(tensor, FakeTensor)), None) or FakeTensorMode()
    return mode, [t.detach() if isinstance(t, FakeTensor) else mode.from_tensor(t.detach()) for t in tensors]


def check_static(steps: Sequence[Step]) -> None:
    """Refuse what a graph cannot do: to look at values.

    Raises:
        UnsupportedOpError: A step does.
    """
    for step in steps:
        op, *args = (step.function.op, *step.function.args) if isinstance(step.function, Call) else (step.function,)
        reason = None
        if op is same_shape:
            reason = f"{step.args[2]}, where values decide a shape"
        elif op is required:
            reason = "facts about indices, where values of tensors are checked"
        elif isinstance(op, Guard):
            reason = f"{read_by(op.call)}, where a value of a tensor is read"
        elif isinstance(op, Holomorphic):
            reason = "holomorphic=True, where values of derivatives are checked"
        elif isinstance(op, FunctionOp):
            reason = f"{op}, a custom Function, which graphs do not take"
        elif op is nested_derivative and not is_transformed(args[0]):
            reason = f"the fallback for {args[0]}, by torch.autograd, which graphs do not take"
        if reason is not None:
            raise UnsupportedOpError(
                "hofunc: a plan as a graph",
                got=reason,
                expected="a function whose ops and shapes are the same for all values",
                remedy="Call the plan as it is, or write f with ops that do without.",
            )


def graph_module(
    program: Program, inputs: Sequence[tuple], names: Sequence[str], missing: Missing = MappingProxyType({})
) -> GraphModule:
    """Return a program as a graph of its inputs alone, with its own tensors as attributes.

    Args:
        program: The program.
        inputs: Shape, dtype and device of each tensor that it takes.
        names: What each of them is called.
        missing: As of `traced`.
    """
    module, own = traced(program, inputs, missing)
    places = [node for node in module.graph.nodes if node.op == "placeholder"]
    for number, (node, tensor) in enumerate(zip(places[len(names) :], own, strict=True)):
        name = f"tensor_{number}"
        if isinstance(tensor, torch.nn.Parameter):
            module.register_parameter(name, tensor)
        else:
            module.register_buffer(name, tensor)
        with module.graph.inserting_before(node):
            node.replace_all_uses_with(module.graph.get_attr(name))
        module.graph.erase_node(node)
    module.recompile()
    lines = "\n".join(f"    {place}: {name}" for place, name in enumerate(names))
    module.__doc__ = f"A plan of hofunc as aten ops; returns the tensors of its result in order. Inputs:\n{lines}"
    module.meta["inputs"] = tuple(names)
    return module
