"""What is saved of a structured derivative: plain lists, numbers and tensors, with a version.

Labels are numbered within their term. Nothing else is needed to put the terms together again, whatever hofunc's classes
look like by then.
"""

from collections.abc import Sequence
from typing import Any

from hofunc.algebra.labels import Axes, Label, Segment, labels_of
from hofunc.algebra.operators import Indices
from hofunc.algebra.term import Factor, Term
from hofunc.errors import ArgumentError

VERSION = 1

Plain = dict[str, Any]


def saved(term: Term) -> Plain:
    """Return a term as plain data."""
    labels = [*dict.fromkeys(labels_of(term.out, *term.slots, *(factor.axes for factor in term.factors)))]
    numbers: dict[Label | None, int] = {label: number for number, label in enumerate(labels)}
    numbers[None] = -1

    def plain(axes: Axes) -> list[Any]:
        return [[(numbers[s.label], int(s.start), int(s.extent)) for s in axis] for axis in axes]

    factors = [
        {"is_indices": True, "tensor": source.tensor, "axes": plain(axes)}
        if isinstance(source, Indices)
        else {"is_indices": False, "tensor": source, "axes": plain(axes)}
        for source, axes in term.factors
    ]
    return {
        "coefficient": term.coefficient,
        "labels": [int(label.size) for label in labels],
        "factors": factors,
        "out": plain(term.out),
        "slots": [plain(slot) for slot in term.slots],
    }


def restored(plain: Plain) -> Term:
    """Return the term of which this is what was saved."""
    labels: list[Label | None] = [*map(Label, plain["labels"]), None]  # the last of which has the number -1

    def axes(saved_axes: Sequence[Any]) -> Axes:
        return tuple([tuple([Segment(labels[n], start, extent) for n, start, extent in axis]) for axis in saved_axes])

    factors = [
        Factor(Indices(factor["tensor"]) if factor["is_indices"] else factor["tensor"], axes(factor["axes"]))
        for factor in plain["factors"]
    ]
    slots = tuple([axes(slot) for slot in plain["slots"]])
    return Term(plain["coefficient"], tuple(factors), axes(plain["out"]), slots)


def check_version(name: str, plain: Plain) -> None:
    """Check that what was saved can be read.

    Raises:
        ArgumentError: It was saved by a newer version, or is not what hofunc saves.
    """
    version = plain.get("version")
    if version != VERSION:
        raise ArgumentError(
            f"{name}: loading what was saved",
            got=f"format {version!r}",
            expected=f"format {VERSION}",
            remedy="Load it with the version of hofunc that saved it, or save its .dense().",
        )
