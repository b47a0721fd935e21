"""Bundles: many inputs side by side as one variable, for blocks that have no structure to lose by it.

What follows a layer depends on all parameters after it, by a block for each. Of those that are dense, one tensor is
made, with the parameters one after the other along one axis: then a node costs one composition, not one for each.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import prod

import torch

from hofunc.algebra.labels import Axes, Label, Segment, fresh_axes, labels_of
from hofunc.algebra.operators import selections_of
from hofunc.algebra.partitions import Key, arrangements
from hofunc.algebra.term import Factor, Term, with_slots
from hofunc.plan.accumulate import core
from hofunc.plan.builder import Builder, cut
from hofunc.views import Labelled, Part, assembled, each, permuted, spread, times, within

LEAST = 8  # inputs, below which a block for each is no more work
FEW = 3  # blocks of one node, likewise

Block = tuple[int, Key]
Taken = Iterable[tuple[Block, list[Term]]]


class Bundle:
    """All inputs as one variable, in the order of their numbers.

    Args:
        builder: Takes the steps.
        inputs: The inputs; none, if each is to remain a variable of its own.

    Attributes:
        number: The number of the variable, after those of all nodes.
    """

    def __init__(self, builder: Builder, inputs: Sequence[int]):
        self._builder = builder
        self._nodes = builder.lowered.graph.nodes
        self.number = len(self._nodes)
        self._ranges: dict[int, range] = {}
        self._extent = 0
        for number in sorted(inputs):
            size = prod(map(int, self._nodes[number].shape))
            self._ranges[number] = range(self._extent, self._extent + size)
            self._extent += size
        self._members: dict[Block, set[int]] = defaultdict(set)

    def tied(self, taken: Taken, node: int) -> Iterator[tuple[Block, list[Term]]]:
        """Yield blocks that have a node, those of the node and one input as one, if they are dense.

        Args:
            taken: The blocks, with terms that are added up.
            node: The node.
        """
        dense: dict[int, list[tuple[Block, list[Term]]]] = defaultdict(list)
        for (output, key), terms in taken:
            others = [variable for variable in key if variable != node]
            if len(key) == 2 and len(others) == len(terms) == 1 and self._is_dense(others[0], key, terms[0]):
                dense[output].append(((output, key), terms))
            else:
                yield (output, key), terms
        for output, found in dense.items():
            yield from found if len(found) <= FEW else [self._tied(output, node, found)]

    def _is_dense(self, variable: int, key: Key, term: Term) -> bool:
        """Tell whether a block of a node and an input, or the bundle, is a tensor without a diagonal or a gap.

        One without elements is none: there is nothing of it to be part of another.
        """
        if variable != self.number and variable not in self._ranges:
            return False
        slots = [slot for other, slot in zip(key, term.slots, strict=True) if other != self.number]
        segments = [segment for axes in (term.out, *slots) for axis in axes for segment in axis]
        whole = all(segment.extent == 1 or segment.is_full for segment in segments) and not selections_of(term)
        labels = [segment.label for segment in segments if segment.label is not None]
        return whole and len({*labels}) == len(labels) and 0 not in [label.size for label in labels]

    def _tied(self, output: int, node: int, found: Sequence[tuple[Block, list[Term]]]) -> tuple[Block, list[Term]]:
        """Return one block of a node and the bundle for those of the node and some inputs."""
        result = output, (node, self.number)
        out, slot = (fresh_axes(self._nodes[number].shape) for number in (output, node))
        parts = []
        for (_, key), (term,) in found:
            place = 1 - key.index(node)
            members = self._members[output, key] if key[place] == self.number else {key[place]}
            self._members[result] = self._members[result] | members
            parts.append(self._part(term, place, key[place], (*out, *slot)))
        reached = [part.axes[-1][0] for part in parts]
        start, stop = min(segment.start for segment in reached), max(segment.stop for segment in reached)
        tensor = assembled(self._builder.emit, [within(part, len(part.axes) - 1, start, stop) for part in parts])
        label = Label(stop - start)
        labels = _with_dims((*labels_of(out, slot), label))
        tensor = self._builder.emit(torch.reshape, tensor, tuple(label.size for label in labels))
        bundled: Axes = ((Segment(label, start, self._extent),),)
        return result, [Term(1, (Factor(tensor, each(labels)),), out, (slot, bundled))]

    def _part(self, term: Term, place: int, variable: int, axes: Axes) -> Part:
        """Return what a term has of the bundle, given the other axes by new labels."""
        own, slot = term.slots[place], term.slots[1 - place]
        if variable == self.number:
            ((reached,),) = own
            start, size = reached.start, reached.stop - reached.start
            whole: Axes = ((Segment(reached.label, 0, size),),)
        else:
            start, size, whole = self._ranges[variable].start, len(self._ranges[variable]), own
        tensor = spread(self._builder.emit, core(self._builder, term), (*term.out, *slot, *whole))
        label = Label(size)
        labels = _with_dims((*labels_of(axes), label))
        tensor = self._builder.emit(torch.reshape, tensor, tuple(label.size for label in labels))
        return Part(term.coefficient, Labelled(tensor, tuple(labels)), (*axes, (Segment(label, start, self._extent),)))

    def inherit(self, target: Block, source: Block) -> None:
        """Note that a block of the bundle has what another one had."""
        if self.number in target[1]:
            self._members[target] = self._members[target] | self._members[source]

    def untied(self, block: Block, terms: Sequence[Term]) -> Iterator[tuple[Block, list[Term]]]:
        """Yield the blocks by inputs that a block by the bundle stands for, or the block itself."""
        output, key = block
        if self.number not in key:
            yield block, [*terms]
            return
        rest, wholes = key[:-1], [self._whole(term) for term in terms]
        for member in sorted(self._members[block]):
            target, orders = arrangements(rest, [(member,)])
            cuts = [part for term, whole in zip(terms, wholes, strict=True) if (part := self._cut(term, whole, member))]
            yield (output, target), [with_slots(part, order) for order in orders for part in cuts]

    def _whole(self, term: Term) -> Labelled:
        """Return a term with its coefficient, its axes as a dense tensor has them, so that its cuts are ready."""
        given = core(self._builder, term)
        labels = [label for label in dict.fromkeys(labels_of(term.out, *term.slots)) if label in given.labels]
        tensor = permuted(self._builder.emit, given.tensor, tuple(map(given.labels.index, labels)))
        return Labelled(times(self._builder.emit, tensor, term.coefficient), tuple(labels))

    def _cut(self, term: Term, whole: Labelled, member: int) -> Term | None:
        """Return what a term has of an input, None if nothing; the bundle has its last slot.

        Where the bundle is reached in part, so may the input be: the rest of it is zero.

        Args:
            term: The term.
            whole: What it is as a tensor.
            member: The input.
        """
        *slots, ((reached,),) = term.slots
        own, emit = self._ranges[member], self._builder.emit
        start, stop = max(own.start, reached.start), min(own.stop, reached.stop)
        if start >= stop:
            return None
        axes = fresh_axes(map(int, self._nodes[member].shape))
        tensor, labels, label = whole.tensor, [*whole.labels], reached.label or Label(1)
        if label not in labels and (start, stop) != (own.start, own.stop):
            labels.append(label)
            tensor = spread(emit, whole, each(labels))
        if label in labels:
            dim, apart = labels.index(label), _with_dims(labels_of(axes))
            sizes = tuple([label.size for label in apart])
            if stop - start == len(own):
                tensor = emit(cut, tensor, dim, start - reached.start, sizes)
            else:
                beside = (0, 0) * (len(labels) - 1 - dim)
                tensor = emit(cut, tensor, dim, start - reached.start, (stop - start,))
                tensor = emit(torch.constant_pad_nd, tensor, (*beside, start - own.start, own.stop - stop))
                around = [label.size for label in labels]
                tensor = emit(torch.reshape, tensor, (*around[:dim], *sizes, *around[dim + 1 :]))
            labels[dim : dim + 1] = apart
        return Term(1, (Factor(tensor, each(labels)),), term.out, (*slots, axes))


def _with_dims(labels: Iterable[Label]) -> list[Label]:
    """Return the labels for which tensors have a dimension."""
    return [label for label in labels if label.size > 1]
