"""Which tests can see a mutant, the quickest first."""

from pathlib import Path


def watchers(root: Path, path: str) -> list[str]:
    """List the test files for a file of hofunc: its mirror, the others of its package, and derivatives as a whole."""
    package, module = Path(path).parts[-2:]
    files = sorted(file.relative_to(root).as_posix() for file in (root / "tests" / package).glob("test_*.py"))
    mirror = f"tests/{package}/test_{module}"
    return [*sorted(files, key=lambda file: file != mirror), "tests/test_exactness.py"]
