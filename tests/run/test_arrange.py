"""What dense derivatives consist of: told once for a plan, and put together by few calls of torch."""

from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves

from hofunc import hod
from hofunc.internals import is_autograd_view
from hofunc.run import arrange, evaluate
from tests.cases import rand
from verification.oracles import nested_reverse, relative_error

Leaves = dict[str, Tensor]


def of_leaves(leaves: Leaves) -> tuple[Tensor, Tensor]:
    """Couple neighbours only, so that most blocks vanish."""
    tensors = list(leaves.values())
    return torch.stack([x.sin().sum() * y.prod() for x, y in pairwise(tensors)]).sum(), tensors[0].exp()


def leaves_of(count: int, device: torch.device) -> Leaves:
    return {f"p{number}": rand(device, *[2] * (number % 3), seed=number) for number in range(count)}


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("wrap", [lambda f: f, lambda f: vmap(f)], ids=["plain", "vmap"])
def test_every_block_is_in_its_place(order: int, wrap: Any, device: torch.device) -> None:
    leaves = leaves_of(4, device)
    if wrap(of_leaves) is not of_leaves:
        leaves = {name: torch.stack([leaf, leaf + 1]) for name, leaf in leaves.items()}
    got, expected = (tree_leaves(wrap(transform(of_leaves, order))(leaves)) for transform in (hod, nested_reverse))
    for one, other in zip(got, expected, strict=True):
        assert relative_error(one, other) < 1e-12


def test_what_a_call_does_for_blocks_that_vanish_does_not_grow_with_their_number(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    zeros = Mock(side_effect=torch.zeros)

    def calls(count: int) -> int:
        leaves, computed = leaves_of(count, device), hod(of_leaves, order=2)
        computed(leaves)
        zeros.reset_mock()
        with monkeypatch.context() as patched:
            patched.setattr(torch, "zeros", zeros)
            computed(leaves)
        return zeros.call_count

    assert 0 < calls(12) == calls(6)


def test_a_plan_is_arranged_once(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    computed, leaves = hod(of_leaves, order=2), leaves_of(4, device)
    computed(leaves)
    monkeypatch.setattr(evaluate, "arranged", Mock(side_effect=AssertionError))
    computed(leaves_of(4, device))


def test_zeros_are_apart(device: torch.device) -> None:
    result = hod(lambda x, y: (x.sin().sum() + y.sum(), 2 * x), order=2, argnums=(0, 1))(rand(device), rand(device))
    blocks = tree_leaves(result)
    one, *others = [block for block in blocks if not block.any()]
    assert len(others) == 6
    one.add_(torch.ones((), dtype=one.dtype, device=device, requires_grad=True))
    assert one.requires_grad
    assert not any(block.any() or block._version or is_autograd_view(block) for block in others)


def test_large_zeros_have_memory_of_their_own(device: torch.device) -> None:
    x, y = rand(device, arrange.SMALL), rand(device, 2, seed=1)
    (_, one), (other, last) = hod(lambda x, y: x.sum() + y.sum(), order=2, argnums=(0, 1))(x, y)
    assert one.untyped_storage().nbytes() == other.untyped_storage().nbytes() == one.nbytes == other.nbytes
    assert not last.any()
