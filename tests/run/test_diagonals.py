"""Diagonals in graphs that are compiled: which are written into zeros, and that this is the same."""

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import hofunc
from hofunc.run.diagonals import write_diagonals
from tests.cases import rand
from tests.checks import has_compiler

aten = torch.ops.aten
CPU = torch.device("cpu")


@pytest.mark.parametrize("where", [(), (1,), (-2,), (0, 0), (0, 0, 2), (1, -1, 0), (0, 1, 3)])
def test_diagonals_are_written_into_zeros(where: tuple[int, ...]) -> None:
    module = make_fx(lambda x: aten.diag_embed(x.sin(), *where) * 2, tracing_mode="fake")(rand(CPU, 2, 3, 4))
    write_diagonals(module)
    targets = {node.target for node in module.graph.nodes}
    assert aten.diagonal_scatter.default in targets
    assert aten.diag_embed.default not in targets
    x = rand(CPU, 2, 3, 4, seed=1)
    assert torch.equal(module(x), torch.diag_embed(x.sin(), *where) * 2)


def test_those_on_another_device_stay() -> None:
    module = make_fx(torch.diag_embed, tracing_mode="fake")(torch.ones(3, device="meta"))
    write_diagonals(module)
    assert aten.diag_embed.default in {node.target for node in module.graph.nodes}


@pytest.mark.skipif(not has_compiler(), reason="there is no C++ compiler")
@pytest.mark.filterwarnings("ignore")  # of inductor
def test_a_compiled_hessian_of_rows_and_gradients_through_it() -> None:
    weight = rand(CPU, 3, 3)

    def f(x: Tensor, weight: Tensor) -> Tensor:
        return (x @ weight).tanh().sum(1).square().sum()

    x, weights = rand(CPU, 20, 3, seed=1), [weight.clone().requires_grad_() for _ in range(2)]
    plan = hofunc.hessian(f).plan(x, weight)
    found, expected = plan.compile()(x, weights[0]), plan(x, weights[1])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    for result in (found, expected):
        result.square().sum().backward()
    torch.testing.assert_close(weights[0].grad, weights[1].grad, rtol=1e-12, atol=1e-14)
