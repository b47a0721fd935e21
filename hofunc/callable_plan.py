"""Frozen plans: a function and its derivatives, recorded and planned once, to be called again and again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.fx import GraphModule

from hofunc.errors import ArgumentError, PlanFileError
from hofunc.explain import Told, explain, told
from hofunc.files import write_whole
from hofunc.given import path_of
from hofunc.graph.draws import draws, generators_of
from hofunc.graph.facts import Facts
from hofunc.graph.lines import Lines, is_detecting, undetected
from hofunc.graph.node import Call, Graph
from hofunc.graph.standin import batches_of, in_batches, in_transform
from hofunc.graph.uncompiled import opaque
from hofunc.graph.world import without_autocast
from hofunc.internals import TreeSpec
from hofunc.notebook import as_html
from hofunc.outline import Subject
from hofunc.plan.chunks import Chunks
from hofunc.plan.constants import with_tables
from hofunc.plan.program import Program, device_of
from hofunc.plan.tables import UnfitError
from hofunc.plan.wanted import highest, orders_of
from hofunc.progress import Progress, display
from hofunc.run.anomaly import first_kind, kind_of
from hofunc.run.asked import of_plan
from hofunc.run.compiler import through_compiler
from hofunc.run.evaluate import refuse_where
from hofunc.run.executor import interpreted
from hofunc.run.fx import graph_module, traced
from hofunc.run.history import Derived, Leading
from hofunc.run.learning import Learning
from hofunc.signature import Signature
from hofunc.travel.document import DAMAGE, MissingError, read, written
from hofunc.travel.files import packed, refuse_damaged, unpacked
from hofunc.trees import tree_flatten, tree_unflatten

if TYPE_CHECKING:
    from hofunc.draw.drawing import Drawing


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
        derived: The outputs of which what the plan computes are derivatives, None if they are kept as terms.
    """

    graph: Graph
    values: Program
    lines: Lines
    derived: Derived | None

    def check(self, tensors: Sequence[torch.Tensor], results: Sequence[Any], order: int) -> None:
        """Check that results are finite, given the tensors that the plan was called with, and what f returns as well.

        Raises:
            AnomalyError: One is not.
        """
        is_fine = first_kind([result for result in results if isinstance(result, torch.Tensor)]) is None
        if is_fine and any(map(draws, self.graph.nodes)):
            return  # what f returns is not computed, and would draw other numbers
        values = interpreted(self.values)(tensors)
        bad = [place for place, number in enumerate(self.graph.outputs) if kind_of(values[number]) is not None]
        if bad or not is_fine:
            refuse_where(self.graph, values, order, self.lines, bad[0] if bad else None)


class Steps(NamedTuple):
    """What a plan runs.

    Attributes:
        program: The steps of the function and its derivatives.
        chunks: They in chunks, if that is how they run.
        quick: Those that run first, if what they return is right as long as it is finite.
    """

    program: Program
    chunks: Chunks | None
    quick: Program | None = None

    @property
    def programs(self) -> tuple[Program, ...]:
        """All programs that it has."""
        others = () if self.chunks is None else self.chunks.programs
        return (self.program, *others, *(() if self.quick is None else (self.quick,)))


class PLACE:
    """Stands for a leaf that the program computes."""


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
    drawn anew at every call. A copy of a plan is the plan, which never changes.

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
        hofunc.errors.PlanMismatchError: hod: args[0] of a plan: got shape (3,), expected shape (2,), as planned ...
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
    _check: Callable[[], None]
    _steps: Steps
    _run: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
    _result: Result | None
    _subject: Subject | Told
    _origin: Origin
    _leading: Leading
    _calls: float = inf  # after which it is worth it to plan in full, where that was not done
    _other: "Plan | None" = None

    @opaque
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the transform returns for these arguments.

        Raises:
            PlanMismatchError: They are not like those that the plan was made for, values led to another shape, or
                something else that the recording depended on has changed.
            AnomalyError: A result is not finite, under `hofunc.detect_anomaly`.
        """
        return self._called(self.tensors_of(args, kwargs))

    def of_leaves(self, leaves: Sequence[Any]) -> Any:
        """Return what a call returns, given the leaves of its arguments, of which the structure is known to be planned.

        Raises:
            PlanMismatchError: As from a call, as are the other errors.
        """
        self._check()
        return self._called(self._signature.tensors_among(leaves))

    def beside(self, other: "Plan") -> "Plan":
        """Return the plan with another one, for calls with indices of which facts do not hold that it goes by."""
        return replace(self, _other=other)

    def _called(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return the result for the tensors of a call."""
        if self._other is None:
            return self._ran(tensors)
        try:
            return self._ran(tensors)
        except UnfitError:  # before anything was computed
            self._other._check()
            return self._other._called(tensors)

    def _ran(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return the result by the plan itself."""
        results = without_autocast(self._run, tensors)
        if is_detecting():
            undetected(self._origin.check, tensors, results, highest(self._subject.wanted))
        if in_transform():
            batches = batches_of(tensors)
            results = [in_batches(result, batches) for result in results]
        if not (torch.is_grad_enabled() and self._leading.is_needed(results, tensors)):
            return results[0] if self._result is None else self._result.filled(results)
        results = self._leading(results, tensors)
        return results[0] if self._result is None else self._leading.in_terms(self._result.filled(results), tensors)

    def tensors_of(self, args: tuple, kwargs: dict) -> Sequence[torch.Tensor]:
        """Return the tensors that a call takes, in the order in which pytrees are flattened.

        Raises:
            PlanMismatchError: The plan was not made for such a call; values that the function reads are not looked at.
        """
        self._check()
        return self._signature.tensors(args, kwargs)

    def generators(self) -> tuple[torch.Generator, ...]:
        """Return the generators from which a call draws random numbers."""
        calls = [step.function for step in self._steps.program.steps if isinstance(step.function, Call)]
        return generators_of(calls, device_of(self._origin.graph))

    @property
    def takes(self) -> str:
        """The arguments that it was made for, in one line, as ``args[0]: float32 (20, 3), args[1]: 0.5``."""
        return str(self._signature)

    def __copy__(self) -> "Plan":
        """Return the plan itself, which cannot change, as functions are copied."""
        return self

    def __deepcopy__(self, _: dict) -> "Plan":
        """Return the plan itself, as a shallow copy does."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickled, (_packed(self),)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan to a file, for `hofunc.load_plan` of the same versions of hofunc and torch.

        The file holds the ops, by name, and the tensors that the function captured, with the values that they have now
        and without a history; those that share memory do so when they are loaded. Nothing of the function itself is in
        it. A compiled plan is saved as the one that it was compiled from. A plan is pickled likewise, as for another
        process.

        Args:
            path: The file, which is written whole or not at all, in place of one that is there.

        Raises:
            PlanFileError: The plan has something that cannot be looked up by name elsewhere: a custom Function, an
                object among the arguments, a tensor of a subclass.
            ArgumentError: The path is none.
            OSError: The file cannot be written; what was there is as it was.
        """
        write_whole(path_of("Plan.save", path), _packed(self))

    def explain(self) -> str:
        """Return a text about what the plan does and why, to be read in a terminal.

        It has the strategies and their estimated costs, the nodes of the recorded graph and the kinds of their rules,
        the pattern of every derivative and where batch structure was lost, and the steps that cost most.
        """
        return explain(self._subject)

    def draw(self) -> "Drawing":
        """Return a drawing of the graph that the plan derives: what its nodes are, and what each of them costs.

        Returns:
            `hofunc.Drawing`, which shows itself in a notebook and writes itself to a file. Strategies that were not
            planned so far are not planned for it. Of a plan that was made in `hofunc.detect_anomaly` it has the lines
            of the function as well.

        Example:
            >>> plan = hofunc.hessian(lambda x: x.tanh().prod()).plan(torch.ones(3))
            >>> plan.draw()
            Drawing(4 boxes; .save(path), .svg(), .dot and .mermaid have it)
        """
        from hofunc.draw.drawing import drawing_of  # noqa: PLC0415 - few plans are drawn

        return drawing_of(told(self._subject).outline)

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
        if self._other is not None:
            return self._other.to_fx()
        self._check_whole("to_fx")
        program = self._steps.program
        return graph_module(program, self._signature.facts, self._signature.names, self._leading.missing(program))

    def compile(self, *, background: bool = False, progress: Progress | None = None, **options: Any) -> "Plan":
        """Return a plan that does the same through torch.compile.

        A large plan is compiled in regions, those that are equal once, as the layers of a network or steps in time are.

        Args:
            background: Whether to compile in another thread, and to run uncompiled until that is done.
            progress: Whether to show a bar, by tqdm, as regions are compiled; or what is called with the number of
                those that are, and of all. A plan that is one region shows none. `hofunc.options` says it otherwise.
            **options: Keyword arguments of torch.compile; ``dynamic=False`` and ``fullgraph=True`` unless given.

        Returns:
            Plan; its first call compiles, which takes seconds to minutes. Where the function reads values, these are
            computed and compared first, uncompiled, and the second call compiles the rest. Where gradients are on and
            an input or a captured tensor requires them, a backward pass is compiled as well. It runs all rows at once;
            what it costs is told as if it were not compiled, and the compiler mostly needs less, as it fuses steps.
            Under torch.func, in forward mode, and where a call is recorded, it runs uncompiled.

        Raises:
            ArgumentError: The plan runs in chunks to keep to max_bytes, which a compiled one does not; or there is no
                tqdm to show progress.
            CompilerError: There is no C++ compiler.
            UnsupportedOpError: It has a custom Function, or checks derivatives, with holomorphic=True.
        """
        self._check_whole("compile")
        shown = display(progress, f"{self.name}: plan.compile")
        run = through_compiler(self._steps.program, self._signature.facts, options, shown, background=background)
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

    def _repr_html_(self) -> str:
        return as_html(told(self._subject), self.takes, is_compiled=self.is_compiled)

    def __repr__(self) -> str:
        compiled = ", compiled" if self.is_compiled else ""
        return (
            f"Plan({self.name}, strategy={self.strategy!r}, steps={self.steps}, flops={self.flops}, "
            f"bytes={self.bytes}, peak_bytes={self.peak_bytes}{compiled})"
        )


def made(
    name: str,
    signature: Signature,
    facts: Facts,
    steps: Steps,
    result: Result | None,
    subject: Subject | Told,
    origin: Origin,
    learning: Learning | None = None,
    calls: float = inf,
) -> Plan:
    """Return a plan of its parts, which runs in chunks if there are some, and what plans its backward pass."""
    cost = subject.cost
    return Plan(
        name,
        orders_of(subject.wanted),
        subject.strategy,
        len(cost.steps),
        cost.flops,
        cost.bytes,
        cost.peak_bytes,
        False,
        signature,
        facts,
        facts.checker(name),
        steps,
        of_plan(*steps, learning),
        result,
        subject,
        origin,
        Leading(origin.values, origin.graph.outputs, origin.derived),
        calls,
    )


def load_plan(path: str | PathLike[str]) -> Plan:
    """Return the plan that `Plan.save` wrote to a file.

    It does what the saved one did, `to_fx`, `compile` and chunks too, and `explain` tells of it what was known when it
    was saved. It is a plan of what f was when it was recorded: f itself, and what f read of Python objects, are not
    there to be compared with. Values of tensors that f read are compared as ever, and so is the state of torch. What f
    captured is on the devices that it was on, and nobody else's.

    Reading a file runs nothing that it names; calling the plan runs ops of torch and functions of hofunc on tensors.

    Args:
        path: The file.

    Raises:
        PlanFileError: It is no plan or damaged; it is one of another version of hofunc or torch, or for devices that
            are not here; or an op or a class that it names has not been defined or imported.
        ArgumentError: The path is none.
        OSError: It cannot be read.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "hessian.plan")
        >>> hofunc.hessian(lambda x: (x**3).sum()).plan(torch.ones(2)).save(path)
        >>> hofunc.load_plan(path)(torch.tensor([1.0, 2.0]))
        tensor([[ 6.,  0.],
                [ 0., 12.]])
    """
    file = path_of("load_plan", path)
    return _loaded(file.read_bytes(), str(file))


def unpickled(data: bytes) -> Plan:
    """Return the plan of which this was pickled; what pickled it names this function.

    Raises:
        PlanFileError: As `load_plan` does.
    """
    return _loaded(data, "a pickled plan")


torch.serialization.add_safe_globals([unpickled])


# What `made` takes of a plan, by what an error calls it.
_PARTS: dict[str, Any] = {
    "name": str,
    "arguments": Signature,
    "captured tensors": Facts,
    "steps": Steps,
    "result": Result | None,
    "explanation": Told,
    "recording": Origin,
}


_OTHER = "other "  # before what a part of the plan beside it is called


def _packed(plan: Plan) -> bytes:
    """Return what a file of a plan holds."""
    parts = _parts(plan)
    if plan._other is not None:
        parts |= {f"{_OTHER}{name}": part for name, part in _parts(plan._other).items()}
    return packed(written(plan.name, parts))


def _parts(plan: Plan) -> dict[str, Any]:
    facts = plan._facts._replace(reliance=None)
    steps = plan._steps._replace(program=with_tables(plan._steps.program))
    held = plan.name, plan._signature, facts, steps, plan._result
    return dict(zip(_PARTS, (*held, told(plan._subject), plan._origin), strict=True))


def _loaded(data: bytes, source: str) -> Plan:
    document = unpacked(data, source)
    try:
        parts = read(document)
        plan = made(*[_checked(name, parts[name]) for name in _PARTS])
        if len(parts) == len(_PARTS):
            return plan
        return plan.beside(made(*[_checked(name, parts[f"{_OTHER}{name}"]) for name in _PARTS]))
    except MissingError as error:
        raise PlanFileError(
            f"hofunc.load_plan: {source}",
            got=f"{error}, which is not there",
            expected="ops and classes that are defined before the plan is loaded",
            remedy="Import the module that defines it first.",
        ) from error
    except DAMAGE as error:
        refuse_damaged(source, error)


def _checked(name: str, part: Any) -> Any:
    """Return a part of a plan, if it is of its class, and nothing in its steps is more than a name."""
    if not isinstance(part, _PARTS[name]):
        raise TypeError(f"{type(part).__name__} for its {name}")
    for program in part.programs if isinstance(part, Steps) else ():
        calls = [step.function for step in program.steps if isinstance(step.function, Call)]
        names = [keyword for call in calls for keyword, _ in call.kwargs]
        origins = [given.origin for given in program.given.values() if not isinstance(given.origin, torch.Tensor)]
        if not all(map(str.isidentifier, names)) or not all(type(origin) is int for origin in origins):
            raise ValueError("steps that are none")
    return part


def in_graph(plan: Plan) -> tuple[GraphModule, list[torch.Tensor], Result]:
    """Return a plan as it is put into the graph of a compiled function.

    Returns:
        The plan as an FX graph, which takes the tensors among the arguments and those that the plan has of its own; the
        latter; and how its result is put together.

    Raises:
        ArgumentError: As from `Plan.to_fx`.
        UnsupportedOpError: As from there.
    """
    if plan._other is not None:
        return in_graph(plan._other)
    plan._check_whole("in a graph")
    program = plan._steps.program
    graph, own = without_autocast(traced, program, plan._signature.facts, plan._leading.missing(program))
    return graph, own, plan._result or Result(tree_flatten(0)[1], (PLACE,))
