"""What tests of running plans share: graphs that no compiler is given, and backward passes that are planned at once."""

from collections.abc import Iterator
from typing import Any

import pytest
from torch.fx import GraphModule

from hofunc import repeat
from hofunc.graph import asking
from hofunc.run import backward, compiler, learning
from hofunc.run.cache import forget


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[GraphModule]:
    """Return where graphs are put as they are compiled."""
    made: list[GraphModule] = []

    def compile_(_options: Any, module: GraphModule, _tensors: Any) -> GraphModule:
        made.append(module)
        return module

    monkeypatch.setattr(compiler, "_by_torch", compile_)
    return made


@pytest.fixture(params=["_of_contractions", "_of_steps"])
def learns_at_once(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Plan backward passes when they are first asked for, in one of the ways to do so, whatever they take."""
    monkeypatch.setattr(learning, "EFFORT", 0)
    monkeypatch.setattr(backward, "LONGER", float("inf"))
    for way in {"_of_contractions", "_of_steps"} - {request.param}:
        monkeypatch.setattr(backward, way, lambda *_: None)
    asking._met.clear()  # of a test that ran before in the other way
    repeat._repeats.clear()
    forget()
    yield
    forget()
