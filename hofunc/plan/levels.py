"""Levels: what was written number by number, as operations on batches of numbers.

A factorisation, the table of a dynamic program or a sum over pairs that is written by loops over single elements is
recorded as a node for each of them. Nodes of one op on operands of one shape that do not follow from one another are
one node here, for all of them at once. What only moves elements, as to read one, to stack some or to write to a part,
is no node: of every element it is told where it is computed, and what a batch takes is gathered from there.
Source: Neubig, Goldberg and Dyer, On-the-fly operation batching in dynamic computation graphs (2017).
"""

from bisect import bisect
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import accumulate, chain, count
from math import fsum, prod
from typing import NamedTuple

import torch

from hofunc.algebra.labels import fresh_axes
from hofunc.algebra.operators import Map
from hofunc.algebra.term import Factor, Term
from hofunc.graph.draws import draws
from hofunc.graph.layout import COMPUTED_AGAIN, select_scatter, write_strided
from hofunc.graph.node import Call, Node, Ref, call_of, fill
from hofunc.internals import OpOverload
from hofunc.plan.batched import as_batch
from hofunc.plan.blocks import Local
from hofunc.plan.program import device_of, is_on_one_device
from hofunc.plan.rows import unmarked
from hofunc.plan.sequences import Sequences
from hofunc.plan.strategies import computing_dtype
from hofunc.rules.kinds import Linear, Site
from hofunc.rules.lower import Lowered

aten = torch.ops.aten

LEAST = 64  # nodes, of fewer of which nothing is gained
FEWER = 5  # times as many as there are batches, as each takes gathering of its own
ELEMENTS = 64  # of a node that is one of a batch, as those of larger ones take longer than calls do
MOST = 1 << 16  # elements of all nodes

MOVING = {
    aten.select.int,
    aten.unbind.int,
    aten.stack.default,
    aten.cat.default,
    aten.view.default,
    aten.reshape.default,
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.expand.default,
    aten.slice.Tensor,
    aten.squeeze.dim,
    aten.squeeze.default,
    aten.unsqueeze.default,
    aten.clone.default,
    aten.diagonal.default,
    aten.flip.default,
    aten.roll.default,
    select_scatter,
    write_strided,
}  # ops whose results have the elements of their operands


def gathered(index: torch.Tensor, *vectors: torch.Tensor) -> torch.Tensor:
    """Return elements of vectors, by their places in all of them one after the other.

    The last two thirds of what is given are no vectors but, for each of these, which elements are taken of it, and
    where they are in the result.
    """
    parts = vectors[: len(vectors) // 3]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).index_select(0, index)


def _of_gathered(site: Site) -> dict[int, list[Term]]:
    """Return the terms of `gathered`."""
    found, vectors, size = {}, (len(site.operands) - 1) // 3, site.node.shape[0]
    for place in range(1, 1 + vectors):
        out, (taken,) = fresh_axes((size,)), fresh_axes(site.shapes[place])
        pair = vectors + 2 * place - 1
        args = site.ref(pair), site.ref(pair + 1), size, *site.shapes[place]
        found[place] = [Term(1, (Factor(Map(put_out, put_back, args), (*out, taken)),), out, ((taken,),))]
    return found


def put_out(tensor: torch.Tensor, taken: torch.Tensor, put: torch.Tensor, size: int, _: int) -> torch.Tensor:
    """Return elements along the last dimension in their places among others, which are zero."""
    found = tensor.index_select(-1, taken)
    if len(taken) == size:  # all are of one vector, and so in order
        return found
    return found.new_zeros(*tensor.shape[:-1], size).index_copy(-1, put, found)


def put_back(tensor: torch.Tensor, taken: torch.Tensor, put: torch.Tensor, size: int, before: int) -> torch.Tensor:
    """Apply the transpose of `put_out`."""
    found = tensor if len(taken) == size else tensor.index_select(-1, put)
    return found.new_zeros(*tensor.shape[:-1], before).index_add(-1, taken, found)


GATHERED = Linear(_of_gathered)


def with_levels(lowered: Lowered, local: Mapping[int, Local], order: int) -> Lowered | None:
    """Return a graph in which nodes that are alike are batches; None if these are not far fewer.

    No rows are marked in it. Where derivatives of a node are infinite, others of its batch may be nan for it.

    Args:
        lowered: The graph.
        local: Its local derivatives.
        order: The highest order that is wanted.
    """
    lowered = lowered._replace(graph=unmarked(lowered.graph))
    if len(local) < LEAST or not _is_plain(lowered, local):
        return None
    found = _Levels(lowered, local)
    try:
        return _Batching(lowered, found, order).lowered() if found.groups else None
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
        return None  # torch cannot batch an op, or not that of other values


def _is_plain(lowered: Lowered, local: Mapping[int, Local]) -> bool:
    """Tell whether nodes may be computed in batches: they are small, on one device, of one dtype, and not random."""
    nodes = lowered.graph.nodes
    if lowered.decided or not is_on_one_device(lowered.graph):
        return False
    if sum(prod(nodes[number].shape) for number in local) > MOST or any(draws(nodes[each]) for each in local):
        return False
    moved = [operand for number in local if nodes[number].op in MOVING for operand in nodes[number].operands]
    return {nodes[number].dtype for number in (*local, *moved)} == {computing_dtype(lowered)}


class _Levels:
    """Which nodes are one batch each, and where every element is computed.

    Args:
        lowered: The graph.
        local: Its local derivatives.

    Attributes:
        addresses: Of every node that is reached where its elements are computed: places among all that are.
        starts: Of every node that computes elements, or has them, the first of their addresses.
        groups: The nodes of each batch, in an order in which all that they take comes before; none if they are hardly
            fewer than nodes.
    """

    def __init__(self, lowered: Lowered, local: Mapping[int, Local]):
        self.addresses: dict[int, tuple[int, ...]] = {}
        self.starts: dict[int, int] = {}
        self.groups: list[list[int]] = []
        self._nodes = lowered.graph.nodes
        self._owners: list[int] = []  # by address
        self._tensors: dict[int, torch.Tensor] = {}
        order, most = sorted(local), len(local) // FEWER
        if self._least_depth(order) > most:
            return
        kinds = {number: _kind(lowered, number) for number in order if self._nodes[number].op not in MOVING}
        if len({*kinds.values()}) > most:
            return
        for number in order:
            for operand in self._nodes[number].operands:
                if operand not in self.addresses:
                    self._add(operand)
            if number in kinds:
                self._add(number)
            else:
                self._move(self._nodes[number])
        groups = self._scheduled(kinds, most)
        self._sort(groups)
        self.groups = groups

    def _least_depth(self, order: Iterable[int]) -> int:
        """Return how many nodes follow from one another at least, before it is known which elements each of them takes.

        What is moved may be all of the operand that comes first.
        """
        depths: dict[int, int] = {}
        for number in order:
            node = self._nodes[number]
            before = [depths.get(operand, 0) for operand in node.operands]
            depths[number] = min(before) if node.op in MOVING else 1 + max(before)
        return max(depths.values())

    def _add(self, number: int) -> None:
        """Give a node addresses of its own."""
        start, size = len(self._owners), prod(self._nodes[number].shape)
        self.starts[number] = start
        self.addresses[number] = tuple(range(start, start + size))
        self._owners += [number] * size

    def _move(self, node: Node) -> None:
        """Find the addresses of what only moves elements."""
        call = call_of(node)
        moved = call._replace(op=COMPUTED_AGAIN.get(call.op, call.op))(*map(self._tensor, node.operands))
        self._tensors[node.number] = found = moved if node.output is None else moved[node.output]
        self.addresses[node.number] = tuple(found.flatten().tolist())

    def _tensor(self, number: int) -> torch.Tensor:
        """Return the addresses of a node as a tensor of its shape."""
        if number not in self._tensors:
            found = torch.tensor(self.addresses[number], dtype=torch.long)
            self._tensors[number] = found.reshape(self._nodes[number].shape)
        return self._tensors[number]

    def _scheduled(self, kinds: Mapping[int, Hashable], most: int) -> list[list[int]]:
        """Return the nodes of each batch; none if there are more than so many.

        Of the nodes that could come next those are one batch whose kind comes first on average, so that what can wait,
        as what is made of each result in the end, waits for all of its kind.
        """
        waiting: dict[int, int] = {}
        followers: dict[int, list[int]] = defaultdict(list)
        depths: dict[int, int] = {}
        depths_of: dict[Hashable, list[int]] = defaultdict(list)
        ready: dict[Hashable, list[int]] = defaultdict(list)
        for number, kind in kinds.items():
            before = {self._owners[place] for place in self._taken(number)} & kinds.keys()
            for each in before:
                followers[each].append(number)
            waiting[number] = len(before)
            depths[number] = 1 + max([depths[each] for each in before], default=0)
            depths_of[kind].append(depths[number])
            if not before:
                ready[kind].append(number)
        if max(depths.values(), default=0) > most:
            return []
        average = {kind: fsum(each) / len(each) for kind, each in depths_of.items()}
        groups: list[list[int]] = []
        while ready and len(groups) <= most:
            groups.append(ready.pop(min(ready, key=average.__getitem__)))
            for each in chain.from_iterable(followers[number] for number in groups[-1]):
                waiting[each] -= 1
                if not waiting[each]:
                    ready[kinds[each]].append(each)
        return groups if len(groups) <= most else []

    def _taken(self, number: int) -> Iterable[int]:
        """Return the addresses of what a node takes."""
        return chain.from_iterable(self.addresses[operand] for operand in self._nodes[number].operands)

    def _sort(self, groups: Sequence[list[int]]) -> None:
        """Sort each batch so that those that take parts of it take its nodes in a row, as far as they can."""
        uses: dict[int, tuple[int, int, int]] = {}  # the first batch that takes a node, the operand, and its place
        last = (len(groups), 0, 0)
        for number, group in reversed([*enumerate(groups)]):
            group.sort(key=lambda node: (uses.get(node, last), node))
            for place, node in enumerate(group):
                for slot, operand in enumerate(self._nodes[node].operands):
                    use = number, slot, place
                    for owner in {self._owners[address] for address in self.addresses[operand]}:
                        uses[owner] = min(uses.get(owner, use), use)


def _kind(lowered: Lowered, number: int) -> Hashable:
    """Return what nodes have in common that may be one batch."""
    nodes, node = lowered.graph.nodes, lowered.graph.nodes[number]
    if prod(node.shape) > ELEMENTS or not isinstance(node.op, OpOverload):
        return number
    args, kwargs = (fill(each, map(Ref, count())) for each in (node.args, node.kwargs))
    looks = tuple([(nodes[each].shape, nodes[each].dtype, nodes[each].active) for each in node.operands])
    return node._replace(number=0, args=args, kwargs=kwargs, operands=()), lowered.rules[number], looks


class _Base(NamedTuple):
    """A node of which elements are taken, by the place of the first of them among those of all."""

    start: int
    number: int


class _Batching(Sequences):
    """The graph with batches, as far as it is made.

    Args:
        lowered: The graph.
        found: Which nodes are batches, and where elements are computed.
        order: The highest order.
    """

    def __init__(self, lowered: Lowered, found: _Levels, order: int):
        super().__init__(lowered)
        self._found, self._order = found, order
        self._where: dict[int, int] = {}  # by address the place among the elements of all bases
        self._bases: list[_Base] = []
        self._known: dict[tuple[int, ...], int] = {}  # nodes that have the elements at some places,
        self._shaped: dict[tuple[int, tuple[int, ...]], int] = {}  # and the same of another shape

    def lowered(self) -> Lowered:
        """Return the graph.

        Raises:
            RuntimeError: An op cannot be batched, or what else torch raises then.
        """
        graph, groups = self._given.graph, self._found.groups
        inside, values = {*chain(*groups)}, dict[int, int]()
        for node, origin in zip(graph.nodes, self._given.origins, strict=True):
            values[node.number] = number = self.copy(node, origin, values, is_constant=not node.is_given)
            if node.number in self._found.starts and node.number not in inside:
                self._add(number, [node.number])
        for group in groups:
            self._add(self._batch([graph.nodes[number] for number in group]), group)
        ends: dict[int, int] = {}
        for output in dict.fromkeys(graph.outputs):
            if graph.nodes[output].active:
                ends[output] = end = self._read(self._found.addresses[output], graph.nodes[output].shape)
                self.origins[end] = self._given.origins[output]
        self.numbers = values | ends
        return self.finished()

    def _add(self, number: int, members: Iterable[int]) -> None:
        """Note that a node has the elements of others, one after the other."""
        start = place = len(self._where)
        for member in members:
            first = self._found.starts[member]
            for address in range(first, first + prod(self._given.graph.nodes[member].shape)):
                self._where[address] = place
                place += 1
        self._bases.append(_Base(start, number))
        self._known[tuple(range(start, place))] = number

    def _batch(self, nodes: Sequence[Node]) -> int:
        """Append nodes of one kind as a single one, along its first dimension."""
        first, size = nodes[0], len(nodes)
        is_single = size == 1 and (first.shape != () or not _is_pointwise(first))
        taken = [
            [self._found.addresses[each] for each in slot] for slot in zip(*[n.operands for n in nodes], strict=True)
        ]
        shared = [size > 1 and len({*each}) == 1 for each in taken]
        if all(shared):  # they compute the same
            shared = [False] * len(shared)
        operands = []
        for operand, addresses, is_shared in zip(first.operands, taken, shared, strict=True):
            shape = self._given.graph.nodes[operand].shape
            if _is_pointwise(first) and not is_single:
                shape = (1 if is_shared else size, *[1] * (len(first.shape) - len(shape)), *shape)
            elif not (is_single or is_shared):
                shape = (size, *shape)
            operands.append(self._read(addresses[0] if is_shared else (*chain(*addresses),), shape))
        if is_single or _is_pointwise(first):
            shape = first.shape if is_single else (size, *first.shape)
            rule = self._given.rules[first.number]
            return self.append(_called(first, operands), shape, first.dtype, output=first.output, rule=rule)
        return self._vectorised(first, operands, tuple([None if each else 0 for each in shared]))

    def _vectorised(self, node: Node, operands: Sequence[int], dims: tuple[int | None, ...]) -> int:
        """Append many nodes like one by what is recorded of that under `torch.func.vmap`.

        Raises:
            RuntimeError: The op cannot be batched, or what else torch raises then.
        """
        found = [self.nodes[number] for number in operands]
        device = device_of(self._given.graph)
        examples = [torch.ones(each.shape, dtype=each.dtype, device=device) for each in found]
        call = _called(node, range(len(operands)))

        def function(*tensors: torch.Tensor) -> torch.Tensor:
            result = call(*tensors)
            return result if node.output is None else result[node.output]

        inner = as_batch(torch.func.vmap(function, dims), examples, [each.active for each in found], self._order)
        if inner is None:
            raise RuntimeError(f"hofunc.plan: no batch of {node.op}")
        return self.spliced(inner, operands)

    def _read(self, addresses: Sequence[int], shape: tuple[int, ...]) -> int:
        """Return a node that has the elements at some addresses."""
        places = tuple([self._where[each] for each in addresses])
        number = self._known.get(places)
        if number is None:
            self._known[places] = number = self._gathered(places)
        if self.nodes[number].shape == shape:
            return number
        if (number, shape) not in self._shaped:
            self._shaped[number, shape] = self.reshaped(number, shape)
        return self._shaped[number, shape]

    def _gathered(self, places: tuple[int, ...]) -> int:
        """Append the elements at some places as a vector."""
        of = [bisect(self._bases, place, key=_start) - 1 for place in places]
        bases = {each: self._bases[each] for each in of}
        vectors = [
            each.number if len(self.nodes[each.number].shape) == 1 else self.flat(each.number)
            for each in bases.values()
        ]
        if len(bases) == 1 and places == tuple(range(places[0], places[0] + len(places))):
            return self.cut(vectors[0], 0, places[0] - self._bases[of[0]].start, len(places))
        sizes = [self.nodes[vector].shape[0] for vector in vectors]
        shifts = {
            each: before - bases[each].start for each, before in zip(bases, accumulate([0, *sizes]), strict=False)
        }
        index = self._index([place + shifts[each] for place, each in zip(places, of, strict=True)])
        pairs: list[int] = []
        for each, (start, _) in bases.items():
            put = [number for number, base in enumerate(of) if base == each]
            pairs += self._index([places[number] - start for number in put]), self._index(put)
        call = Call(gathered, tuple(map(Ref, [index, *vectors, *pairs])))
        rule = GATHERED if any(self.nodes[vector].active for vector in vectors) else None
        return self.append(call, (len(places),), self.nodes[vectors[0]].dtype, rule=rule)

    def _index(self, places: Sequence[int]) -> int:
        """Append places as a constant."""
        return self.constant(torch.tensor(places, device=device_of(self._given.graph)))


def _start(base: _Base) -> int:
    return base.start


def _is_pointwise(node: Node) -> bool:
    return isinstance(node.op, OpOverload) and torch.Tag.pointwise in node.op.tags


def _called(node: Node, operands: Iterable[int]) -> Call:
    """Return the call of a node on others."""
    supply = map(Ref, operands)
    args = fill(node.args, supply)
    return Call(node.op, args, fill(node.kwargs, supply))
