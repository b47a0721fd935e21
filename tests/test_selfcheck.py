"""The self-check: all is right here, and what is wrong is noticed."""

import subprocess
import sys
from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc import __main__ as entry
from hofunc import selfcheck
from hofunc.__main__ import main
from hofunc.selfcheck import CASES, Case, outcomes, whole
from tests.checks import assert_equal
from verification.oracles import nested_reverse

WRONG = """
import runpy, torch
from hofunc.rules.registry import RULES
wrong = RULES[torch.ops.aten.log.default]
RULES[torch.ops.aten.exp.default] = wrong
runpy.run_module("hofunc", run_name="__main__")
"""


def test_all_is_right_here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def without() -> str:
        raise RuntimeError

    monkeypatch.setattr("hofunc.__main__.find_cpp_compiler", without)
    assert main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"hofunc {hofunc.__version__}"
    facts = dict(line.split(maxsplit=1) for line in lines[1:] if line.startswith("  "))
    assert facts["torch"].startswith(torch.__version__)
    assert "cpu" in facts["devices"]
    assert facts["compiler"].startswith("no C++ compiler found")
    assert {"from", "python", "opt_einsum", "platform", "threads", "compiler", "tqdm", "graphviz"} <= {*facts}
    assert "all are right" in lines[-1]


def test_a_wrong_rule_is_noticed() -> None:
    done = subprocess.run([sys.executable, "-c", WRONG], capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.returncode, done.stderr) == (1, "")
    wrong = [line for line in done.stdout.splitlines() if line.startswith("WRONG: ")]
    assert any(line.startswith("WRONG: exp(w x), order 1, by reverse: relative error ") for line in wrong)
    assert not any("x**5" in line for line in wrong), "which has no exp"
    assert "please report this" in done.stdout.splitlines()[-1]


def test_what_is_raised_is_told(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    def broken(x: Tensor) -> Tensor:
        raise RuntimeError(f"no such op of {x.dim()} axes")

    def of_another_shape(x: Tensor) -> Tensor:
        return x.sum(0, keepdim=True) ** 3

    def nan(x: Tensor) -> Tensor:
        return (x.sum() * 0).log()

    cases = tuple([Case(f.__name__, f, 1, CASES[0].entry) for f in (broken, of_another_shape, nan)])
    monkeypatch.setattr(selfcheck, "CASES", (*cases, *CASES[:1]))
    found = {outcome.what.partition(",")[0]: outcome for outcome in outcomes(device)}
    assert "RuntimeError: no such op of 1 axes" in found["broken"].told
    assert "shape (1, 3) for (3,)" in found["of_another_shape"].told
    assert not any(found[name].is_right for name in ("broken", "of_another_shape", "nan"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_closed_forms_are_right(case: Case, device: torch.device) -> None:
    x = torch.tensor([0.7, -0.4, 1.3], dtype=torch.float64, device=device)
    f: Callable[[Tensor], Tensor] = case.function
    for order in range(1, case.orders + 1):
        assert_equal(whole(case, order, x), nested_reverse(f, order)(x))
    assert {len(whole(case, order, x).shape) for order in range(1, 3)} == {1, 2}


def test_single_precision(device: torch.device) -> None:
    found = [*outcomes(device, torch.float32)]
    assert all(outcome.is_right for outcome in found)
    assert max(outcome.error for outcome in found) < selfcheck.TOLERANCES[torch.float32] / 10
    strategies = {outcome.what.split(" by ")[-1] for outcome in found if " by " in outcome.what}
    assert strategies >= {"reverse", "forward", "mixed", "jit"}
    assert {order for order, what in product("1234", found) if f"order {order}" in what.what} == {*"1234"}


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, dtype in (("mps", torch.float32), ("xpu", torch.float64)):
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, kind=kind, **__: torch.device(kind))
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
        assert [*entry._devices()] == ["cpu", f"{kind}:0", f"{kind}:1"]
        assert [*entry._computing_on()] == [
            (torch.device("cpu"), torch.float64),
            (torch.device(kind), dtype),
        ]
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: None)
    assert [*entry._devices()] == ["cpu"]
    assert len([*entry._computing_on()]) == 1
