"""What code does with names, told from its bytecode: which it looks at, and which it only adds to or binds."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from hofunc.graph.uses import asks_by_values, uses_of

COUNT = 0


def counts(self: Any, x: Any) -> None:
    self.count += 1
    self.inner.total += x * 2


def logs(self: Any, x: Any) -> None:
    self.log.append(x)
    self.names.update(a=x)
    self.table["newest"] = x
    self.table[x] = x


def counts_and_looks(self: Any, x: Any) -> Any:
    self.count += 1
    return x * self.count


def counts_by_itself(self: Any) -> None:
    self.count += self.count


def counts_items(self: Any, x: Any) -> None:
    self.table[x] += 1


def binds(self: Any, x: Any) -> None:
    self.last = self.first = x


def binds_anew(self: Any) -> None:
    self.count = self.count + 1


def unbinds(self: Any) -> None:
    del self.last


def counts_in_a_global(x: Any) -> Any:
    global COUNT  # noqa: PLW0603
    COUNT += 1
    return x


def asks(self: Any) -> Any:
    return getattr(self, "scale", 1) if hasattr(self, "shift") else None


def stores_it_elsewhere(self: Any, x: Any) -> None:
    x[1] = self.last
    table = x
    table[x] = self.first


def takes_an_item(x: Any) -> Any:
    global COUNT  # noqa: PLW0603
    COUNT = COUNT[x]  # type: ignore[index]


@pytest.mark.parametrize(
    ("function", "looked_at", "added_to", "bound"),
    [
        (counts, {"inner"}, {"count", "total"}, {"count", "total"}),
        (logs, set(), {"log", "names", "table"}, set()),
        (counts_and_looks, {"count"}, set(), {"count"}),
        (counts_by_itself, {"count"}, set(), {"count"}),
        (counts_items, {"table"}, set(), set()),
        (binds, set(), set(), {"last", "first"}),
        (binds_anew, {"count"}, set(), {"count"}),
        (unbinds, {"last"}, set(), set()),
        (counts_in_a_global, set(), {"COUNT"}, set()),
        (stores_it_elsewhere, {"last", "first"}, set(), set()),
        (takes_an_item, {"COUNT"}, set(), set()),
        (asks, {"scale", "shift"}, set(), set()),
    ],
)
def test_attributes_and_globals(
    function: Callable[..., Any], looked_at: set[str], added_to: set[str], bound: set[str]
) -> None:
    uses = uses_of(function.__code__)
    named = {"inner", "count", "total", "log", "names", "table", "last", "first", "COUNT", "scale", "shift"}
    found = [set(names & named) for names in (uses.looked_at, uses.added_to, uses.bound)]
    assert found == [looked_at, added_to, bound]
    assert uses.asked_for == ({"scale", "shift"} if function is asks else set())


def test_variables_of_enclosing_functions() -> None:
    count, log, seen, within = 0, [0], [1], [2]

    def f() -> Any:
        nonlocal count
        count += 1
        log.append(count)
        return lambda: within, seen

    uses = uses_of(f.__code__)
    assert uses.free == {"count", "seen", "within"}, "count is looked at by what is appended"
    assert "log" in uses.added_to


def test_names_that_may_be_of_globals() -> None:
    def f(x: Any) -> Any:
        return takes_an_item(x.first) + x.exp() + getattr(x, "scale")  # noqa: B009

    def g(x: Any) -> Any:
        return sys.modules[__name__].first + x.exp()

    named = {"takes_an_item", "first", "exp", "scale"}
    assert uses_of(f.__code__).outermost & named == {"takes_an_item", "scale"}
    assert uses_of(g.__code__).outermost & named == {"first", "exp"}, "a module's attributes are its globals"


@pytest.mark.parametrize(
    ("asks", "by_values"),
    [
        (lambda o: getattr(o, "k"), False),  # noqa: B009
        (lambda o: getattr(o, "k", None), False),
        (lambda o: getattr(o.a["x"], "k", o.b(3)), False),
        (lambda o: hasattr(o.b(1), "k") and getattr(o, "k", o.c), False),
        (lambda o, f: getattr(f(o.k(2), 3), "k", f(1)), False),
        (lambda o: o.getattr_of, False),
        (lambda o, n: getattr(o, n), True),
        (lambda o, n: getattr(o, f"k{n}"), True),
        (lambda o, n: getattr(o["k"], n), True),
        (lambda o: getattr(o, "k" if o else "l"), True),
        (lambda o, n: map(getattr, o, n), True),
        (lambda o: o.attrgetter("k.l"), True),
    ],
)
def test_names_that_are_not_said(asks: Callable[..., Any], by_values: bool) -> None:
    assert asks_by_values(asks.__code__) == by_values
