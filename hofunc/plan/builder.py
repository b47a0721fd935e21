"""Builders: programs are built step by step, with common subexpressions merged."""

from collections.abc import Callable, Collection, Hashable, Sequence
from itertools import count
from math import inf, prod
from operator import getitem
from typing import Any, NamedTuple

import torch

from hofunc.algebra import packed
from hofunc.algebra.extents import distinct
from hofunc.algebra.labels import Axes, shape_of
from hofunc.algebra.term import Term
from hofunc.errors import InternalError
from hofunc.graph.layout import COMPUTED_AGAIN, select_scatter
from hofunc.graph.node import Call, Mask, Ref, Weights, call_of, fill, refs, with_calls
from hofunc.graph.readings import Reading
from hofunc.plan.places import SMALL, Integers, Multiplicities, Places
from hofunc.plan.program import (
    AsStep,
    Given,
    Program,
    Register,
    Step,
    Table,
    device_of,
    finished,
    is_check,
    is_on_one_device,
)
from hofunc.plan.states import SAME
from hofunc.progress import TICK, ticking
from hofunc.rules.lower import Lowered
from hofunc.scatter import added
from hofunc.views import Labelled, add_scaled, concatenated, filled, folded, narrow_scatter, put, read, stacked


class TooManyStepsError(Exception):
    """A plan takes more steps to make than it was given leave for; it is caught where strategies have their turns."""


class Leave(NamedTuple):
    """What planning may take.

    Attributes:
        steps: How many steps.
        bytes: How many bytes at once, of the indices of entries that meet.
        seconds: How long the plan may run; of one that runs longer nobody asks what it holds.
        tables: How many bytes all tables of places may have together that the plan could do without.
    """

    steps: float = inf
    bytes: float = inf
    seconds: float = inf
    tables: float = inf


Looks = tuple[tuple[int, ...], torch.dtype]  # shape and dtype

_TURNED = {torch.permute, torch.transpose, torch.diagonal, torch.narrow, torch.select, torch.Tensor.expand}


class Builder:
    """Builds a program over the values of a lowered graph.

    Args:
        lowered: The graph.
        dtype: Dtype in which everything is computed; values of other floating dtypes are converted.
        leave: What planning may take.
        small: How many entries a matrix may have that is multiplied by rather than read through its indices.

    Attributes:
        effort: How many it has taken: contractions of terms, and steps of the program, needed in the end or not.
        carried: For every node that is propagated along slots, the registers of what it carries, each with the number
            of vectors in it, and whether it is an adjoint.
        node: The node for which steps are asked for now; None where results are put together.
        owners: The node for which each register was first asked for, where there was one.
        recipes: What is known to become of terms of some axes, see `hofunc.plan.recipes`.
        patterns: The first term of each pattern.
        known: Indices whose values are known or likely, see `hofunc.plan.values`.
        went_by: By node, the values that planning went by, and by register the checks of facts.
        rounds: Whether small blocks may have more zeros than they need, as nothing infinite would multiply them.
        has_rows: Whether there may be extents of rows in what steps are called with.
        in_blocks: Whether what is made becomes blocks by nodes, which may be sparse, rather than directions.
    """

    def __init__(self, lowered: Lowered, dtype: torch.dtype, leave: Leave = Leave(), small: int = 0):  # noqa: B008
        self.lowered, self.leave = lowered, leave
        self.dtype = dtype
        self.small = small
        self.effort = 0
        self.carried: dict[int, list[tuple[Register, int, bool]]] = {}
        self.node: int | None = None
        self.owners: dict[int, int | None] = {}
        self.recipes: dict[Hashable, Any] = {}
        self.patterns: dict[Hashable, Term] = {}
        self.known: dict[Hashable, Any] = {}
        self.went_by: dict[Hashable, Reading | Register] = {}
        self.rounds, self.has_rows, self.in_blocks = False, True, True
        self._held: dict[Hashable, list[tuple[torch.Tensor, Register]]] = {}
        self._next_look, self._tick = min(leave.steps, TICK), ticking()
        self._steps: list[Step] = []
        self._producers: dict[Register, Step] = {}
        self._known: dict[Hashable, Register] = {}
        self._values: dict[int, Register] = {}
        self._called: dict[tuple[type, Call], Register] = {}
        self._given: dict[int, Given] = {}
        self._unpacking: dict[Register, Places] = {}  # of what is symmetric, by the register that has them
        self._turned: set[Register] = set()  # what is given and lies otherwise, as a weight that torch.nn.Linear turns
        self._shapes: dict[int, Looks] = {}
        self._count = 0

    def emit(self, function: Callable | Call, *args: Any) -> Register:
        """Return the register of function(*args), which is computed once however often it is asked for.

        An extent of rows is told from one that is as large, so that a program that has both can be taken apart.

        Raises:
            TooManyStepsError: There is no leave for another step.
        """
        if function is torch.unsqueeze and args[0] in self._turned:  # or a product that it is part of lies as it does
            args = self.emit(torch.Tensor.contiguous, args[0]), *args[1:]
        if function is torch.reshape or function is torch.unsqueeze:
            function, args = self._reshaped(function, *args)
        if function is torch.sum and (found := self._packed_sum(*args)) is not None:
            return found
        key = distinct((function, args)) if self.has_rows and _may_have_rows(function, args) else (function, args)
        register = self._known.get(key)
        if register is None:
            self.spend()
            self._known[key] = register = self._new()
            self._producers[register] = step = Step(register.index, function, args)
            self._steps.append(step)
            self.owners[register.index] = self.node
        return register

    def _reshaped(self, function: Callable | Call, tensor: Register, how: Any) -> tuple[Callable | Call, tuple]:
        """Return how to reshape what was reshaped before, by one step, unless that was a copy that others may take."""
        before = self._producers.get(tensor)
        if before is None or before.function is not torch.reshape:
            return function, (tensor, how)
        base, shape = before.args
        turned = self._producers.get(base)
        if turned is not None and turned.function in _TURNED:
            return function, (tensor, how)
        return torch.reshape, (base, how if function is torch.reshape else (*shape[:how], 1, *shape[how:]))

    def _packed_sum(self, tensor: Register, dims: tuple[int, ...]) -> Register | None:
        """Return the sum of a product of symmetric entries, by those that differ, each as often as it is there."""
        product = self._producers.get(tensor)
        if product is None or product.function is not torch.mul:
            return None
        one, other = map(self._unpacked, product.args)
        if one is None or other is None or one[1:] != other[1:] or dims != tuple(range(len(one[1].orders))):
            return None
        places, shape = one[1:]
        entries, rest = packed.count(places.n, len(dims)), shape[len(dims) :]
        packed_product = self.emit(torch.reshape, self.emit(torch.mul, one[0], other[0]), (entries, prod(rest)))
        weights = self.constant(Multiplicities(places.n, len(dims)))
        return self.emit(torch.reshape, self.emit(torch.matmul, weights, packed_product), rest)

    def _unpacked(self, tensor: Any) -> tuple[Register, Places, tuple[int, ...]] | None:
        """Return what is unpacked along its first axis, the places of its entries, and its shape then."""
        step = self._producers.get(tensor)
        if step is not None and step.function is torch.permute:
            base, order = step.args
            found = self._unpacked(base)
            axes = len(found[1].orders) if found is not None else 0
            is_alike = {*order[:axes]} == {*range(axes)} and order[axes:] == (*range(axes, len(order)),)
            return found if is_alike else None
        if step is None or step.function is not torch.reshape:
            return None
        base, shape = step.args
        taken = self._producers.get(base)
        if taken is None or taken.function is not torch.index_select or taken.args[1] != 0:
            return None
        places = self._unpacking.get(taken.args[2])
        axes = 0 if places is None else len(places.orders)
        return (taken.args[0], places, shape) if places and shape[:axes] == (places.n,) * axes else None

    def forget(self) -> None:
        """Let go of all tensors: of constants of a strategy that is not taken, of values that planning went by.

        Functions that worked something out may hold this in circles, so that it is there for some time.
        """
        for held in (self.recipes, self.known, self._given, self._known, self._held):
            held.clear()

    def spend(self, steps: int = 1) -> None:
        """Count steps of planning.

        Raises:
            TooManyStepsError: There is no leave for them.
        """
        self.effort += steps
        if self.effort > self._next_look:
            if self.effort > self.leave.steps:
                raise TooManyStepsError
            self._tick(TICK)
            self._next_look = min(self.leave.steps, self._next_look + TICK)

    def value(self, index: int) -> Register:
        """Return the register of a node's value, in the program's dtype if it is floating."""
        known = self._values.get(index)
        if known is not None:
            return known
        pending = [index]
        while pending:  # not by recursion, for which a chain may be too deep
            number = pending[-1]
            missing = [place for place in self._computed_from(number) if place not in self._values]
            if missing:
                pending += reversed(missing)
                continue
            del pending[-1]
            if number not in self._values:
                self._values[number] = self._value_of(number)
        return self._values[index]

    def _computed_from(self, number: int) -> tuple[int, ...]:
        node = self.lowered.graph.nodes[number]
        if self.lowered.origins[number] is not None:
            return ()
        return node.operands[:1] if node.op in SAME else node.operands

    def _value_of(self, number: int) -> Register:
        """Return the register of a node's value, those of its operands being known."""
        node = self.lowered.graph.nodes[number]
        origin = self.lowered.origins[number]
        if origin is not None:
            register = self._give(origin, tuple(node.shape), node.dtype)
            self._turned |= {register} if number in self.lowered.turned else set()
            return self._converted(register, node.dtype) if node.dtype.is_floating_point else register
        if node.op in SAME:
            return self._values[node.operands[0]]
        call, is_step = call_of(node), type(node.op) is AsStep
        before, self.node = self.node, number
        if is_step:
            args = [self._values[arg.node] if type(arg) is Ref else arg for arg in call.args]
            register = self.emit(node.op.function, *args)
        else:
            register = self.call(call._replace(op=COMPUTED_AGAIN.get(call.op, call.op)))
        if node.output is not None:
            register = self.emit(getitem, register, node.output)
        self.node = before
        if is_step:
            return register  # its looks follow from the step
        dtype = self.dtype if node.dtype.is_floating_point else node.dtype
        self._shapes[register.index] = (tuple(node.shape), dtype)
        return register

    def _give(self, origin: int | torch.Tensor | Table, shape: tuple[int, ...], dtype: torch.dtype) -> Register:
        register = self._new()
        self._given[register.index] = Given(origin, shape, dtype)
        return register

    def _converted(self, register: Register, dtype: torch.dtype) -> Register:
        return register if dtype == self.dtype else self.emit(torch.Tensor.to, register, self.dtype)

    def call(self, call: Call) -> Register:
        """Return the register of a call whose Refs name nodes, after those of the Calls among its arguments."""
        call = call._replace(args=self._computed(call.args), kwargs=self._computed(call.kwargs))
        operands = [self.value(ref.node) for ref in refs(call.args)]
        places = map(Ref, count())
        args, kwargs = fill(call.args, places), call.kwargs
        if kwargs:
            operands += [self.value(ref.node) for ref in refs(kwargs)]
            kwargs = fill(kwargs, places)
        return self.emit(Call(call.op, args, kwargs), *operands)

    def _computed(self, args: tuple) -> tuple:
        """Return arguments in which a Ref is in place of every Call, the same one for equal Calls."""
        return with_calls(args, lambda call: self.stand_in(self.register_of(call)))

    def register_of(self, call: Call) -> Register:
        """Return the register of a call, which is computed once however often it is asked for."""
        key = type(call), distinct(call) if self.has_rows else call
        register = self._called.get(key)
        if register is None:
            self._called[key] = register = self.call(call)
        return register

    def apply(
        self,
        function: Callable,
        tensor: Register,
        args: tuple,
        shape: tuple[int, ...],
        dtype: torch.dtype | None = None,
    ) -> Register:
        """Return the register of function(tensor, *args), of a known shape, where Refs among the args name nodes.

        It has the program's dtype, unless another one is given.
        """
        args = self._computed(args)
        operands = [self.value(ref.node) for ref in refs(args)]
        template = fill(args, (Ref(place) for place in range(1, len(operands) + 1)))
        result = self.emit(Call(function, (Ref(0), *template)), tensor, *operands)
        self._shapes[result.index] = (shape, dtype or self.dtype)
        return result

    def tell(self, register: Register, looks: Looks) -> None:
        """Say what a register looks like, whose step may not tell."""
        self._shapes[register.index] = looks

    def read(self, source: Hashable, axes: Axes) -> Labelled:
        """View what a factor names through its axes."""
        return read(self.emit, self.tensor(source, axes), axes)

    def tensor(self, source: Hashable, axes: Axes) -> Register:
        """Return the register of what a factor of some axes names."""
        if isinstance(source, Register):
            return source
        if isinstance(source, Ref):
            node = self.lowered.graph.nodes[source.node]
            register = self.value(source.node)
            return register if node.dtype.is_floating_point else self.emit(torch.Tensor.to, register, self.dtype)
        if not isinstance(source, Call):
            raise InternalError(f"hofunc.plan: unknown source {source}", got=str(type(source)), expected="a tensor")
        register = self.register_of(source)
        if register.index not in self._shapes:
            is_bool = isinstance(source, Mask) and not isinstance(source, Weights)
            self._shapes[register.index] = (shape_of(axes), torch.bool if is_bool else self.dtype)
        return register

    def stand_in(self, register: Register) -> Ref:
        """Return a Ref to a register, for the arguments of a call or a map."""
        number = len(self.lowered.graph.nodes) + register.index
        self._values[number] = register
        return Ref(number)

    def constant(self, numbers: tuple[float, ...] | Integers) -> Register:
        """Return the register of a vector of numbers: places if they are ints, else of the program's dtype."""
        are_places = isinstance(numbers[0], int) if isinstance(numbers, tuple) else isinstance(numbers, Places)
        key = ("constant", numbers, are_places)
        if key not in self._known:
            dtype = torch.long if are_places else self.dtype
            table = Table(numbers, dtype, self.device)
            vector = table.made() if self.leave.tables == inf and len(numbers) <= SMALL else table
            self._known[key] = self._give(vector, (len(numbers),), dtype)
            if isinstance(numbers, Places) and {*numbers.orders} == {1}:
                self._unpacking[self._known[key]] = numbers
        return self._known[key]

    def hold(self, tensor: torch.Tensor) -> Register:
        """Return the register of a constant of the plan."""
        return self._give(tensor, tuple(tensor.shape), tensor.dtype)

    def may_hold(self, nbytes: int) -> bool:
        """Tell whether a table of so many bytes may be made, with what there are of constants."""
        held = sum(given.origin.nbytes for given in self._given.values() if isinstance(given.origin, torch.Tensor))
        return self.leave.tables == inf or held + nbytes <= self.leave.tables

    def places(self, tensor: torch.Tensor) -> Register:
        """Return the register of a constant tensor of integers, the same one for equal tensors."""
        alike = self._held.setdefault((tuple(tensor.shape), int(tensor.sum())), [])
        for other, register in alike:
            if torch.equal(other, tensor):
                return register
        alike.append((tensor, self.hold(tensor)))
        return alike[-1][1]

    def constant_of(self, number: int) -> torch.Tensor | None:
        """Return the tensor that a Ref of `stand_in` names, if it is a constant of the plan."""
        given = self._given.get(self._values[number].index)
        return given.origin if given is not None and isinstance(given.origin, torch.Tensor) else None

    @property
    def device(self) -> torch.device:
        """Device of the first input."""
        return device_of(self.lowered.graph)

    def like(self) -> Register:
        """Return some register of the program's dtype and device, from which to make new tensors.

        It is an input, which need not be computed, if all that is given is on one device.
        """
        graph, output = self.lowered.graph, self.lowered.graph.outputs[0]
        if not is_on_one_device(graph):
            return self.value(output)
        return self.value(next((n for n in graph.inputs if graph.nodes[n].dtype == self.dtype), output))

    def program(self, outputs: Sequence[Register]) -> Program:
        """Return the program that computes the outputs, without steps that they do not need."""
        checks = {check.index for check in self.went_by.values() if isinstance(check, Register)}
        steps = [step for step in self._steps if step.target in checks or not is_check(step)]
        return finished(self._given, self._shapes, steps, outputs)

    def broadcast(self, register: Register, dims: int) -> Register:
        """Return what a factor of a product of so many dimensions was before axes of size one were taken away."""
        step = self._producers.get(register)
        if step is None or step.function is not torch.reshape:
            return register
        base, shape = step.args
        known = self._shape_of(base)
        is_broadcast = known is not None and len(known) <= dims and known == (1,) * (len(known) - len(shape)) + shape
        return base if is_broadcast else register

    def _shape_of(self, register: Register) -> tuple[int, ...] | None:
        """Return the shape of a register, if it is known while the program is built."""
        given = self._given.get(register.index)
        return given.shape if given is not None else self._shapes.get(register.index, (None,))[0]

    def step_of(self, register: Register) -> Step | None:
        """Return the step that computes a register, None if it is given."""
        return self._producers.get(register)

    def _new(self) -> Register:
        self._count += 1
        return Register(self._count - 1)


def _may_have_rows(function: Callable | Call, args: tuple) -> bool:
    """Tell whether an extent of rows may be among what a step is given: a register is none, as most of it are."""
    return type(function) is Call or any(type(arg) is not Register and type(arg) is not int for arg in args)


_VIEWS = (torch.permute, torch.reshape, torch.select, torch.narrow, torch.diagonal, torch.unsqueeze, torch.transpose)


_MAKERS = (
    add_scaled,
    added,
    torch.add,
    torch.bmm,
    concatenated,
    stacked,
    torch.clone,
    torch.constant_pad_nd,
    torch.diag_embed,
    torch.diagonal_scatter,
    torch.index_select,
    filled,
    folded,
    torch.matmul,
    torch.mm,
    torch.mul,
    narrow_scatter,
    torch.neg,
    put,
    select_scatter,
    torch.sum,
    torch.Tensor.to,
)


def cut(tensor: torch.Tensor, dim: int, start: int, sizes: tuple[int, ...]) -> torch.Tensor:
    """Return a part along an axis, which is taken apart to axes of some sizes.

    The tensor is held for its parts only, of which none lies in another.
    """
    part, shape = torch.narrow(tensor, dim, start, prod(sizes)), tensor.shape
    return part if len(sizes) == 1 else torch.reshape(part, (*shape[:dim], *sizes, *shape[dim + 1 :]))


Part = tuple[int, ...] | None


class Memory(NamedTuple):
    """What names the memory that a register has.

    Attributes:
        base: The register that was allocated.
        part: Which of its cuts it is; None for all of it.
    """

    base: Register
    part: Part

    def is_beside(self, parts: Collection[Part]) -> bool:
        """Tell whether it shares nothing with some parts of its base."""
        return not parts or (self.part is not None and self.part not in parts and None not in parts)


def memory_of(builder: Builder, register: Register) -> Memory | None:
    """Return what names the memory that a register views, or None if the program may not have allocated it."""
    step, part = builder.step_of(register), None
    while step is not None and step.function in (*_VIEWS, cut):
        if step.function is cut:
            _, dim, start, sizes = step.args
            part = dim, start, prod(sizes)
        register = step.args[0]
        step = builder.step_of(register)
    return Memory(register, part) if step is not None and step.function in _MAKERS else None
