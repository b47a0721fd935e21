"""Cosines that f divides by lengths itself: recognised where they are, and where they nearly are right all the same."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from hofunc.rules.kinds import Fused
from hofunc.rules.ops.cosines import _of_all, _of_two
from tests.cases import rand
from tests.checks import check_hod
from tests.graph.recordings import recorded

aten = torch.ops.aten


def over(x: Tensor, y: Tensor, square: Tensor) -> Tensor:
    return (x * y).sum(-1) / square.sqrt()


def squares(x: Tensor, eps: float = 0.0) -> Tensor:
    return (x * x).sum(-1) + eps


OTHER = rand(torch.device("cpu"), 3, 4, seed=3)
FUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "loss": lambda x: F.cosine_embedding_loss(x, OTHER.to(x), x.new_tensor([1.0, -1.0, 1.0]), margin=-1.0),
    "loss by both": lambda x: F.cosine_embedding_loss(x, x.sin().flip(0), x.new_ones(3)),
    "by hand": lambda x: over(x, x.cos(), squares(x) * squares(x.detach().cos())),
    "the other way around": lambda x: over(OTHER.to(x), x, squares(OTHER.to(x)) * squares(x, 0.3)),
    "times another number": lambda x: over(x, x.cos(), squares(x, 0.1) * x.exp().sum(-1)),
    "correlations": lambda x: torch.corrcoef(x),
    "correlations of columns": lambda x: torch.corrcoef(x.t() * x.t()),
}
OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "squares of others": lambda x: over(x, x.cos(), squares(x.sin()) * squares(x.exp())),
    "squares along another axis": lambda x: (y := x[:, :3]).cos().mul(y).sum(-1) / ((y * y).sum(0) * squares(x)).sqrt(),
    "a negative excess": lambda x: over(x, x.cos(), squares(x, -0.01) * squares(x.sin())),
    "one row for all": lambda x: (x * x[0]).sum(-1) / (squares(x) * squares(x[:1])).sqrt(),
    "the diagonal of another": lambda x: matrix_over(x @ x.t(), (x.exp() @ x.exp().t()).diagonal().sqrt()),
    "another diagonal": lambda x: matrix_over(x[:, :3] @ x[:, :3].t(), (x @ x.t() + 9).diagonal(0).sqrt()),
    "no square": lambda x: matrix_over(x @ x.cos().t() + 9, (x @ x.cos().t() + 9).diagonal().sqrt()),
}


def matrix_over(matrix: Tensor, root: Tensor) -> Tensor:
    return matrix / root.view(-1, 1) / root.view(1, -1)


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return rand(device, 3, 4)


def is_fused(f: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    graph = recorded(f, x).graph
    found = [read(graph, node) for node in graph.nodes if node.op is aten.div.Tensor for read in (_of_two, _of_all)]
    return any(isinstance(one, Fused) for one in found)


@pytest.mark.parametrize("name", FUSED)
def test_cosines_are_recognised_and_right(name: str, x: Tensor) -> None:
    f = FUSED[name]
    assert is_fused(f, x)
    for order in (1, 2, 3):
        check_hod(lambda x: f(x).sin().sum(), (x,), order)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_cosine_is_right(name: str, x: Tensor) -> None:
    assert not is_fused(OTHERS[name], x)
    for order in (1, 2):
        check_hod(lambda x: OTHERS[name](x).sin().sum(), (x,), order)
