"""Compiled functions inside f: they run as they are, and nothing that records is compiled with them."""

from typing import Any

import torch
from torch import Tensor

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
