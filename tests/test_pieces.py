"""chunk_size for dense derivatives of functions that mix rows: as torch.func.jacrev has it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves

import hofunc
from tests.cases import rand
from verification.oracles import nested_reverse, relative_error

MIXING: dict[str, Callable[[Tensor], Tensor]] = {
    "a number": lambda x: (x.T @ x).tanh().sum(),
    "pairs": lambda x: (x.flatten()[:, None] * x.flatten()).tanh().sum(0),
    "a matrix": lambda x: (x.T @ x).exp(),
    "in part a constant": lambda x: torch.cat([(x.T @ x).sin().flatten(), torch.ones_like(x).flatten()]),
    "empty": lambda x: (x.T @ x).sin()[:0],
}


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", MIXING)
def test_pieces_make_the_whole(name: str, order: int, device: torch.device) -> None:
    f, x = MIXING[name], rand(device, 3, 2) / 2
    expected = nested_reverse(f, order)(x)
    for size in (1, 4, 1000):
        transform = hofunc.hod(f, order, chunk_size=size)
        for _ in range(2):
            assert relative_error(transform(x), expected) < 1e-12
            assert transform(x).shape == expected.shape


def test_structures_and_aux_are_those_of_the_whole(device: torch.device) -> None:
    def f(p: dict[str, Tensor], n: int, *, shift: Tensor) -> tuple[Any, Any]:
        w = p["w"].T @ p["w"]
        return {"a": (w @ p["x"]).tanh() * n, "b": [w.sum() ** 3]}, ("text", shift * 2, w.detach())

    p, shift = {"w": rand(device, 3, 2), "x": rand(device, 2, seed=1)}, rand(device, 2)
    for transform in (hofunc.jacobian, hofunc.hessian, hofunc.derivatives):
        expected, spec = tree_flatten(transform(f, has_aux=True)(p, 2, shift=shift))
        pieces, found = tree_flatten(transform(f, has_aux=True, chunk_size=2)(p, 2, shift=shift))
        assert found == spec
        for got, wanted in zip(pieces, expected, strict=True):
            assert got == wanted if isinstance(wanted, str) else relative_error(got, wanted) < 1e-12


def test_pieces_are_followed_by_autograd_and_by_recordings(device: torch.device) -> None:
    f, x = MIXING["a number"], rand(device, 3, 2).requires_grad_()
    (got,) = torch.autograd.grad(hofunc.hessian(f, chunk_size=2)(x).square().sum(), x)
    (expected,) = torch.autograd.grad(hofunc.hessian(f)(x).square().sum(), x)
    assert relative_error(got, expected) < 1e-12
    with torch.no_grad():
        assert not hofunc.hessian(f, chunk_size=2)(x).requires_grad
        twice = hofunc.hod(hofunc.hessian(f, chunk_size=2), 1)(x)
        assert relative_error(twice, hofunc.hod(f, 3)(x)) < 1e-12


def test_the_function_is_recorded_once_for_all_pieces(device: torch.device) -> None:
    calls = []

    def f(x: Tensor) -> Tensor:
        calls.append(x)
        return (x.T @ x * torch.rand(2, 2).to(x)).flatten()

    transform = hofunc.hod(f, 1, chunk_size=1)
    transform(rand(device, 3, 2))
    calls.clear()
    torch.manual_seed(0)
    got = transform(rand(device, 3, 2))
    assert len(calls) == 1
    torch.manual_seed(0)
    assert torch.equal(got, hofunc.jacobian(f)(rand(device, 3, 2)))


class _Largest(TorchDispatchMode):
    """Takes note of the most elements that a new tensor has."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        if not any(returns.alias_info for returns in func._schema.returns):
            sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
            self.elements = max([self.elements, *sizes])
        return out


def test_a_wide_layer_is_held_for_a_piece_only(device: torch.device) -> None:
    x, weights = rand(device, 20), rand(device, 200, 20, seed=1)
    held = []
    for size in (None, 2):
        transform = hofunc.hessian(lambda x: (weights @ x).sin().square().sum() ** 2, chunk_size=size)
        transform(x)
        with _Largest() as largest:
            transform(x)
        held.append(largest.elements)
    assert held == [200 * 20, 20 * 20]


@pytest.mark.parametrize(
    "call",
    [
        lambda f, x: hofunc.hessian(f, chunk_size=2, layout="compact")(x),
        lambda f, x: hofunc.hessian(f, chunk_size=2, strict=True)(x),
        lambda f, x: hofunc.hessian(f, chunk_size=2).plan(x),
        lambda f, x: torch.func.vmap(hofunc.hessian(f, chunk_size=2))(x[None]),
    ],
)
def test_what_is_not_made_in_pieces_is_refused(call: Callable[..., Any], device: torch.device) -> None:
    x = rand(device, 3, 2)
    for _ in range(2):
        with pytest.raises(
            hofunc.ArgumentError, match=r"chunk_size for rows that cannot be taken apart.*Leave chunk_size"
        ):
            call(MIXING["a number"], x)
