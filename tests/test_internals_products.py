"""How a product of matrices is laid out for the kernel of it: panels, parts of the rows, and items that are one."""

import pytest

from hofunc.internals_products import OF_A_THREAD, Panel, Product

SQUARE = Product.of([([6, 5], [5, 1]), ([5, 70], [70, 1])])


def test_panels_are_of_about_the_same_width() -> None:
    assert SQUARE.panels(16, has_many=True) == [Panel(0, 3, 16, 8, False), Panel(48, 2, 6, 12, False)]
    assert SQUARE.panels(64, has_many=True) == [Panel(0, 2, 6, 12, False)]


def test_panels_are_copied_where_numbers_are_apart_or_parts_of_vectors_slow() -> None:
    apart = Product.of([([6, 5], [5, 1]), ([5, 8], [1, 5])])
    assert apart.panels(8, has_many=True) == [Panel(0, 1, 8, 16, True)]
    few = SQUARE.panels(32, has_many=False)
    assert few == [Panel(0, 2, 32, 6, False), Panel(64, 1, 6, 10, True)]


def test_what_is_added_has_a_row_for_all_or_for_each() -> None:
    left, right = ([2, 6, 5], [30, 5, 1]), ([2, 5, 7], [35, 7, 1])
    assert Product.of([left, right])[10:12] == (0, 0)
    assert Product.of([left, right, ([7], [1])])[10:12] == (0, 0)
    assert Product.of([left, right, ([6, 7], [7, 1])])[10:12] == (0, 7)
    assert Product.of([left, right, ([2, 6, 7], [42, 7, 1])])[10:12] == (42, 7)


@pytest.mark.parametrize(
    ("left", "right", "added", "expected"),
    [
        ([30, 5, 1], [0, 7, 1], [], (1, 12)),
        ([30, 5, 1], [35, 7, 1], [], (2, 6)),
        ([5, 10, 1], [0, 7, 1], [], (2, 6)),
        ([30, 5, 1], [0, 7, 1], [42, 7, 1], (1, 12)),
        ([30, 5, 1], [0, 7, 1], [7, 0, 1], (2, 6)),
    ],
)
def test_items_are_one_product_where_they_lie_one_behind_the_other(
    left: list[int], right: list[int], added: list[int], expected: tuple[int, int]
) -> None:
    operands = [([2, 6, 5], left), ([2, 5, 7], right)] + ([([2, 6, 7], added)] if added else [])
    assert Product.of(operands)[:2] == expected


def test_threads_share_what_is_large() -> None:
    large = SQUARE._replace(rows=4 * OF_A_THREAD)
    assert [product.is_shared(threads) for product in (SQUARE, large) for threads in (1, 2)] == [False] * 3 + [True]
    assert SQUARE.parts(2, 24) == (1, 6)
    assert large.parts(1, 24) == (1, large.rows)
    assert large._replace(items=2).parts(2, 24) == (1, large.rows)
    parts, rows = large.parts(2, 24)
    assert parts == 2
    assert rows % 24 == 0
    assert rows >= large.rows / 2


def test_what_scales_has_rows_of_its_own() -> None:
    product = Product.scaled(([4, 6, 5], [30, 5, 1]), ([5, 7], [7, 1]), ([4, 6, 5], [0, 5, 1]))
    assert product == Product(4, 6, 5, 7, 30, 5, 1, 0, 7, 1, 0, 0, 0, 5, 1)
