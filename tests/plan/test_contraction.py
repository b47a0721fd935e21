"""What contractions cost by their plans, for layers that can be counted by hand."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev, jvp

import hofunc
from hofunc.plan.builder import Builder
from hofunc.plan.slots import Slots
from hofunc.plan.wanted import Contraction, InGraph
from tests.cases import rand
from tests.graph.recordings import recorded

ROWS, WIDTH = 64, 48


@pytest.fixture
def network(device: torch.device) -> Callable[[int], Callable[[Tensor], Tensor]]:
    """Return a function that makes a network of three layers, given how many coordinates it takes."""

    def make(size: int) -> Callable[[Tensor], Tensor]:
        first, second, last = rand(device, size, WIDTH), rand(device, WIDTH, WIDTH, seed=1), rand(device, WIDTH, seed=2)
        return lambda x: ((x @ first).tanh() @ second).tanh() @ last

    return make


def flops(
    f: Callable, pattern: str, size: int, device: torch.device, *shapes: tuple[int, ...], strategy: str = "auto"
) -> int:
    operands = tuple(rand(device, *shape) for shape in shapes)
    plan = hofunc.einsum(f, pattern, strategy=strategy).plan(rand(device, ROWS, size), operands=operands)
    return plan.flops


def test_several_cotangents_are_as_many_adjoints(device: torch.device) -> None:
    first, second = rand(device, WIDTH, WIDTH), rand(device, WIDTH, WIDTH, seed=1)

    def taken(pattern: str, *shape: int, of: Callable[[Tensor], Tensor]) -> int:
        return hofunc.einsum(of, pattern).plan(rand(device, WIDTH), operands=(rand(device, *shape),)).flops

    def f(x: Tensor) -> Tensor:
        return (x @ first).tanh() @ second

    one, three = taken("o, p, o -> p", WIDTH, of=f), taken("o, p, k o -> k p", 3, WIDTH, of=f)
    assert three < 3 * one
    many = taken("o, p, k o -> k p", 50 * WIDTH, WIDTH, of=f)  # of which the Jacobian is taken once
    assert many < 2 * WIDTH**3 * 2 + 2 * 50 * WIDTH**3 + 4 * WIDTH**2 * 50


def test_a_hessian_vector_product_costs_two_gradients(network: Callable, device: torch.device) -> None:
    f = network(8)
    gradient = flops(f, "b, b i -> b i", 8, device)
    assert flops(f, "b, b i, b j, b j -> b i", 8, device, (ROWS, 8)) < 2.5 * gradient


@pytest.mark.parametrize("strategy", ["forward", "mixed"])
def test_a_laplacian_is_linear_in_the_number_of_coordinates(
    strategy: str, network: Callable, device: torch.device
) -> None:
    few, many = (flops(network(n), "b, b i, b i -> b", n, device, strategy=strategy) for n in (8, 16))
    assert many < 2.3 * few
    hessian = hofunc.hessian(network(16), layout="compact").plan(rand(device, ROWS, 16)).flops
    assert many < hessian


def test_a_partial_derivative_costs_as_much_as_its_order(network: Callable, device: torch.device) -> None:
    """A layer of WIDTH x WIDTH for the value, and for each of the orders."""
    layer = 2 * ROWS * WIDTH**2
    for order in (1, 2, 3, 4):
        pattern = f"b, {', '.join(['b 0'] * order)} -> b"
        assert flops(network(4), pattern, 4, device, strategy="forward") < (order + 1.7) * layer


def test_a_divergence_has_no_product_for_entries_beside_the_diagonal(device: torch.device) -> None:
    """A layer of WIDTH x WIDTH for each coordinate and one for the value, and no last layer for each coordinate."""
    size = 16
    first, second, last = (rand(device, *shape) for shape in ((size, WIDTH), (WIDTH, WIDTH), (WIDTH, size)))
    f = lambda x: ((x @ first).tanh() @ second).tanh() @ last  # noqa: E731
    taken = flops(f, "b o, b o -> b", size, device, strategy="forward")
    layer = 2 * ROWS * WIDTH**2
    assert taken < (size + 1) * layer + 8 * ROWS * WIDTH * size


@pytest.mark.parametrize(
    ("pattern", "shapes"),
    [
        ("b o, b o, b j -> b j", ()),  # the gradient of the divergence
        ("b o, b i, b j, o i -> b j", ((16, 16),)),
        ("b o, b o, b j, b o -> b j", ((ROWS, 16),)),
    ],
)
def test_a_label_of_the_output_and_a_slot_is_summed_where_these_meet(
    pattern: str, shapes: tuple, device: torch.device
) -> None:
    """A layer of WIDTH x WIDTH for the value, for each direction, back from each output, and once for what is summed.

    The last layer takes outputs back as a matrix, and all others take as much as a few numbers of every direction.
    """
    size = 16
    first, second, last = (rand(device, *shape) for shape in ((size, WIDTH), (WIDTH, WIDTH), (WIDTH, size)))
    f = lambda x: ((x @ first).tanh() @ second).tanh() @ last  # noqa: E731
    taken = flops(f, pattern, size, device, *shapes, strategy="reverse")
    layer = 2 * ROWS * WIDTH**2
    assert taken < (2 * size + 2) * layer + 12 * ROWS * WIDTH * size


def test_a_label_of_the_output_and_two_slots_is_summed_where_the_second_joins(device: torch.device) -> None:
    """Back from each output before either and with one of both slots, and once with both, where it is summed."""
    size = 16
    first, second, last = (rand(device, *shape) for shape in ((size, WIDTH), (WIDTH, WIDTH), (WIDTH, size)))
    f = lambda x: ((x @ first).tanh() @ second).tanh() @ last  # noqa: E731
    taken = flops(f, "b o, b o, b o, b j -> b j", size, device, strategy="reverse")
    layer = 2 * ROWS * WIDTH**2
    assert taken < (4 * size + 2) * layer + 24 * ROWS * WIDTH * size


def test_patterns_share_what_they_have_in_common(network: Callable, device: torch.device) -> None:
    f, x = network(3), rand(device, ROWS, 3)
    orders = tuple(f"b, {', '.join(['b 0'] * order)} -> b" for order in (1, 2, 3))
    together = hofunc.einsum(f, orders, strategy="forward").plan(x).flops
    assert together < 1.05 * hofunc.einsum(f, orders[-1], strategy="forward").plan(x).flops


@pytest.mark.parametrize("shape", [(), (3, 3)])
def test_planning_a_product_by_many_leaves_is_linear_in_these(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    steps: list[int] = []
    spend = Builder.spend

    def counted(builder: Builder, number: int = 1) -> None:
        steps[-1] += number
        spend(builder, number)

    def chain(leaves: list[Tensor]) -> Tensor:
        y = torch.ones_like(leaves[0])
        for leaf in leaves:
            y = (y @ leaf if shape else y * leaf).tanh()
        return y.pow(2).sum()

    monkeypatch.setattr(Builder, "spend", counted)
    for count in (5, 10, 20):
        steps.append(0)
        leaves = [rand(device, *shape, seed=seed) for seed in range(count)]
        hofunc.hvp(chain, strategy="reverse").plan(leaves, vector=leaves)
    few, more, many = steps
    assert many - more == 2 * (more - few)


def test_products_of_matrices_come_out_in_the_order_in_which_they_are_wanted(device: torch.device) -> None:
    """So that sums with them are their own: none is of a matrix and one that is turned."""
    x, query, key = rand(device, 32, 24), rand(device, 24, 24), rand(device, 24, 24, seed=1)

    def scores(x: Tensor) -> Tensor:
        return ((x @ query) @ (x @ key).T).sin().sum()

    plan = hofunc.einsum(scores, ", s i, t j, t j -> s i").plan(x, operands=(x,))
    names = [node.name for node in plan.to_fx().graph.nodes]
    assert not any(name == "add" or name.startswith("add_") for name in names)
    assert sum(name.startswith("addmm") for name in names) == 4


def test_what_contractions_by_many_leaves_share_is_looked_at_once(device: torch.device) -> None:
    """Of a product of a Hessian by many tensors, all that is not of the one tensor is the same object for each."""

    def f(leaves: list[Tensor]) -> Tensor:
        return torch.stack([leaf.sin().sum() for leaf in leaves]).prod()

    leaves = [rand(device, 2, 3, seed=seed) for seed in range(12)]
    transform = hofunc.hvp(f)
    output = f(leaves)
    sums = transform.contractions(output, leaves, vector=leaves)[0].sums
    assert len(sums) == 12
    in_graph = InGraph(recorded(lambda *both: f([*both[:12]]), *leaves, *leaves).graph)
    given = [one for (one,) in sums]
    for found in (given, [in_graph.of(one) for one in given]):
        assert len({id(one.operands) for one in found}) == len({id(one.slots[1]) for one in found}) == 1
        assert len({one.slots[0] for one in found}) == 12
    assert len({*map(len, map(in_graph.sizes, map(in_graph.of, given)))}) == 1
    off = [*map(in_graph.read_off, map(in_graph.of, given))]
    assert len({id(each.others) for each in off}) == len({id(each.start) for each in off}) == 1
    for each, asked in zip(off, map(in_graph.of, given), strict=True):
        whole = asked.whole()
        assert (each.place, each.others, each.late) == (0, whole.part((1,)), ())
        assert each.start == asked.start(whole, in_graph.sizes(asked), each.others)


def test_what_is_read_off_may_have_labels_of_others(device: torch.device) -> None:
    """The slot that is read off keeps to what the others, operands and the output have in common with it."""
    x, w = rand(device, 3, 4), rand(device, 3, 4, seed=1)

    def f(x: Tensor) -> Tensor:
        return x.sin() * x.roll(1, 1).exp()

    whole = jacrev(jacrev(f))(x)  # indexed by output, slot, slot: two axes each
    for pattern, by_torch in (
        ("b i, b j, b j -> b i", "bibjbj->bi"),
        ("b i, c j, c j -> b i j", "bicjcj->bij"),
        ("b i, b j, b k -> b j", "bibjbk->bj"),
    ):
        found = hofunc.einsum(f, pattern, strategy="reverse")(x)
        assert torch.allclose(found, torch.einsum(by_torch, whole), atol=1e-12)
    found = hofunc.einsum(f, "b i, b j, c k, b j -> j c", strategy="reverse")(x, operands=(w,))
    assert torch.allclose(found, torch.einsum("bibjck,bj->jc", whole, w), atol=1e-12)


def test_many_leaves_are_not_looked_at_by_each_leaf(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first call looks at all leaves at once some times, but not once for each of them."""
    looks: list[Contraction] = []
    whole = Contraction.whole

    def counted(asked: Contraction) -> Slots:
        looks.append(asked)
        return whole(asked)

    monkeypatch.setattr(Contraction, "whole", counted)

    def f(leaves: list[Tensor]) -> Tensor:
        return torch.stack([(leaf * leaf.sin()).sum() for leaf in leaves]).sin().prod()

    leaves = [rand(device, 2, 3, seed=seed) for seed in range(160)]
    found = hofunc.hvp(f)(leaves, vector=leaves)
    assert 0 < len(looks) < 100  # as many as there are of 320 leaves
    expected = jvp(grad(f), (leaves,), (leaves,))[1]
    assert all(torch.allclose(one, other, atol=1e-12) for one, other in zip(found, expected, strict=True))
