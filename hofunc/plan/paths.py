"""The order in which the factors of a product are multiplied, by twos: that which is estimated to be the fastest.

A batch of small matrix products takes longer than a single large one, and what is multiplied element by element is
read and written; so the order of the fewest operations need not be the fastest.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter

import opt_einsum

from hofunc.plan.rates import Rates

Path = list[tuple[int, int]]

FEW = 3  # factors, up to which the fewest operations are soon found
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
    fewest_of_all = _fewest_operations(subscripts, result, sizes) if len(subscripts) > FEW else None
    if fewest_of_all and len(subscripts) > MOST_ORDERED:
        return fewest_of_all
    factors = _Factors(subscripts, result, sizes)

    def seconds(one: _Subset, other: _Subset) -> float:
        return factors.seconds(one, other, rates, nbytes)

    fewest = factors.best(factors.operations) if fewest_of_all is None else factors.order(fewest_of_all)
    taken = sum(seconds(one, other) for one, other in fewest)
    if taken > WORTH_IT * rates.call:
        fastest = factors.best(seconds)
        if sum(seconds(one, other) for one, other in fastest) < min(MUCH_FASTER * taken, taken - WORTH_IT * rates.call):
            return factors.path(fastest)
    return factors.path(fewest)


def _fewest_operations(subscripts: Sequence[Sequence[int]], result: Sequence[int], sizes: Sequence[int]) -> Path:
    letters = [opt_einsum.get_symbol(number) for number in range(len(sizes))]
    inputs = ",".join("".join(letters[n] for n in labels) for labels in subscripts)
    equation = f"{inputs}->{''.join(letters[n] for n in result)}"
    shapes = [tuple(sizes[n] for n in labels) for labels in subscripts]
    path, _ = opt_einsum.contract_path(equation, *shapes, shapes=True, optimize="auto")
    return [tuple(sorted(step)) for step in path]


class _Factors:
    """The factors of a product, of which subsets are multiplied by each other; sets of labels are bits of a number too.

    Args:
        subscripts: The labels of every factor, as numbers.
        result: Those that are kept.
        sizes: The size of every label.
    """

    def __init__(self, subscripts: Sequence[Sequence[int]], result: Sequence[int], sizes: Sequence[int]):
        self._count, self._sizes = len(subscripts), sizes
        every = (1 << self._count) - 1
        inside = [0] * (every + 1)
        for place, labels in enumerate(subscripts):
            own = sum(1 << label for label in {*labels})
            for subset in range(1 << place):
                inside[subset | 1 << place] = inside[subset] | own
        kept = sum(1 << label for label in {*result})
        self._shown = [inside[subset] & (inside[every ^ subset] | kept) for subset in range(every + 1)]
        self._size_of: dict[int, int] = {0: 1}

    def _size(self, labels: int) -> int:
        """Return how many entries a tensor of some labels has."""
        found = self._size_of.get(labels)
        if found is None:
            rest = labels & labels - 1  # all but the lowest
            found = self._size_of[labels] = self._sizes[(labels ^ rest).bit_length() - 1] * self._size(rest)
        return found

    def operations(self, one: _Subset, other: _Subset) -> float:
        """Return how many operations it takes to multiply two subsets, each multiplied together."""
        a, b = self._shown[one], self._shown[other]
        return self._size(a | b) * (2 if a & b & ~self._shown[one | other] else 1)

    def seconds(self, one: _Subset, other: _Subset, rates: Rates, nbytes: int) -> float:
        """Return what it takes to multiply two subsets and to sum what is not kept of the result, about."""
        a, b, kept = self._shown[one], self._shown[other], self._shown[one | other]
        size = self._size
        moved = nbytes * (size(a) + size(b) + size(kept))
        if not a & b & ~kept:
            return rates.call + moved / rates.bytes + rates.renewed(nbytes * size(kept))
        batch, rows, columns = a & b & kept, size(a & ~b), size(b & ~a)
        entries = rows * columns
        is_vector = 1 in (rows, columns)
        if entries == 1 or (batch and (entries <= SMALL_PRODUCT or (entries <= SHORT_VECTOR and is_vector))):
            return 2 * rates.call + (moved + 2 * nbytes * size(a | b)) / rates.bytes
        products, items = size(a | b), size(batch)
        computing = rates.batch(items, products / items) if batch else 2 * products / rates.flops
        return rates.call + computing + moved / rates.bytes

    def best(self, cost: Callable[[_Subset, _Subset], float]) -> list[tuple[_Subset, _Subset]]:
        """Return which subsets to multiply, in order, so that the costs are the least in all."""
        every = (1 << self._count) - 1
        best: dict[_Subset, tuple[float, _Subset]] = {1 << place: (0.0, 0) for place in range(self._count)}
        for subset in range(1, every + 1):
            if subset not in best:
                parts = [(one, subset ^ one) for one in _halves(subset)]
                costs = [(best[one][0] + best[other][0] + cost(one, other), one) for one, other in parts]
                best[subset] = min(costs, key=itemgetter(0))
        order: list[tuple[_Subset, _Subset]] = []
        waiting = [every]
        while waiting:
            subset = waiting.pop()
            one = best[subset][1]
            if one:
                order.append((one, subset ^ one))
                waiting += [one, subset ^ one]
        return order[::-1]

    def order(self, path: Path) -> list[tuple[_Subset, _Subset]]:
        """Return which subsets a path multiplies."""
        left, order = [1 << place for place in range(self._count)], []
        for first, second in path:
            one, other = left[first], left[second]
            order.append((one, other))
            left = [subset for place, subset in enumerate(left) if place not in (first, second)]
            left.append(one | other)
        return order

    def path(self, order: Sequence[tuple[_Subset, _Subset]]) -> Path:
        """Return the places, among the factors that are left, of those that are multiplied in some order."""
        left, path = [1 << place for place in range(self._count)], []
        for one, other in order:
            first, second = sorted((left.index(one), left.index(other)))
            path.append((first, second))
            left = [subset for place, subset in enumerate(left) if place not in (first, second)]
            left.append(one | other)
        return path


@lru_cache(maxsize=256)
def _halves(subset: _Subset) -> list[_Subset]:
    """List the ways to part a subset in two, each by the half that has its first factor; it alone comes last."""
    first = subset & -subset
    rest, found = subset ^ first, []
    chosen = (rest - 1) & rest
    while chosen:
        found.append(first | chosen)
        chosen = (chosen - 1) & rest
    return [*found[::-1], first]
