"""The order in which the factors of a product are multiplied, by twos: that which is estimated to be the fastest.

A batch of small matrix products takes longer than a single large one, and what is multiplied element by element is
read and written; so the order of the fewest operations need not be the fastest.
"""

from collections.abc import Collection, Sequence
from functools import lru_cache
from math import prod

import opt_einsum

from hofunc.plan.rates import Rates

Path = list[tuple[int, int]]

MOST_ORDERED = 6  # factors of which all orders are compared
MUCH_FASTER = 0.8  # of the time that the fewest operations take, and
WORTH_IT = 10  # calls less
SMALL_PRODUCT = 4  # up to so many entries, a batch of matrix products is slower than to multiply and to sum
SHORT_VECTOR = 16  # likewise for products of matrices and vectors, of which multiplying makes nothing larger

_Subset = int  # of the factors, as the bits of a number


@lru_cache(maxsize=4096)
def best_path(
    subscripts: tuple[tuple[int, ...], ...], result: tuple[int, ...], sizes: tuple[int, ...], rates: Rates, nbytes: int
) -> Path:
    """Return which two factors to multiply in each step, by their places among those that are left.

    It is the path of the fewest operations, unless another one is estimated to be much faster.

    Args:
        subscripts: The labels of every factor, as numbers.
        result: Those that are kept; all others are summed.
        sizes: The size of every label.
        rates: How fast the device works.
        nbytes: Of an element.

    Example:
        >>> from hofunc.plan.rates import RATES
        >>> best_path(((0, 1), (1, 2), (2, 3)), (0, 3), (2, 100, 100, 100), RATES["cpu"], 4)
        [(0, 1), (0, 1)]
        >>> slopes, others, weight = (0, 1, 2), (3, 1, 2), (0, 3)
        >>> best_path((slopes, others, weight), (1, 2), (10, 128, 64, 10), RATES["cpu"], 4)
        [(0, 2), (0, 1)]
    """
    fewest = _fewest_operations(subscripts, result, sizes)
    if len(subscripts) > MOST_ORDERED:
        return fewest
    seconds, fastest = _fastest(subscripts, result, sizes, rates, nbytes)
    taken = _taken(fewest, subscripts, result, sizes, rates, nbytes)
    return fastest if seconds < min(MUCH_FASTER * taken, taken - WORTH_IT * rates.call) else fewest


def _fewest_operations(subscripts: Sequence[Sequence[int]], result: Sequence[int], sizes: Sequence[int]) -> Path:
    letters = [opt_einsum.get_symbol(number) for number in range(len(sizes))]
    inputs = ",".join("".join(letters[n] for n in labels) for labels in subscripts)
    equation = f"{inputs}->{''.join(letters[n] for n in result)}"
    shapes = [tuple(sizes[n] for n in labels) for labels in subscripts]
    path, _ = opt_einsum.contract_path(equation, *shapes, shapes=True, optimize="auto")
    return [tuple(sorted(step)) for step in path]


def _taken(
    path: Path,
    subscripts: Sequence[Sequence[int]],
    result: Sequence[int],
    sizes: Sequence[int],
    rates: Rates,
    nbytes: int,
) -> float:
    """Return what a path takes, about."""
    left, seconds = [1 << place for place in range(len(subscripts))], 0.0
    for first, second in path:
        one, other = left[first], left[second]
        left = [subset for place, subset in enumerate(left) if place not in (first, second)]
        left.append(one | other)
        a, b, both = (_shown(subscripts, result, subset) for subset in (one, other, one | other))
        seconds += _seconds(a, b, both, sizes, rates, nbytes)
    return seconds


def _fastest(
    subscripts: Sequence[Sequence[int]], result: Sequence[int], sizes: Sequence[int], rates: Rates, nbytes: int
) -> tuple[float, Path]:
    """Return what the fastest path takes, about, and which it is."""
    count = len(subscripts)
    shown = [_shown(subscripts, result, subset) for subset in range(1 << count)]
    best: dict[_Subset, tuple[float, _Subset]] = {1 << place: (0.0, 0) for place in range(count)}
    for subset in range(1, 1 << count):
        if subset not in best:
            parts = ((best[one][0] + best[subset ^ one][0], one) for one in _halves(subset))
            best[subset] = min(
                (before + _seconds(shown[one], shown[subset ^ one], shown[subset], sizes, rates, nbytes), one)
                for before, one in parts
            )
    return best[(1 << count) - 1][0], _steps(best, count)


def _shown(subscripts: Sequence[Sequence[int]], result: Sequence[int], subset: _Subset) -> frozenset[int]:
    """Return the labels of the product of a subset of the factors, of which those that nothing else has are summed."""
    inside = {label for place, labels in enumerate(subscripts) if subset >> place & 1 for label in labels}
    outside = {label for place, labels in enumerate(subscripts) if not subset >> place & 1 for label in labels}
    return frozenset(inside & (outside | {*result}))


def _halves(subset: _Subset) -> list[_Subset]:
    """List the ways to part a subset in two, each by the half that has its first factor."""
    first = subset & -subset
    rest, found = subset ^ first, []
    chosen = (rest - 1) & rest
    while True:
        found.append(first | chosen)
        if not chosen:
            return found
        chosen = (chosen - 1) & rest


def _steps(best: dict[_Subset, tuple[float, _Subset]], count: int) -> Path:
    order: list[tuple[_Subset, _Subset]] = []
    waiting = [(1 << count) - 1]
    while waiting:
        subset = waiting.pop()
        one = best[subset][1]
        if one:
            order.append((one, subset ^ one))
            waiting += [one, subset ^ one]
    left, path = [1 << place for place in range(count)], []
    for one, other in reversed(order):
        first, second = sorted((left.index(one), left.index(other)))
        path.append((first, second))
        left = [subset for place, subset in enumerate(left) if place not in (first, second)]
        left.append(one | other)
    return path


def _seconds(
    one: Collection[int], other: Collection[int], kept: Collection[int], sizes: Sequence[int], rates: Rates, nbytes: int
) -> float:
    """Return what it takes to multiply two factors and to sum what is not kept of the result, about."""

    def size(labels: Collection[int]) -> int:
        return prod(sizes[label] for label in labels)

    moved = nbytes * (size({*one}) + size({*other}) + size({*kept}))
    summed = {*one} & {*other} - {*kept}
    if not summed:
        return rates.call + moved / rates.bytes
    batch, rows, columns = {*one} & {*other} & {*kept}, {*one} - {*other}, {*other} - {*one}
    entries = size(rows) * size(columns)
    is_vector = 1 in (size(rows), size(columns))
    if entries == 1 or (batch and (entries <= SMALL_PRODUCT or (entries <= SHORT_VECTOR and is_vector))):
        return 2 * rates.call + (moved + 2 * nbytes * size({*one, *other})) / rates.bytes
    items = size(batch) if batch else 0
    flops = 2 * size({*one, *other})
    return rates.call + rates.item * items + flops / rates.flops + moved / rates.bytes
