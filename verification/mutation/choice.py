"""Which tests can see a mutant, the quickest first."""

from pathlib import Path


def watchers(root: Path, path: str) -> list[str]:
    """List the test files for a file of hofunc: its mirror, and derivatives as a whole.

    A file without a mirror has all those of its package. The score is a lower bound, as other tests are not asked.
    """
    package, module = Path(path).parts[-2:]
    mirror = Path("tests", package, f"test_{module}")
    files = [root / mirror] if (root / mirror).exists() else sorted((root / "tests" / package).glob("test_*.py"))
    return [*[file.relative_to(root).as_posix() for file in files], "tests/test_exactness.py"]
