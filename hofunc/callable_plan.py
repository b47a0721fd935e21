"""Frozen plans: a function and its derivatives, recorded and planned once, to be called again and again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule

from hofunc.errors import ArgumentError
from hofunc.explain import Subject, explain
from hofunc.graph.draws import is_random
from hofunc.graph.facts import Facts
from hofunc.graph.lines import Lines, is_detecting, undetected
from hofunc.graph.node import Graph
from hofunc.graph.standin import batches_of, in_batches, in_transform
from hofunc.graph.world import without_autocast
from hofunc.internals import TreeSpec
from hofunc.plan.program import Program
from hofunc.plan.wanted import highest
from hofunc.run.anomaly import first_kind, kind_of
from hofunc.run.compiler import through_compiler
from hofunc.run.evaluate import refuse_where
from hofunc.run.executor import interpreted
from hofunc.run.fx import graph_module
from hofunc.run.progress import Progress, display
from hofunc.signature import Signature
from hofunc.trees import tree_unflatten


class Result(NamedTuple):
    """How a result is put together: its structure, and its leaves, PLACE for what the program returns in turn."""

    spec: TreeSpec
    leaves: tuple[Any, ...]

    def filled(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Put the result together."""
        supply = iter(tensors)
        return tree_unflatten([next(supply) if leaf is PLACE else leaf for leaf in self.leaves], self.spec)


class Origin(NamedTuple):
    """What a plan was made of, by which to find where what is not finite arose.

    Attributes:
        graph: The recorded graph, of which what is differentiated are the outputs.
        values: The program of the values of its nodes.
        lines: Which lines of the function computed which nodes, where that was noted.
    """

    graph: Graph
    values: Program
    lines: Lines

    def check(self, tensors: Sequence[torch.Tensor], results: Sequence[Any], order: int) -> None:
        """Check that results are finite, given the tensors that the plan was called with, and what f returns as well.

        Raises:
            AnomalyError: One is not.
        """
        is_fine = first_kind([result for result in results if isinstance(result, torch.Tensor)]) is None
        if is_fine and any(is_random(node.op) for node in self.graph.nodes):
            return  # what f returns is not computed, and would draw other numbers
        values = interpreted(self.values)(tensors)
        bad = [place for place, number in enumerate(self.graph.outputs) if kind_of(values[number]) is not None]
        if bad or not is_fine:
            refuse_where(self.graph, values, order, self.lines, bad[0] if bad else None)


PLACE = object()  # a leaf that the program computes


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Plan:
    """A derivative that is recorded and planned, for arguments of fixed shapes, dtypes and devices.

    `hofunc.hod` and its like return functions with a method ``plan``, which makes one. A call takes what the
    transform takes and returns what it returns, without recording the function again, so that of it only the tensor
    ops take place. All the rest is as it was when the plan was made: arguments that are no tensors, which have to be
    equal, and what aux holds beside tensors. Branches are those that were taken: a value that the function read, by
    ``if`` or ``.item()``, is compared at every call, and another one is an error.

    Tensors that the function captured are held by reference, and used with the values that they have when the plan is
    called. Whatever else the recording depended on is compared at every call, and is an error if it has changed: their
    shapes and dtypes, what the function read of Python objects, autocast and defaults of torch. Random numbers are
    drawn anew at every call, if they are drawn for a tensor that is passed or captured, or depends on one; others are
    as they were. A copy of a plan is the plan, which never changes.

    The function is called until a call leaves what it looks at as it found it, and the plan is of that call; where none
    does, there is no plan. What it only counts, or binds anew before it looks at it, may be anything.

    Attributes:
        name: What it was made by, and the name of the function.
        orders: The orders of the derivatives.
        strategy: The direction in which derivatives are propagated.
        steps: How many torch calls it makes, for the function and its derivatives.
        flops: Floating-point operations of these: of a matrix product two for each product, else one an element.
        bytes: Bytes that they read and write.
        peak_bytes: The most that is held at once of what it allocates, its results included, where nothing follows what
            it computes; see max_bytes of `hofunc.hod`.
        is_compiled: Whether it runs through torch.compile.

    Example:
        >>> plan = hofunc.hod(lambda x: (x**3).sum(), order=2).plan(torch.ones(2))
        >>> plan(torch.tensor([1.0, 2.0]))
        tensor([[ 6.,  0.],
                [ 0., 12.]])
        >>> plan(torch.ones(3))
        Traceback (most recent call last):
        hofunc.errors.ArgumentError: hod: args[0] of a plan: got shape (3,), expected shape (2,), as planned ...
    """

    name: str
    orders: tuple[int, ...]
    strategy: str
    steps: int
    flops: int
    bytes: int
    peak_bytes: int
    is_compiled: bool
    _signature: Signature
    _facts: Facts
    _program: Program
    _run: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
    _result: Result | None
    _subject: Subject
    _origin: Origin

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the transform returns for these arguments.

        Raises:
            ArgumentError: They are not like those that the plan was made for, values led to another shape, or something
                else that the recording depended on has changed.
            AnomalyError: A result is not finite, under `hofunc.detect_anomaly`.
        """
        self._facts.check(self.name)
        tensors = self._signature.tensors(args, kwargs)
        results = without_autocast(self._run, tensors)
        if is_detecting():
            undetected(self._origin.check, tensors, results, highest(self._subject.wanted))
        if in_transform():
            batches = batches_of(tensors)
            results = [in_batches(result, batches) for result in results]
        return results[0] if self._result is None else self._result.filled(results)

    def __deepcopy__(self, _: dict) -> "Plan":
        """Return the plan itself, which cannot change, as functions are copied."""
        return self

    def explain(self) -> str:
        """Return a text about what the plan does and why, to be read in a terminal.

        It has the strategies and their estimated costs, the nodes of the recorded graph and the kinds of their rules,
        the pattern of every derivative and where batch structure was lost, and the steps that cost most.
        """
        return explain(self._subject)

    def to_fx(self) -> GraphModule:
        """Return the plan as an FX graph of aten ops that write nowhere.

        Returns:
            Module that takes the tensors among the arguments, in the order in which pytrees are flattened, positional
            ones first, as its docstring and ``meta["inputs"]`` say, and returns the tuple of the tensors of the result
            in the same order. Other tensors that it needs, captured ones too, are its parameters and buffers.

        Raises:
            ArgumentError: The plan runs in chunks to keep to max_bytes, which a graph does not.
            UnsupportedOpError: The function reads values of tensors, or these decide a shape.
        """
        self._check_whole("to_fx")
        return graph_module(self._program, self._signature.facts, self._signature.names)

    def compile(self, *, progress: Progress = False, **options: Any) -> "Plan":
        """Return a plan that does the same through torch.compile.

        A large plan is compiled in regions, those that are equal once, as the layers of a network or steps in time are.

        Args:
            progress: Whether to show a bar, by tqdm, as regions are compiled; or what is called with the number of
                those that are, and of all. A plan that is one region shows none.
            **options: Keyword arguments of torch.compile; ``dynamic=False`` and ``fullgraph=True`` unless given.

        Returns:
            Plan; its first call compiles, which takes seconds to minutes. Where gradients are on and an input or a
            captured tensor requires them, a backward pass is compiled as well. It runs all rows at once; what it costs
            is told as if it were not compiled, and the compiler mostly needs less, as it fuses steps. Under torch.func,
            in forward mode, and where a call is recorded, it runs uncompiled.

        Raises:
            ArgumentError: The plan runs in chunks to keep to max_bytes, which a compiled one does not; or there is no
                tqdm to show progress.
            CompilerError: There is no C++ compiler.
            UnsupportedOpError: The function reads values of tensors, or these decide a shape.
        """
        self._check_whole("compile")
        shown = display(progress, f"{self.name}: plan.compile")
        run = through_compiler(self._program, self._signature.facts, options, shown)
        cost = self._subject.at_once
        return replace(
            self,
            steps=len(cost.steps),
            flops=cost.flops,
            bytes=cost.bytes,
            peak_bytes=cost.peak_bytes,
            _run=run,
            is_compiled=True,
        )

    def _check_whole(self, what: str) -> None:
        """Refuse what runs all rows at once where the plan keeps to its memory by running some at a time."""
        limit, needed = self._subject.limits.max_bytes, self._subject.at_once.peak_bytes
        if limit is not None and needed > limit:
            raise ArgumentError(
                f"{self.name}: plan.{what}, which runs all rows at once",
                got=f"{needed} bytes at once",
                expected=f"at most max_bytes={limit}",
                remedy="Make it without max_bytes, or run it as it is.",
            )

    def __repr__(self) -> str:
        compiled = ", compiled" if self.is_compiled else ""
        return (
            f"Plan({self.name}, strategy={self.strategy!r}, steps={self.steps}, flops={self.flops}, "
            f"bytes={self.bytes}, peak_bytes={self.peak_bytes}{compiled})"
        )
