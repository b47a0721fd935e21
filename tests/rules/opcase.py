"""Tables of ops: each row is a use of an op, compared with nested torch.func where all orders are other than zero."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

import hofunc
from tests.cases import rand
from verification.oracles import nested_reverse, relative_error

TOLERANCE = 1e-10

# torch's own: the oracle is slow where an op lacks a batching rule, and says so.
ORACLE_WARNINGS = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")


@dataclass(frozen=True)
class OpCase:
    """One use of an op.

    Attributes:
        name: What it shows.
        f: Function of tensors that calls the op; it returns a tensor or a tuple of tensors.
        shapes: Shape of every argument.
        orders: Orders at which it is compared.
        reference: The same function as torch differentiates it right, where it does not do so with f.
        inference: Whether hofunc is called in inference mode, in which torch does not take composite ops apart.
        inputs: Given a device, the arguments, where random numbers will not do.
        tolerance: Largest relative error.
    """

    name: str
    f: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    orders: tuple[int, ...]
    reference: Callable[..., Any] | None
    inference: bool
    inputs: Callable[[torch.device], Sequence[Tensor]] | None
    tolerance: float

    def arguments(self, device: torch.device) -> tuple[Tensor, ...]:
        """Return the arguments, in float64."""
        if self.inputs is not None:
            return tuple(self.inputs(device))
        return tuple(rand(device, *shape, seed=seed) for seed, shape in enumerate(self.shapes))

    def recorded(self, *args: Tensor) -> Any:
        """Call the op between functions that make every order of its derivatives matter."""
        return between(self.f)(*args)

    def check(self, order: int, device: torch.device) -> None:
        """Compare one order, by all arguments."""
        args = self.arguments(device)
        argnums = tuple(range(len(args)))
        with torch.inference_mode() if self.inference else nullcontext():
            got = hofunc.hod(self.recorded, order, argnums)(*args)
        expected = nested_reverse(between(self.reference or self.f), order, argnums)(*args)
        assert relative_error(got, expected) < self.tolerance


def between(f: Callable[..., Any]) -> Callable[..., Any]:
    """Put a function between others, applied to each of its arguments and results, that have all derivatives."""
    return lambda *args: tree_map(lambda y: y * y.sin(), f(*(x.sin() + x * x for x in args)))


def use(
    name: str,
    f: Callable[..., Any],
    *shapes: tuple[int, ...],
    orders: tuple[int, ...] = (1, 2, 3),
    reference: Callable[..., Any] | None = None,
    inference: bool = False,
    inputs: Callable[[torch.device], Sequence[Tensor]] | None = None,
    tolerance: float = TOLERANCE,
) -> OpCase:
    """Return a row of a table; see `OpCase`."""
    return OpCase(name, f, shapes, orders, reference, inference, inputs, tolerance)


def every_row(table: Sequence[OpCase]) -> pytest.MarkDecorator:
    """Parametrise a test by the rows of a table and the orders of each."""
    return pytest.mark.parametrize(("case", "order"), list(_parameters(table)))


def _parameters(table: Sequence[OpCase]) -> Iterator[Any]:
    names = [case.name for case in table]
    assert len(set(names)) == len(names), "two rows of one name"
    for case in table:
        for order in case.orders:
            yield pytest.param(case, order, id=f"{case.name}-{order}")


def ints(like: Tensor, *numbers: Any) -> Tensor:
    """Return integers on the device of a tensor."""
    return torch.tensor(numbers, device=like.device)
