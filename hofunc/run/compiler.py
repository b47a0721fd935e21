"""Programs through torch.compile."""

from collections.abc import Callable, Hashable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule

from hofunc.errors import CompilerError
from hofunc.graph.standin import in_transform
from hofunc.internals import compiling, count_dispatch_modes, find_cpp_compiler, has_forward_level
from hofunc.plan.program import Program
from hofunc.progress import Shown
from hofunc.run.background import InBackground
from hofunc.run.diagonals import write_diagonals
from hofunc.run.executor import compiled, warming_up
from hofunc.run.fuse import INDUCTOR, fuse_products, is_small, is_tiny
from hofunc.run.fx import check_static, traced
from hofunc.run.looks import Looking, parts_of
from hofunc.run.piecewise import RegionCompiler, compiled_piecewise, needs_gradient
from hofunc.run.products import by_own_products
from hofunc.run.quotients import put_quotients
from hofunc.run.regions import Region, regions

Tensors = Sequence[torch.Tensor]
Function = Callable[..., Any]

KINDS = 8  # of tensors that a graph is compiled for, by their strides and by which of them need gradients


def through_compiler(
    program: Program, inputs: Sequence[tuple], options: dict[str, Any], shown: Shown, *, background: bool
) -> Callable[[Tensors], Any]:
    """Return what runs a program by torch.compile, which compiles at the first call.

    Where the program checks values, that is done before and is not compiled, and the rest is at the second call.

    Args:
        program: The program.
        inputs: Shape, dtype and device of each tensor that it takes.
        options: Keyword arguments of torch.compile.
        shown: What shows how many regions of a large program are compiled.
        background: Whether another thread compiles, and calls run uncompiled until it is done.

    Raises:
        CompilerError: The compiler that inductor needs is missing.
        UnsupportedOpError: A graph cannot do what a step does that checks nothing.
    """
    if _is_inductor(options):
        check_compiler()

    def of_rest(rest: Program, passed: Tensors) -> Callable[[Tensors], Any]:
        facts = [*inputs, *((tensor.shape, tensor.dtype, tensor.device) for tensor in passed)]
        return _through_compiler(rest, facts, options, shown, background)

    parts = parts_of(program)
    if not parts.looks.steps:
        return of_rest(program, ())
    check_static(parts.steps)
    return Looking(program, parts, len(inputs), of_rest)


def _through_compiler(
    program: Program, inputs: Sequence[tuple], options: dict[str, Any], shown: Shown, background: bool
) -> Callable[[Tensors], Any]:
    """Return what runs a program that checks nothing."""
    with compiling():
        module, own = traced(program, inputs)
    parts = regions(module)
    if _is_inductor(options):
        for graph in [part.module for part in parts] or [module]:
            fuse_products(graph, is_small if options else is_tiny)
            write_diagonals(graph)
    compile_ = partial(_by_torch, options) if options else _direct
    run = _Compiled(warming_up(program), module, parts, own, compile_, shown)
    return InBackground(compiled(program), run, run.kind_of) if background else run


def _is_inductor(options: dict[str, Any]) -> bool:
    return bool(options.get("backend", "inductor") == "inductor")


def _direct(module: GraphModule, tensors: Tensors) -> Function:
    """Compile without the checks that torch.compile makes of what a plan has checked already."""
    from hofunc.internals_buffers import buffers_inside  # noqa: PLC0415 - imports the compiler
    from hofunc.internals_files import compiled_by_inductor  # noqa: PLC0415 - likewise
    from hofunc.internals_inference import without_autograd  # noqa: PLC0415 - likewise
    from hofunc.internals_loops import fuse_rightly  # noqa: PLC0415 - likewise
    from hofunc.internals_strides import tell_strides  # noqa: PLC0415 - likewise
    from hofunc.internals_types import tell_types  # noqa: PLC0415 - likewise

    fuse_rightly()
    tell_strides()
    tell_types()
    copy, options = _copied(module), INDUCTOR | by_own_products()
    if any(map(needs_gradient, tensors)):
        return compiled_by_inductor(copy, tensors, options)
    with torch.no_grad(), buffers_inside(), without_autograd():
        return compiled_by_inductor(copy, tensors, options | put_quotients(copy))


def _by_torch(options: dict[str, Any], module: GraphModule, _: Tensors) -> Function:
    if _is_inductor(options):
        from hofunc.internals_loops import fuse_rightly  # noqa: PLC0415 - imports the compiler

        fuse_rightly()
    return torch.compile(_copied(module), **{"dynamic": False, "fullgraph": True, **options})


def _copied(module: GraphModule) -> GraphModule:
    """Return a graph for a compiler to change."""
    return GraphModule(module, deepcopy(module.graph))


class _Compiled:
    """A compiled graph, compiled anew for tensors of other strides, or of which others need gradients.

    What is compiled calls no ops, so where these are followed, by forward mode, a transform or another recording, the
    program runs as it is, and likewise for tensors of more kinds than a few.

    Args:
        plain: What runs the program as it is.
        module: The graph, of the tensors that this takes and of some more.
        parts: Its regions, if it is compiled in these.
        own: These tensors.
        compile: What compiles a graph for tensors like given ones.
        shown: What shows how many regions are compiled.
    """

    def __init__(
        self,
        plain: Callable[[Tensors], Any],
        module: GraphModule,
        parts: Sequence[Region],
        own: Sequence[torch.Tensor],
        compile: Callable[[GraphModule, Tensors], Function],  # noqa: A002 - it is what it does
        shown: Shown,
    ):
        self._plain, self._module, self._parts, self._own = plain, module, parts, own
        self._compile, self._shown = compile, shown
        self._by_region = RegionCompiler(compile, is_ahead=compile is _direct)
        self._runs: dict[Hashable, Callable[[Tensors], Any]] = {}

    def __call__(self, tensors: Tensors) -> Any:
        if in_transform() or has_forward_level() or count_dispatch_modes():
            return self._plain(tensors)
        kind = self.kind_of(tensors)
        run = self._runs.get(kind)
        if run is None:
            with compiling():
                run = self._runs.get(kind)  # of another thread, maybe, by now
                if run is None:
                    return self._new(kind, tensors)
        return run((*tensors, *self._own))

    def kind_of(self, tensors: Tensors) -> Hashable:
        """Return what a graph is compiled for."""
        taken = (*tensors, *self._own)
        strides = [tensor.stride() for tensor in taken]
        if torch.is_grad_enabled():
            need = [tensor.requires_grad for tensor in taken]
            return (*strides, *need) if True in need else tuple(strides)
        return tuple(strides)

    def _new(self, kind: Hashable, tensors: Tensors) -> Any:
        """Return what the program does, compiled for tensors of a new kind."""
        if len(self._runs) == KINDS:
            return self._plain(tensors)
        taken = (*tensors, *self._own)
        if not self._parts:
            function = self._compile(self._module, taken)
            run, results = lambda tensors: function(*tensors), function(*taken)
        else:
            with self._shown(len(self._parts), "region") as done:
                run, results = compiled_piecewise(self._module, self._parts, self._by_region, taken, done)
        self._runs[kind] = run
        return results


def check_compiler() -> None:
    """Check that there is a C++ compiler, without which inductor runs on no device.

    Raises:
        CompilerError: There is none.
    """
    try:
        find_cpp_compiler()
    except RuntimeError as error:  # of inductor, that it is no C++ compiler
        raise CompilerError(
            "hofunc: plan.compile",
            got="no C++ compiler",
            expected="one that torch.compile finds",
            remedy="Install g++, or name one in the environment variable CXX; a plan runs without it, uncompiled.",
        ) from error
