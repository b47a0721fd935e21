"""What hofunc reads of torch.compile to compile a graph that autograd does not follow without the part for autograd.

Between a graph and inductor stands what prepares graphs for autograd. It runs a graph twice on tensors without
elements, to learn what is written to and what is a view of what, and to record its ops anew, those that inductor does
not know as others that it does. It also puts functions around what is compiled that see to views and gradients at each
call. A graph of aten ops that write nowhere needs the other ops alone. Without the rest, compiling took a tenth less
Python on a CPU, and a call 5 to 8 microseconds less, of 60 for a plan of ten kernels. It imports the compiler, which
takes seconds, and so is imported where something is compiled.

NOTE [on disk]: what inductor made of a graph is found on the disk in another process, for a fifth of its Python, if
guards of symbols for sizes can be asked for, of which there are none here. It asks what holds symbols, which is given
to it for that alone: had tensors without elements one, ops would be recorded at twice the time.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.backends import common
from torch._inductor import config
from torch._inductor.codecache import FxGraphCache
from torch._inductor.virtualized import V
from torch._ops import OpOverload
from torch.fx import GraphModule, Interpreter
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

_is_bare: ContextVar[bool] = ContextVar("bare", default=False)  # whether what is compiled has no gradients
_symbols: ContextVar[ShapeEnv | None] = ContextVar("symbols", default=None)  # what holds them, see NOTE [on disk]


@contextmanager
def without_autograd() -> Iterator[None]:
    """Let graphs that this thread compiles be for calls without gradients, on a CPU, if they write nowhere."""
    _replace()
    token = _is_bare.set(True)
    try:
        yield
    finally:
        _is_bare.reset(token)


def _replace() -> None:
    """Have inductor ask for each graph whether autograd may follow it."""
    if hasattr(common.aot_autograd, "before"):
        return
    before = common.aot_autograd

    @wraps(before)
    def prepared(**given: Any) -> Any:
        usual, compiler, table = before(**given), given.get("inference_compiler"), given.get("decompositions")
        if not _is_bare.get() or config.freezing or compiler is None or table is None:
            return usual

        def compiled(module: GraphModule, tensors: Sequence[Any], **others: Any) -> Any:
            if not _is_plain(module) or any(each.device.type != "cpu" for each in tensors):
                return usual(module, tensors, **others)
            graph, fakes = _decomposed(module, tensors, table)
            with _without_symbols():
                return _called(compiler(graph, fakes))

        return compiled

    prepared.before = before  # type: ignore[attr-defined]
    common.aot_autograd = prepared
    known = FxGraphCache._get_shape_env

    def symbols() -> Any:
        return known() or _symbols.get()

    FxGraphCache._get_shape_env = symbols  # type: ignore[method-assign]


@contextmanager
def _without_symbols() -> Iterator[None]:
    """Let what is compiled be found on the disk, see NOTE [on disk]."""
    token = _symbols.set(ShapeEnv())
    try:
        yield
    finally:
        _symbols.reset(token)


def _is_plain(module: GraphModule) -> bool:
    """Tell whether a graph is of ops that write nowhere, and of no graphs or tensors of its own."""
    return all(
        node.op in ("placeholder", "output") or node.target is getitem or _is_functional(node.target)
        for node in module.graph.nodes
    )


def _is_functional(target: Any) -> bool:
    return isinstance(target, OpOverload) and not target._schema.is_mutable


def _decomposed(module: GraphModule, tensors: Sequence[Tensor], table: Any) -> tuple[GraphModule, list[Tensor]]:
    """Return a graph of the ops that inductor knows, and the tensors without elements that it is recorded of."""
    mode = V.fake_mode
    fakes = [mode.from_tensor(tensor.detach(), static_shapes=True) for tensor in tensors]
    with torch.no_grad(), enable_python_dispatcher(), mode:
        return make_fx(Interpreter(module).run, decomposition_table=table)(*fakes), fakes


def _called(compiled: Any) -> Callable[..., Any]:
    """Return what calls a graph that is compiled, without the parts for autotuning on other devices than a CPU."""
    call = getattr(compiled, "current_callable", None) or compiled
    return lambda *taken: call([*taken])
