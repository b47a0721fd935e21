"""The order of products: that every one comes to the whole product, and which one is taken."""

import numpy as np
import pytest

from hofunc.plan.paths import MOST_ORDERED, Path, best_path
from hofunc.plan.rates import RATES, Rates

CPU = RATES["cpu"]
SLOW = Rates(0, 1e-9, 1.0, 1.0, 1.0, 1.0, 1 << 62, 1 << 62, 0, 0, 0)  # so that what is read and written decides


def multiplied(path: Path, subscripts: list[tuple[int, ...]], result: tuple[int, ...], arrays: list) -> np.ndarray:
    """Multiply arrays by twos in the order of a path."""
    left = [*zip(subscripts, arrays, strict=True)]
    for first, second in path:
        (one, x), (other, y) = left[first], left[second]
        left = [pair for place, pair in enumerate(left) if place not in (first, second)]
        needed = {*result, *(label for labels, _ in left for label in labels)}
        kept = tuple(label for label in dict.fromkeys((*one, *other)) if label in needed)
        left.append((kept, np.einsum(x, one, y, other, kept)))
    ((labels, array),) = left
    return np.einsum(array, labels, result)


@pytest.mark.parametrize("seed", range(20))
def test_a_path_comes_to_the_product(seed: int) -> None:
    draw = np.random.default_rng(seed)
    sizes = tuple(map(int, draw.choice((1, 2, 3, 50), 4)))
    subscripts = [tuple(map(int, draw.permutation(4)[: draw.integers(1, 4)])) for _ in range(draw.integers(3, 6))]
    borne = sorted({label for labels in subscripts for label in labels})
    result = tuple(map(int, draw.permutation(borne)[: draw.integers(0, 3)]))
    arrays = [draw.standard_normal([sizes[n] for n in labels]) for labels in subscripts]
    groups = ",".join("".join("abcd"[label] for label in labels) for labels in (*subscripts, result))
    whole = np.einsum("->".join(groups.rsplit(",", 1)), *arrays)
    for rates in (CPU, SLOW):
        path = best_path(tuple(subscripts), result, sizes, rates, 4)
        np.testing.assert_allclose(multiplied(path, subscripts, result, arrays), whole, rtol=1e-10, atol=1e-10)


def test_a_large_product_is_taken_before_a_batch_of_small_ones() -> None:
    slopes, others, adjoint, weight = (0, 2, 3), (1, 2, 3), (2, 3), (0, 1)
    path = best_path((slopes, others, adjoint, adjoint, adjoint, weight), (2,), (10, 10, 128, 64), CPU, 4)
    assert {0, 5} in [{*step} for step in path[:1]] or {1, 5} in [{*step} for step in path[:1]]


def test_where_calls_are_all_that_counts_the_fewest_operations_are_taken() -> None:
    assert best_path(((0, 1), (1, 2), (2,)), (0,), (3, 3, 3), CPU, 4) == [(1, 2), (0, 1)]


def test_of_many_factors_not_all_orders_are_compared() -> None:
    count = MOST_ORDERED + 4
    chain = tuple((place, place + 1) for place in range(count))
    path = best_path(chain, (0, count), (2,) * (count + 1), CPU, 4)
    assert len(path) == count - 1
