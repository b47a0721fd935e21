"""Chunks: the same results from some rows at a time, and when rows cannot be taken apart."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.algebra.extents import UnevenError
from hofunc.plan.blueprint import CHUNK_BYTES, SMALLEST_CHUNK, Blueprint
from hofunc.plan.chunks import _row_dim
from hofunc.plan.cost import cost_of
from hofunc.plan.rows import number_of_rows
from tests.cases import rand
from tests.plan.plans import lowered_plan
from verification.oracles import nested_reverse, relative_error

# Functions of rows.

WEIGHT = rand(torch.device("cpu"), 3, 4, seed=5)
SCALES = rand(torch.device("cpu"), 23, seed=6)

APART: dict[str, Callable[[Tensor], Tensor]] = {
    "a network": lambda x: ((x @ WEIGHT.to(x.device)).tanh() ** 2).sum(1),
    "a sum over rows": lambda x: (x @ WEIGHT.to(x.device)).tanh().sum(),
    "a mean over rows": lambda x: (x @ WEIGHT.to(x.device)).tanh().mean(),
    "a constant of every row": lambda x: (x.prod(1) * SCALES.to(x.device)).sin(),
    "a softmax": lambda x: (x @ WEIGHT.to(x.device)).softmax(1)[:, 0],
    "rows last": lambda x: (x.t() * x.t().sin()).sum(0),
    "one of several results": lambda x: torch.nn.functional.glu(torch.cat([x, x[:, :1]], 1)).prod(1),
    "a view that splits": lambda x: (x.reshape(23, 3, 1) * x.reshape(23, 1, 3)).flatten(1).exp().sum(1),
}
WHOLE: dict[str, Callable[[Tensor], Tensor]] = {
    "a square of a sum over rows": lambda x: x.sin().sum() ** 2,
    "rows turned around": lambda x: (x * x.flip(0)).sum(1),
    "rows beside their neighbours": lambda x: (x[1:] * x[:-1]).sum(),
    "a Gram matrix": lambda x: (x @ x.t()).sin().sum(),
    "a norm over rows": lambda x: x / x.norm(dim=0),
    "picks of every row by indices of its own": lambda x: x.sin().gather(1, x.argsort(1)).prod(1),
    "picks of every row by given indices": lambda x: x.sin().gather(1, torch.zeros_like(x[:, :2]).long()).prod(1),
    "a softmax over rows": lambda x: (x * x.softmax(0)).sum(1),
    "a derivative that f itself computes": torch.sin,
}


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed", "auto"])
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", APART)
def test_chunks_give_what_the_whole_gives(name: str, order: int, strategy: str, device: torch.device) -> None:
    x = rand(device, 23, 3)
    expected = hofunc.hod(APART[name], order, layout="compact", strategy=strategy)(x)
    got = hofunc.hod(APART[name], order, layout="compact", strategy=strategy, chunk_size=5)(x)
    assert strategy == "auto" or got.pattern == expected.pattern, "the whole may be cheaper by another strategy"
    assert relative_error(got.dense(keep_batch=True), expected.dense(keep_batch=True)) < 1e-14


@pytest.mark.parametrize("name", [name for name in APART if name != "a view that splits"])
def test_chunks_are_of_the_size_asked_for(name: str, device: torch.device) -> None:
    x = rand(device, 23, 3)
    plan = lowered_plan(APART[name], x, orders=(2,), compact=True, strategy="mixed", chunk_size=5)
    assert plan.chunks is not None
    assert plan.chunks.sizes == (5, 5, 5, 5, 3)
    assert number_of_rows(plan.lowered.graph) == 23


@pytest.mark.parametrize("name", WHOLE)
def test_what_has_no_products_along_rows_is_not_taken_apart(name: str, device: torch.device) -> None:
    x = rand(device, 8, 3)
    with pytest.raises(hofunc.ArgumentError, match="rows that cannot be taken apart") as caught:
        hofunc.hessian(WHOLE[name], layout="compact", chunk_size=3)(x)
    assert "got chunk_size=3 for derivatives that are no products along the rows of the input" in str(caught.value)
    assert "test_chunks.py:" in str(caught.value)


@pytest.mark.parametrize("limits", [{}, {"chunk_size": 2}])
@pytest.mark.parametrize("strategy", ["reverse", "mixed"])
@pytest.mark.parametrize("scale", [1, 0.25])
def test_a_sum_that_is_given_to_every_row_counts_all_rows(
    scale: float, strategy: str, limits: dict[str, int], device: torch.device
) -> None:
    """The number of rows is a number then, in the chunks too, and no more an extent."""

    def f(x: Tensor) -> Tensor:
        return (x.sin().sum(1) + x.sin().prod(1).sum() * scale).sum()

    x = rand(device, 5, 2)
    got = hofunc.hessian(f, layout="compact", strategy=strategy, **limits)(x)  # type: ignore[arg-type]
    assert relative_error(got.dense(), nested_reverse(f, 2)(x)) < 1e-14


SQUARE: dict[str, Callable[[Tensor], Tensor]] = {
    "a diagonal of rows and columns": lambda x: (x.sin().diagonal()[:, None] * x).sum(),
    "rows times columns": lambda x: (x * x.t()).sin(),
    "products of rows and columns": lambda x: (x @ x).tanh(),
    "one row beside all": lambda x: x[2].sin() * x.sin(),
}


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", SQUARE)
def test_rows_that_meet_an_axis_of_their_size_are_not_taken_apart(
    name: str, order: int, strategy: str, size: int, device: torch.device
) -> None:
    """Or where they are, the result is right: that there are as many columns as rows must not hide that they differ."""
    x, f = rand(device, 3, 3), SQUARE[name]
    transform = hofunc.hod(f, order, layout="compact", strategy=strategy, chunk_size=size)
    try:
        got = transform(x)
    except hofunc.ArgumentError as error:
        assert "rows that cannot be taken apart" in str(error)  # noqa: PT017 - either is right
    else:
        assert name == "one row beside all"
        assert relative_error(got.dense(), nested_reverse(f, order)(x)) < 1e-12


EDGES = torch.tensor([[0, 1, 1, 5, 3, 2], [4, 1, 0, 2, 3, 5]])

COUPLED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a square of a sum over rows": lambda x, z: (x * z).sin().sum() ** 2,
    "a product over rows": lambda x, z: ((x * z).sin().T @ (x * z).cos()).sin().sum(),
    "rows that are read at indices": lambda x, z: ((x * z)[EDGES[0]] * (x * z)[EDGES[1]]).sin().sum(),
    "what is added at indices": lambda x, z: (x * z).new_zeros(6, 2).index_add(0, EDGES[0], (x * z).sin()).cos().sum(),
    "a running sum": lambda x, z: (x * z).sin().cumsum(0).cos().sum(),
    "rows turned around": lambda x, z: ((x * z).sin() * (x * z).flip(0)).sum(),
}


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
@pytest.mark.parametrize("name", COUPLED)
def test_a_block_by_rows_and_by_what_all_share_counts_all_rows(name: str, strategy: str) -> None:
    x, z = rand(torch.device("cpu"), 6, 2), rand(torch.device("cpu"), seed=3)
    (got,) = hofunc.hessian(COUPLED[name], (0, 1), blocks=[(0, 1)], chunk_size=2, strategy=strategy)(x, z)
    assert relative_error(got, torch.func.jacfwd(torch.func.grad(COUPLED[name]), 1)(x, z)) < 1e-13


@pytest.mark.parametrize("name", COUPLED)
def test_products_with_vectors_of_rows_that_mix_are_taken_apart_by_coordinates(name: str) -> None:
    x, v, z = rand(torch.device("cpu"), 6, 2), rand(torch.device("cpu"), 6, 2, seed=2), rand(torch.device("cpu"))
    gradient = torch.func.grad(lambda x: COUPLED[name](x, z))
    expected = torch.func.jvp(gradient, (x,), (v,))[1]
    got = hofunc.hvp(lambda x: COUPLED[name](x, z), chunk_size=2)(x, vector=v)
    assert relative_error(got, expected) < 1e-13


def test_a_large_product_with_a_vector_counts_all_rows() -> None:
    x = rand(torch.device("cpu"), 4 * CHUNK_BYTES // 64, 4) / 10
    v = torch.ones_like(x)

    def energy(x: Tensor) -> Tensor:
        return (x.prod(1) + x.sin().square().sum(1)).exp().sum().square()

    expected = torch.func.jvp(torch.func.grad(energy), (x,), (v,))[1]
    assert relative_error(hofunc.hvp(energy)(x, vector=v), expected) < 1e-13


def test_one_chunk_is_the_whole(device: torch.device) -> None:
    x = rand(device, 6, 3)
    got = hofunc.hessian(lambda x: x.sin().prod(1), layout="compact", chunk_size=6)(x)
    assert relative_error(got.dense(), hofunc.hessian(lambda x: x.sin().prod(1))(x)) < 1e-14


def test_chunks_under_autograd_and_vmap(device: torch.device) -> None:
    x = rand(device, 2, 7, 3)

    def energy(x: Tensor, size: int | None) -> Tensor:
        second = hofunc.hessian(lambda x: x.sin().prod(1), layout="compact", chunk_size=size)(x)
        return second.dense(keep_batch=True).pow(2).sum()

    got = torch.func.vmap(torch.func.grad(lambda x: energy(x, 3)))(x)
    assert relative_error(got, torch.func.vmap(torch.func.grad(lambda x: energy(x, None)))(x)) < 1e-13
    leaf = x[0].clone().requires_grad_()
    energy(leaf, 3).backward()
    assert leaf.grad is not None
    assert relative_error(leaf.grad, got[0]) < 1e-13


# Memory.


def test_a_plan_keeps_to_the_memory_that_it_may_hold(device: torch.device) -> None:
    x = rand(device, 512, 3)

    def network(x: Tensor) -> Tensor:
        return (x @ rand(x.device, 3, 64)).tanh().sin().sum(1)

    whole = lowered_plan(network, x, orders=(2,), compact=True, strategy="mixed")
    bound = whole.cost.peak_bytes // 2
    made = lowered_plan(network, x, orders=(2,), compact=True, strategy="mixed", max_bytes=bound)
    assert made.chunks is not None
    assert made.run_cost.peak_bytes <= bound
    values = 3 * 512 * 64 * x.element_size()  # those of the function itself, which are held beside
    got = hofunc.hessian(network, layout="compact", max_bytes=bound + values)(x)
    assert (
        relative_error(got.dense(keep_batch=True), hofunc.hessian(network, layout="compact")(x).dense(keep_batch=True))
        < 1e-13
    )


def _wide(x: Tensor) -> Tensor:
    return ((x @ rand(x.device, 3, 64)).tanh() @ rand(x.device, 64, 64)).sin().sum(1)


@pytest.mark.parametrize(("part", "least", "most"), [(1.01, 204, 511), (2.5, 65, 256)])
def test_chunks_are_larger_than_halves_of_halves_where_memory_allows(
    part: float, least: int, most: int, device: torch.device
) -> None:
    x = rand(device, 512, 3)
    peak = lowered_plan(_wide, x, orders=(3,), compact=True, strategy="mixed").cost.peak_bytes
    bound = int(peak / part)
    plan = lowered_plan(_wide, x, orders=(3,), compact=True, strategy="mixed", max_bytes=bound)
    assert plan.chunks is not None
    assert least <= plan.chunks.sizes[0] <= most
    assert sum(plan.chunks.sizes) == 512
    bodies = [cost_of(body, device).peak_bytes for body in plan.chunks.bodies[0].programs.values()]
    assert max(bodies) <= plan.chunks.cost.peak_bytes <= bound


def test_rows_that_a_size_divides_leave_no_chunk_over(device: torch.device) -> None:
    plan = lowered_plan(_wide, rand(device, 20, 3), orders=(2,), compact=True, strategy="mixed", chunk_size=5)
    assert plan.chunks is not None
    assert plan.chunks.sizes == (5, 5, 5, 5)


def test_what_is_large_is_run_in_chunks_that_fit_the_cache() -> None:
    x = rand(torch.device("cpu"), 20_000, 3)
    plan = lowered_plan(_wide, x, orders=(2,), compact=True, strategy="mixed")
    assert plan.chunks is not None
    assert plan.chunks.sizes[0] == 20_000 * CHUNK_BYTES // plan.cost.peak_bytes > SMALLEST_CHUNK


def test_what_cannot_keep_to_it_raises_before_anything_is_computed(device: torch.device) -> None:
    x = rand(device, 100, 3)
    with pytest.raises(hofunc.ArgumentError, match="takes more memory than allowed") as caught:
        hofunc.hessian(lambda x: x.sin().prod(1), max_bytes=10_000)(x)
    message = str(caught.value)
    assert "expected at most max_bytes=10000 (called at test_chunks.py:" in message
    assert message.endswith("Raise max_bytes, to 72000800 at the least."), "as what is handed over takes 257616"
    assert "compact" not in message  # of which a plan holds more
    with pytest.raises(hofunc.ArgumentError, match="takes more memory than allowed"):
        hofunc.hessian(lambda x: x.sin().prod(1), max_bytes=10_000, layout="compact")(x)
    with pytest.raises(hofunc.ArgumentError, match=r"or pass fewer rows at a time\.$"):
        hofunc.hessian(lambda x: x.sin().prod(1), max_bytes=1000, layout="compact")(x)


@pytest.mark.parametrize(("percent", "size"), [(60, 37), (50, 30), (40, 23), (30, 17), (20, 10), (15, 7)])
def test_chunks_are_as_large_as_memory_allows(percent: int, size: int, device: torch.device) -> None:
    weight = rand(device, 3, 40, seed=5)

    def planned(**limits: int) -> Blueprint:
        x = rand(device, 64, 3)
        f = lambda x: ((x @ weight).tanh() ** 2).sum(1)  # noqa: E731 - as short as it can be
        return lowered_plan(f, x, orders=(2,), compact=True, strategy="forward", **limits)

    bound = planned().cost.peak_bytes * percent // 100
    made = planned(max_bytes=bound)
    assert made.chunks is not None
    assert made.chunks.sizes[0] == size
    assert made.run_cost.peak_bytes <= bound
    larger = planned(chunk_size=size + 1)
    assert larger.run_cost.peak_bytes > bound


@pytest.mark.parametrize(
    ("whole", "part", "dim"), [((10, 3), (20, 3), 0), ((3, 10), (3, 20), 1), ((30, 10), (60, 10), 0)]
)
def test_the_rows_of_a_result_are_in_proportion(whole: tuple[int, ...], part: tuple[int, ...], dim: int) -> None:
    assert _row_dim(whole, part, 10, 20) == dim


@pytest.mark.parametrize("part", [(19,), (21,)])
def test_rows_out_of_proportion_are_refused(part: tuple[int, ...]) -> None:
    with pytest.raises(UnevenError):
        _row_dim((10,), part, 10, 20)


@pytest.mark.parametrize("size", [23, 24, 100])
def test_chunks_of_all_rows_are_none(size: int, device: torch.device) -> None:
    made = lowered_plan(APART["a network"], rand(device, 23, 3), compact=True, strategy="mixed", chunk_size=size)
    assert made.chunks is None


def test_a_plan_in_chunks_returns_values_too(device: torch.device) -> None:
    x = rand(device, 23, 3)
    value, first, second = hofunc.derivatives(APART["a network"], 2, layout="compact", chunk_size=5).plan(x)(x)
    assert relative_error(value, APART["a network"](x)) < 1e-14
    for order, got in enumerate((first, second), 1):
        assert relative_error(got.dense(), hofunc.hod(APART["a network"], order)(x)) < 1e-14


@pytest.mark.parametrize("limit", ["chunk_size", "max_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "many"])
def test_limits_are_checked(limit: str, value: object) -> None:
    with pytest.raises(hofunc.ArgumentError, match=f"hod: {limit}: got .*expected an int of at least 1, or None"):
        hofunc.hod(torch.sin, **{limit: value})  # type: ignore[arg-type]
