"""What hofunc reads of TorchScript: every fact, on the torch that is installed."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hofunc.internals_scripts import attributes_of, before_scripts, run_as_written
from tests.test_internals import Ops

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


class Layer(nn.Module):
    """Has attributes of its own, and a layer that has some."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.inner = 2.0, nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.scale


OPS_OF_FUSED = ("mul", "tanh", "mul", "add", "exp")


def function(x: Tensor, scale: float = 2.0) -> Tensor:
    return x.sin() * scale


def fused(x: Tensor, weight: Tensor) -> Tensor:
    return ((x * weight).tanh() * x + weight).exp()


def test_what_is_called_in_the_place_of_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod):
        monkeypatch.setattr(kind, "__call__", kind.__call__)  # which is put back
    seen: list[tuple[Any, tuple, dict]] = []

    def run(call: Any, script: Any, args: tuple, kwargs: dict) -> Any:
        seen.append((script, args, kwargs))
        return call(script, *args, **kwargs)

    scripts: Any = [torch.jit.script(function), torch.jit.script(Layer())]
    x = torch.ones(2)
    before_scripts(run)
    assert torch.equal(scripts[0](x, scale=3.0), function(x, 3.0))
    scripts[1](x)
    assert seen == [(scripts[0], (x,), {"scale": 3.0}), (scripts[1].forward, (x,), {})]


def test_scripts_run_op_by_op() -> None:
    script: Any = torch.jit.script(fused)
    given = torch.ones(2), torch.ones(2, requires_grad=True)
    for _ in range(3):
        script(*given)
    assert "Differentiable" in script(*given).grad_fn.name()
    with Ops() as ops:
        out = run_as_written(type(script).__call__, script, given, {})
    names = [op._schema.name.removeprefix("aten::") for op in ops.ops]
    assert [name for name in names if name != "detach"] == [*OPS_OF_FUSED]  # of what autograd saves
    assert "Differentiable" not in out.grad_fn.name()
    assert "Differentiable" in script(*given).grad_fn.name()


def test_attributes_that_a_script_may_read() -> None:
    module: Any = torch.jit.script(Layer())
    found = {(name, getattr(owner, name)) for owner, name in attributes_of(module.forward)}
    assert {("scale", 2.0), ("weight", module.inner.weight), ("training", True)} <= found
    of_function: Any = torch.jit.script(function)
    assert not [*attributes_of(of_function)]
