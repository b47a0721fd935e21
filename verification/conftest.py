"""Profiles of how much is verified, and the report of what the programs of a run were made of.

The environment variable HOFUNC_PROFILE chooses among

- ``ci``, the default: the same programs in every run, at least 2,000 of them, in a few minutes;
- ``dev``: a few new ones at every run, to try something out;
- ``nightly``: new ones, 50 times as many as ``ci``; what failed is kept in verification/.examples and tried first.
"""

import importlib
import pkgutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import hofunc
import verification
from verification.coverage import COVERAGE, complaints, report
from verification.profiles import PER_PROPERTY, PROFILE, drawing

COMPLETE = pytest.StashKey[bool]()

# Hypothesis draws numbers from the modules that are loaded, which must not depend on the tests that ran before. And
# torch's own helpers for tests, which are among them, load a profile of their own, which is replaced below.
for package in (hofunc, verification):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if "mutation" not in module.name and "test_" not in module.name:
            importlib.import_module(module.name)

# Programs are large draws and slow to compare; what is slow is bounded by their size.
_COMMON: dict[str, Any] = {
    "parent": settings.get_profile("default"),
    "print_blob": True,
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
}
for name in PER_PROPERTY:
    settings.register_profile(name, **drawing(name), **_COMMON)
settings.load_profile(PROFILE)

# torch's own: vmap lacks some rules, or resizes.
IGNORED = (
    "ignore:There is a performance drop:UserWarning",
    "ignore:An output with one or more elements was resized:UserWarning",
    "ignore::hofunc.FallbackWarning",
    "ignore::hofunc.PlanningWarning",
)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let torch warn of itself, and hofunc of the ops that it leaves to torch and of many plans."""
    for warning in IGNORED:
        item.add_marker(pytest.mark.filterwarnings(warning))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note whether all random programs that there are will be compared, and not only a selection."""
    from verification import test_agreement  # noqa: PLC0415 - a test module, imported when it has been collected

    names = [item.name for item in session.items if item.path == Path(test_agreement.__file__)]
    session.config.stash[COMPLETE] = len(names) >= test_agreement.NUMBER_OF_TESTS


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send what a worker of pytest-xdist has counted to its controller, and fail a run that was dull."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["coverage"] = COVERAGE.packed()
        output["complete"] = session.config.stash.get(COMPLETE, False)
    elif session.exitstatus == 0 and session.config.stash.get(COMPLETE, False) and complaints(COVERAGE, PROFILE):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the counts of a worker."""
    output = getattr(node, "workeroutput", {})
    if "coverage" in output:
        COVERAGE.merge(output["coverage"])
        node.config.stash[COMPLETE] = output["complete"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what programs there were, and what is missing."""
    if not COVERAGE.programs:
        return
    terminalreporter.section(f"programs by order of derivative (profile {PROFILE})")
    for line in report(COVERAGE):
        terminalreporter.line(line)
    if config.stash.get(COMPLETE, False):
        for complaint in complaints(COVERAGE, PROFILE):
            terminalreporter.line(f"FAILED: {complaint}", red=True)
