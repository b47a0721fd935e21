"""What tests of compiled plans share: graphs that are not given to a compiler."""

from typing import Any

import pytest
from torch.fx import GraphModule

from hofunc.run import compiler


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[GraphModule]:
    """Return where graphs are put as they are compiled."""
    made: list[GraphModule] = []

    def compile_(_options: Any, module: GraphModule, _tensors: Any) -> GraphModule:
        made.append(module)
        return module

    monkeypatch.setattr(compiler, "_by_torch", compile_)
    return made
