"""The strategies by name, each from a lowered graph to the blocks wanted and the builder that has their steps."""

from collections.abc import Callable, Hashable
from functools import partial, reduce
from typing import NamedTuple

import torch

from hofunc.algebra.term import Factor, Term
from hofunc.plan import contraction, selections
from hofunc.plan.ablation import ABLATIONS
from hofunc.plan.activity import settled
from hofunc.plan.blocks import Blocks, Local
from hofunc.plan.builder import Builder, Leave
from hofunc.plan.entries import Extents
from hofunc.plan.following import regions
from hofunc.plan.forward import Polynomials, forward
from hofunc.plan.jointly import jointly
from hofunc.plan.keys import Keys
from hofunc.plan.mixed import mixed
from hofunc.plan.packing import RowsMixError, Variable
from hofunc.plan.preaccumulated import eliminated, preaccumulated
from hofunc.plan.recipes import axes_of, interned
from hofunc.plan.replaced import Replaced
from hofunc.plan.reverse import reverse
from hofunc.plan.rows import number_of_rows
from hofunc.plan.waist import through
from hofunc.plan.wanted import Contractions, Wanted, highest
from hofunc.plan.widths import ORDER_OF_WAYS
from hofunc.rules.lower import Lowered
from hofunc.rules.settle import Settlings

STRATEGIES = ("reverse", "forward", "mixed")


class Way(NamedTuple):
    """A way in which mixed computes derivatives of order two and, through a waist, of others.

    Attributes:
        waist: The node by whose derivatives those by the inputs are computed, see `hofunc.plan.waist`, if any.
        wide: The nodes that are replaced, see `hofunc.plan.replaced`.
        leading: Those that halves are led on through, see `hofunc.plan.halves`.
    """

    waist: int | None = None
    wide: frozenset[int] = frozenset()
    leading: frozenset[int] = frozenset()


PLAIN = Way()


def strategies_of(wanted: Wanted) -> tuple[str, ...]:
    """Return the strategies by which something can be computed."""
    return contraction.STRATEGIES if isinstance(wanted, Contractions) else STRATEGIES


def propagated(
    lowered: Lowered,
    local: dict[int, Local],
    wanted: Wanted,
    strategy: str,
    leave: Leave = Leave(),  # noqa: B008 - it is a tuple
    *,
    keeps_indices: bool = False,
    keeps_blocks: bool = True,
    settles: bool = True,
    settlings: Settlings | None = None,
    extents: Callable[[], Extents] | None = None,
    way: Way = PLAIN,
) -> tuple[Builder, Blocks]:
    """Return the blocks of a strategy and the builder that has their steps.

    Args:
        lowered: The graph.
        local: The local derivatives of its nodes.
        wanted: What is asked for.
        strategy: One of those by which it can be computed, or of ABLATIONS.
        leave: What it may take.
        keeps_indices: Whether terms are to read through indices, however few, rather than to multiply by zeros.
        keeps_blocks: Whether the structure of blocks by each input matters beyond what they take to compute.
        settles: Whether slopes behind what is constant are finite; else what is finite in the end is right.
        settlings: What is to be settled of the local derivatives, if that is known.
        extents: Tells how many entries derivatives have, if that is known.
        way: The way in which the strategy mixed is to do so.

    Raises:
        DirectionsError: It does not apply.
        TooManyStepsError: It takes more steps.
    """
    in_blocks = not is_directional(wanted, strategy)
    small = 0 if keeps_indices else selections.small(highest(wanted) if in_blocks else 1)
    builder = Builder(lowered, computing_dtype(lowered), leave, small)
    builder.in_blocks = in_blocks
    settlings = settlings or Settlings(lowered.graph, lowered.rules, local)
    builder.rounds = settlings.are_finite
    builder.has_rows = number_of_rows(lowered.graph) is not None
    try:
        return builder, _blocks(
            builder,
            local,
            wanted,
            strategy,
            settlings,
            extents or partial(Extents, lowered.graph, local, wanted),
            settles=settles,
            keeps=keeps_blocks,
            way=way,
        )
    except Exception:
        builder.forget()
        raise


def _blocks(
    builder: Builder,
    local: dict[int, Local],
    wanted: Wanted,
    strategy: str,
    settlings: Settlings,
    extents: Callable[[], Extents],
    *,
    settles: bool,
    keeps: bool,
    way: Way,
) -> Blocks:
    """Return the blocks of a strategy, see `propagated`."""
    lowered, directional = builder.lowered, is_directional(wanted, strategy)
    if settles:
        local = settled(builder, local, settlings, masks_come_last=not directional)
    local = _interned(builder, local)
    if isinstance(wanted, Contractions):
        return contraction.contracted(builder, local, wanted, strategy)
    asked = Keys(wanted, lowered.graph.inputs)
    if asked.highest > ORDER_OF_WAYS and way.waist is None:
        local = eliminated(builder, local, asked.highest)
    if not directional:
        return ABLATIONS.get(strategy, reverse)(builder, local, asked)
    if way.waist is not None:
        return through(builder, local, asked, way.waist)
    joint = None
    if not (keeps or asked.are_chosen) and (builder.rounds or not settles):
        joint = jointly(builder, local, wanted, extents, is_mixed=strategy == "mixed")
    nodes = lowered.graph.nodes
    inputs = [number for number in lowered.graph.inputs if nodes[number].active]
    variables = {joint.number: joint.variable} if joint else {each: Variable.of(nodes[each].shape) for each in inputs}
    is_mixed = strategy == "mixed"
    found = regions(lowered.graph, local) if is_mixed and joint is None and asked.highest == ORDER_OF_WAYS else []
    own, whole, starts = preaccumulated(builder, local, found)
    replaced = Replaced(builder, own, way.wide) if way.wide else None
    polynomials = Polynomials(builder, replaced.local if replaced else own, variables, asked, joint)
    while True:
        try:
            blocks = mixed(polynomials, whole, starts, replaced, way.leading) if is_mixed else forward(polynomials)
            return joint.apart(builder, blocks) if joint else blocks
        except RowsMixError as error:
            builder.node = None
            polynomials.without(error.variable, error.axes)


def _interned(builder: Builder, local: dict[int, Local]) -> dict[int, Local]:
    """Return local derivatives of which terms of one pattern have the same axes."""
    known: dict[Hashable, Term] = {}  # by the identity of axes, which most nodes share with others that are alike

    def one(term: Term) -> Term:
        axes = axes_of(term)
        first = known.get(axes)
        if first is None:
            first = known[axes] = interned(builder, term)
            return first
        factors = tuple([Factor(own.source, each.axes) for own, each in zip(term.factors, first.factors, strict=True)])
        return Term(term.coefficient, factors, first.out, first.slots)

    return {node: {key: [*map(one, terms)] for key, terms in blocks.items()} for node, blocks in local.items()}


def is_directional(wanted: Wanted, strategy: str) -> bool:
    """Tell whether a strategy multiplies derivatives by directions."""
    return strategy != "blocks" if isinstance(wanted, Contractions) else strategy in ("forward", "mixed")


def computing_dtype(lowered: Lowered) -> torch.dtype:
    """Return the dtype to compute in: the widest of what is differentiated, and of outputs, and float32 at least.

    In half precision a sum of many terms would lose more than the values themselves have lost. An output that depends
    on nothing that is differentiated by still has a value, of which no digit may be lost.
    """
    graph = lowered.graph
    nodes = [*(node for node in graph.nodes if node.active), *(graph.nodes[number] for number in graph.outputs)]
    dtypes = {node.dtype for node in nodes if node.dtype.is_floating_point}
    return reduce(torch.promote_types, dtypes, torch.float32)
