"""What is asked of a plan: all derivatives of some orders, or some blocks of these, or contractions of derivatives."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from math import inf, prod
from typing import Any, NamedTuple

from hofunc.graph.node import Graph
from hofunc.plan.adjoints import Start
from hofunc.plan.slots import Bearer, Operand, Slot, Slots, labels_of, of_axes, sizes_of


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

    def of(self, graph: Graph) -> "Contraction":
        """Return what is asked for of a graph, with its nodes."""
        number, indices = self.output
        slots = tuple([tuple([(graph.inputs[each], names) for each, names in slot]) for slot in self.slots])
        operands = tuple([(graph.inputs[each], names) for each, names in self.operands])
        return Contraction((graph.outputs[number], indices), slots, operands, self.result)

    @property
    def bearers(self) -> Iterator[Bearer]:
        """All that bears a label."""
        return chain([self.output], *self.slots, self.operands)

    def sizes(self, graph: Graph) -> dict[str, int]:
        """Return the size of every label."""
        return sizes_of(graph.nodes, self.bearers)

    def sizes_in(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> dict[str, int]:
        """Return the size of every label, given tensors rather than nodes."""
        return sizes_of(outputs, [self.output]) | sizes_of(inputs, chain(*self.slots, self.operands))

    def whole(self) -> Slots:
        """Return all slots, with the operands that have a label that only they and slots bear."""
        asked = {*self.result, *labels_of([self.output])}
        borne_by = [{*labels_of(slot)} for slot in self.slots]
        operands, late = [], []
        for bearer in self.operands:
            summed = {*labels_of([bearer])} - asked
            if home := tuple([place for place, names in enumerate(borne_by) if summed & names]):
                operands.append(Operand(bearer, home))
            else:
                late.append(bearer)
        asked |= {*labels_of(late)}
        borne = labels_of(chain(*self.slots, (operand.bearer for operand in operands)))
        return Slots(self.slots, tuple(operands), tuple([name for name in borne if name in asked]))

    def widest(self, sizes: Mapping[str, int]) -> int:
        """Return the slot that stands for most directions if it is not read off adjoints, given the sizes of labels."""
        result = {*self.result}

        def directions(place: int) -> int:
            own = [name for name in labels_of(self.slots[place]) if name in result]
            others = (slot for other, slot in enumerate(self.slots) if own and other != place)
            beside = labels_of(chain([self.output], *others))
            alone = [name for name in own if name not in beside]
            return prod(int(sizes[name]) for name in alone)

        return max(range(len(self.slots)), key=directions)

    @staticmethod
    def others(whole: Slots, last: int) -> Slots:
        """Return all slots but one."""
        return whole.part(tuple([place for place in range(len(whole.slots)) if place != last]))

    def start(self, whole: Slots, others: Slots | None = None) -> Start:
        """Return the output, multiplied by the operands that have no other labels.

        Args:
            whole: All slots.
            others: Those along which adjoints are computed, up to all of them; none if they are left out.
        """
        node, indices = self.output
        own = {*labels_of([self.output])}
        inner = {operand.bearer for operand in whole.operands}
        operands = [bearer for bearer in self.operands if bearer not in inner and {*labels_of([bearer])} <= own]
        left = [bearer for bearer in self.operands if bearer not in operands]
        asked = {*self.result, *labels_of(chain(*self.slots, left))}
        kept = tuple([name for name in labels_of([self.output]) if name in asked])
        along = [*others.slots, *([operand.bearer] for operand in others.operands)] if others else []
        every = [*self.slots, *([bearer] for bearer in left), [(node, self.result)]]
        borne = [sum(name in labels_of(each) for each in along) for name in kept]
        ends = [sum(name in labels_of(each) for each in every) for name in kept]
        bearers = [count if count == end else inf for count, end in zip(borne, ends, strict=True)]
        return Start(node, indices, tuple(operands), kept, tuple(bearers))


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
        nodes = list(graph.nodes)
        for contraction in chain(*self.sums):
            asked = contraction.of(graph)
            sizes = sizes_of(nodes, chain([asked.output], *asked.slots))
            for number, indices in asked.operands:
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
