"""Which tests can see a mutant, the quickest first."""

from pathlib import Path

# The tests of those files of the rules that have none of their own, as they are parts of several.
TESTED_IN = {
    "activations": ("elementwise", "losses"),
    "axes": ("multilinear", "linear"),
    "bessel": ("elementwise", "special"),
    "calculus": ("elementwise", "special"),
    "choice": ("lower", "composite"),
    "constant": ("elementwise", "registry"),
    "fourier": ("complex",),
    "kinds": ("registry", "multilinear", "linear"),
    "pairs": ("elementwise",),
    "polynomials": ("elementwise", "special"),
    "series": ("matrix_functions", "inverse", "spectral"),
}


def watchers(root: Path, path: str) -> list[str]:
    """List the test files for a file of hofunc: its mirror, and derivatives as a whole.

    A file that has neither a mirror nor an entry above has all tests of its package. The score is a lower bound, as
    other tests are not asked.
    """
    package, module = Path(path).parts[-2:]
    folder = root / "tests" / package
    named = [folder / f"test_{name}.py" for name in (Path(module).stem, *TESTED_IN.get(Path(module).stem, ()))]
    files = [file for file in named if file.exists()] or sorted(folder.glob("test_*.py"))
    return [*[file.relative_to(root).as_posix() for file in files], "tests/test_exactness.py"]
