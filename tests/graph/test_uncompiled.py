"""Compiled functions inside f: they run as they are, and nothing that records is compiled with them."""

import subprocess
import sys
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from hofunc import hod
from tests.cases import rand
from tests.checks import assert_equal
from verification.oracles import nested_reverse

X = rand(torch.device("cpu"), 3)


def f(x: Tensor) -> Tensor:
    return (x.sin() * x.roll(1)).sum()


def test_compiled_functions_are_recorded() -> None:
    compiled: Any = torch.compile(f, backend="eager")
    expected = nested_reverse(f, 2)
    assert_equal(hod(compiled, 2)(X), expected(X))
    assert_equal(hod(compiled, 2).plan(X)(2 * X), expected(2 * X))
    rows = torch.stack([X, 2 * X])
    assert_equal(torch.vmap(hod(compiled, 2))(rows), torch.stack([*map(expected, rows)]))


def test_planning_calls_nothing_that_imports_the_compiler() -> None:
    cell, met = nn.LSTMCell(7, 5).requires_grad_(False), []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.endswith("torch/_compile.py"):
            met.append(frame.f_locals["fn"])

    call: Any = hod(lambda x, h, c: cell(x, (h, c))[0].softmax(-1).sum(), 2)
    inputs = [torch.ones(3, size) for size in (7, 5, 5)]
    sys.setprofile(note)
    try:
        call(*inputs)
    finally:
        sys.setprofile(None)
    assert not met


GRAPH = """
import sys, torch, hofunc
x, ends = torch.ones(5, 2), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
def f(x):
    y = (x[ends[0]] * x[ends[1]]).tanh()
    return (torch.zeros_like(x).index_add(0, ends[0], y).mT.contiguous()[:, ends[1]] ** 3).sum()
hofunc.hessian(f)(x)
sys.exit("sympy" in sys.modules)
"""


def test_planning_a_network_on_a_graph_imports_no_sympy() -> None:
    subprocess.run([sys.executable, "-c", GRAPH], check=True, timeout=120)  # noqa: S603 - what is above
