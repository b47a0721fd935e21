"""How asv's pages show a benchmark."""

from collections.abc import Callable
from typing import Any, TypeVar

Benchmark = TypeVar("Benchmark", bound=Callable[..., Any])


def shown(name: str, unit: str | None = None) -> Callable[[Benchmark], Benchmark]:
    """Return a decorator that gives a benchmark a name and, unless asv knows it, a unit for the pages."""

    def named(benchmark: Benchmark) -> Benchmark:
        attributes = {"pretty_name": name} if unit is None else {"pretty_name": name, "unit": unit}
        vars(benchmark).update(attributes)
        return benchmark

    return named
