"""The derivatives of one node by the nodes it is computed from, whatever positions those stand at.

Layers of a network and steps of a recurrence have nodes of the same op, on operands of the same shapes. Their
derivatives differ in the nodes that factors name only, so that they are asked of a rule once, and have the same axes.
"""

from collections import Counter
from collections.abc import Hashable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

from hofunc.algebra.extents import Rows, has_rows
from hofunc.algebra.labels import Label, full, labels_of
from hofunc.algebra.operators import Delta, Map
from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Factor, Term, rebound, with_slots
from hofunc.graph.node import Call, Graph, Node, Ref, fill, refs, renumbered
from hofunc.rules.kinds import Linear, Positions, Rule, site_of


class Alike(Mapping[Key, list[Term]]):
    """The derivatives of a node that are those of others but for names: in the same order, of the same axes.

    They are named as somebody asks for them: where all steps of a recurrence are one batch, few are.

    Attributes:
        template: What they are made from; what is told of that is told of all.
    """

    __slots__ = ("_blocks", "_node", "template")

    def __init__(self, template: "Template", node: Node):
        self.template, self._node = template, node
        self._blocks: dict[Key, list[Term]] | None = None

    def _named(self) -> dict[Key, list[Term]]:
        if self._blocks is None:
            self._blocks = self.template.of(self._node)
        return self._blocks

    def __getitem__(self, key: Key) -> list[Term]:
        """Return the terms by some variables."""
        return self._named()[key]

    def __iter__(self) -> Iterator[Key]:
        """Iterate over the sorted tuples of variables."""
        return iter(self._named())

    def __len__(self) -> int:
        """Return by how many of these there are derivatives."""
        return len(self.template.blocks)

    def keys(self) -> KeysView[Key]:
        """Return the sorted tuples of variables."""
        return self._named().keys()

    def values(self) -> ValuesView[list[Term]]:
        """Return all terms."""
        return self._named().values()

    def items(self) -> ItemsView[Key, list[Term]]:
        """Return all terms by the sorted tuples of variables."""
        return self._named().items()


class Template(NamedTuple):
    """The derivatives of a node, from which those of others like it are made.

    Attributes:
        numbers: The node's operands, and itself.
        blocks: Its derivatives, by the sorted tuple of its variables.
    """

    numbers: tuple[int, ...]
    blocks: dict[Key, list[Term]]

    def of(self, node: Node) -> dict[Key, list[Term]]:
        """Return the derivatives of another node."""
        numbers = dict(zip(self.numbers, (*node.operands, node.number), strict=True))
        return {
            tuple([numbers[variable] for variable in key]): [_renamed(term, numbers) for term in terms]
            for key, terms in self.blocks.items()
        }


Templates = dict[Hashable, Template | None]  # None for derivatives that are asked of the rule for each node


def derivatives_like(
    templates: Templates, graph: Graph, node: Node, rule: Rule, order: int
) -> Mapping[Key, list[Term]]:
    """Return what `local_derivatives` does, from those of a node like it if there was one.

    Args:
        templates: What is known of nodes of the graph, to which this one is added.
        graph: The graph.
        node: One of its nodes.
        rule: The rule of that.
        order: The highest order, the same for all of them.
    """
    operands = [graph.nodes[number] for number in node.operands]
    key = (
        rule,
        node._replace(number=0, args=fill(node.args, map(Ref, count())), kwargs=_unnamed(node.kwargs), operands=()),
        _ranks(node),
        tuple([(each.op, each.shape, each.dtype, each.active) for each in operands]),
    )
    known = templates.get(key)
    if known is not None:
        return Alike(known, node)
    found = local_derivatives(graph, node, rule, order)
    if key not in templates:
        numbers = (*node.operands, node.number)
        are_named = all(
            _is_named(factor.source, numbers) for terms in found.values() for t in terms for factor in t.factors
        )
        templates[key] = template = Template(numbers, found) if are_named else None
        return found if template is None else Alike(template, node)
    return found


def _unnamed(template: Any) -> Any:
    """Return arguments of an op without the numbers of nodes."""
    return fill(template, map(Ref, count())) if template else template


def _is_named(source: Any, numbers: tuple[int, ...]) -> bool:
    """Tell whether a factor names nothing but a node and its operands, by Refs that are found."""
    if not isinstance(source, Ref | Call | Delta | Map):
        return False
    template = (source.args, getattr(source, "kwargs", ())) if isinstance(source, Call | Map) else source
    return all(ref.node in numbers for ref in refs(template))


def _renamed(term: Term, numbers: Mapping[int, int]) -> Term:
    """Return a term whose factors name other nodes."""
    if not term.factors:
        return term
    factors = tuple([Factor(_source(source, numbers), axes) for source, axes in term.factors])
    return Term(term.coefficient, factors, term.out, term.slots)


def _source(source: Any, numbers: Mapping[int, int]) -> Any:
    if type(source) is Ref:
        return Ref(numbers[source.node])
    if isinstance(source, Call):
        args, kwargs = renumbered((source.args, source.kwargs), numbers)
        return source._replace(args=args, kwargs=kwargs)
    if isinstance(source, Map):
        return source._replace(args=renumbered(source.args, numbers))
    return source


def local_derivatives(graph: Graph, node: Node, rule: Rule, order: int) -> dict[Key, list[Term]]:
    """Return the terms of every derivative of a node up to an order, by the sorted tuple of its variables.

    NOTE [repeated operands]: a node that takes one variable at several positions (`x * x`) is differentiated at each
    position, and the derivative by the variable is the sum over all ways to give a position to every slot.
    """
    site, ranks = site_of(graph, node), _ranks(node)
    linear = rule.parts(site) if isinstance(rule, Linear) else None  # of all operands at once, as a stack has many
    is_by_rows = any(map(has_rows, site.shapes))
    result: dict[Key, list[Term]] = {}
    for size in range(1, order + 1):
        for positions in rule.positions(site, size):
            if not all(graph.nodes[node.operands[position]].active for position in positions):
                continue
            terms = rule.terms(site, positions) if linear is None else linear.get(positions[0], [])
            terms = [of_no_rows(term) for term in terms] if is_by_rows else terms
            for slots in _assignments(ranks, positions):
                key = tuple(node.operands[positions[slot]] for slot in slots)
                result.setdefault(key, []).extend(with_slots(term, slots) for term in terms)
    return result


def of_no_rows(term: Term) -> Term:
    """Return a term in which no map makes rows, as each of what it makes is of all that it is given.

    Rules give what a map makes the size of what it is given, as of a sum of all rows up to each, in which rows may be
    marked that are none any more.
    """
    made = [axes[: source.outs] for source, axes in term.factors if isinstance(source, Map)]
    marked = [label for label in labels_of(*made) if isinstance(label.size, Rows)]
    return rebound(term, {label: (full(Label(int(label.size))),) for label in marked})


def _ranks(node: Node) -> tuple[int, ...]:
    """Return the place of every operand among the operands in order."""
    if len(node.operands) == 1:
        return (0,)
    return tuple(map(sorted({*node.operands}).index, node.operands))


@lru_cache(maxsize=4096)
def _assignments(operands: tuple[int, ...], positions: Positions) -> list[Positions]:
    """List the distinct orders of the slots at these positions that put the slots' variables in ascending order.

    The variables are known by their ranks among the operands.
    """

    def extend(chosen: Positions, left: Counter[int]) -> Iterator[Positions]:
        if not left:
            yield chosen
            return
        lowest = min(operands[position] for position in left)
        for position in sorted(left):
            if operands[position] == lowest:
                taken = sum(positions[slot] == position for slot in chosen)
                yield from extend((*chosen, positions.index(position) + taken), left - Counter([position]))

    return list(extend((), Counter(positions)))
