"""Which tests can see a mutant, the quickest first."""

from pathlib import Path

# Where files of the rules are tested, beside their mirrors; all the tests of rules would take minutes for each mutant.
TESTED_IN = {
    "activations": ("elementwise", "losses"),
    "axes": ("multilinear", "linear"),
    "bessel": ("elementwise", "special"),
    "calculus": ("elementwise", "special"),
    "choice": ("lower", "composite"),
    "complex_numbers": ("complex",),
    "constant": ("elementwise", "registry"),
    "fourier": ("complex",),
    "kinds": ("registry", "multilinear", "linear", "elementwise"),
    "pairs": ("elementwise",),
    "polynomials": ("elementwise", "special"),
    "series": ("matrix_functions", "inverse", "spectral", "factorisations"),
    "special": ("elementwise",),
}


def watchers(root: Path, path: str) -> list[str]:
    """List the test files for a file of hofunc: its mirror, the others of its package, and derivatives as a whole.

    Of the many tests of rules only those are asked that the table above names, and of plans also how large they are.
    The score is a lower bound.
    """
    package, module = Path(path).parts[-2:]
    folder, name = root / "tests" / package, Path(module).stem
    others = TESTED_IN.get(name, ()) if package == "rules" else [f.stem[5:] for f in sorted(folder.glob("test_*.py"))]
    files = [folder / f"test_{other}.py" for other in dict.fromkeys((name, *others))]
    whole = ["tests/test_exactness.py", *(["tests/test_baseline.py"] if package == "plan" else [])]
    return [*[file.relative_to(root).as_posix() for file in files if file.exists()], *whole]
