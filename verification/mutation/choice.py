"""Which tests can see a mutant, the quickest first."""

from pathlib import Path

# Where files of the rules are tested, beside their mirrors; all the tests of rules would take minutes for each mutant.
TESTED_IN = {
    "activations": ("elementwise", "losses"),
    "axes": ("multilinear", "linear"),
    "bessel": ("elementwise", "special"),
    "calculus": ("elementwise", "special"),
    "choice": ("lower", "composite"),
    "complex_choice": ("holomorphic", "complex_numbers"),
    "holomorphic": ("complex_numbers",),
    "in_parts": ("complex_numbers", "holomorphic"),
    "constant": ("elementwise", "registry"),
    "fourier": ("complex_numbers",),
    "kinds": ("registry", "multilinear", "linear", "elementwise"),
    "lengths": ("norms",),
    "normalising": ("norms",),
    "nuclear": ("spectral",),
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
    _, *packages, module = Path(path).parts
    folder, name = root.joinpath("tests", *packages), Path(module).stem
    others = (
        TESTED_IN.get(name, ()) if packages[0] == "rules" else [f.stem[5:] for f in sorted(folder.glob("test_*.py"))]
    )
    rules = root / "tests" / "rules"  # whose catalogue and engine are tested in two folders
    folders = [rules, rules / "ops"] if packages[0] == "rules" else [folder]
    files = [place / f"test_{other}.py" for other in dict.fromkeys((name, *others)) for place in folders]
    whole = ["tests/test_exactness.py", *(["tests/test_baseline.py"] if packages == ["plan"] else [])]
    return [*[file.relative_to(root).as_posix() for file in files if file.exists()], *whole]
