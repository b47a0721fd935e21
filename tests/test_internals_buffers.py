"""Small buffers on the stack of a kernel: which are, that results stay the same, and that others stay tensors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from hofunc import internals_buffers
from hofunc.internals_buffers import buffers_inside
from hofunc.internals_files import compiled_by_inductor
from tests.cases import rand
from tests.checks import has_compiler

pytestmark = [
    pytest.mark.skipif(not has_compiler(), reason="there is no C++ compiler"),
    pytest.mark.filterwarnings("ignore"),  # of inductor
]
CPU = torch.device("cpu")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the names of buffers on a stack, of what is compiled, which is not taken from a cache."""
    found: list[str] = []
    take = internals_buffers._taken

    def taken(group: Any, node: Any) -> str:
        found.append(node.get_name())
        return take(group, node)

    monkeypatch.setattr(internals_buffers, "_taken", taken)
    return found


def softmaxes(x: Tensor) -> Tensor:
    """Return what takes several loops, of which each reads what others wrote."""
    return (x.softmax(0) @ x.softmax(1).t()).softmax(1).cumsum(0)


def added(x: Tensor) -> Tensor:
    """Return rows added to others, in place as inductor has it, and normalised before and after."""
    rows = x.softmax(1)
    return torch.zeros_like(x).index_add(0, torch.tensor([1, 0, 1]), rows[:3]).softmax(0) + rows


def several(x: Tensor) -> tuple[Tensor, ...]:
    """Return what is read by others and returned as well."""
    rows = x.softmax(1)
    return rows, rows.sum(0), (rows - rows.sum(0)).softmax(0)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("f", [softmaxes, added, several])
def test_results_are_the_same(f: Callable[..., Any], taken: list[str]) -> None:
    x = rand(CPU, 7, 7).float()
    with torch.no_grad(), buffers_inside():
        compiled = compiled_by_inductor(make_fx(f)(x), [x], {"force_disable_caches": True})
        torch.testing.assert_close(compiled(x), f(x))
    assert taken


def test_large_buffers_and_what_is_returned_stay_tensors(taken: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals_buffers, "SMALL", 4 * 48)
    x = rand(CPU, 7, 7).float()
    with torch.no_grad(), buffers_inside():
        compiled = compiled_by_inductor(make_fx(softmaxes)(x), [x], {"force_disable_caches": True})
    few = len(taken)
    monkeypatch.setattr(internals_buffers, "ALL", 0)
    with torch.no_grad(), buffers_inside():
        compiled_by_inductor(make_fx(softmaxes)(x), [x], {"force_disable_caches": True})
    assert len(taken) == few
    monkeypatch.undo()
    torch.testing.assert_close(compiled(x), softmaxes(x))


def test_nothing_is_changed_for_others(taken: list[str]) -> None:
    with buffers_inside():
        pass
    x = rand(CPU, 7, 7).float()
    with torch.no_grad():
        compiled = compiled_by_inductor(make_fx(softmaxes)(x), [x], {"force_disable_caches": True})
    torch.testing.assert_close(compiled(x), softmaxes(x))
    assert not taken
