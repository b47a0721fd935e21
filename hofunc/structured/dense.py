"""Dense tensors of structured derivatives: how they are made is found once for a structure, and kept."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from hofunc.algebra.combine import by_pattern
from hofunc.algebra.labels import Axes
from hofunc.algebra.operators import Indices, is_reading, sources, with_sources
from hofunc.algebra.term import Factor, Term, visible
from hofunc.graph.followed import is_followed
from hofunc.scatter import core_of, entries_of, solid
from hofunc.structured.batch import batch_first, common_batch
from hofunc.views import WRITES, Labelled, Part, add_scaled, assembled, concatenated, filled, put


def dense(terms: tuple[Term, ...], one: Callable[[], torch.Tensor], *, keep_batch: bool) -> torch.Tensor:
    """Return the sum of terms, of which there is one at least, as one tensor.

    Args:
        terms: The terms.
        one: Returns the number one, which few need.
        keep_batch: Whether labels that all slots share stand once, in front.
    """
    recipe = _recipe(template(terms), keep_batch)
    tensors = [*sources(terms)]
    if recipe.takes_one:
        tensors.append(one())
    return recipe(tensors)


def template(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Return the terms without their tensors."""
    return tuple([Term(coefficient, _bare(factors), out, slots) for coefficient, factors, out, slots in terms])


def _bare(factors: tuple[Factor, ...]) -> tuple[Factor, ...]:
    return tuple([Factor(_NO_INDICES if type(source) is Indices else None, axes) for source, axes in factors])


_NO_INDICES = Indices(None)


# They allocate what they return, others may view what they are given.
_MAKERS = {*WRITES, add_scaled, concatenated, filled, torch.add, torch.constant_pad_nd, torch.diag_embed, torch.mul}

_CONTIGUOUS = {filled, put}  # what they return, as it has to be where views of views are written to


class _Held:
    """Names a tensor of a recipe by its number."""

    __slots__ = ("number",)

    def __init__(self, number: int):
        self.number = number


Calls = list[tuple[Callable, tuple]]


class _Recipe(NamedTuple):
    """How to make a dense tensor of cores, as calls; it depends on labels only, and is kept, as finding it takes long.

    Attributes:
        calls: Functions with arguments, of which Helds stand for the cores and then for what the calls return.
        over: What the same calls are that may write over what others have made, where nobody follows them.
        result: The dense tensor.
        takes_one: Whether the last tensor that it takes, after the cores, is the number one.
        is_core: Whether the result is a view of a core.
    """

    calls: Calls
    over: Calls
    result: _Held
    takes_one: bool
    is_core: bool

    def __call__(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        for function, args in self.calls if is_followed(tensors) else self.over:
            tensors.append(function(*[tensors[arg.number] if type(arg) is _Held else arg for arg in args]))
        result = tensors[self.result.number]
        return result.clone(memory_format=torch.contiguous_format) if self.is_core else result


@lru_cache(maxsize=1024)
def _recipe(terms: tuple[Term, ...], keep_batch: bool) -> _Recipe:
    """Return how to make the dense tensor of terms without tensors."""
    batch = common_batch(terms) if keep_batch else []
    given = sum(len(term.factors) for term in terms)
    takes_one = any(core_of(term) is None for term in terms)
    count = given + takes_one
    calls: Calls = []

    def emit(function: Callable, *args: Any) -> _Held:
        calls.append((function, args))
        return _Held(count + len(calls) - 1)

    named, one = with_sources(terms, map(_Held, range(given))), Labelled(_Held(given), ())
    parts = []
    for alike in by_pattern(named):
        if any(map(is_reading, alike)):
            entries = [entries_of(term, one) for term in alike]
            total = solid(emit, entries[0].core.tensor, entries, [*visible(alike[0])])
            parts.append(Part(1, total, _axes(batch_first(alike[0], batch))))
        else:
            parts += [Part(term.coefficient, core_of(term) or one, _axes(batch_first(term, batch))) for term in alike]
    result = assembled(emit, parts)
    is_core = len(parts) == 1 and parts[0].coefficient == 1 and not is_reading(terms[0])
    return _Recipe(calls, _writing_over(calls, count), result, takes_one, is_core)


def _writing_over(calls: Calls, count: int) -> Calls:
    """Return calls, of which those that write a part to what nobody reads any more write over it.

    Args:
        calls: The calls.
        count: How many tensors they take.
    """
    makers = [*range(count)]  # of each tensor, the one that it may be a view of
    for number, (function, args) in enumerate(calls, count):
        first = next((arg.number for arg in args if type(arg) is _Held), number)
        makers.append(number if function in _MAKERS else makers[first])
    found, read = [], set[int]()
    for function, args in reversed(calls):
        base, *others = [arg.number for arg in args if type(arg) is _Held] or [0]
        owners = {makers[number] for number in others}
        is_own = base >= count and makers[base] == base and base not in read | owners
        is_over = function in WRITES and is_own and (function is not put or calls[base - count][0] in _CONTIGUOUS)
        found.append((WRITES[function] if is_over else function, args))
        read |= {makers[base], *owners}
    return found[::-1]


def _axes(term: Term) -> Axes:
    """Return the axes of the dense tensor of a term."""
    return (*term.out, *sum(term.slots, ()))
