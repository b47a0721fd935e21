"""The check that most tests come down to, and one of what the machine has."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import hofunc
from verification.oracles import nested_reverse, relative_error

TOLERANCE = 1e-10


def check_hod(
    f: Callable[..., Any],
    args: Sequence[Any],
    order: int,
    *,
    argnums: int | tuple[int, ...] = 0,
    reference: Callable[..., Any] | None = None,
    strategies: Sequence[str] = ("auto",),
) -> None:
    """Compare hod with nested torch.func in float64, in structure, shape, dtype and value.

    Args:
        f: Function to differentiate.
        args: Its arguments.
        order: Order of the derivative.
        argnums: What to differentiate by.
        reference: The same function written so that torch differentiates it right, where it does not do so with f.
        strategies: Those to compare.
    """
    expected = nested_reverse(reference or f, order, argnums)(*args)
    results = {strategy: hofunc.hod(f, order, argnums, strategy=strategy)(*args) for strategy in strategies}
    errors = {strategy: relative_error(got, expected) for strategy, got in results.items()}
    assert max(errors.values()) < TOLERANCE, errors


def assert_equal(got: Any, expected: Any, tolerance: float = TOLERANCE) -> None:
    """Compare two results in structure, shape, dtype and value."""
    assert relative_error(got, expected) < tolerance


def refused(call: Callable[[], Any], error: type[Exception], *parts: str) -> None:
    """Check that a call raises an error with these parts in its message, which names a line."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert all(part in message for part in parts), message
    assert re.search(r"called at \w+\.py:\d+", message), message


class Ops(TorchDispatchMode):
    """Notes the ops that arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Any] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.ops.append(func)
        return func(*args, **(kwargs or {}))


class Largest(TorchDispatchMode):
    """Notes the largest storage that is allocated, in elements."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.numel = max(self.numel, leaf.untyped_storage().nbytes() // leaf.element_size())
        return result


def has_compiler() -> bool:
    """Tell whether torch finds a C++ compiler, without which plans cannot be compiled."""
    from torch._inductor import cpp_builder  # noqa: PLC0415 - slow to import

    try:
        return bool(cpp_builder.get_cpp_compiler())
    except RuntimeError:
        return False
