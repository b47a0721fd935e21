"""The examples of the README and of the pages in docs/ do what they say."""

import doctest
import re
from pathlib import Path

import pytest

from hofunc.releases import RELEASE

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")  # a page shows what it comes before
@each_page
def test_the_python_blocks_run(page: Path) -> None:
    """Run all blocks of a page in order in one namespace, as a reader would type them."""
    if page.name == "torch-errors.md" and RELEASE != (2, 13):
        pytest.skip("it tells of torch 2.13")
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, page.name, str(page), 0)
    failures: list[str] = []
    result = doctest.DocTestRunner(optionflags=FLAGS).run(examples, out=failures.append)
    assert result.failed == 0, "".join(failures)


@each_page
def test_every_python_block_is_a_session(page: Path) -> None:
    """A block without prompts would not be run."""
    blocks = re.findall(r"^```py\w*\n(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert all(first_line.startswith(">>> ") for first_line in blocks)


def test_the_readme_has_examples() -> None:
    assert ">>> import hofunc" in PAGES[0].read_text(encoding="utf-8")


@each_page
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []
