"""The pattern of a structured derivative: its axes named in the notation of einops."""

from collections.abc import Sequence
from itertools import chain

from hofunc.algebra.labels import Axis, Label, Segment, labels_of
from hofunc.algebra.term import Term
from hofunc.scatter import positions, reads_of


def pattern_of(terms: Sequence[Term]) -> str:
    """Return the axes of every term, see `hofunc.Derivative.pattern`."""
    indices: dict[int, str] = {}
    return " + ".join(_pattern(term, indices) for term in terms) or "0"


def _pattern(term: Term, indices: dict[int, str]) -> str:
    """Name the axes of a term; a tensor of indices is named as in the terms before, by its identity."""
    read, groups = positions(reads_of(term)), (term.out, *term.slots)
    borne = [
        [x for label in labels_of(axes) for x in (read[label].where.labels if label in read else (label,))]
        for axes in groups
    ]
    shared = set.intersection(*map(set, borne[1:]))
    batch_names, other_names = iter("bcdefgh" + "B" * 99), iter("ijklmnopqrstuvwxyz" + "Z" * 99)
    names: dict[Label, str] = {}
    for label in chain(*borne):
        if label not in names:
            names[label] = next(batch_names if label in shared else other_names)
    for label, (where, step, modulus) in read.items():
        name = indices.setdefault(id(where.tensor), (*"IJKLMNOPQRSTUVWXYZ", *["Z"] * 99)[len(indices)])
        names[label] = f"{name}[{' '.join(names[x] for x in where.labels)}]"
        names[label] += f"/{step}" * (step > 1) + f"%{modulus}" * (modulus > 0)

    def segment_name(segment: Segment) -> str:
        if segment.label is None:
            return str(segment.start) if segment.extent > 1 else "1"
        name = names[segment.label]
        return name if segment.is_full else f"{name}[{segment.start}:{segment.start + segment.label.size}]"

    def axis_name(axis: Axis) -> str:
        parts = [segment_name(segment) for segment in axis]
        return parts[0] if len(parts) == 1 else f"({' '.join(parts)})" if parts else "1"

    return ", ".join(" ".join(axis_name(axis) for axis in axes) or "()" for axes in groups)
