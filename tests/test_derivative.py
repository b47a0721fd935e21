"""The structured result: its pattern, its dense forms, its memory, and how it composes."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import hofunc
from hofunc import Derivative, hod
from tests.cases import mixed, rand
from tests.checks import Largest, assert_equal
from verification.oracles import nested_reverse

vmap = torch.func.vmap


def network(x: Tensor, outputs: int = 2) -> Tensor:
    """Apply a small network, no wider than its input, to the last axis, which has three elements."""
    first, second = torch.arange(9.0).to(x).sin(), torch.arange(3.0 * outputs).to(x).cos()
    return (x @ first.reshape(3, 3)).tanh() @ second.reshape(3, outputs)


def compact(f: Callable[..., Any], order: int, *args: Any, argnums: Any = 0) -> Any:
    return hod(f, order, argnums, layout="compact")(*args)


# Functions with the pattern of their derivatives of order 2, from a tensor of shape (4, 3).
PATTERNS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "a network over a batch": (network, "b i, b j, b k"),
    "a scalar for every row": (lambda x: network(x).sum(1), "b, b i, b j"),
    "a scalar over rows": (lambda x: network(x).sum(), "(), b i, b j"),
    "elementwise": (torch.sin, "b c, b c, b c"),
    "a scalar of elements": (lambda x: x.sin().sum(), "(), b c, b c"),
    "elements of a transpose": (lambda x: x.t().sin(), "b c, c b, c b"),
    "all in all": (lambda x: x.sum().sin(), "(), i j, k l"),
    "a sum of two structures": (lambda x: x.sin().sum() + (x.sum() ** 2), "(), i j, k l"),
    "a slice": (lambda x: x[1:].sin(), "b c, b[1:4] c, b[1:4] c"),
    "one row": (lambda x: x[2].sin(), "b, 2 b, 2 b"),
    "a cat": (lambda x: torch.cat([x.sin(), x]), "b[0:4] c, b c, b c"),
    "merged axes": (lambda x: x.sin().reshape(-1), "(b c), b c, b c"),
    "an axis of one": (lambda x: x.sum(1, keepdim=True).sin(), "b i, b j, b k"),
    "what vanishes": (lambda x: x * 2, "0"),
    "a constant": (lambda x: x.new_ones(2), "0"),
    "two networks beside each other": (
        lambda x: torch.stack([network(x).sum(1), (x.sin()).sum(1)], 1),
        "b 0, b i, b j + b 1, b c, b c",
    ),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_pattern(name: str, device: torch.device) -> None:
    f, pattern = PATTERNS[name]
    x = rand(device, 4, 3)
    got = compact(f, 2, x)
    assert got.pattern == pattern
    assert_equal(got.dense(), nested_reverse(f, 2)(x))


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("order", [1, 3])
def test_dense_is_the_whole_derivative(name: str, order: int, device: torch.device) -> None:
    f, _ = PATTERNS[name]
    x = rand(device, 4, 3)
    got = compact(f, order, x)
    expected = nested_reverse(f, order)(x)
    assert got.shape == expected.shape
    assert_equal(got.dense(), expected)


def test_the_first_order_of_a_matrix_product(device: torch.device) -> None:
    assert compact(lambda x: x @ rand(device, 3, 2, seed=1), 1, rand(device, 4, 3)).pattern == "b i, b c"


def test_more_labels_than_letters(device: torch.device) -> None:
    pattern = compact(lambda x: x.sin(), 1, rand(device, *[1] * 12)).pattern
    assert pattern == "b c d e f g h B B B B B, b c d e f g h B B B B B"


# Shape, memory, representation.


def test_attributes(device: torch.device) -> None:
    x = rand(device, 4, 3)
    got = compact(network, 3, x)
    assert got.shapes == ((4, 2), (4, 3), (4, 3), (4, 3))
    assert got.shape == (4, 2, 4, 3, 4, 3, 4, 3)
    assert got.dtype == x.dtype
    assert got.device == x.device
    assert repr(got) == f"Derivative('b i, b j, b k, b l', shape={got.shape}, nbytes={got.nbytes})"


@pytest.mark.parametrize(
    ("f", "elements"),
    [
        (network, 4 * 2 * 3 * 3),
        (torch.sin, 4 * 3),
        (lambda x: x * 2, 0),
        (lambda x: x[2].sin(), 3),
        (lambda x: (x * x).sum(), 0),
        (lambda x: mixed(x[:, 0]), 4),
    ],
)
def test_nbytes_are_those_of_the_cores(f: Callable[[Tensor], Tensor], elements: int, device: torch.device) -> None:
    got = compact(f, 2, rand(device, 4, 3))
    assert got.nbytes == 8 * elements
    assert got.nbytes == sum(core.numel() * core.element_size() for core in pytree.tree_leaves(got))


def test_the_dtype_counts(device: torch.device) -> None:
    x = rand(device, 4, 3).float()
    got = compact(torch.sin, 2, x)
    assert got.nbytes == 4 * 12
    assert got.dtype == got.dense().dtype == torch.float32


def test_what_vanishes_has_the_shape_dtype_and_device_of_the_rest(device: torch.device) -> None:
    got = compact(lambda x: x.new_ones(2), 2, rand(device, 3).float())
    for dense in (got.dense(), got.dense(keep_batch=True)):
        assert dense.shape == (2, 3, 3)
        assert dense.dtype == torch.float32
        assert dense.device.type == device.type
        assert not dense.any()


def test_dense_is_nobody_elses_memory(device: torch.device) -> None:
    x = rand(device, 4, 3)
    got = compact(lambda x: x.sum(0).sin().sum(), 2, x[:1])
    got.dense().zero_()
    got.dense(keep_batch=True).zero_()
    assert_equal(got.dense(), nested_reverse(lambda x: x.sum(0).sin().sum(), 2)(x[:1]))


# With the batch in front.


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("rows", [4, 1])
def test_keep_batch_of_a_scalar_for_every_row(order: int, rows: int, device: torch.device) -> None:
    def row(x: Tensor) -> Tensor:
        return (network(x, 1) * x.sin().sum()).squeeze()

    x = rand(device, rows, 3)
    expected = vmap(nested_reverse(row, order))(x)
    assert_equal(compact(vmap(row), order, x).dense(keep_batch=True), expected)
    assert_equal(compact(lambda x: vmap(row)(x).sum(), order, x).dense(keep_batch=True), expected)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_keep_batch_of_a_vector_for_every_row(order: int, device: torch.device) -> None:
    x = rand(device, 4, 3)
    assert_equal(compact(network, order, x).dense(keep_batch=True), vmap(nested_reverse(network, order))(x))


@pytest.mark.parametrize("order", [1, 2, 3])
def test_keep_batch_of_two_batch_axes(order: int, device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return (network(x) ** 2).sum(-1)

    x = rand(device, 2, 4, 3)
    assert_equal(compact(f, order, x).dense(keep_batch=True), vmap(vmap(nested_reverse(f, order)))(x))


def test_keep_batch_of_elements(device: torch.device) -> None:
    x = rand(device, 4, 3)
    assert_equal(compact(torch.sin, 2, x).dense(keep_batch=True), -x.sin())


def test_keep_batch_of_a_batch_that_lies_last(device: torch.device) -> None:
    x = rand(device, 3, 4)
    got = compact(lambda x: network(x.t()).sum(1), 2, x).dense(keep_batch=True)
    assert_equal(got, vmap(nested_reverse(lambda x: network(x).sum(), 2))(x.t()))


def test_keep_batch_of_merged_axes(device: torch.device) -> None:
    x = rand(device, 8, 3)

    def f(x: Tensor) -> Tensor:
        return network(x.reshape(2, 4, 3)).sum(2)

    got = compact(f, 2, x).dense(keep_batch=True)
    assert_equal(got, vmap(vmap(nested_reverse(lambda x: network(x).sum(), 2)))(x.reshape(2, 4, 3)))


def test_keep_batch_of_terms_that_have_axes_of_size_one_beside_it(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return vmap(lambda row: (row * x).sin())(x).mean(-1, keepdim=True)

    x = rand(device, 2, 2)
    got = hod(f, 2, layout="compact", strategy="reverse")(x).dense(keep_batch=True)
    assert_equal(got, nested_reverse(f, 2)(x).diagonal(0, 4, 6).movedim(-1, 0))


def test_keep_batch_of_order_one_keeps_what_the_output_shares(device: torch.device) -> None:
    x = rand(device, 4, 3)
    assert_equal(compact(torch.sin, 1, x).dense(keep_batch=True), x.cos())
    got = compact(lambda x: network(x).sum(0), 1, x)
    assert_equal(got.dense(keep_batch=True), got.dense())


def test_keep_batch_without_a_batch_is_dense(device: torch.device) -> None:
    x = rand(device, 4, 3)
    got = compact(lambda x: x.sum().sin(), 2, x)
    assert_equal(got.dense(keep_batch=True), got.dense())


def test_keep_batch_keeps_what_is_a_batch_in_every_term(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.stack([network(x).sum(1), x.sin().sum(1)], 1)

    x = rand(device, 4, 3)
    assert_equal(compact(f, 2, x).dense(keep_batch=True), vmap(nested_reverse(lambda x: f(x[None])[0], 2))(x))


def test_keep_batch_of_parts_is_dense(device: torch.device) -> None:
    x = rand(device, 4, 3)
    got = compact(lambda x: torch.cat([network(x[:2]), x[2:, :2]]), 2, x)
    assert got.dense(keep_batch=True).shape == got.shape


# As a pytree, under transforms and autograd.


def test_it_is_a_pytree_of_its_cores(device: torch.device) -> None:
    x = rand(device, 4, 3)
    got = compact(network, 2, x)
    doubled = pytree.tree_map(lambda core: core * 2, got)
    assert isinstance(doubled, Derivative)
    assert doubled.pattern == got.pattern
    assert_equal(doubled.dense(), 2 * got.dense())
    leaves, spec = pytree.tree_flatten(got)
    assert [sorted(leaf.shape) for leaf in leaves] == [[2, 3, 3, 4], [0]]
    assert_equal(pytree.tree_unflatten(leaves, spec).dense(keep_batch=True), got.dense(keep_batch=True))


MAPPED: dict[str, Callable[[Tensor], Tensor]] = {
    "a network": network,
    "linear, without cores": lambda x: x.flip(0) * 2,
    "constant": lambda x: x.sign(),
    "a scalar": lambda x: (x**3).sum(),
    "several terms": lambda x: x.sin() * x.exp().sum(),
}


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", MAPPED)
def test_it_leaves_and_enters_vmap(name: str, order: int, device: torch.device) -> None:
    f, x = MAPPED[name], rand(device, 5, 2, 4, 3)
    got = vmap(vmap(hod(f, order, layout="compact")))(x)
    expected = vmap(vmap(nested_reverse(f, order)))(x)
    assert isinstance(got, Derivative)
    assert got.mapped == (5, 2)
    assert got.pattern == compact(f, order, x[0, 0]).pattern
    assert got.shape == expected.shape
    assert f"shape={got.shape}" in repr(got)
    assert_equal(got.dense(), expected)
    assert_equal(vmap(Derivative.dense)(got), expected)
    assert_equal(vmap(vmap(Derivative.dense))(got), expected)
    by_row = torch.stack([compact(f, order, row).dense(keep_batch=True) for row in x.reshape(-1, 4, 3)])
    assert_equal(got.dense(keep_batch=True), by_row.reshape(5, 2, *by_row.shape[1:]))
    columns = vmap(hod(f, order, layout="compact"), in_dims=1)(x[0].movedim(0, 1))
    assert_equal(columns.dense(), expected[0])


LINEAR: dict[str, Callable[[Tensor], Tensor]] = {"doubled": lambda x: 2 * x, "no terms": lambda x: torch.ones_like(x)}


@pytest.mark.parametrize("out_dims", [1, -1])
@pytest.mark.parametrize("name", ["a network", "a scalar", *LINEAR])
def test_it_leaves_vmap_in_front_only(name: str, out_dims: int, device: torch.device) -> None:
    """Without cores, too, of which torch makes shapes out of uninitialised memory."""
    with pytest.raises(hofunc.ArgumentError) as caught:
        vmap(hod((MAPPED | LINEAR)[name], 1, layout="compact"), out_dims=out_dims)(rand(device, 2, 4, 3))
    message = str(caught.value)
    assert message.startswith(
        "hofunc.Derivative: leaving a transform of torch.func: got cores with new axes that are not in front, expected "
        "vmap with out_dims=0 (called at test_derivative.py:"
    )
    assert message.endswith("Call .dense() inside the function that is transformed.")


@pytest.mark.parametrize("name", LINEAR)
def test_it_leaves_a_vmap_that_maps_nothing_of_it(name: str, device: torch.device) -> None:
    transform = hod(LINEAR[name], 1, layout="compact")
    x, rows = rand(device, 3), rand(device, 2)
    assert_equal(vmap(lambda _: transform(x))(rows).dense(), transform(x).dense().expand(2, 3, 3))
    with pytest.raises(hofunc.ArgumentError, match="vmap with out_dims=0"):
        vmap(lambda _: transform(x), out_dims=1)(rows)


def test_autograd_through_a_compact_result(device: torch.device) -> None:
    x = rand(device, 4, 3).requires_grad_()
    weight = rand(device, 3, 2, seed=3).requires_grad_()

    def f(x: Tensor, weight: Tensor) -> Tensor:
        return (x @ weight).tanh().sum(-1)

    def energy(derivative: Tensor) -> Tensor:
        return (derivative.sin() * derivative).sum()

    got = compact(lambda x: f(x, weight), 2, x)
    grads = torch.autograd.grad(energy(got.dense(keep_batch=True)), (x, weight))
    expected = torch.func.grad(lambda x, w: energy(vmap(nested_reverse(lambda x: f(x, w), 2))(x)), (0, 1))(x, weight)
    assert_equal(grads, expected)


def test_several_arguments_give_a_derivative_each(device: torch.device) -> None:
    def f(x: Tensor, weight: Tensor) -> Tensor:
        return (x @ weight).tanh().sum(1)

    x, weight = rand(device, 4, 3), rand(device, 3, 2, seed=1)
    got = compact(f, 2, x, weight, argnums=(0, 1))
    patterns = [[block.pattern for block in row] for row in got]
    assert patterns[0][0] == "b, b i, b j"
    assert got[0][1].shape == (4, 4, 3, 3, 2)
    assert got[1][0].shape == (4, 3, 2, 4, 3)
    dense = tuple(tuple(block.dense() for block in row) for row in got)
    assert_equal(dense, nested_reverse(f, 2, (0, 1))(x, weight))


def test_several_outputs_give_a_derivative_each(device: torch.device) -> None:
    x = rand(device, 4, 3)
    got = compact(lambda x: {"net": network(x), "sin": x.sin()}, 2, x)
    assert {name: block.pattern for name, block in got.items()} == {"net": "b i, b j, b k", "sin": "b c, b c, b c"}


# Memory: nothing larger than the result is ever allocated.


ROWS = {
    "a network": lambda x: network(x).sum(1),
    "a network and its sum": lambda x: network(x).sum(),
    "a softmax": lambda x: (network(x).softmax(1) * network(x)).sum(1),
    "a norm": lambda x: torch.nn.functional.layer_norm(network(x), (2,)).norm(dim=1),
    "a product": lambda x: x.prod(1) + network(x)[:, 0],
    "slices": lambda x: x[:, 0] * x[:, 1:].sin().sum(1),
}


@pytest.mark.parametrize("name", ROWS)
def test_nothing_much_larger_than_the_result_is_allocated(name: str, device: torch.device) -> None:
    rows, width, order = 50, 3, 3
    x = rand(device, rows, width)
    largest = Largest()
    with largest:
        got = compact(ROWS[name], order, x).dense(keep_batch=True)
    assert got.shape == (rows, *(width,) * order)
    # the polynomials of hidden nodes may be a little larger; what is dense over the rows would be 50 times as large
    assert 0 < largest.numel <= 2 * math.prod(got.shape)


def test_the_largest_allocation_is_seen() -> None:
    largest = Largest()
    with largest:
        torch.ones(7).expand(9, 7) + 1
    assert largest.numel == 63
