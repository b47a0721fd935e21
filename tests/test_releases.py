"""Releases of torch: those that are tested, an older one, a newer one, and one that lacks what hofunc reads."""

import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest
import torch

import hofunc
from hofunc.releases import TESTED, check_release, reading, release_of

ROOT = Path(__file__).parent.parent
NEWER = f"{TESTED[-1][0]}.{TESTED[-1][1] + 1}.0"


@pytest.mark.parametrize(
    "version", ["2.13.0", "2.13.0+cpu", "2.14.1", "2.15.0+cu132", "2.15.0a0+git1a2b3c", torch.__version__]
)
def test_a_tested_release_is_taken_as_it_is(version: str) -> None:
    check_release(version)


@pytest.mark.parametrize("version", ["2.12.1", "2.9.0+cpu", "1.13.1"])
def test_an_older_release_is_refused(version: str) -> None:
    with pytest.raises(hofunc.VersionError, match=r"torch is too old: got torch .*, expected a release from 2\.13 to"):
        check_release(version)


@pytest.mark.parametrize("version", [NEWER, "3.0.0", "2.100.0a0", "nightly", "parrotsBuild"])
def test_of_any_other_one_there_is_a_warning(version: str) -> None:
    with pytest.warns(hofunc.UntestedTorchWarning, match=f"hofunc is not tested with torch {version}, but with"):
        check_release(version)


IMPORTS = f"""import torch
torch.__version__ = "2.12.1"
try:
    import hofunc
except ImportError as error:
    print(type(error).__name__, error)
torch.__version__ = "{NEWER}"
import hofunc
import hofunc.graph.tape
"""


def test_the_import_refuses_an_old_release_and_warns_of_a_new_one_once() -> None:
    command = [sys.executable, "-W", "always", "-c", IMPORTS]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)  # noqa: S603
    assert done.returncode == 0
    assert done.stdout.startswith("VersionError hofunc: torch is too old: got torch 2.12.1")
    assert "(called at <string>:4)" in done.stdout
    assert done.stderr.count("UntestedTorchWarning") == 1
    assert "<string>:8: UntestedTorchWarning: hofunc is not tested with torch" in done.stderr


@pytest.mark.parametrize("error", [ImportError("cannot import name '_gone'"), AttributeError("aten has no gone")])
def test_what_a_new_release_lacks_is_said(error: Exception) -> None:
    with pytest.raises(hofunc.VersionError, match=f"got torch {NEWER}: .*gone") as caught, reading(NEWER):
        raise error
    assert caught.value.__cause__ is error


def test_in_a_tested_release_it_is_an_error_of_its_own() -> None:
    with pytest.raises(AttributeError, match="gone"), reading("2.13.0"):
        raise AttributeError("gone")


def test_the_tests_run_on_a_tested_release_or_say_so() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_release(torch.__version__)
    assert bool(caught) == (release_of(torch.__version__) not in TESTED)


def test_the_project_admits_the_tested_releases_and_later_ones() -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert "torch>=" + ".".join(map(str, TESTED[0])) in needed
    assert len(TESTED) == 3
