"""A function in the place of another: it is given that one, keeps its name, and is put there once."""

from collections.abc import Callable
from typing import Any

from hofunc.replacing import replace


def test_a_function_is_replaced_once() -> None:
    class Counter:
        """Counts."""

        def up(self, by: int = 1) -> int:
            """Return a number."""
            return by

    def twice(before: Callable[..., int], *args: Any, **kwargs: Any) -> int:
        return 2 * before(*args, **kwargs)

    plain = Counter.up
    for _ in range(2):
        replace(Counter, "up", twice)
    assert [Counter().up(), Counter().up(3), Counter().up(by=4)] == [2, 6, 8]
    replaced: Any = Counter.up
    assert (replaced.before, replaced.__name__, replaced.__doc__) == (plain, plain.__name__, plain.__doc__)
