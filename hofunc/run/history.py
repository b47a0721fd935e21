"""Histories of results that are constant: they lead to what the value of f does, with gradients that are zero.

NOTE [history]: The Laplacian of a network of ReLUs is zero, and the Hessian of a quadratic form what was captured. No
step computes them from arguments or parameters, so autograd would refuse a backward pass through them, for this f only.
But what a training step does is not to depend on what f is. So where the value leads to tensors that require gradients,
a result that leads nowhere is added a sum of nothing of these. Nothing is multiplied by zero, so no gradient is NaN.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from torch import Tensor

from hofunc.algebra.operators import sources as sources_of
from hofunc.derivative import Derivative
from hofunc.graph.followed import has_history
from hofunc.graph.identity import PLAIN
from hofunc.graph.node import Graph
from hofunc.graph.standin import in_transform
from hofunc.internals import tree_flatten, tree_leaves, tree_unflatten
from hofunc.plan.program import Program, Register
from hofunc.run.origins import detaches, sources, taking_own
from hofunc.structured.anchors import with_history

Derived = tuple[tuple[int, ...], ...]


def origins_of(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """Return, for every output of a graph, the numbers of what is given to which autograd may follow it."""
    return tuple([_origins_of(graph, output) for output in graph.outputs])


def _origins_of(graph: Graph, output: int) -> tuple[int, ...]:
    found, waiting = set[int](), [output]
    while waiting:
        number = waiting.pop()
        node = graph.nodes[number]
        if number not in found and (node.dtype.is_floating_point or node.dtype.is_complex):
            found.add(number)
            waiting += () if detaches(node.op) else node.operands
    return tuple(sorted(number for number in found if graph.nodes[number].is_given))


class Led(NamedTuple):
    """Lets derivatives lead to what the outputs of which they are lead to.

    Attributes:
        given: What is given of what each output depends on, which is looked at where a result leads nowhere.
    """

    given: Sequence[Sequence[Tensor]]

    def of(self, results: Sequence[Tensor], outputs: Iterable[Iterable[int]]) -> list[Tensor]:
        """Return results, each of some outputs, that lead somewhere."""
        found = zip(results, outputs, strict=True)
        return [result if has_history(result) else self._one(result, each) for result, each in found]

    def _one(self, result: Tensor, outputs: Iterable[int]) -> Tensor:
        origins = {id(origin): origin for output in outputs for origin in leading(self.given[output])}
        return with_history(result, origins.values())

    def terms(self, derivative: Derivative, output: int) -> Derivative:
        """Return a structured derivative of an output that leads somewhere."""
        return derivative._led(lambda: leading(self.given[output]))


class Noted:
    """Notes of which outputs registers are derivatives, where a program is made of what puts them together.

    Attributes:
        outputs: By the number of a register, these outputs.
    """

    def __init__(self) -> None:
        self.outputs: dict[int, frozenset[int]] = {}

    def of(self, results: Sequence[Any], outputs: Iterable[Iterable[int]]) -> list[Any]:
        """Note what results are of."""
        for result, each in zip(results, outputs, strict=True):
            self.outputs[result.index] = self.outputs.get(result.index, frozenset()).union(each)
        return [*results]

    def terms(self, derivative: Derivative, output: int) -> Derivative:  # noqa: ARG002 - as of `Led`
        """Return a structured derivative, which is seen to when its plan returns it."""
        return derivative

    def among(self, registers: Iterable[Register]) -> Derived:
        """Return for each of some registers the outputs that it is a derivative of, none if it is something else."""
        return tuple([tuple(sorted(self.outputs.get(each.index, ()))) for each in registers])

    def passed(self, register: Register, args: Iterable[Any]) -> None:
        """Note what a register is of, given what it is computed from."""
        operands = [self.outputs[each.index] for each in tree_leaves(args) if _is_register(each, self.outputs)]
        if operands:
            self.outputs[register.index] = frozenset[int]().union(*operands)


def _is_register(value: Any, known: Mapping[int, Any]) -> bool:
    return isinstance(value, Register) and value.index in known


def leading(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Return those tensors that a result is to lead to, which are those of torch itself that have a history."""
    return tuple([tensor for tensor in tensors if type(tensor) in PLAIN and has_history(tensor)])


class Leading:
    """Lets the derivatives that a frozen plan returns lead to what the value of its function does.

    Args:
        values: The program of the values of all nodes of the graph that is derived.
        ends: The nodes that are differentiated.
        derived: For everything that the plan computes the outputs that it is a derivative of, if it is one; None if
            derivatives are kept as terms.
    """

    def __init__(self, values: Program, ends: Sequence[int], derived: Derived | None):
        self._derived = {place: outputs for place, outputs in enumerate(derived or ()) if outputs}
        self._ends, self._in_terms = range(len(ends)), derived is None
        self._origins: Callable[[], list[list[int | Tensor]]] = cache(lambda: _origins(values, ends))
        self._every: tuple[list[int], list[Tensor]] | None = None
        self._have_cores = False  # all structured derivatives, as far as is known

    def is_needed(self, results: Sequence[Tensor], tensors: Sequence[Tensor]) -> bool:
        """Tell whether some of what the plan computed for the tensors of a call may have to lead elsewhere."""
        if self._every is None:
            every = self._of(self._ends)
            own = [each for each in every if isinstance(each, Tensor)]
            self._every = [each for each in every if isinstance(each, int)], own
        numbers, own = self._every
        is_followed = True in [tensors[number].requires_grad for number in numbers]
        if not (is_followed or True in [each.requires_grad for each in own] or in_transform()):
            return False
        places = self._derived or range(len(results))
        return not (self._have_cores or self._derived) or not all(has_history(results[place]) for place in places)

    def __call__(self, results: Sequence[Tensor], tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return what the plan computed for the tensors of a call, where gradients are on."""
        bare = [place for place in self._derived if not has_history(results[place])]
        found = {place: self._among(tensors, self._derived[place]) for place in bare}
        return [with_history(result, found.get(place, ())) for place, result in enumerate(results)]

    def in_terms(self, result: Any, tensors: Sequence[Tensor]) -> Any:
        """Return what the plan returns for the tensors of a call, in which terms are to lead somewhere as well."""
        if not self._in_terms:
            return result
        origins, (leaves, spec) = self._among(tensors, self._ends), tree_flatten(result, is_leaf=_is_derivative)
        self._have_cores = all(any(True for _ in sources_of(each.terms)) for each in leaves if _is_derivative(each))
        return tree_unflatten([each._led(lambda: origins) if _is_derivative(each) else each for each in leaves], spec)

    def _among(self, tensors: Sequence[Tensor], outputs: Iterable[int]) -> tuple[Tensor, ...]:
        """Return what outputs lead to, among the tensors of a call and those that were captured."""
        return leading([each if isinstance(each, Tensor) else tensors[each] for each in self._of(outputs)])

    def _of(self, outputs: Iterable[int]) -> list[int | Tensor]:
        every = self._origins()
        return [*{_key(each): each for output in outputs for each in every[output]}.values()]

    def missing(self, program: Program) -> dict[int, list[int | Tensor]]:
        """Return by the place of every derivative what the value may lead to and it itself, by its program, never.

        One that leads to what requires gradients is left as it is, as in calls.
        """
        program, own = taking_own(program)
        reached = [[own.get(number, number) for number in numbers] for numbers in sources(program)]
        missing: dict[int, list[int | Tensor]] = {}
        for place, outputs in self._derived.items():
            if not any(isinstance(each, Tensor) and has_history(each) for each in reached[place]):
                keys = {*map(_key, reached[place])}
                missing[place] = [each for each in self._of(outputs) if _key(each) not in keys]
        return {place: origins for place, origins in missing.items() if origins}


def _origins(values: Program, ends: Sequence[int]) -> list[list[int | Tensor]]:
    program, own = taking_own(values)
    every = sources(program)
    return [[own.get(number, number) for number in sorted(every[end])] for end in ends]


def _key(origin: int | Tensor) -> tuple[bool, int]:
    """Return what tells numbers and tensors apart, which do not compare as a whole."""
    return (True, id(origin)) if isinstance(origin, Tensor) else (False, origin)


def _is_derivative(value: Any) -> bool:
    return isinstance(value, Derivative)
