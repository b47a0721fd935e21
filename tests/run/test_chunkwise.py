"""Backward passes through chunks: each chunk is run again, and its gradients are planned once they were asked often."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

import hofunc
from hofunc.run import again
from hofunc.run.cache import forget
from tests import checks
from tests.cases import rand
from verification.oracles import relative_error

ROWS, SIZE, WIDTH = 7, 3, 5


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    forget()


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note every chunk that autograd follows as it is run again."""
    found: list[int] = []
    way = again._followed

    def noting(*args: Any) -> Any:
        found.append(1)
        return way(*args)

    monkeypatch.setattr(again, "_followed", noting)
    return found


class Model(torch.nn.Module):
    def __init__(self, device: torch.device):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(SIZE, WIDTH, device=device, dtype=torch.float64)
        self.last = torch.nn.Linear(WIDTH, WIDTH, device=device, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).tanh()).sin().prod(-1)


def losses(model: Model, x: Tensor, **options: Any) -> dict[str, Callable[[], Tensor]]:
    """Return losses of several derivatives of a model, that are computed in chunks if asked for."""
    weights = torch.linspace(1, 2, ROWS, dtype=x.dtype, device=x.device)
    several = hofunc.einsum(model, ("b, b i, b i -> b", "b, b i -> b i"), **options)
    return {
        "Laplacian": lambda: (hofunc.laplacian(model, **options)(x) * weights).square().sum(),
        "several": lambda: sum((each.movedim(0, -1) * weights).square().sum() for each in several(x)),
        "Hessian": lambda: (hofunc.hessian(model, layout="compact", **options)(x).dense() ** 2).sum(),
    }


def gradients(loss: Callable[[], Tensor], by: Sequence[Tensor], *, creates: bool = False) -> list[Tensor | None]:
    return [*torch.autograd.grad(loss(), by, allow_unused=True, create_graph=creates)]


@pytest.mark.parametrize("is_learned", [False, True])
@pytest.mark.parametrize("name", ["Laplacian", "several", "Hessian"])
def test_gradients_are_those_without_chunks(
    name: str, is_learned: bool, followed: list[int], device: torch.device
) -> None:
    model, x = Model(device), rand(device, ROWS, SIZE).requires_grad_(is_learned)
    by = [*model.parameters(), *([x] if is_learned else [])]
    expected = gradients(losses(model, x)[name], by)
    loss = losses(model, x, chunk_size=3)[name]
    for _ in range(3):
        for got, want in zip(gradients(loss, by), expected, strict=True):
            assert (got is None) == (want is None)
            assert got is None or relative_error(got, want) < checks.TOLERANCE
    before = len(followed)
    for got, want in zip(gradients(loss, by), expected, strict=True):
        assert got is None or (want is not None and relative_error(got, want) < checks.TOLERANCE)
    assert before > 0
    assert len(followed) == before


def test_gradients_of_gradients(device: torch.device) -> None:
    model, x = Model(device), rand(device, ROWS, SIZE)
    by = [*model.parameters()]

    def twice(loss: Callable[[], Tensor]) -> list[Tensor | None]:
        first = gradients(loss, by, creates=True)
        return gradients(lambda: torch.stack([(each**2).sum() for each in first if each is not None]).sum(), by)

    expected, loss = twice(losses(model, x)["Laplacian"]), losses(model, x, chunk_size=3)["Laplacian"]
    for _ in range(5):
        gradients(loss, by)
    for got, want in zip(twice(loss), expected, strict=True):
        assert got is not None
        assert want is not None
        assert relative_error(got, want) < checks.TOLERANCE


def test_a_plan_that_is_kept_learns_too(followed: list[int], device: torch.device) -> None:
    model, x = Model(device), rand(device, ROWS, SIZE)
    by = [*model.parameters()]
    expected = gradients(losses(model, x)["Laplacian"], by)
    plan = hofunc.laplacian(model, chunk_size=3).plan(x)
    weights = torch.linspace(1, 2, ROWS, dtype=x.dtype, device=device)
    for _ in range(4):
        before = len(followed)
        for got, want in zip(gradients(lambda: (plan(x) * weights).square().sum(), by), expected, strict=True):
            assert got is None or (want is not None and relative_error(got, want) < checks.TOLERANCE)
    assert len(followed) == before


def test_what_chunks_compute_is_not_kept(device: torch.device) -> None:
    """Fewer bytes are saved for a backward pass than of all rows at once; hooks that see them have all followed."""
    model, x = Model(device), rand(device, 64, SIZE)

    def nodes(**options: Any) -> int:
        waiting, found = [hofunc.laplacian(model, **options)(x).sum().grad_fn], set[Any]()
        while waiting:
            node = waiting.pop()
            if node is not None and node not in found:
                found.add(node)
                waiting += [function for function, _ in node.next_functions]
        return len(found)

    for _ in range(3):  # from which on it is followed
        hofunc.laplacian(model)(x).sum().backward()
        hofunc.laplacian(model, chunk_size=32)(x).sum().backward()
    in_chunks = nodes(chunk_size=32)
    with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        assert nodes(chunk_size=32) > 2 * in_chunks


def test_writes_to_what_is_kept_are_noticed(device: torch.device) -> None:
    model, x = Model(device), rand(device, ROWS, SIZE)
    for _ in range(4):
        found = losses(model, x, chunk_size=3)["Laplacian"]()
        found.backward()
    found = losses(model, x, chunk_size=3)["Laplacian"]()
    with torch.no_grad():
        model.last.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.backward()


def test_maps_of_backward_passes_follow_the_steps(device: torch.device) -> None:
    model, x = Model(device), rand(device, ROWS, SIZE)
    transform, by = hofunc.laplacian(model, chunk_size=3), [*model.parameters()]
    for _ in range(4):
        transform(x).sum().backward()
    units = torch.eye(ROWS, dtype=x.dtype, device=device)
    got = torch.autograd.grad(transform(x), by, units, is_grads_batched=True, allow_unused=True)
    want = torch.autograd.grad(hofunc.laplacian(model)(x), by, units, is_grads_batched=True, allow_unused=True)
    pairs: list[tuple[Tensor | None, Tensor | None]] = [*zip(got, want, strict=True)]
    for one, other in pairs:
        assert (one is None) == (other is None)
        assert one is None or other is None or relative_error(one, other) < checks.TOLERANCE
