"""Transforms as methods: a class has them as it has functions."""

from functools import partial
from types import MethodType
from typing import Any

from torch.compiler import is_dynamo_compiling


class Method:
    """A callable object that a class may have as a method, which is then called with the object of that class first."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what those that are methods return."""
        raise NotImplementedError

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        """Return the method of an object, or what is called itself, of a class."""
        if owner is None:
            return self
        return partial(self, owner) if is_dynamo_compiling() else MethodType(self, owner)  # which Dynamo cannot make
