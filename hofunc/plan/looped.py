"""Loops: steps that are run for some entries of a label at a time, and the sums over it that they end in.

What `hofunc.plan.regions` makes of several steps is one: it computes for some entries what leads to sums over their
label, adds that, and goes on with the next, so that what leads to them is never held as a whole.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from hofunc.graph.followed import is_followed, is_kept
from hofunc.graph.gathers import add_to
from hofunc.graph.node import Ref
from hofunc.plan.relations import add_last
from hofunc.plan.slicing import Along, Some, op_of, sized
from hofunc.rules.ops.maps import from_front, put_back
from hofunc.scatter import added
from hofunc.views import folded


class Inside(NamedTuple):
    """A step of a loop.

    Attributes:
        function: What it calls.
        args: What with: Refs name what the loop is given, and after that what steps before made.
        frees: The numbers of what is not read after it.
        total: Of a step that sums over the label, the place among the results to which it adds; None for others.
        kept: Of a step that makes what is returned for all entries, its place among the results; None for others.
    """

    function: Callable[..., Any]
    args: tuple
    frees: tuple[int, ...] = ()
    total: int | None = None
    kept: int | None = None


class Body(NamedTuple):
    """What is done for some entries of a label.

    Attributes:
        entries: How many the label has.
        size: How many of them are taken at a time.
        places: Where they lie in each tensor that the loop is given, None if that is taken as a whole.
        steps: What is computed.
        shapes: The shapes of the results.
        laid: Where the entries lie in each of them, None if it is a sum.
    """

    entries: int
    size: int
    places: tuple[Along | None, ...]
    steps: tuple[Inside, ...]
    shapes: tuple[tuple[int, ...], ...]
    laid: tuple[Along | None, ...]


class Part(NamedTuple):
    """What a step of a loop does for some entries.

    Attributes:
        flops: Operations.
        bytes: Bytes that are read and written.
        products: How many products of matrices it is; none if it is something else.
        rows: How many rows of few entries it reads or writes; none if entries of other axes lie beside each other.
    """

    flops: int
    bytes: int
    products: int
    rows: int = 0


VIEW = Part(0, 0, 0)  # what takes time only to be called


class Work(NamedTuple):
    """What a loop does.

    Attributes:
        parts: What each of its steps does that computes something.
        pieces: How often.
        scratch: The bytes that are held for some entries, beside the sums.
    """

    parts: tuple[Part, ...]
    pieces: int
    scratch: int

    @property
    def flops(self) -> int:
        """Operations of all pieces."""
        return self.pieces * sum(part.flops for part in self.parts)

    @property
    def bytes(self) -> int:
        """Bytes that all pieces read and write."""
        return self.pieces * sum(part.bytes for part in self.parts)


def looped(body: Body, work: Work, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:  # noqa: ARG001 - of the whole
    """Return the sums that a loop ends in, and what it keeps of each entry.

    Args:
        body: What is done for some entries.
        work: What all of it takes.
        tensors: What it is done of.
    """
    size = body.entries if is_kept(tensors) else body.size
    adding = {} if is_followed(tensors) else _ADDING
    totals: list[torch.Tensor] = []
    for start in range(0, body.entries, size):
        count = min(size, body.entries - start)
        pairs = zip(tensors, body.places, strict=True)
        held = [some(tensor, along, body.entries, start, count) for tensor, along in pairs]
        _run(body, start, count, held, totals, adding)
    return tuple(totals)


def some(tensor: torch.Tensor, along: Along | None, entries: int, start: int, count: int) -> torch.Tensor:
    """Return some entries of a label that lies along an axis of a tensor: a view, if no other label comes before."""
    if along is None or count == entries:
        return tensor
    dim, outer, inner = along
    if outer == 1:
        return tensor.narrow(dim, start * inner, count * inner)
    return tensor.unflatten(dim, (outer, entries, inner)).narrow(dim + 1, start, count).flatten(dim, dim + 2)


def _run(
    body: Body, start: int, count: int, held: list[Any], totals: list[torch.Tensor], adding: Mapping[Any, Callable]
) -> None:
    """Run steps on some entries, and add what they sum up to totals, which there are none of at first."""
    is_first = not totals
    for function, args, frees, total, kept in body.steps:
        filled = [
            held[arg.node] if type(arg) is Ref else sized(arg, count) if type(arg) in (tuple, Some) else arg
            for arg in args
        ]
        if total is None:
            held.append(function(*filled))
            if kept is not None:
                _keep(totals, kept, held[-1], body, start, count)
        elif is_first:
            totals.append(function(*filled))
        elif op_of(function) in adding:
            adding[op_of(function)](totals[total], *filled)
        else:
            totals[total].add_(function(*filled))  # which is mapped as what was made first is
        del filled
        for number in frees:
            held[number] = None


def _keep(totals: list[torch.Tensor], place: int, part: torch.Tensor, body: Body, start: int, count: int) -> None:
    """Write what is made for some entries to where they lie among all of them."""
    if count == body.entries:
        totals.append(part.contiguous())
        return
    if not start:
        totals.append(part.new_empty(body.shapes[place]))
    dim, outer, inner = body.laid[place] or Along(0)
    entries = totals[place].unflatten(dim, (outer, body.entries, inner)).narrow(dim + 1, start, count)
    entries.copy_(part.unflatten(dim, (outer, count, inner)))


def _add_folded(total: torch.Tensor, tensor: torch.Tensor, matrix: torch.Tensor) -> None:
    total.add_(folded(tensor, matrix))


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    total.add_(torch.matmul(left, right))


def _add_sum(total: torch.Tensor, tensor: torch.Tensor, *how: Any) -> None:
    total.add_(torch.sum(tensor, *how))


def _add_rows(total: torch.Tensor, _: int, width: int, weights: Sequence[float], *tensors: torch.Tensor) -> None:
    places, given = tensors[: len(weights)], tensors[len(weights) :]
    for weight, where, rows in zip(weights, places, given, strict=True):
        total.index_add_(0, where, (rows if weight == 1 else rows * weight).reshape(-1, width))


def _put_back(total: torch.Tensor, tensor: torch.Tensor, index: torch.Tensor) -> None:
    add_to(total, tensor, from_front(index, total.shape[-1]))


_ADDING: dict[Any, Callable[..., Any]] = {
    torch.mm: torch.Tensor.addmm_,
    torch.bmm: torch.Tensor.baddbmm_,
    torch.matmul: _add_product,
    folded: _add_folded,
    torch.sum: _add_sum,
    added: _add_rows,
    add_last: add_to,
    put_back: _put_back,
}
MADE_BESIDE = (torch.matmul, folded, torch.sum)  # whose sums of some entries are made before they are added
