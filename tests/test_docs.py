"""The examples of the README and of the pages in docs/ do what they say."""

import doctest
import re
from pathlib import Path
from textwrap import dedent

import pytest

import hofunc
from hofunc.releases import RELEASE, VERSION

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted(page for page in DOCS.rglob("*.md") if "generated" not in page.parts),
]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")  # a page shows what it comes before
@each_page
def test_the_python_blocks_run(page: Path) -> None:
    """Run all blocks of a page in order in one namespace, as a reader would type them."""
    if page.name == "torch-errors.md" and RELEASE != (2, 13):
        pytest.skip("it tells of torch 2.13")
    text = page.read_text(encoding="utf-8")
    blocks = [dedent(block) for _, block in re.findall(r"^( *)```python\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE)]
    examples = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page.name, str(page), 0)
    failures: list[str] = []
    result = doctest.DocTestRunner(optionflags=FLAGS).run(examples, out=failures.append)
    assert result.failed == 0, "".join(failures)


@each_page
def test_every_python_block_is_a_session(page: Path) -> None:
    """A block without prompts would not be run."""
    blocks = re.findall(r"^ *```py\w*\n *(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert all(first_line.startswith(">>> ") for first_line in blocks)


def test_the_readme_has_examples() -> None:
    assert ">>> import hofunc" in PAGES[0].read_text(encoding="utf-8")


@each_page
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_pages_that_the_code_names_are_there() -> None:
    sources = [
        path for folder in ("hofunc", "verification", "asv_benchmarks") for path in (ROOT / folder).rglob("*.py")
    ]
    named = {
        page for path in sources for page in re.findall(r"\bdocs/[a-z/-]+\.md\b", path.read_text(encoding="utf-8"))
    }
    assert "docs/how-to/adding-an-op.md" in named
    assert [page for page in sorted(named) if not (ROOT / page).exists()] == []


def test_the_map_has_every_room() -> None:
    text = (DOCS / "contributing" / "map.md").read_text(encoding="utf-8")
    house = [path for path in (ROOT / "hofunc").iterdir() if path.name[0] not in "_." and path.name != "py.typed"]
    rooms = [f"`{path.stem}/`" if path.is_dir() else f"`{path.stem}`" for path in house]
    assert [room for room in sorted(rooms) if room not in text] == []


def test_what_is_cited_is_this_version() -> None:
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_every_public_name_is_in_the_reference() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").rglob("*.md"))
    documented = set(re.findall(r"^\.\. auto\w+:: (\w+)$", text, re.MULTILINE))
    assert sorted({*hofunc.__all__} - documented) == []
