"""Checks of what notebooks are given: HTML and SVG."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

_VOID = {"br", "hr", "img"}


class _Reader(HTMLParser):
    """Reads HTML in which every tag has to be closed where it was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.tags.append(tag)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        opened = self.open.pop()
        assert opened == tag, f"</{tag}> closes <{opened}>"

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(html: str) -> tuple[list[str], str]:
    """Check HTML, and return its tags and its text."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == [], "what is open at the end"
    for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        ET.fromstring(svg)  # noqa: S314 - made here
    assert not re.search(r"(?:fill|stroke|color|background)[=:][\"\s]*(?:white|black|#000|#fff)", html), "a background"
    return reader.tags, " ".join(reader.text)
