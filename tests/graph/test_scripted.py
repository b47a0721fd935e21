"""Functions and modules of TorchScript, which runs them otherwise once it has seen some calls of them."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hofunc
from tests.cases import rand
from tests.checks import assert_equal, refused

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


class Scale(nn.Module):
    """Has a number, which a script holds where Python does not see it."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.factor).sin()


class Layer(nn.Module):
    """Has parameters, so that scripts of it are followed by autograd."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(rand(device, 3, 3, seed=2))
        self.inner = Scale()

    def forward(self, x: Tensor, power: int = 3) -> Tensor:
        return (self.inner(x @ self.weight) ** power).sum()

    @torch.jit.export
    def twice(self, x: Tensor) -> Tensor:
        return self.inner(self.inner(x) @ self.weight).exp()


def plain(x: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    return x.tanh() * scale, (x.exp() * x.sin()).sum() * scale


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return rand(device, 3, seed=1)


@pytest.fixture(autouse=True)
def fused() -> Iterator[None]:
    """Have scripts fused on a CPU, as they are on a GPU unless set otherwise."""
    script: Any = torch._C
    was_fused, needs_llvm = script._jit_can_fuse_on_cpu(), script._jit_get_te_must_use_llvm_cpu()
    script._jit_override_can_fuse_on_cpu(True)
    script._jit_set_te_must_use_llvm_cpu(False)
    yield
    script._jit_override_can_fuse_on_cpu(was_fused)
    script._jit_set_te_must_use_llvm_cpu(needs_llvm)


def called(script: Any, x: Tensor) -> Any:
    """Return a script after as many calls of it as TorchScript looks at before it optimises."""
    for _ in range(3):
        script(x)
        script(x.clone().requires_grad_())
    return script


def scripts(device: torch.device, x: Tensor) -> Iterator[tuple[Callable[..., Any], Callable[..., Any]]]:
    """Yield functions of scripts, and what each computes."""
    layer, function = Layer(device), called(torch.jit.script(plain), x)
    module = called(torch.jit.script(copy.deepcopy(layer)), x)
    called(module.twice, x)
    traced = called(torch.jit.trace(layer, x), x)
    yield function, plain
    yield lambda x: function(x, scale=2.0)[1], lambda x: plain(x, 2.0)[1]
    yield module, layer
    yield lambda x: module(x, 2), lambda x: layer(x, 2)
    yield module.twice, layer.twice
    yield traced, layer


def test_as_the_function_that_was_scripted(device: torch.device, x: Tensor) -> None:
    for script, function in scripts(device, x):
        for transform in (lambda f: hofunc.hod(f, 3), hofunc.hessian, lambda f: hofunc.jit(hofunc.hessian(f))):
            of_script, expected = transform(script), transform(function)(x)
            for _ in range(2):
                assert_equal(of_script(x), expected)


def test_gradients_through_it(device: torch.device, x: Tensor) -> None:
    layer = Layer(device)
    module = called(torch.jit.script(layer), x)
    for f in (module, lambda x: torch.func.grad(module)(x).square().sum()):
        f_plain = layer if f is module else lambda x: torch.func.grad(layer)(x).square().sum()
        by_script = torch.autograd.grad(hofunc.hessian(f)(x).square().sum(), layer.weight)
        assert_equal(by_script, torch.autograd.grad(hofunc.hessian(f_plain)(x).square().sum(), layer.weight))


def test_scripts_stay_as_they_are(x: Tensor) -> None:
    script = called(torch.jit.script(plain), x)
    script(x)
    graph = str(torch._C._last_executed_optimized_graph())
    hofunc.hessian(script)(x)
    script(x)
    assert str(torch._C._last_executed_optimized_graph()) == graph
    assert "TensorExprGroup" in graph


def test_attributes_of_modules(device: torch.device, x: Tensor) -> None:
    module = called(torch.jit.script(Layer(device)), x)
    transform = hofunc.hessian(module)
    plan, jitted = transform.plan(x), hofunc.jit(transform)
    changes: list[Callable[[], object]] = [
        lambda: setattr(module.inner, "factor", 3.0),
        lambda: setattr(module, "weight", nn.Parameter(rand(device, 3, 3, seed=5))),
        lambda: module.weight.detach().mul_(2),
    ]
    for change in changes:
        before = jitted(x)
        change()
        assert_equal(jitted(x), transform(x))
        assert not torch.equal(jitted(x), before)
    refused(lambda: plan(x), hofunc.PlanMismatchError, "weight of a module of TorchScript: got another")


def test_wrong_arguments_are_errors_of_torch(device: torch.device, x: Tensor) -> None:
    module = torch.jit.script(Layer(device))
    for call, message in [
        (lambda x: module(x, 1, 2), "at most 3 argument"),
        (lambda x: module(x, other=2), "other"),
        (lambda _: module(), "missing value for argument 'x'"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            hofunc.hessian(call)(x)
