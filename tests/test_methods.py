"""Transforms in the body of a class are methods."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import hofunc
from tests.cases import rand
from tests.checks import assert_equal

X = rand(torch.device("cpu"), 4, 3)


class Network(nn.Module):
    """Derivatives of a network that are its methods."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()

    def value(self, x: Tensor) -> Tensor:
        return self.scale * self.layers(x)[..., 0]

    @partial(hofunc.laplacian, wrt="x")
    def laplacian(self, x: Tensor) -> Tensor:
        """What it is the Laplacian of."""
        return self.value(x)

    @hofunc.jit
    @partial(hofunc.laplacian, argnums=1)
    def jitted(self, x: Tensor) -> Tensor:
        return self.value(x)

    @partial(hofunc.laplacian, argnums=1, samples=3, directions="coordinates")
    def estimated(self, x: Tensor) -> Tensor:
        return self.value(x.square())

    @hofunc.hessian
    def by_itself(self) -> Tensor:
        return self.value(X).sum()

    def forward(self, x: Tensor) -> Tensor:
        return self.laplacian(x)


def wanted(network: Network) -> Tensor:
    return torch.func.vmap(lambda x: torch.func.hessian(network.value)(x).trace())(X)


def test_they_are_called_with_the_object_first() -> None:
    network = Network()
    assert_equal(network(X), wanted(network))
    assert_equal(Network.laplacian(network, X), wanted(network))
    assert_equal(torch.func.vmap(network.laplacian)(X[None]), wanted(network)[None])
    assert network.estimated(X).shape == (4,)


def test_what_they_read_of_the_object_is_what_it_has_then() -> None:
    network = Network()
    assert_equal(network.jitted(X), wanted(network))
    network.scale = 3.0
    assert_equal(network.jitted(X), wanted(network))
    network.get_parameter("layers.0.weight").data.mul_(2)
    assert_equal(network.jitted(X), wanted(network))
    other = deepcopy(network)
    other.layers[1] = nn.SiLU()
    assert_equal(other.jitted(X), wanted(other))
    assert_equal(network.jitted(X), wanted(network))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("method", ["laplacian", "jitted"])
def test_they_are_part_of_what_is_compiled(method: str) -> None:
    network = Network()
    torch.compiler.reset()
    compiled = torch.compile(lambda x: getattr(network, method)(x), fullgraph=True, backend="aot_eager")
    assert_equal(compiled(X), wanted(network))
    torch.compiler.reset()


def test_the_object_is_no_tensor() -> None:
    with pytest.raises(hofunc.ArgumentError, match=r"args\[0\]: got Network, expected a tensor"):
        Network().by_itself()
