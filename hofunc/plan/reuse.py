"""Reuse: which steps may write their result over what they take, and which are one call, as nothing reads it after.

So a sum takes no memory beside that of its terms, and a part that is written to a large tensor no copy of it. Only what
steps have allocated themselves is written over, and only while nobody follows what is done with tensors.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from operator import getitem
from typing import Any, NamedTuple

import torch

from hofunc.graph.followed import is_followed
from hofunc.graph.identity import PLAIN
from hofunc.graph.node import Call
from hofunc.plan import adding, lookups, relations
from hofunc.plan.builder import cut
from hofunc.plan.looped import looped
from hofunc.plan.memory import Held
from hofunc.plan.program import Program, Register, Step
from hofunc.plan.tracing import Effect, Trace
from hofunc.rules.ops.maps import picked, put_back
from hofunc.scatter import added
from hofunc.views import WRITES, add_scaled, concatenated, filled, folded, stacked

_UNKNOWN = -1  # what others may hold


def with_reuse(program: Program, trace: Trace) -> Program:
    """Return a program that writes over what it can, and adds products as it computes them.

    Args:
        program: The program.
        trace: What its registers hold.
    """
    bases: dict[int, int] = {}  # by register, the one that its memory was allocated for
    holders = defaultdict(int, {_UNKNOWN: 1})
    over: dict[int, int] = {}
    joined: list[int] = []
    before: Step | None = None
    loops: set[int] = set()
    for step, effect, freed in zip(program.steps, trace.effects, program.frees, strict=True):
        for register in freed:
            if register in bases:
                holders[bases[register]] -= 1
        free = [register for register in freed if not holders[bases.get(register, _UNKNOWN)]]
        place = _place(step, effect, trace, bases, free) if free else None
        if place is not None:
            over[step.target] = place
        if before is not None and _is_joined(before, step, freed, over, trace, bases):
            joined.append(step.target)
        before = step
        is_sum = step.function is getitem and bases.get(step.args[0].index) in loops  # each is a tensor of its own
        loops |= {step.target} if step.function is looped else set()
        base = step.target if (_allocates(step) and place is None) or is_sum else _UNKNOWN
        if place is not None or step.function in _VIEWS:
            base = bases.get(step.args[place or 0].index, _UNKNOWN)
        elif base == _UNKNOWN:  # it may return what it takes, or keep it, so that this is held for good
            for arg in step.args:
                if type(arg) is Register:
                    holders[bases.get(arg.index, _UNKNOWN)] += 1
        if base != _UNKNOWN:
            bases[step.target] = base
            holders[base] += 1
    return program._replace(over=tuple(over.items()), joined=tuple(joined))


def _allocates(step: Step) -> bool:
    """Tell whether a step allocates what it returns, whatever it is given."""
    function = step.function.op if isinstance(step.function, Call) else step.function
    return function in _MAKERS


class Sum(NamedTuple):
    """A sum as one call with a product.

    Attributes:
        place: The place of the other summand, to which the product is added, among the arguments of the sum.
        coefficient: What the product is multiplied by, by the name of the argument; none if it is one.
        function: What adds a product.
        writing: What adds it in place.
    """

    place: int
    coefficient: dict[str, float]
    function: Callable[..., torch.Tensor]
    writing: Callable[..., torch.Tensor]


def joined_sum(product: Step, step: Step) -> Sum | None:
    """Return a sum as one call with the product that is one of its summands; None if it is no such sum."""
    known, is_scaled = _PRODUCTS.get(product.function), step.function is add_scaled
    if known is None or not (is_scaled or (step.function is torch.add and len(step.args) == 2)):
        return None
    if not all(type(arg) is Register for arg in (*product.args, *step.args[:2])):
        return None
    places = [place for place, arg in enumerate(step.args[:2]) if arg.index == product.target]
    if len(places) != 1 or (is_scaled and places != [1]):
        return None
    name, function, writing = known
    return Sum(1 - places[0], {name: step.args[2]} if is_scaled else {}, function, writing)


def _is_joined(
    product: Step,
    step: Step,
    freed: Collection[int],
    over: Mapping[int, int],
    trace: Trace,
    bases: Mapping[int, int],
) -> bool:
    """Tell whether a sum may be one call with the step before it, given what is free then and what is written over.

    That holds no more: either it is written over the other summand, or it is as large as the product, which is new.
    """
    if product.target not in freed or (found := joined_sum(product, step)) is None:
        return False
    held = [trace.values[each] for each in (product.target, step.target, step.args[found.place].index)]
    if not all(type(each) is Held for each in held):
        return False
    one, total, other = held
    if one.kind.dtype is not other.kind.dtype or not (one.kind.is_contiguous and total.kind.is_contiguous):
        return False
    if over.get(step.target) != found.place:
        return one.shape == total.shape and product.target not in over
    base = bases.get(step.args[found.place].index, _UNKNOWN)  # what is written over is none of what is multiplied
    is_matrix = product.function is not torch.mul
    return (one.shape == total.shape or not is_matrix) and base not in [bases.get(arg.index) for arg in product.args]


def _place(step: Step, effect: Effect, trace: Trace, bases: Mapping[int, int], free: Collection[int]) -> int | None:
    """Return the place of the argument that a step may write over, given what is free then; None if there is none."""
    if step.function not in PLACES:
        return None
    registers = [arg.index for arg in step.args if isinstance(arg, Register)]
    for place in PLACES[step.function]:
        operand = step.args[place]
        if isinstance(operand, Register) and operand.index in free:
            held, base = trace.values[operand.index], bases[operand.index]
            others = [register for register in registers if register != operand.index]
            if type(held) is Held and held.kind is effect.result and base not in map(bases.get, others):
                return place
    return None


def may_write(*tensors: Any) -> bool:
    """Tell whether a program may write over what it has computed, given all that it is given."""
    return PLAIN.issuperset(map(type, tensors)) and not is_followed(tensors)


def _add_scaled(tensor: torch.Tensor, other: torch.Tensor, coefficient: float) -> torch.Tensor:
    return tensor.add_(other, alpha=coefficient)


# What each function does that writes over its first argument, and the places of those that may be the first.
WRITING: dict[Any, Callable[..., torch.Tensor]] = {
    torch.mul: torch.Tensor.mul_,
    torch.add: torch.Tensor.add_,
    torch.neg: torch.Tensor.neg_,
    add_scaled: _add_scaled,
    lookups.products_added: lookups.add_products,
    adding.added_in_pieces: adding.add_in_pieces,
    **WRITES,
}
PLACES: dict[Any, tuple[int, ...]] = dict.fromkeys(WRITING, (0,)) | {torch.mul: (0, 1), torch.add: (0, 1)}

# What adds a product to something: the name of its coefficient, and what does so in a new tensor and in place.
_PRODUCTS: dict[Any, tuple[str, Callable[..., torch.Tensor], Callable[..., torch.Tensor]]] = {
    torch.mm: ("alpha", torch.addmm, torch.Tensor.addmm_),
    torch.bmm: ("alpha", torch.baddbmm, torch.Tensor.baddbmm_),
    torch.mul: ("value", torch.addcmul, torch.Tensor.addcmul_),
}

_VIEWS = {
    torch.permute,
    torch.reshape,
    torch.select,
    torch.narrow,
    torch.diagonal,
    torch.unsqueeze,
    torch.transpose,
    torch.Tensor.expand,
    lookups.as_matrices,
    cut,
}
# They allocate what they return, whatever they are given.
_MAKERS = {
    *WRITING,
    added,
    concatenated,
    filled,
    folded,
    lookups.elements,
    lookups.elements_along,
    lookups.multiplied,
    looped,
    picked,
    put_back,
    relations.add_last,
    relations.read_last,
    stacked,
    torch.bmm,
    torch.constant_pad_nd,
    torch.diag_embed,
    torch.index_select,
    torch.matmul,
    torch.mm,
    torch.sum,
}
