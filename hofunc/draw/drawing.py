"""Drawings: what `Plan.draw` returns, to be looked at in a notebook, written to a file, or handed on as text."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from os import PathLike
from typing import Any, NoReturn

from hofunc.draw.boxes import sketch_of
from hofunc.draw.languages import as_dot, as_mermaid
from hofunc.errors import ArgumentError
from hofunc.given import path_of
from hofunc.outline import Outline

_SECONDS = 60  # that graphviz may take
_RENDERED = (".svg", ".png", ".pdf")
_REMEDY = (
    "Install graphviz (apt-get, brew, conda or winget install graphviz), or save as .dot or .mmd, which need it not."
)


@dataclass(frozen=True, slots=True, repr=False)
class Drawing:
    """A drawing of a plan: the graph that it derives, as boxes and arrows.

    A box is a node: its op, its number as in `Plan.explain`, the shape of its value, what it costs together with all
    that is composed with its derivatives and, where they are known, the op that it is a part of, the vectors that it
    carries, and the line of the function. Its colour tells the kind of its rule, and how strong that is the part of the
    estimated time. Of a graph of more than 100 nodes, stretches that are repeated are drawn once, and what costs little
    is put together with its neighbours; the title says so.

    In a notebook it is drawn by graphviz's program ``dot``, if that is installed, and by mermaid where that is known,
    as in JupyterLab.

    Attributes:
        dot: The drawing in the language of graphviz.
        mermaid: The drawing in the language of mermaid.

    Example:
        >>> drawing = hofunc.hessian(lambda x: (x**4).sum()).plan(torch.ones(2)).draw()
        >>> print(drawing.mermaid, end="")
        flowchart TD
        ...
          n0["args#91;0#93;  (0)<br/>2"]
          n1["aten.pow.Tensor_Scalar  (1)<br/>2<br/>...% of the time, ... flops"]
          n2["aten.sum.default  (2)<br/>()"]
        ...
    """

    dot: str
    mermaid: str

    def svg(self) -> str:
        """Return the drawing as SVG.

        Raises:
            ArgumentError: graphviz is not installed, or does not draw it.
        """
        return _rendered(self.dot, "svg").decode()

    def save(self, path: str | PathLike[str]) -> None:
        """Write the drawing to a file of the kind that its name says.

        Args:
            path: The file: .svg, .png or .pdf by graphviz, .dot and .mmd as text.

        Raises:
            ArgumentError: It is none of these; or graphviz is needed, and is not installed or does not draw it.
            OSError: The file cannot be written.
        """
        target = path_of("Drawing.save", path)
        texts = {".dot": self.dot, ".mmd": self.mermaid}
        if target.suffix in texts:
            target.write_text(texts[target.suffix], encoding="utf-8")
        elif target.suffix in _RENDERED:
            target.write_bytes(_rendered(self.dot, target.suffix[1:]))
        else:
            kinds = ", ".join((*_RENDERED, *texts))
            remedy = "Give the file one of these endings."
            raise ArgumentError(
                f"{_NAME}.save", got=f"{target.name!r}", expected=f"a name that ends in {kinds}", remedy=remedy
            )

    def __repr__(self) -> str:
        boxes = len(re.findall(r"^ *n\d+ \[label=", self.dot, re.MULTILINE))
        return f"Drawing({boxes} boxes; .save(path), .svg(), .dot and .mermaid have it)"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Return what a notebook shows: HTML by graphviz, or else what draws itself where mermaid is known."""
        drawn = self._repr_html_()
        shown = {"text/vnd.mermaid": self.mermaid} if drawn is None else {"text/html": drawn}
        return {**shown, "text/plain": repr(self)}

    def _repr_html_(self) -> str | None:
        """Return the drawing in the colour of the text around it, None without graphviz."""
        try:
            svg = self.svg()
        except ArgumentError:
            return None
        inline = (
            svg[svg.index("<svg") :]
            .replace('"black"', '"currentColor"')
            .replace("<svg ", '<svg fill="currentColor" ', 1)
        )
        return f'<div style="overflow:auto">{inline}</div>'


_NAME = "hofunc.Drawing"


def drawing_of(outline: Outline) -> Drawing:
    """Return a drawing of a plan."""
    sketch = sketch_of(outline)
    return Drawing(as_dot(sketch), as_mermaid(sketch))


def _rendered(dot: str, kind: str) -> bytes:
    """Let graphviz draw.

    Raises:
        ArgumentError: It is not installed, or fails.
    """
    program = shutil.which("dot")
    if program is None:
        _refuse(f"no program dot, which draws {kind}", "graphviz on the path", _REMEDY)
    ground = [] if kind == "svg" else ["-Gbgcolor=white"]
    try:
        done = subprocess.run(  # noqa: S603 - of a program that was looked up, with what is made here
            [program, f"-T{kind}", *ground], input=dot.encode(), capture_output=True, check=True, timeout=_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", None) or str(error).encode()
        _refuse(told.decode(errors="replace").strip(), f"that {program} draws {kind}", "Save it as .dot or .mmd.")
    return done.stdout


def _refuse(got: str, expected: str, remedy: str) -> NoReturn:
    raise ArgumentError(_NAME, got=got, expected=expected, remedy=remedy)
