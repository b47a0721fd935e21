"""Lowering: from the ops that were recorded to ops that have derivatives of their own.

Composite ops are expanded where they stand, by recording the short function that defines them on the values at hand.
What the recording already computed is kept: the result of a composite is still the recorded value, and of the inner
values the program computes only those that a derivative asks for.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import NamedTuple, cast

import torch

from hofunc.errors import HofuncError
from hofunc.graph.draws import draws
from hofunc.graph.identity import PLAIN
from hofunc.graph.layout import as_pairs
from hofunc.graph.node import CONSTANT, NUMBER, Call, Graph, Node, Ref, call_of, fill, renumbered
from hofunc.graph.readings import Reading, recorded
from hofunc.graph.standin import is_wrapper, outside_transforms
from hofunc.internals import DisableAutocast, OpOverload, disable_current_modes
from hofunc.rules.choice import rule_of
from hofunc.rules.complex_choice import AtOnce, changed_by_parts, on_complex_numbers
from hofunc.rules.expansion import CHANGE, Expansion, Vanishing, itself, unchanged, vanishes, with_changes
from hofunc.rules.in_parts import AT_ONCE
from hofunc.rules.kinds import Composite, Constant, Fused, Rule
from hofunc.rules.numbers import rule_with_numbers
from hofunc.rules.opaque import Complex
from hofunc.rules.registry import FUSIONS, RULES

_MASKS = (torch.bool, torch.uint8)
INTEGERS = (torch.int64, torch.int32)  # what indices are of
Origin = int | torch.Tensor | None
Output = int | HofuncError | None  # of a composite: a node, an error to raise if it is asked for, or a constant


class Lowered(NamedTuple):
    """A graph in which every active op has a rule with derivatives.

    Attributes:
        graph: The graph.
        origins: Where the value of each node comes from: the number of a recorded node, a tensor, or None if the
            program has to compute it.
        rules: The rule of every active node that is not given.
        numbers: For each recorded node that is needed, the node that has its value.
        decided: What values decided inside expansions, by a shape or because they were read, as calls on nodes; a plan
            is good only where these return the same.
        values: By recorded node, the values by which planning may go, of what is not differentiated.
        likely: By recorded node, values of integers that are likely to be other ones at other calls.
        room: How many times as much room to make for what meets as by these values.
        turned: Nodes that are not differentiated, and do not lie in memory as their axes are.
    """

    graph: Graph
    origins: tuple[Origin, ...]
    rules: dict[int, Rule]
    numbers: dict[int, int]
    decided: tuple[Reading, ...]
    values: Mapping[int, torch.Tensor] = MappingProxyType({})
    likely: Mapping[int, torch.Tensor] = MappingProxyType({})
    room: int = 1
    turned: frozenset[int] = frozenset()


def lower(graph: Graph, values: Sequence[torch.Tensor], order: int, zeros: Iterable[int] = ()) -> Lowered:
    """Expand every composite op of a recorded graph.

    Args:
        graph: The recorded graph.
        values: The value of each of its nodes.
        order: The highest order of derivatives that is wanted.
        zeros: Those of its nodes that are changes of operands, and so zero.
    """
    lowering = _Lowering(graph, values, order, zeros)
    live = _live(graph)
    with isolated():
        for node in sorted(graph.nodes, key=lambda node: node.op is not NUMBER):
            if node.number in live:
                lowering.lower(node)
    numbers = lowering.numbers
    ends = (tuple(numbers[number] for number in group) for group in (graph.inputs, graph.outputs, graph.aux))
    made = Graph(tuple(lowering.nodes), *ends), tuple(lowering.origins), lowering.rules, numbers
    turned = [to for number, to in numbers.items() if not lowering.nodes[to].active and _is_turned(values[number])]
    return Lowered(*made, tuple(lowering.decided), turned=frozenset(turned))


def _is_turned(value: torch.Tensor) -> bool:
    """Tell whether a tensor does not lie in memory as its axes are, as that of a turned weight."""
    is_known = value.dim() > 1 and type(value) in PLAIN and value.layout is torch.strided and not is_wrapper(value)
    return is_known and not value.is_contiguous()


def _live(graph: Graph) -> set[int]:
    """Return the nodes that the outputs need, the inputs, and what draws random numbers, as later ones depend on it."""
    live = {*graph.inputs, *graph.outputs, *graph.aux, *(node.number for node in graph.nodes if draws(node))}
    for node in reversed(graph.nodes):
        if node.number in live:
            live.update(node.operands)
    return live


class _Lowering:
    """The lowered graph so far; ``numbers`` leads from recorded nodes to lowered ones."""

    def __init__(self, graph: Graph, values: Sequence[torch.Tensor], order: int, zeros: Iterable[int]):
        self.nodes: list[Node] = []
        self.origins: list[Origin] = []
        self.rules: dict[int, Rule] = {}
        self.numbers: dict[int, int] = {}
        self.decided: list[Reading] = []
        self._graph = graph
        self._values = values
        self._order = order
        self._zeros = {*zeros}
        self._is_real = not any(value.dtype.is_complex for value in values)
        self._expansions: dict[tuple, list[Output]] = {}
        self._composites: dict[Hashable, tuple[Lowered, list[Output]]] = {}
        self._pairs: dict[int, int] = {}  # from recorded complex nodes to real ones with the parts of their values

    def lower(self, node: Node) -> None:
        """Append what a recorded node, of which all operands are lowered, becomes."""
        operands = tuple(self.numbers[operand] for operand in node.operands)
        depends = self._depends(node)
        if depends and self._in_pairs(node):
            return
        rule = (self._refused(node) or self._rule_of(node)) if depends else Constant()
        if isinstance(rule, Composite | Expansion):
            before = rule.before if isinstance(rule, Fused) else ()
            operands = (*(self.numbers[other] for other in before), *operands)
            values = [self._values[operand] for operand in (*before, *node.operands)]
            number = self._expanded(node, operands, rule, values)
        else:
            active = node.active if node.is_given else not isinstance(rule, Constant)
            number = self._append(node, operands, active, node.number)
            if not isinstance(rule, Constant):
                self.rules[number] = self._without_zeros(node, rule)
        self.numbers[node.number] = number

    def _depends(self, node: Node) -> bool:
        """Tell whether a node depends differentiably on an input, which one without elements does not."""
        lowered = [self._pairs.get(operand, self.numbers[operand]) for operand in node.operands]
        return 0 not in node.shape and any(self.nodes[number].active for number in lowered)

    def _without_zeros(self, node: Node, rule: Rule) -> Rule:
        """Return the rule of a node less the terms that vanish, and note whether the node itself does."""
        zeros = [operand in self._zeros for operand in node.operands]
        if not any(zeros):
            return rule
        if vanishes(rule, zeros, self._values[node.number]):
            self._zeros.add(node.number)
        return Vanishing(rule, tuple(place for place, is_zero in enumerate(zeros) if is_zero))

    def _in_pairs(self, node: Node) -> bool:
        """Append what a node that has to do with complex numbers becomes, as a function of real ones.

        The complex value stays, as a constant, for what only takes the value. See `hofunc.rules.in_parts`.

        Returns:
            Whether there is such a function.
        """
        if self._is_real:
            return False
        are_complex = [self._values[operand].dtype.is_complex for operand in node.operands]
        if not (node.dtype.is_complex or any(are_complex)) or self._refused(node):
            return False
        if node.op in AT_ONCE:
            function: Callable | AtOnce | Expansion | None = AtOnce(
                AT_ONCE[node.op], cast(Rule, RULES[AT_ONCE[node.op]])
            )
        else:
            values = {number: self._real_value(number) for number in (node.number, *node.operands)}
            function = on_complex_numbers(node, are_complex, values)
        if function is None:
            return False
        operands = tuple(self._real(operand) for operand in node.operands)
        if isinstance(function, Expansion):
            operands = tuple(self.numbers[operand] for operand in node.operands)
            number = self._expanded(node, operands, function, ())
        elif isinstance(function, AtOnce):
            number = self._transformed(node, operands, function)
        else:
            number = self._expanded(node, operands, Composite(function), [self._real_value(o) for o in node.operands])
        if node.dtype.is_complex:
            self._pairs[node.number] = number
            number = self._append(node, tuple(self.numbers[operand] for operand in node.operands), False, node.number)
        self.numbers[node.number] = number
        return True

    def _refused(self, node: Node) -> Rule | None:
        """Return the rule of a complex operand through which no derivative goes, if there is one."""
        if self._is_real:
            return None
        numbers = [self.numbers[operand] for operand in node.operands if self._values[operand].dtype.is_complex]
        return next((self.rules[number] for number in numbers if self.nodes[number].active), None)

    def _rule_of(self, node: Node) -> Rule | Composite | Expansion | Constant:
        """Return the rule of a node; that of real numbers is of no use to what reads complex ones."""
        if any(self._graph.nodes[operand].op is NUMBER for operand in node.operands):
            return rule_with_numbers(node.op)
        if node.op is unchanged:
            return CHANGE
        fused = (recognise(self._graph, node) for recognise in FUSIONS.get(node.op, ()))
        rule = next((found for found in fused if found is not None), None) or rule_of(node, self._values)
        reads = any(self.nodes[self._pairs[number]].active for number in node.operands if number in self._pairs)
        return Complex(node) if reads and not isinstance(rule, Constant) else rule

    def _transformed(self, node: Node, operands: tuple[int, ...], at_once: AtOnce) -> int:
        """Append the node that computes an op on complex numbers at once, from real ones."""
        origin = None if node.dtype.is_complex else node.number
        if node.dtype.is_complex:
            node = node._replace(dtype=node.dtype.to_real(), shape=(*node.shape, 2))
        number = self._append(node._replace(op=at_once.op), operands, True, origin)
        self.rules[number] = at_once.rule
        return number

    def _real(self, number: int) -> int:
        """Return the lowered node with the value of a recorded one, or with its parts if that is complex."""
        if not self._values[number].dtype.is_complex:
            return self.numbers[number]
        if number not in self._pairs:
            value = self._real_value(number)
            shape, dtype = tuple(value.shape), value.dtype
            node = Node(0, as_pairs, (Ref(number),), (), None, (number,), shape, dtype, None, False)
            self._pairs[number] = self._append(node, (self.numbers[number],), False, None)
        return self._pairs[number]

    def _real_value(self, number: int) -> torch.Tensor:
        value = self._values[number]
        return as_pairs(value) if value.dtype.is_complex else value

    def _append(self, node: Node, operands: tuple[int, ...], active: bool, origin: Origin) -> int:
        number = len(self.nodes)
        self.nodes.append(node.moved(number, operands, active=active))
        self.origins.append(origin)
        return number

    def _expanded(
        self, node: Node, operands: tuple[int, ...], rule: Composite | Expansion, values: Sequence[torch.Tensor]
    ) -> int:
        """Put the nodes of a composite, once for all its outputs, and return the one that has the value of a node."""
        key = (call_of(node), node.operands)
        if key not in self._expansions:
            if isinstance(rule, Expansion):
                self._expansions[key] = self._expand_about(node, operands, rule)
            else:
                self._expansions[key] = self._put(*self._composed(node, operands, rule, values), operands)
                self._have_values(node, self._expansions[key])
        numbers, place = self._expansions[key], node.output or 0
        number = numbers[place] if place < len(numbers) else None
        if isinstance(number, HofuncError):
            raise number
        if number is None:  # an output that the composite leaves out: no derivative is taken of it
            return self._append(node, operands, False, node.number)
        if self.origins[number] is None and not node.dtype.is_complex:
            self.origins[number] = node.number
        return number

    def _have_values(self, node: Node, outputs: Sequence[Output]) -> None:
        """Note that the outputs of a composite have values that were recorded, be they needed or not."""
        for other in self._graph.nodes[node.number + 1 :] if node.output is not None else ():
            if other.operands != node.operands or call_of(other) != call_of(node):
                break  # outputs of one call come one after the other
            number = outputs[other.output] if other.output is not None and other.output < len(outputs) else None
            if isinstance(number, int) and self.origins[number] is None and not other.dtype.is_complex:
                self.origins[number] = other.number

    def _composed(
        self, node: Node, operands: tuple[int, ...], rule: Composite, values: Sequence[torch.Tensor]
    ) -> tuple[Lowered, list[Output]]:
        """Return what a composite becomes, recorded once for calls that differ in values which decide nothing.

        Tensors that it makes without its operands, as an identity, are the same for all of them, unless it draws them.
        """
        activity = self._activity(operands, 0)
        template = fill((node.args, node.kwargs), map(Ref, count()))
        key = (rule, template, node.dtype, tuple(activity), tuple(map(_looks, values)))
        return self._once(key, lambda: expansion(_called(rule, node), values, activity, self._order), not draws(node))

    def _expand_about(self, node: Node, operands: tuple[int, ...], rule: Expansion) -> list[Output]:
        """Append the nodes of an expansion about the values of a node's op and its operands; see NOTE [expansions]."""
        call = call_of(node)
        alike = [other for other in self._graph.nodes if other.operands == node.operands and call_of(other) == call]
        outputs = [*{other.output: other for other in reversed(alike)}.values()][::-1]  # of the first of such calls
        points = [self._append(output, operands, False, output.number) for output in outputs]
        points += [self._same(operand, itself, False) for operand in operands]
        changing = [self._real(place) for place in node.operands]
        changes = [self._same(operand, unchanged, self.nodes[operand].active) for operand in changing]
        self.rules.update({number: CHANGE for number in changes if self.nodes[number].active})
        values = [self._values[place] for place in (*(output.number for output in outputs), *node.operands)]
        every = (*points, *changes)
        return self._put(*self._changed(node, len(outputs), every, rule, values), every)

    def _changed(
        self, node: Node, outputs: int, operands: Sequence[int], rule: Expansion, values: list[torch.Tensor]
    ) -> tuple[Lowered, list[Output]]:
        """Return what an expansion becomes, recorded once for calls of the same looks as composites are."""
        activity = self._activity(operands, len(node.operands))
        template = fill((node.args, node.kwargs), map(Ref, count()))
        key = (rule, template, outputs, tuple(activity), tuple(map(_looks, values)))

        def expanded() -> tuple[Lowered, list[Output]]:
            are_complex = [value.is_complex() for value in values[outputs:]]
            given = [*values, *[torch.zeros_like(self._real_value(place)) for place in node.operands]]
            function: Callable = partial(rule.changed, self._order, node, outputs)
            if any(value.is_complex() for value in given):
                function = changed_by_parts(function, are_complex)
            return expansion(function, given, activity, self._order, len(node.operands))

        return self._once(key, expanded)

    def _once(
        self, key: tuple, expanded: Callable[[], tuple[Lowered, list[Output]]], may_be_kept: bool = True
    ) -> tuple[Lowered, list[Output]]:
        """Return what was kept for a key, or what is made for it, which is kept if values decided nothing in it."""
        found = self._composites.get(key)
        if found is None:
            found = expanded()
            if may_be_kept and not found[0].decided:
                self._composites[key] = found
        return found

    def _same(self, operand: int, function: Callable, active: bool) -> int:
        """Append a node of a function of one operand that has its shape."""
        node = self.nodes[operand]._replace(op=function, args=(Ref(operand),), kwargs=(), output=None, device=None)
        origin = self.origins[operand] if function is itself else None
        return self._append(node._replace(operands=(operand,)), (operand,), active, origin)

    def _put(self, inner: Lowered, outputs: Sequence[Output], operands: Sequence[int]) -> list[Output]:
        """Append the nodes of a lowered function of some nodes; returns those of its outputs."""
        numbers = dict(zip(inner.graph.inputs, operands, strict=True))
        for part, origin in zip(inner.graph.nodes, inner.origins, strict=True):
            if part.number not in numbers:
                inner_operands = tuple(numbers[operand] for operand in part.operands)
                literal = origin if isinstance(origin, torch.Tensor) else None
                refused = isinstance(inner.rules.get(part.number), Complex)  # whose operands are complex constants
                active = part.active and any(self.nodes[n].active for n in (operands if refused else inner_operands))
                numbers[part.number] = self._append(part, inner_operands, active, literal)
                if active:
                    self.rules[numbers[part.number]] = inner.rules[part.number]
        self.decided += [_renumbered(reading, numbers) for reading in inner.decided]
        return [numbers[output] if isinstance(output, int) else output for output in outputs]

    def _activity(self, operands: Sequence[int], zeros: int) -> list[bool]:
        """Tell which inputs of a function are active; changes count as such, so that what vanishes is found."""
        count = len(operands) - zeros
        return [place >= count or self.nodes[operand].active for place, operand in enumerate(operands)]


def _looks(value: torch.Tensor) -> Hashable:
    strides = value.stride() if value.layout is torch.strided else id(value)
    return tuple(value.shape), strides, value.dtype, value.device


def _called(rule: Composite, node: Node) -> Callable:
    """Return what computes a node by a composite, given the tensors of its arguments, or what they come from too."""
    if not isinstance(rule, Fused):
        return Call(rule.function, node.args, node.kwargs).__call__
    count = len(rule.before)
    return lambda *given: Call(partial(rule.function, *given[:count]), node.args, node.kwargs)(*given[count:])


def _has_dynamic_shape(graph: Graph, node: Node) -> bool:
    """Tell whether values decide the shape of what a node's op returns; an index does so only if it is a mask."""
    if not isinstance(node.op, OpOverload) or torch.Tag.dynamic_output_shape not in node.op.tags:
        return False
    by_indices = node.op is torch.ops.aten.index.Tensor
    return not by_indices or any(graph.nodes[index].dtype in _MASKS for index in node.operands[1:])


def expansion(
    function: Callable, values: Sequence[torch.Tensor], activity: Iterable[bool], order: int, zeros: int = 0
) -> tuple[Lowered, list[Output]]:
    """Record and lower a function of tensors, the last of which are zero.

    Returns:
        The lowered graph, of which the inputs are the tensors in order, constants are literal, and aux is what decides
        something by its values, whether or not an output needs it; and for each output of the function the node that
        has its value, or what it is if it is not a tensor.
    """
    tape, outputs = recorded(function, values, activity)
    graph = with_changes(tape.graph([output for output in outputs if isinstance(output, torch.Tensor)]))
    changes = [node.number for node in graph.nodes if node.op is unchanged]
    inner_values = tape.ledger.values
    readings = [*shapes_read(graph), *tape.readings]
    graph = graph._replace(aux=tuple({operand for reading in readings for operand in reading.operands}))
    lowered = lower(graph, inner_values, order, [*graph.inputs[len(graph.inputs) - zeros :], *changes])
    origins = tuple(
        inner_values[origin] if isinstance(origin, int) and graph.nodes[origin].op is CONSTANT else origin
        for origin in lowered.origins
    )
    supply = iter(lowered.graph.outputs)
    ends = [next(supply) if isinstance(output, torch.Tensor) else output for output in outputs]
    decided = [*lowered.decided, *(_renumbered(reading, lowered.numbers) for reading in readings)]
    decided.sort(key=lambda reading: max(reading.operands))  # so that what depends on another comes after it
    return lowered._replace(origins=origins, decided=tuple(decided)), ends


def shapes_read(graph: Graph) -> list[Reading]:
    """Return the shapes of a recorded graph that values decide."""
    dynamic = [node for node in graph.nodes if _has_dynamic_shape(graph, node)]
    return [Reading(Call(shape_of, (Ref(node.number),)), (node.number,), tuple(node.shape)) for node in dynamic]


def shape_of(x: torch.Tensor) -> tuple[int, ...]:
    """Return the shape of a tensor."""
    return tuple(x.shape)


def read_by(call: Call) -> str:
    """Name what a reading reads: a shape, or what an op returns."""
    return "a shape" if call.op is shape_of else str(call.op)


def _renumbered(reading: Reading, numbers: Mapping[int, int]) -> Reading:
    args, kwargs = renumbered((reading.call.args, reading.call.kwargs), numbers)
    return Reading(
        Call(reading.call.op, args, kwargs), tuple(numbers[each] for each in reading.operands), reading.value
    )


@contextmanager
def isolated() -> Iterator[None]:
    """Set running transforms, modes and autocast aside."""
    with disable_current_modes(), outside_transforms(), torch.enable_grad(), DisableAutocast():
        yield
