"""The README's examples do what it says."""

import doctest
import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def test_the_python_blocks_of_the_readme_run() -> None:
    """Run all blocks in order in one namespace, as a reader would type them."""
    text = README.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "README.md", str(README), 0)
    failures: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    result = runner.run(examples, out=failures.append)
    assert blocks
    assert result.failed == 0, "".join(failures)


def test_every_python_block_of_the_readme_is_a_session() -> None:
    """A block without prompts would not be run."""
    blocks = re.findall(r"^```py\w*\n(.*)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert blocks
    assert all(first_line.startswith(">>> ") for first_line in blocks)
