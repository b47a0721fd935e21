"""Structured derivatives in notebooks: what they are made of, as a table in HTML."""

from collections.abc import Iterable, Sequence
from html import escape

from hofunc.algebra.operators import Indices, sources
from hofunc.algebra.term import Term
from hofunc.structured.algebra import Structured

_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def as_table(pattern: str, nbytes: int, derivative: Structured) -> str:
    """Return a table of the terms of a derivative: the axes of each, its coefficient and the shape of its core."""
    rows = [
        (axes, f"{term.coefficient:g}", _core(term))
        for axes, term in zip(pattern.split(" + "), derivative.terms, strict=False)
    ]
    shapes = " × ".join(map(str, (derivative.mapped, *derivative.shapes) if derivative.mapped else derivative.shapes))
    title = f"Derivative {shapes}, {derivative.dtype} on {derivative.device}, {readable(nbytes)}"
    return table(title, ("axes", "coefficient", "core"), rows)


def _core(term: Term) -> str:
    """Return the shape of the core of a term."""
    shapes = [str(tuple(factor.source.shape)) for factor in term.factors if not isinstance(factor.source, Indices)]
    return shapes[0] if shapes else "ones"


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in HTML."""

    def line(tag: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

    lines = [line("th", head), *(line("td", row) for row in rows)]
    return f"<table><caption>{escape(title)}</caption>{''.join(lines)}</table>"


def nbytes_of(terms: Iterable[Term]) -> int:
    """Return the bytes that the tensors of terms take, those of several terms once."""
    tensors = {id(tensor): tensor for tensor in sources(terms)}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def readable(nbytes: int) -> str:
    """Return a number of bytes in the unit that suits it.

    Example:
        >>> readable(0), readable(2_500_000)
        ('0 bytes', '2.5 MB')
    """
    size, unit = float(nbytes), 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {_UNITS[unit]}"
