"""A drawing in the languages of graphviz and of mermaid, as text in which names from anywhere are only text."""

from html import escape

from hofunc.draw.boxes import COLOURS, Box, Sketch

_FONT = 'fontname="Helvetica,Arial,sans-serif", fontsize=11'
_FAINTEST, _STRONGEST = 0x14, 0x90  # how far boxes are filled with their colour, of 0xff


def as_dot(sketch: Sketch) -> str:
    """Return a drawing in the language of graphviz."""
    title = "<BR/>".join(_plain(line) for line in sketch.title)
    colours = "".join(f'<TD BGCOLOR="{colour}60">{_plain(name)}</TD>' for name, colour in sketch.legend)
    colours += "<TD>stronger: more of the time</TD>" * bool(colours)
    legend = f'<TR><TD><TABLE BORDER="0" CELLSPACING="4"><TR>{colours}</TR></TABLE></TD></TR>' if colours else ""
    label = f'<TABLE BORDER="0"><TR><TD>{title}</TD></TR>{legend}</TABLE>'
    lines = [
        "digraph plan {",
        f'  graph [label=<{label}>, labelloc=t, bgcolor="transparent", ranksep=0.35, nodesep=0.25, {_FONT}]',
        f'  node [shape=box, style="rounded,filled", margin="0.12,0.06", {_FONT}]',
        f"  edge [arrowsize=0.6, {_FONT}]",
    ]
    lines += [f"  {_dot_box(place, box)}" for place, box in enumerate(sketch.boxes) if box.region is None]
    for region, times in sketch.regions.items():
        lines.append(f'  subgraph cluster_{region} {{ label="{times} times"; style="rounded,dashed"; color="#8a8f98";')
        lines += [f"    {_dot_box(place, box)}" for place, box in enumerate(sketch.boxes) if box.region == region]
        lines.append("  }")
    for source, target, times in sketch.arrows:
        note = f' [label="{times}"]' if times > 1 else ""
        lines.append(f"  n{source} -> n{target}{note}")
    return "\n".join([*lines, "}", ""])


def _dot_box(place: int, box: Box) -> str:
    text = "\\n".join(_plain(line).replace("\\", "\\\\").replace('"', '\\"') for line in box.lines)
    colour = COLOURS[box.kind]
    return f'n{place} [label="{text}", color="{colour}", fillcolor="{colour}{_filled(box):02x}"]'


def as_mermaid(sketch: Sketch) -> str:
    """Return a drawing in the language of mermaid."""
    lines = ["flowchart TD"]
    if sketch.title:
        lines.append(f'  title["{_mermaid_text(sketch.title)}"]')
        lines.append("  style title fill:none,stroke:none")
    lines += [f"  {_mermaid_box(place, box)}" for place, box in enumerate(sketch.boxes) if box.region is None]
    for region, times in sketch.regions.items():
        lines.append(f'  subgraph region{region}["{times} times"]')
        lines += [f"    {_mermaid_box(place, box)}" for place, box in enumerate(sketch.boxes) if box.region == region]
        lines.append("  end")
        lines.append(f"  style region{region} fill:none,stroke:#8a8f98,stroke-dasharray:4")
    for source, target, times in sketch.arrows:
        lines.append(f"  n{source} -->{f'|{times}|' if times > 1 else ''} n{target}")
    for place, box in enumerate(sketch.boxes):
        colour = COLOURS[box.kind]
        lines.append(f"  style n{place} fill:{colour}{_filled(box):02x},stroke:{colour}")
    return "\n".join([*lines, ""])


def _mermaid_box(place: int, box: Box) -> str:
    return f'n{place}["{_mermaid_text(box.lines)}"]'


def _mermaid_text(lines: tuple[str, ...]) -> str:
    """Return lines as the text of a box, in which every sign that has a meaning is named by its number."""
    plain = ("".join(c if c.isprintable() else " " for c in line) for line in lines)
    return "<br/>".join("".join(c if c.isalnum() or c in _HARMLESS else f"#{ord(c)};" for c in line) for line in plain)


_HARMLESS = " ,()+%:._/×…"


def _filled(box: Box) -> int:
    return round(_FAINTEST + (_STRONGEST - _FAINTEST) * box.strength)


def _plain(text: str) -> str:
    """Return a text without what a terminal or XML would not take, escaped as in HTML."""
    return escape("".join(c if c.isprintable() else " " for c in text))
