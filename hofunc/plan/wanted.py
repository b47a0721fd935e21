"""What is asked of a plan: all derivatives of some orders, or some blocks of these, or contractions of derivatives."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain, product
from math import inf, prod
from typing import Any, NamedTuple

from hofunc.algebra.extents import Rows
from hofunc.graph.node import Graph
from hofunc.plan.adjoints import Start
from hofunc.plan.slots import Bearer, Operand, Places, Slot, Slots, labels_of, of_axes, sizes_of


class Contraction(NamedTuple):
    """What is asked for of one derivative; tensors are numbered as the graph's outputs and inputs are.

    Attributes:
        output: The output, with the index of each of its axes.
        slots: Likewise for every slot the inputs of which it is one, of which the result is the sum.
        operands: Likewise the inputs that multiply it.
        result: The labels of the result's axes.
    """

    output: Bearer
    slots: tuple[Slot, ...]
    operands: tuple[Bearer, ...]
    result: tuple[str, ...]

    def sizes_in(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> dict[str, int]:
        """Return the size of every label, given tensors rather than nodes."""
        return sizes_of(outputs, [self.output]) | sizes_of(inputs, chain(*self.slots, self.operands))

    def whole(self) -> Slots:
        """Return all slots, with the operands that have a label that only they and slots bear."""
        asked = {*self.result, *labels_of([self.output])}
        borne_by = [{*labels_of(slot)} for slot in self.slots]
        homes: dict[frozenset[str], Places] = {}  # by the labels that they are summed over
        operands, late = [], []
        for bearer in self.operands:
            summed = frozenset([name for name in bearer[1] if isinstance(name, str) and name not in asked])
            if summed not in homes:
                homes[summed] = tuple([place for place, names in enumerate(borne_by) if not names.isdisjoint(summed)])
            if home := homes[summed]:
                operands.append(Operand(bearer, home))
            else:
                late.append(bearer)
        asked |= {*labels_of(late)}
        borne = labels_of(chain(*self.slots, (operand.bearer for operand in operands)))
        return Slots(self.slots, tuple(operands), tuple([name for name in borne if name in asked]))

    def start(self, whole: Slots, sizes: Mapping[str, int], others: Slots | None = None) -> Start:
        """Return the output, multiplied by the operands that have no other labels, or leave it with fewer by these.

        Args:
            whole: All slots.
            sizes: The sizes of labels.
            others: Those along which adjoints are computed, up to all of them; none if they are left out.
        """
        node, indices = self.output
        own = {*labels_of([self.output])}
        inner = {operand.bearer for operand in whole.operands}
        late = [bearer for bearer in self.operands if bearer not in inner]
        operands = [each for each in late if {*labels_of([each])} <= own or self._is_narrower(each, sizes)]
        left = [bearer for bearer in self.operands if bearer not in operands]
        asked = {*self.result, *labels_of(chain(*self.slots, left))}
        kept = tuple([name for name in labels_of([self.output, *operands]) if name in asked])
        along = [*others.slots, *([operand.bearer] for operand in others.operands)] if others else []
        every = [*self.slots, *([bearer] for bearer in left), [(node, self.result)]]
        borne = [sum(name in labels_of(each) for each in along) for name in kept]
        ends = [sum(name in labels_of(each) for each in every) for name in kept]
        bearers = [count if count == end else inf for count, end in zip(borne, ends, strict=True)]
        return Start(node, indices, tuple(operands), kept, tuple(bearers))

    def _is_narrower(self, operand: Bearer, sizes: Mapping[str, int]) -> bool:
        """Tell whether the output times an operand, such as several cotangents, is left with fewer labels by it.

        Those that are rows are no more of them: derivatives of one row are of no other.
        """
        others = {*labels_of(chain(*self.slots, (each for each in self.operands if each != operand)))}
        own, result, output = {*labels_of([operand])}, {*self.result}, {*labels_of([self.output])}
        added, summed = own - output, (own & output) - result - others
        if not added <= result - others or self.operands.count(operand) > 1:
            return False
        return prod(int(sizes[name]) for name in added) < prod(
            int(sizes[name]) for name in summed if not isinstance(sizes[name], Rows)
        )


class ReadOff(NamedTuple):
    """How one slot of a contraction is read off adjoints along all others.

    Attributes:
        place: The slot.
        others: All others.
        start: What is wanted of the output, from which adjoints start.
        late: The operands that multiply what is read off.
    """

    place: int
    others: Slots
    start: Start
    late: tuple[Bearer, ...]


class InGraph:
    """Contractions with the nodes of a graph, and the sizes of their labels.

    By each of many variables alone, contractions share slots and operands, which may be hundreds of tensors. They share
    them still, and what is told of these is told once.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Graph):
        self._graph = graph
        self._known: dict[int, tuple[tuple[Bearer, ...], tuple[Bearer, ...]]] = {}  # by what is given, which is kept
        self._sizes: dict[int, tuple[tuple[Bearer, ...], dict[str, int]]] = {}
        self._labels: dict[int, tuple[tuple[Bearer, ...], dict[str, None]]] = {}
        self._alone: dict[Hashable, tuple[Contraction, Slots, Start, tuple[Bearer, ...]]] = {}
        self._met: dict[Slots, Slots] = {}

    def of(self, contraction: Contraction) -> Contraction:
        """Return what is asked for of the graph, with its nodes."""
        number, indices = contraction.output
        slots = tuple(map(self._with_nodes, contraction.slots))
        operands = self._with_nodes(contraction.operands)
        return Contraction((self._graph.outputs[number], indices), slots, operands, contraction.result)

    def _with_nodes(self, bearers: tuple[Bearer, ...]) -> tuple[Bearer, ...]:
        if id(bearers) not in self._known:
            self._known[id(bearers)] = bearers, tuple([(self._graph.inputs[each], names) for each, names in bearers])
        return self._known[id(bearers)][1]

    def sizes(self, asked: Contraction) -> dict[str, int]:
        """Return the size of every label of what is asked for, given with nodes."""
        found = sizes_of(self._graph.nodes, [asked.output])
        for bearers in (*asked.slots, asked.operands):
            found |= self._sizes_of(bearers)
        return found

    def _sizes_of(self, bearers: tuple[Bearer, ...]) -> dict[str, int]:
        if id(bearers) not in self._sizes:
            self._sizes[id(bearers)] = bearers, sizes_of(self._graph.nodes, bearers)
        return self._sizes[id(bearers)][1]

    def read_off(self, asked: Contraction) -> ReadOff:
        """Return how the slot is read off that stands for most directions if it is not, of what is given with nodes.

        Where nothing but the result has its labels, what is along all others knows nothing of it: it is the same for
        all contractions that differ by it alone.
        """
        place = self._widest(asked)
        others = tuple([slot for other, slot in enumerate(asked.slots) if other != place])
        own = self._labels_of(asked.slots[place]).keys()
        every = [{*labels_of([asked.output])}, *map(self._labels_of, (*others, asked.operands))]
        if not all(own.isdisjoint(names) for names in every):
            whole = asked.whole()
            along = whole.part(tuple([other for other in range(len(asked.slots)) if other != place]))
            return ReadOff(place, *self._along(asked, whole, along))
        beside = asked._replace(slots=others, result=tuple([name for name in asked.result if name not in own]))
        key = beside.output, beside.result, id(beside.operands), *map(id, others)
        if key not in self._alone:
            whole = beside.whole()
            self._alone[key] = beside, *self._along(beside, whole, whole)
        return ReadOff(place, *self._alone[key][1:])

    def _along(self, asked: Contraction, whole: Slots, others: Slots) -> tuple[Slots, Start, tuple[Bearer, ...]]:
        """Return the slots along which adjoints are computed, their start, and the operands that enter with neither."""
        others = self._met.setdefault(others, others)
        start = asked.start(whole, self.sizes(asked), others)
        entered = {*start.operands, *(operand.bearer for operand in others.operands)}
        return others, start, tuple([operand for operand in asked.operands if operand not in entered])

    def _widest(self, asked: Contraction) -> int:
        """Return the slot that stands for most directions if it is not read off adjoints."""
        borne, output = [*map(self._labels_of, asked.slots)], {*labels_of([asked.output])}

        def directions(place: int) -> int:
            others = [output, *(names for other, names in enumerate(borne) if other != place)]
            own = [name for name in {*asked.result} if name in borne[place]]
            sizes = self._sizes_of(asked.slots[place])
            return prod([int(sizes[name]) for name in own if not any(name in names for names in others)])

        return max(range(len(asked.slots)), key=directions)

    def _labels_of(self, bearers: tuple[Bearer, ...]) -> dict[str, None]:
        """Return the labels of bearers, in order."""
        if id(bearers) not in self._labels:
            self._labels[id(bearers)] = bearers, dict.fromkeys(labels_of(bearers))
        return self._labels[id(bearers)][1]


class Contractions(NamedTuple):
    """The contractions of one plan, which share what they have in common.

    Attributes:
        sums: For every result, the contractions of which it is the sum.
    """

    sums: tuple[tuple[Contraction, ...], ...]

    @property
    def is_one(self) -> bool:
        """Whether all that are of derivatives are of one kind."""
        return len(self.kinds()) < 2

    def kinds(self) -> list[list[Contraction]]:
        """Return those of derivatives by what they have in common: output, order, and operands, not by what inputs."""
        found: dict[Hashable, list[Contraction]] = {}
        for contraction in chain(*self.sums):
            if contraction.slots:
                kind = contraction.output, len(contraction.slots), contraction.operands
                found.setdefault(kind, []).append(contraction)
        return list(found.values())

    def marked(self, graph: Graph) -> Graph:
        """Return a graph in whose operands the axes of rows are those that have a label of rows, and no others."""
        nodes, in_graph = list(graph.nodes), InGraph(graph)
        found: dict[int, tuple[tuple[Bearer, ...], dict[str, int]]] = {}  # operands, with the sizes of other labels
        for asked in map(in_graph.of, chain(*self.sums)):
            _, sizes = found.setdefault(id(asked.operands), (asked.operands, {}))
            sizes |= in_graph.sizes(asked._replace(operands=()))
        for operands, sizes in found.values():
            for number, indices in operands:
                shape = zip(of_axes(indices), nodes[number].shape, strict=True)
                nodes[number] = nodes[number]._replace(
                    shape=tuple([sizes.get(str(name), int(size)) for name, size in shape])
                )
        return graph._replace(nodes=tuple(nodes))


Block = tuple[int, ...]  # a block, by the inputs of its slots


class Chosen(NamedTuple):
    """Blocks of derivatives: those by some inputs, which are numbered as the graph's inputs are.

    Attributes:
        blocks: For each block the inputs of its slots; there may be some of several orders.
    """

    blocks: tuple[Block, ...]

    def narrowed(self, graph: Graph) -> Graph:
        """Return a graph in which an input that is in no block is none to differentiate by."""
        kept, nodes = {graph.inputs[number] for number in chain(*self.blocks)}, list(graph.nodes)
        depending: set[int] = set()
        for node in graph.nodes:
            if node.active and (node.number in kept or not depending.isdisjoint(node.operands)):
                depending.add(node.number)
            else:
                nodes[node.number] = node._replace(active=False)
        return graph._replace(nodes=tuple(nodes))


Wanted = Sequence[int] | Chosen | Contractions


def blocks_of(wanted: Wanted, order: int, inputs: int) -> Iterable[Block]:
    """Return the blocks of an order that are asked for, by the inputs of their slots, of so many inputs."""
    if isinstance(wanted, Chosen):
        return [block for block in wanted.blocks if len(block) == order]
    return product(range(inputs), repeat=order)


def orders_of(wanted: Wanted) -> tuple[int, ...]:
    """Return the orders of the derivatives that are asked for; 0 is the output itself."""
    if isinstance(wanted, Chosen):
        return tuple(sorted({*map(len, wanted.blocks)}))
    if isinstance(wanted, Contractions):
        return tuple(sorted({len(contraction.slots) for contraction in chain(*wanted.sums)}))
    return tuple(wanted)


def highest(wanted: Wanted) -> int:
    """Return the highest order of derivatives that is asked for, one at least."""
    return max(1, *orders_of(wanted))
