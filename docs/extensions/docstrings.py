"""How docstrings of hofunc become pages: they are plain text with backticks around code, and not reStructuredText."""

import re
from typing import Any

from sphinx.application import Sphinx

import hofunc

# What transforms return: their constructors are not for users.
MADE = {
    "hofunc.Blocks",
    "hofunc.Derivative",
    "hofunc.Jitted",
    "hofunc.Plan",
    "hofunc.sampling.Estimate",
    "hofunc.transform.Transform",
}


# What is a link on the site: public names, and pages.
LINKS = {
    rf"(?<!`)`hofunc\.({'|'.join(hofunc.__all__)})`(?!`)": r":py:obj:`hofunc.\1`",
    r"(?<!`)\bdocs/([a-z/-]+)\.md\b(?!`)": r":doc:`/\1`",
}


def _linked(lines: list[str]) -> list[str]:
    """Return the lines with links."""
    text = "\n".join(lines)
    for found, link in LINKS.items():
        text = re.sub(found, link, text)
    return text.split("\n")


def _escaped(lines: list[str]) -> list[str]:
    """Return the lines with asterisks and bars that stand for themselves, but for those in code and in sessions."""
    escaped, in_session = [], False
    for line in lines:
        in_session = bool(line.strip()) and (in_session or line.lstrip().startswith(">>> "))
        parts = [line] if in_session else re.split(r"(``.*?``|`[^`]*`)", line)
        parts[::2] = parts[::2] if in_session else [re.sub(r"(?<!\\)([*|])", r"\\\1", part) for part in parts[::2]]
        escaped.append("".join(parts))
    return escaped


def _without_arguments(lines: list[str]) -> list[str]:
    """Return the lines without the section ``Args:``."""
    start = next((number for number, line in enumerate(lines) if line.startswith("Args:")), len(lines))
    end = next((number for number in range(start + 1, len(lines)) if lines[number][:1].strip()), len(lines))
    return lines[:start] + lines[end:]


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:  # noqa: ARG001
    """Rewrite a docstring in place, before its sections are read."""
    lines[:] = _linked(_escaped(_without_arguments(lines) if name in MADE else lines))


def sign(app: Sphinx, what: str, name: str, *_: Any) -> tuple[str, str] | None:  # noqa: ARG001
    """Leave out the signature of a constructor that is not for users."""
    return ("", "") if name in MADE else None


def setup(app: Sphinx) -> dict[str, Any]:
    """Be called before napoleon reads the sections, whose priority is 500."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", process, priority=400)
    app.connect("autodoc-process-signature", sign)
    return {"parallel_read_safe": True}
