"""Products of matrices that are read at indices: the same in pieces and at once, and as large as they say."""

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.outline import Subject
from hofunc.plan import joins, lookups, selections
from hofunc.plan.lookups import multiplied, products_added
from hofunc.run import cache
from tests.cases import rand
from verification.memory import SLACK, taken

CPU = torch.device("cpu")


def operands() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return matrices at one index and at two, and indices of 50 pairs."""
    indices = torch.randint(5, (3, 50), generator=torch.Generator().manual_seed(0))
    return rand(CPU, 5, 3, 4), rand(CPU, 5, 7, 2, 4, seed=1), *indices


@pytest.mark.parametrize("piece", [1, 3 * 8 * 20, 1 << 20])
def test_products_are_those_of_what_is_read(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "PIECE", piece)
    one, other, i, j, k = operands()
    expected = torch.einsum("pab,pcb->pac", one[i], other[j, k])
    torch.testing.assert_close(multiplied(1, one, other, i, j, k), expected)
    torch.testing.assert_close(multiplied(2, other, one, j, k, i), expected.mT)
    (got,) = torch.func.vmap(lambda one: multiplied(1, one, other, i, j, k))(one[None])
    torch.testing.assert_close(got, expected)
    assert torch.autograd.gradcheck(
        lambda *tensors: multiplied(1, *tensors, i, j, k), (one.requires_grad_(), other.requires_grad_())
    )


def test_what_is_read_is_never_held_as_a_whole() -> None:
    one, other = rand(CPU, 9, 3, 16), rand(CPU, 9, 2, 16)
    indices = torch.randint(9, (2, 40_000), generator=torch.Generator().manual_seed(0))
    result = 8 * 40_000 * 3 * 2
    assert taken(lambda: multiplied(1, one, other, *indices)) <= result + lookups.PIECE + SLACK


def test_messages_of_many_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """What points have is multiplied into what edges have, before pairs of edges are read; masks too."""
    monkeypatch.setattr(selections, "SMALL", 0)
    monkeypatch.setattr(joins, "SPARSE", 0)
    cache.forget()
    near = torch.cdist(rand(CPU, 40, 3), rand(CPU, 40, 3)) < 0.5
    first, second = near.nonzero().T
    weights, features, readout = rand(CPU, 3, 8), rand(CPU, 40, 8, seed=1), rand(CPU, 8, seed=2)

    def energy(x: Tensor) -> Tensor:
        filters = ((x[first] - x[second]) @ weights).sin() * features[second]
        heard = torch.zeros(40, 8, dtype=x.dtype).index_add(0, first, filters)
        return ((heard.relu() * heard.tanh() * features) @ readout).sum()

    x = rand(CPU, 40, 3, seed=3)
    plan = hofunc.hessian(energy, strategy="mixed").plan(x)
    assert isinstance(plan._subject, Subject)
    assert any(step.function is multiplied for step in plan._subject.program.steps)
    torch.testing.assert_close(plan(x), torch.func.hessian(energy)(x))
    assert plan.peak_bytes == pytest.approx(taken(lambda: plan(x)), rel=0.02, abs=SLACK)


@pytest.mark.parametrize("piece", [1, 3 * 8 * 20, 1 << 20])
def test_products_are_added_to_their_places(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "PIECE", piece)
    one, other, i, j, k = operands()
    places, total = torch.arange(50) % 7, rand(CPU, 7, 3 * 2, seed=3)
    products = torch.einsum("pab,pcb->pac", one[i], other[j, k])
    expected = total.index_add(0, places, products.reshape(50, -1), alpha=-2.0)
    before = total.clone()
    torch.testing.assert_close(products_added(total, -2.0, places, 1, one, other, i, j, k), expected)
    torch.testing.assert_close(total, before)
    (got,) = torch.func.vmap(lambda one: products_added(total, -2.0, places, 1, one, other, i, j, k))(one[None])
    torch.testing.assert_close(got, expected)
    assert torch.autograd.gradcheck(
        lambda total, one: products_added(total, -2.0, places, 1, one, other, i, j, k),
        (total.clone().requires_grad_(), one.requires_grad_()),
    )
