"""Tests of one mutant at a time, in a copy of the checkout: cosmic-ray's way is to write the mutant over the file."""

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.testing import run_tests
from cosmic_ray.work_item import TestOutcome

from verification.mutation.choice import watchers
from verification.mutation.mutant import Mutant

COPIED = ("hofunc", "tests", "verification", "asv_benchmarks", "conftest.py", "hofunc_pytest.py", "pyproject.toml")
NO_LIMIT = 3600.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the tests said of a mutant: ``survived``, ``killed`` or ``timeout``, and after how many seconds."""

    verdict: str
    seconds: float


def copy_checkout(root: Path, copy: Path) -> None:
    """Make the copy anew, so that no mutant of an interrupted run is left in it."""
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, copy / name)


def try_mutant(copy: Path, mutant: Mutant, limit: float) -> Outcome:
    """Run the tests that can see a mutant, up to the first that fails."""
    file = copy / mutant.place.path
    file.write_text(mutant.after, encoding="utf-8")
    try:
        return _tested(copy, watchers(copy, mutant.place.path), limit)
    finally:
        file.write_text(mutant.before, encoding="utf-8")


def try_original(copy: Path, paths: Iterable[str], jobs: int) -> None:
    """Run all tests that mutants of some files will meet, on hofunc as it is.

    Raises:
        RuntimeError: They fail, so that they would kill every mutant.
    """
    tests = sorted({test for path in paths for test in watchers(copy, path)})
    if _tested(copy, tests, NO_LIMIT, jobs).verdict != "survived":
        raise RuntimeError("mutation: tests fail without a mutant: run `make test` first")


def _tested(copy: Path, tests: list[str], limit: float, jobs: int = 0) -> Outcome:
    options = ["-n", str(jobs), "-x", "-q", "-p", "no:cacheprovider", "--no-header"]
    started, here = time.monotonic(), Path.cwd()
    os.chdir(copy)
    try:
        found, output = run_tests(shlex.join([sys.executable, "-m", "pytest", *options, *tests]), limit)
    finally:
        os.chdir(here)
    if found is TestOutcome.INCOMPETENT:
        raise RuntimeError(f"mutation: the tests could not be started:\n{output}")
    verdict = "timeout" if output == "timeout" else str(found.value)
    return Outcome(verdict, time.monotonic() - started)
