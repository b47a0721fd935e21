"""The pytest plugin, in runs of pytest of its own."""

import re
from pathlib import Path

import pytest
import torch._dynamo  # noqa: F401 - what runs in this process import first they take out again; it is imported once

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"^```text\n(.*?)^```$", (ROOT / "docs/how-to/testing.md").read_text(encoding="utf-8"), re.S | re.M)
(EXAMPLE,) = [block for block in BLOCKS if "def test_" in block]
IN_PROCESS = ("-p", "hofunc_pytest", "-p", "no:cacheprovider")


@pytest.fixture(autouse=True)
def _no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no run import again, and rewrite, what else is installed as a plugin."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def golden(pytester: pytest.Pytester) -> Path:
    """Return the folder of the golden files of the example of the documentation."""
    pytester.makepyfile(test_energy=EXAMPLE)
    return pytester.path / "golden" / "test_energy"


def test_the_life_of_a_golden(pytester: pytest.Pytester, golden: Path) -> None:
    missing = pytester.runpytest_inprocess(*IN_PROCESS)
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["*GoldenError: hofunc_golden: */golden/test_energy/hessian.json: got no such file*"])
    pytester.runpytest_inprocess(*IN_PROCESS, "--hofunc-golden-update").assert_outcomes(passed=1)
    assert [path.name for path in golden.iterdir()] == ["hessian.json"]
    pytester.runpytest_inprocess(*IN_PROCESS).assert_outcomes(passed=1)
    pytester.makepyfile(test_energy=EXAMPLE.replace("x**4", "x**4 * 1.5"))
    changed = pytester.runpytest_inprocess(*IN_PROCESS)
    changed.assert_outcomes(failed=1)
    changed.stdout.fnmatch_lines(["*entry * of d^2 f(*args) / d args?0? d args?0? is * off, *: got *, expected *"])
    changed.stdout.no_fnmatch_line("*hofunc/testing/golden.py*")  # the traceback ends in the test
    pytester.runpytest_inprocess(*IN_PROCESS, "--hofunc-golden-update").assert_outcomes(passed=1)
    pytester.runpytest_inprocess(*IN_PROCESS).assert_outcomes(passed=1)


def test_two_tests_with_one_name(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_energy=EXAMPLE + "\n\n" + EXAMPLE.replace("def test_", "def test_another_"))
    result = pytester.runpytest_inprocess(*IN_PROCESS, "--hofunc-golden-update")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*expected a name of its own for every derivative; test_energy.py::test_* has it*"])


def test_workers_write_side_by_side(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile(
        test_many="""
        import pytest, torch

        @pytest.mark.parametrize("order", range(1, 5))
        def test_order(order, hofunc_golden):
            hofunc_golden.check(f"order-{order}", torch.sin, torch.ones(2, dtype=torch.float64), order)
        """
    )
    options = ("-p", "hofunc_pytest", "-p", "no:cacheprovider", "-p", "xdist.plugin", "-n", "2")
    pytester.runpytest_subprocess(*options, "--hofunc-golden-update").assert_outcomes(passed=4)
    names = {path.name for path in (pytester.path / "golden" / "test_many").iterdir()}
    assert names == {f"order-{order}.json" for order in range(1, 5)}
    pytester.runpytest_inprocess(*IN_PROCESS).assert_outcomes(passed=4)


def test_it_does_not_import_torch_until_it_is_used(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile("import sys\n\ndef test_imports():\n    assert not {'torch', 'hofunc'} & sys.modules.keys()\n")
    pytester.runpytest_subprocess("-p", "hofunc_pytest", "-p", "no:cacheprovider").assert_outcomes(passed=1)
