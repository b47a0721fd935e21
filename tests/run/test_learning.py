"""Training steps through contractions, of which the backward pass is planned: their gradients are those of autograd."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import hofunc
from hofunc.run import backward, learning
from tests import checks
from tests.cases import rand
from verification.oracles import relative_error

ROWS, SIZE, WIDTH = 5, 3, 8


pytestmark = pytest.mark.usefixtures("learns_at_once")


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note every call whose backward pass is planned."""
    found: list[int] = []
    results = learning.Learned.results

    def noting(self: learning.Learned, *args: Any) -> Any:
        found.append(1)
        return results(self, *args)

    monkeypatch.setattr(learning.Learned, "results", noting)
    return found


@pytest.fixture
def network(device: torch.device) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(SIZE, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.Softplus()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 2)).to(device, torch.float64)


@pytest.fixture
def u(network: torch.nn.Module) -> Callable[[Tensor], Tensor]:
    """A number for every row."""
    return lambda x: network(x).prod(-1)


def hessians(u: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the Hessian of every row, with its history."""
    return torch.stack(
        [torch.autograd.functional.hessian(lambda row: u(row[None])[0], row, create_graph=True) for row in x]
    )


def gradients(u: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the gradient of every row, with its history."""
    return torch.stack(
        [torch.autograd.functional.jacobian(lambda row: u(row[None])[0], row, create_graph=True) for row in x]
    )


def check(
    call: Callable[[], Any], oracle: Callable[[], Any], by: Sequence[Tensor], learned: list[int], *, least: int = 2
) -> None:
    """Compare gradients, and those of gradients, of several calls, of which so many are to be learned."""
    expected = _twice(oracle, by)
    for creates in (False, False, False, True):
        for got, want in zip(_twice(call, by) if creates else _once(call, by), expected, strict=False):
            assert (got is None) == (want is None)
            assert got is None or relative_error(got, want) < checks.TOLERANCE
    assert len(learned) >= least


def _loss(found: Any) -> Tensor:
    leaves = torch.utils._pytree.tree_leaves(found)
    return torch.stack(
        [((leaf * torch.arange(1, leaf.numel() + 1).to(leaf).reshape(leaf.shape)) ** 2).sum() for leaf in leaves]
    ).sum()


def _once(call: Callable[[], Any], by: Sequence[Tensor]) -> list[Tensor | None]:
    return [*torch.autograd.grad(_loss(call()), by, allow_unused=True)]


def _twice(call: Callable[[], Any], by: Sequence[Tensor]) -> list[Tensor | None]:
    first: list[Tensor | None] = [*torch.autograd.grad(_loss(call()), by, create_graph=True, allow_unused=True)]
    total = torch.stack([(each**2).sum() for each in first if each is not None]).sum()
    return [*first, *torch.autograd.grad(total, by, allow_unused=True)]


def ways(transform: Any, *args: Any, **kwargs: Any) -> list[Callable[[], Any]]:
    """Return a call of a transform, of its plan, and of both by jit."""
    plan, jitted = transform.plan(*args, **kwargs), hofunc.jit(transform)
    return [lambda: transform(*args, **kwargs), lambda: plan(*args, **kwargs), lambda: jitted(*args, **kwargs)]


@pytest.mark.parametrize("way", range(3))
@pytest.mark.parametrize("is_learned", [False, True])
def test_laplacians(way: int, is_learned: bool, network: Any, u: Any, learned: list, device: torch.device) -> None:
    x = rand(device, ROWS, SIZE).requires_grad_(is_learned)
    by = [*network.parameters(), *([x] if is_learned else [])]
    check(ways(hofunc.laplacian(u), x)[way], lambda: hessians(u, x).diagonal(0, 1, 2).sum(-1), by, learned)


@pytest.mark.parametrize("way", range(3))
def test_several_contractions(way: int, network: Any, u: Any, learned: list, device: torch.device) -> None:
    x = rand(device, ROWS, SIZE)
    several = hofunc.einsum(
        u, {"value": "b -> b", "slope": "b, b i -> b i", "sum": "b, b i, b i -> b", "xy": "b, b 0, b 1 -> b"}
    )

    def oracle() -> Any:
        second = hessians(u, x)
        return {
            "slope": gradients(u, x),
            "sum": second.diagonal(0, 1, 2).sum(-1),
            "value": u(x),
            "xy": second[:, 0, 1],
        }

    check(ways(several, x)[way], oracle, [*network.parameters()], learned)


@pytest.mark.parametrize("way", range(3))
def test_operands_learn(way: int, network: Any, u: Any, learned: list, device: torch.device) -> None:
    x, weight = rand(device, ROWS, SIZE), rand(device, SIZE, SIZE, seed=1).requires_grad_()
    by = [*network.parameters(), weight]
    call = ways(hofunc.laplacian(u), x, weight=weight)[way]
    check(call, lambda: torch.einsum("bij,ij->b", hessians(u, x), weight), by, learned)


@pytest.mark.parametrize("way", range(3))
def test_products_by_many_parameters(way: int, learned: list, device: torch.device) -> None:
    shapes = {"w": (SIZE, WIDTH), "b": (WIDTH,), "v": (WIDTH,), "s": ()}
    at = {name: rand(device, *shape).requires_grad_() for name, shape in shapes.items()}
    vector = {name: rand(device, *shape, seed=1) for name, shape in shapes.items()}
    x = rand(device, ROWS, SIZE)

    def loss(at: dict[str, Tensor], x: Tensor) -> Tensor:
        return ((torch.tanh(x @ at["w"] + at["b"]) @ at["v"] * at["s"]) ** 2).sum()

    def oracle() -> dict[str, Tensor]:
        def of(*leaves: Tensor) -> Tensor:
            return loss(dict(zip(at, leaves, strict=True)), x)

        leaves, vectors = tuple(at.values()), tuple(vector.values())
        return dict(zip(at, torch.autograd.functional.hvp(of, leaves, vectors, create_graph=True)[1], strict=True))

    check(ways(hofunc.hvp(loss), at, x, vector=vector)[way], oracle, [*at.values()], learned)


def test_what_leads_to_what_is_captured_is_followed(learned: list, device: torch.device) -> None:
    """Ops of parameters alone, a straight-through estimator among them, are autograd's."""

    class Rounded(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, w: Tensor) -> Tensor:
            return (4 * w).round() / 4

        @staticmethod
        def backward(_ctx: Any, gradient: Tensor) -> Tensor:
            return 3 * gradient

    w, v = rand(device, WIDTH, SIZE).requires_grad_(), rand(device, WIDTH, seed=1).requires_grad_()
    x = rand(device, ROWS, SIZE)

    def u(x: Tensor) -> Tensor:
        return torch.tanh(x @ Rounded.apply(w).t()) @ (v.exp() + v)

    def oracle() -> Tensor:
        return hessians(u, x).diagonal(0, 1, 2).sum(-1)

    check(lambda: hofunc.laplacian(u)(x), oracle, [w, v], learned)


def test_where_gradients_are_off_there_are_none(learned: list, device: torch.device) -> None:
    w, x = rand(device, SIZE, WIDTH).requires_grad_(), rand(device, ROWS, SIZE)

    def u(x: Tensor) -> Tensor:
        with torch.no_grad():
            inner = torch.tanh(x @ w)
        return (inner * (x @ w) ** 2).sum(-1)

    check(lambda: hofunc.laplacian(u)(x), lambda: hessians(u, x).diagonal(0, 1, 2).sum(-1), [w], learned, least=0)
    assert not learned


def test_masks(network: Any, learned: list, device: torch.device) -> None:
    x = rand(device, ROWS, SIZE)

    def u(x: Tensor) -> Tensor:
        y = network(x)[:, 0]
        return torch.where(y > 0, y, 1.0).sqrt() * y.relu() + y.abs() ** 3

    def oracle() -> Tensor:
        return hessians(u, x).diagonal(0, 1, 2).sum(-1)

    check(lambda: hofunc.laplacian(u)(x), oracle, [*network.parameters()], learned)


def test_other_parameters_may_learn_at_another_call(network: Any, u: Any, learned: list, device: torch.device) -> None:
    x = rand(device, ROWS, SIZE)
    plan = hofunc.laplacian(u).plan(x)
    for call in (lambda: hofunc.laplacian(u)(x), lambda: plan(x)):
        for frozen in (None, network[0], network[2], None):
            network.requires_grad_(True)
            if frozen is not None:
                frozen.requires_grad_(False)
            by = [each for each in network.parameters() if each.requires_grad]
            for _ in range(3):
                got = _once(call, by)
            want = _once(lambda: hessians(u, x).diagonal(0, 1, 2).sum(-1), by)
            for one, other in zip(got, want, strict=True):
                assert (one is None) == (other is None)
                assert one is None or relative_error(one, other) < checks.TOLERANCE
    assert learned


@pytest.mark.parametrize("way", range(3))
def test_what_autograd_may_be_asked_for(way: int, network: Any, u: Any, learned: list, device: torch.device) -> None:
    x, by = rand(device, ROWS, SIZE), [*network.parameters()][:4]
    call = ways(hofunc.laplacian(u), x)[way]
    for _ in range(3):
        _once(call, by)
    want = hessians(u, x).diagonal(0, 1, 2).sum(-1)
    seeds = rand(device, 3, ROWS, seed=7)
    rows = [torch.autograd.grad(want, by, seed, retain_graph=True) for seed in seeds]
    batched = torch.autograd.grad(call(), by, seeds, is_grads_batched=True)
    for place, got in enumerate(batched):
        assert relative_error(got, torch.stack([row[place] for row in rows])) < checks.TOLERANCE
    y = call()
    for _ in range(2):
        again = torch.autograd.grad(y, by, seeds[0], retain_graph=True)
        for one, other in zip(again, rows[0], strict=True):
            assert relative_error(one, other) < checks.TOLERANCE
    (alone,) = torch.autograd.grad(y, by[1:2], seeds[0])
    assert relative_error(alone, rows[0][1]) < checks.TOLERANCE
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, by[1:2], seeds[0])
    inner = checkpoint(call, use_reentrant=False)
    for got, other in zip(torch.autograd.grad(inner, by, seeds[0]), rows[0], strict=True):
        assert relative_error(got, other) < checks.TOLERANCE
    with torch.autograd.graph.save_on_cpu():
        kept = call()
    for got, other in zip(torch.autograd.grad(kept, by, seeds[0]), rows[0], strict=True):
        assert relative_error(got, other) < checks.TOLERANCE
    assert learned


def test_writes_to_what_is_kept_are_noticed(network: Any, u: Any, learned: list, device: torch.device) -> None:
    x = rand(device, ROWS, SIZE)
    for _ in range(3):
        y = hofunc.laplacian(u)(x)
        y.sum().backward()
    y = hofunc.laplacian(u)(x)
    with torch.no_grad():
        network[0].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    assert learned


def test_what_is_returned_beside_keeps_its_history(network: Any, u: Any, learned: list, device: torch.device) -> None:
    x, by = rand(device, ROWS, SIZE), [*network.parameters()]
    transform = hofunc.laplacian(lambda x: (u(x), network(x)), has_aux=True)
    check(lambda: transform(x), lambda: (hessians(u, x).diagonal(0, 1, 2).sum(-1), network(x)), by, learned)
    plan = transform.plan(x)
    check(lambda: plan(x), lambda: (hessians(u, x).diagonal(0, 1, 2).sum(-1), network(x)), by, learned)


def test_transforms_of_torch_func_follow_steps(network: Any, u: Any, device: torch.device) -> None:
    x, w = rand(device, ROWS, SIZE), network[0].weight
    for _ in range(3):
        _once(lambda: hofunc.laplacian(u)(x), [w])
    got = torch.func.grad(lambda x: hofunc.laplacian(u)(x).square().sum())(x)
    leaf = x.clone().requires_grad_()
    want = torch.autograd.grad(hessians(u, leaf).diagonal(0, 1, 2).sum(-1).square().sum(), leaf)[0]
    assert relative_error(got, want) < checks.TOLERANCE


def test_draws_and_other_dtypes_are_left_to_autograd(network: Any, learned: list, device: torch.device) -> None:
    x = rand(device, ROWS, SIZE)
    w = rand(device, SIZE).float().requires_grad_()
    for f in (
        lambda x: torch.nn.functional.dropout(network(x), 0.5).prod(-1),
        lambda x: network(x).prod(-1) * (x @ w.double()).sin(),
        lambda x: network(x).prod(-1) * torch.exp(1j * x.sum(-1)),
    ):
        for _ in range(3):
            y = hofunc.laplacian(f)(x)
            y.abs().sum().backward()
    del learned[:]
    for _ in range(3):
        hofunc.laplacian(lambda x: network(x).prod(-1).float())(x).sum().backward()
    assert not learned


def test_it_waits_until_it_is_worth_it(
    monkeypatch: pytest.MonkeyPatch, u: Any, learned: list, device: torch.device
) -> None:
    monkeypatch.setattr(learning, "EFFORT", 4)
    x = rand(device, ROWS, SIZE)
    for _ in range(5):
        hofunc.laplacian(u)(x).sum().backward()
    assert not learned
    with hofunc.options(planning="full"):
        for _ in range(5):
            hofunc.laplacian(u)(x).sum().backward()
    assert learned


def test_what_takes_more_than_autograd_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch, u: Any, learned: list, device: torch.device
) -> None:
    monkeypatch.setattr(backward, "LONGER", 1.0)
    x = rand(device, ROWS, SIZE)
    for _ in range(5):
        hofunc.laplacian(u)(x).sum().backward()
    assert not learned
