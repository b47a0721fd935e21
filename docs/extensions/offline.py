"""Checks of the pages as they were built: every link leads somewhere, and nothing is loaded from anywhere else."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

# What a page loads, by element, apart from what a reader may follow.
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
NOT_LOADED = {"canonical", "author", "license"}  # links that say something


class Page(HTMLParser):
    """The names and links of a page.

    Attributes:
        names: What a link to a part of it may name.
        links: Where it leads.
        loaded: What it needs to be shown.
    """

    def __init__(self, path: Path):
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element names or links to."""
        given = {name: value or "" for name, value in attrs}
        self.names.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in LOADED and LOADED[tag] in given and given.get("rel") not in NOT_LOADED:
            self.loaded.append(given[LOADED[tag]])


def problems(folder: Path) -> Iterator[str]:
    """Yield what is wrong with the pages of a folder."""
    pages = {path: Page(path) for path in sorted(folder.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(folder)
        yield from (f"{name} loads {each} from elsewhere" for each in page.loaded if urlsplit(each).netloc)
        for link in (*page.links, *page.loaded):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                yield f"{name} links to {link}, which is not there"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].names:
                yield f"{name} links to {link}, of which the page has no such part"


def check(app: Sphinx, error: Exception | None) -> None:
    """Warn of what is wrong with the pages that were built."""
    if error is None and app.builder.format == "html":
        for problem in problems(Path(app.outdir).resolve()):
            logger.warning(problem)


def setup(app: Sphinx) -> dict[str, Any]:
    """Check when all pages are written."""
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
