"""What is saved of a structured derivative: plain lists, numbers and tensors, with a version.

Labels are numbered within their term. Nothing else is needed to put the terms together again, whatever hofunc's classes
look like by then.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch

from hofunc.algebra.labels import Axes, Label, Segment, labels_of
from hofunc.algebra.operators import Indices, sources
from hofunc.algebra.term import Factor, Term
from hofunc.errors import ArgumentError
from hofunc.scatter import core_of
from hofunc.structured.algebra import Structured
from hofunc.structured.sums import with_coefficient

S = TypeVar("S", bound=Structured)

VERSION = 1

Plain = dict[str, Any]


def state_of(derivative: Structured) -> Plain:
    """Return a derivative as plain data and tensors."""
    return {
        "version": VERSION,
        "shapes": [[int(size) for size in shape] for shape in derivative.shapes],
        "mapped": [*derivative.mapped],
        "kinds": [*derivative.kinds],
        "like": torch.empty(0, dtype=derivative.dtype, device=derivative.device),  # which is loaded to where they are
        "terms": [saved(term) for term in derivative.terms],
        "tensors": [*sources(derivative.terms)],
    }


def restored_as(kind: type[S], state: Plain) -> S:
    """Return the derivative of which this is what was saved.

    Raises:
        ArgumentError: It was saved by a newer version, or is not what hofunc saves.
    """
    check_version("hofunc.Derivative", state)
    tensors, like = iter(state["tensors"]), state["like"]
    terms = tuple([restored(term, tensors) for term in state["terms"]])
    shapes = tuple(map(tuple, state["shapes"]))
    return kind(terms, shapes, like.dtype, like.device, tuple(state["mapped"]), tuple(state["kinds"]))


def stacked(derivatives: Sequence[S]) -> S:
    """Return derivatives of one structure as one with an axis for them in front, as vmap returns it.

    Raises:
        ArgumentError: They differ in structure, shape, dtype or device.
    """
    first, *others = map(state_of, _with_equal_coefficients(derivatives))
    for number, other in enumerate(others, 1):
        mine, its = ([each[name] for name in ("shapes", "mapped", "kinds", "terms")] for each in (first, other))
        if mine != its or first["like"].dtype != other["like"].dtype or first["like"].device != other["like"].device:
            raise ArgumentError(
                "hofunc.Derivative: a batch of several",
                got=f"{derivatives[number]}",
                expected=f"one of the structure of the first, {derivatives[0]}",
                remedy="Collate what .dense() gives.",
            )
    tensors = [torch.stack(each) for each in zip(*(each["tensors"] for each in (first, *others)), strict=True)]
    mapped = [len(derivatives), *first["mapped"]]
    return restored_as(type(derivatives[0]), first | {"tensors": tensors, "mapped": mapped})


def _with_equal_coefficients(derivatives: Sequence[S]) -> Sequence[S]:
    """Return derivatives whose coefficients are part of their cores, if they differ in some."""
    coefficients = [[term.coefficient for term in each.terms] for each in derivatives]
    if all(each == coefficients[0] for each in coefficients):
        return derivatives
    if any(core_of(term) is None for each in derivatives for term in each.terms):
        return derivatives  # which are not alike, as one of the number one has no core
    return [each.with_terms(map(with_coefficient, each.terms)) for each in derivatives]


def saved(term: Term) -> Plain:
    """Return a term without its tensors as plain data, equal for terms that differ in these and in names only."""
    labels = [*dict.fromkeys(labels_of(term.out, *term.slots, *(factor.axes for factor in term.factors)))]
    numbers: dict[Label | None, int] = {label: number for number, label in enumerate(labels)}
    numbers[None] = -1

    def plain(axes: Axes) -> list[Any]:
        return [[(numbers[s.label], int(s.start), int(s.extent)) for s in axis] for axis in axes]

    factors = [{"is_indices": isinstance(f.source, Indices), "axes": plain(f.axes)} for f in term.factors]
    return {
        "coefficient": term.coefficient,
        "labels": [int(label.size) for label in labels],
        "factors": factors,
        "out": plain(term.out),
        "slots": [plain(slot) for slot in term.slots],
    }


def restored(plain: Plain, tensors: Iterator[Any]) -> Term:
    """Return the term of which this is what was saved, with its tensors."""
    labels: list[Label | None] = [*map(Label, plain["labels"]), None]  # the last of which has the number -1

    def axes(saved_axes: Sequence[Any]) -> Axes:
        return tuple([tuple([Segment(labels[n], start, extent) for n, start, extent in axis]) for axis in saved_axes])

    factors = [
        Factor(Indices(next(tensors)) if factor["is_indices"] else next(tensors), axes(factor["axes"]))
        for factor in plain["factors"]
    ]
    slots = tuple([axes(slot) for slot in plain["slots"]])
    return Term(plain["coefficient"], tuple(factors), axes(plain["out"]), slots)


def check_version(name: str, plain: Any) -> None:
    """Check that what was saved can be read.

    Raises:
        ArgumentError: It was saved by a newer version, or is not what hofunc saves.
    """
    version = plain.get("version") if isinstance(plain, dict) else None
    if version != VERSION:
        raise ArgumentError(
            f"{name}: loading what was saved",
            got=f"format {version!r}",
            expected=f"format {VERSION}",
            remedy="Load it with the version of hofunc that saved it, or save its .dense().",
        )
