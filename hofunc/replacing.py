"""Functions of other libraries that are replaced, for good and once."""

from collections.abc import Callable
from functools import wraps
from typing import Any


def replace(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Put a function in the place of one that a class or module has, unless one of hofunc is there already.

    Args:
        owner: The class or module.
        name: What the function is called there.
        replacement: Is given the function that was there, and then what that is called with.
    """
    before = getattr(owner, name)
    if hasattr(before, "before"):
        return

    @wraps(before)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return replacement(before, *args, **kwargs)

    replaced.before = before  # type: ignore[attr-defined]
    setattr(owner, name, replaced)
