"""Numbers in terms of sizes: each is found from a few, and is right for others."""

from collections.abc import Callable

import pytest

from hofunc.run.sizes import form_of

ONE = [(5,), (6,), (7,), (8,), (10,)]
TWO = [(5, 4), (6, 14), (7, 7), (8, 16), (9, 11), (10, 5)]


@pytest.mark.parametrize(
    "number",
    [
        lambda n: 3 * n,
        lambda n: 12 * n**2,
        lambda n: 3 * n + 4,
        lambda n: n**2 - 5,
        lambda n: -n,
        lambda n: n * (n - 1),
        lambda n: 2.0 / n,
        lambda n: -2 / (n * (n - 1)),
        lambda n: 4 / (n - 1) ** 2,
        lambda n: -1 / (3 * n - 1),
        lambda n: 0.25 * n**2,
        lambda n: 1.5 * n - 0.5,
        lambda n: 1 / n**3,
    ],
)
def test_a_form_in_one_size(number: Callable[[int], float]) -> None:
    form = form_of([number(size) for (size,) in ONE], ONE)
    assert form is not None
    for size in (2, 3, 50, 1001):
        assert form.at((size,)) == pytest.approx(number(size), rel=1e-13)
        assert type(form.at((size,))) is type(number(size))


@pytest.mark.parametrize(
    "number",
    [
        lambda n, m: n * m,
        lambda n, m: 2 * n + m + 1,
        lambda n, m: 3 * n**2 * m,
        lambda n, m: n * (2 * n + m),
        lambda n, m: 1.0 / (n * m),
        lambda n, m: 1.0 / (n * (m - 1)),
        lambda n, m: 1.0 / (n + m),
    ],
)
def test_a_form_in_two_sizes(number: Callable[[int, int], float]) -> None:
    form = form_of([number(*sizes) for sizes in TWO], TWO)
    assert form is not None
    for sizes in ((2, 2), (3, 40), (50, 7)):
        assert form.at(sizes) == pytest.approx(number(*sizes), rel=1e-13)


@pytest.mark.parametrize(
    "number",
    [
        lambda n: n // 2,
        lambda n: n - n % 2,
        lambda n: min(n, 6),
        lambda n: n**0.5,
        lambda n: n * (n - 1) // 2,
        lambda n: float(n == 7),
        lambda n: n if n < 8 else 3 * n,
    ],
)
def test_what_is_no_form(number: Callable[[int], float]) -> None:
    assert form_of([number(size) for (size,) in ONE], ONE) is None


def test_too_few_sizes_tell_nothing() -> None:
    assert form_of([7, 9, 11, 13], ONE[:4]) is None  # 2 n - 3, which two sizes alone confirm
    assert form_of([7, 9, 11, 13, 17], ONE) is not None
