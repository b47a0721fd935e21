"""HTML for notebooks: tables, what is folded away, and structured derivatives by these.

Nothing has a colour of its own but by the text's, so that all is read on any background. All text is escaped and all
lists are bounded, since names come from users and derivatives may have thousands of terms.
"""

from collections.abc import Collection, Iterable, Sequence
from html import escape
from itertools import count, islice

from hofunc.algebra.operators import Indices
from hofunc.algebra.term import Term
from hofunc.structured.algebra import Structured
from hofunc.structured.naming import pattern_of
from hofunc.structured.reached import as_svg, picture_of

ROWS = 50  # of a table that are shown
_CHARACTERS = 200  # of a text that are shown
_LONGEST = 6  # the length of a bar, in the height of letters
_OPEN = 12  # terms that are not folded away
_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def as_html(derivative: Structured, nbytes: int) -> str:
    """Return what a notebook shows of a derivative: where entries may be, and the terms."""
    shapes = (derivative.mapped, *derivative.shapes) if derivative.mapped else derivative.shapes
    size = " × ".join(map(str, shapes))
    title = f"Derivative {size}, {derivative.dtype} on {derivative.device}, {readable(nbytes)}"
    return beside(as_svg(picture_of(derivative.terms, derivative.shapes)), paragraph(title) + _terms(derivative))


def _terms(derivative: Structured) -> str:
    """Return the terms as a table: the axes of each, its coefficient and the shape of its core."""
    terms = derivative.terms
    patterns = pattern_of(terms[:ROWS]).split(" + ")
    rows = [(axes, f"{term.coefficient:g}", _core(term)) for axes, term in zip(patterns, terms, strict=False)]
    found = table(("axes", "coefficient", "core"), rows, right=(1,), more=len(terms) - len(rows))
    return folded(f"{len(terms)} term{'s' * (len(terms) != 1)}", found, is_open=len(terms) <= _OPEN)


def _core(term: Term) -> str:
    """Return the shape of the core of a term."""
    cores = [factor.source for factor in term.factors if not isinstance(factor.source, Indices)]
    return str(tuple(getattr(cores[0], "shape", ()))) if cores else "ones"


def cell_of(terms: Sequence[Term], shapes: Sequence[Sequence[int]]) -> str:
    """Return a small picture of where the entries of terms may be, for a cell of a table."""
    return as_svg(picture_of(terms, shapes, most=16), side=32)


def beside(*parts: str) -> str:
    """Return parts in HTML beside each other, as far as they have room."""
    style = "display:flex;flex-wrap:wrap;gap:1em;align-items:flex-start"
    return f'<div style="{style}">{"".join(f"<div>{part}</div>" for part in parts if part)}</div>'


def paragraph(text: str) -> str:
    """Return a text as a paragraph in HTML."""
    return f"<p>{escape(_short(text))}</p>"


def folded(title: str, content: str, *, is_open: bool = False) -> str:
    """Return HTML under a title that unfolds it, or that folds it away if it is open at first."""
    return f"<details{' open' * is_open}><summary>{escape(_short(title))}</summary>{content}</details>"


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[int] = (),
    more: int = 0,
    drawn: Sequence[str] = (),
) -> str:
    """Return a table in HTML of the first rows, and how many there are beside them.

    Args:
        head: The titles of columns.
        rows: The cells of every row, as text.
        right: The columns of numbers.
        more: How many rows there are that are not among them.
        drawn: HTML for a further cell of every row, in front.
    """
    taken = iter(rows)
    shown = [*islice(taken, ROWS)]
    left = more + sum(1 for _ in taken)
    pictures = [f"<td>{picture}</td>" for picture in drawn] or [""] * len(shown)
    lines = [f"<tr>{'<th></th>' * bool(drawn)}{_cells('th', head, right)}</tr>"]
    lines += [f"<tr>{picture}{_cells('td', row, right)}</tr>" for picture, row in zip(pictures, shown, strict=False)]
    note = paragraph(f"and {left} more") if left else ""
    return f"<table>{''.join(lines)}</table>{note}"


def bar(share: float) -> str:
    """Return a bar in HTML, as long as a share is large."""
    length = f"{max(0.0, min(1.0, share)) * _LONGEST:.1f}em"
    return f'<div style="width:{length};height:0.7em;background:currentColor;opacity:0.5"></div>'


def _cells(tag: str, texts: Iterable[str], right: Collection[int]) -> str:
    sides = ("right" if column in right else "left" for column in count())
    parts = zip(sides, texts, strict=False)
    return "".join(f'<{tag} style="text-align:{side}">{escape(_short(text))}</{tag}>' for side, text in parts)


def _short(text: str) -> str:
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 1]}…"


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
