"""Who follows what is done with tensors, and who keeps it."""

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from hofunc.graph.followed import is_followed, is_kept


def asked(x: Tensor, found: list[tuple[bool, bool]]) -> Tensor:
    found.append((is_followed([x]), is_kept([x])))
    return x.sum()


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        (lambda f: f, (False, False)),
        (torch.func.vmap, (True, False)),
        (lambda f: torch.func.vmap(torch.func.vmap(f)), (True, False)),
        (torch.func.grad, (True, True)),
        (lambda f: torch.func.vmap(torch.func.grad(f)), (True, True)),
        (lambda f: torch.func.jacfwd(torch.func.vmap(f)), (True, True)),
    ],
)
def test_transforms(transform, expected: tuple[bool, bool]) -> None:  # type: ignore[no-untyped-def]
    found: list[tuple[bool, bool]] = []
    transform(lambda x: asked(x, found))(torch.ones(2, 2))
    assert set(found) == {expected}


def test_autograd_keeps_what_is_mapped() -> None:
    found: list[tuple[bool, bool]] = []
    x = torch.ones(2, 2, requires_grad=True)
    torch.func.vmap(lambda x: asked(x, found))(x)
    with torch.no_grad():
        torch.func.vmap(lambda x: asked(x, found))(x)
    torch.func.vmap(torch.func.vmap(lambda x: asked(x, found)))(x)
    assert found == [(True, True), (True, False), (True, True)]


def test_tangents_are_kept() -> None:
    found: list[tuple[bool, bool]] = []
    with forward_ad.dual_level():
        torch.func.vmap(lambda x: asked(x, found))(torch.ones(2))
    assert found == [(True, True)]
