"""Hooks: functions that see or replace the derivatives by a tapped value, before they are composed any further.

NOTE [hooks]: Let F(h) be what a function computes of a tapped value h, and let D_j be the derivatives of F at h0. A
function that has F's value and other derivatives E_j there is F(h) + sum over j of (E_j - D_j) (h - h0)^j / j!, where
all but h is constant. So a hook is a polynomial that is added to what the function returns: it is zero, and the rule of
Faa di Bruno composes its derivatives with those of h, whatever the strategy, and in plans and under all transforms. Of
several taps the last is replaced first, so that what the hook of an earlier one sees comes of the replacement.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from itertools import product
from math import factorial
from typing import Any

import torch

from hofunc.arguments import check_transform, named_variables
from hofunc.complex_tensors import by_parts
from hofunc.errors import UntracedError
from hofunc.given import refuse
from hofunc.internals import tree_map_only
from hofunc.rules.lower import isolated
from hofunc.taps import Tapping, anew, counted_once
from hofunc.transforms import derivatives
from hofunc.trees import tree_flatten, tree_unflatten

Hook = Callable[[Any, int], Any]
Function = Callable[..., Any]


def hooked(f: Function, hooks: Mapping[str, Hook], *, order: int) -> Function:
    """Return a function that has the value of f, and of which hooks see or replace the derivatives by what f taps.

    Derivatives by what a tapped value depends on are composed of what its hook returns: by the rule of Faa di Bruno,
    with the derivatives of the value, and added to those past the tap, as for a function that has these derivatives.

    Args:
        f: Function of tensors that taps each of the names once in a call, see `hofunc.tap`. It draws no random numbers.
        hooks: By the name of a tap, a function of a derivative and its order, called for every order in turn. The
            derivative is that of ``hofunc.hod(f, order, wrt=name)``, dense and nested likewise; of several taps with
            hooks that of an earlier one has what the hooks of later ones return. It returns another derivative to put
            in its place, or None to leave it.
        order: Up to which order derivatives are given to hooks, at least 1. Those above stay as they are.

    Returns:
        Function with f's signature, of which to take derivatives up to the order, by any transform of hofunc or torch;
        what hooks return is constant in it. A plan of it calls no hooks, but has the ops of torch that they called.

    Raises:
        ArgumentError: hooks is no mapping of names to functions, a name is that of a parameter or is not tapped, or a
            hook returns what is unlike the derivative that it got.
        UntracedError: f draws random numbers.

    Cost:
        For each tap that has a hook the derivatives by it, which are dense, and calls of f.

    Example:
        >>> def f(x):
        ...     return hofunc.tap("h", x.square()).sin().sum()
        >>> straight = hofunc.hooked(f, {"h": lambda d, order: torch.ones_like(d) if order == 1 else d * 0}, order=2)
        >>> hofunc.hessian(straight)(torch.tensor([1.0]))  # as if h followed
        tensor([[2.]])
    """
    check_transform("hooked", f, order, 0, "dense", "auto")
    names = _checked_names(f, hooks)

    def with_hooks(*args: Any, **kwargs: Any) -> Any:
        with counted_once():
            found, before = f, _states()
            _, tapped = _tapped(f, names, args, kwargs)
            _check_drawn(before)
            for name in reversed(tapped):
                found = _replaced(found, name, hooks[name], order, args, kwargs)
            anew()
            return found(*args, **kwargs)

    return update_wrapper(with_hooks, f, updated=())


def _checked_names(f: Function, hooks: Any) -> tuple[str, ...]:
    """Check hooks, and return the names that they have."""
    if not isinstance(hooks, Mapping) or not hooks or not all(map(callable, hooks.values())):
        refuse("hooked", "hooks", repr(hooks), "a dict of functions by names", 'Pass {"name": hook}.')
    _, parameters = named_variables("hooked", f, tuple(hooks), 0)
    if parameters:
        refuse("hooked", "hooks", f"{parameters[0]!r}, a parameter of f", "a tap", "Tap it by another name in f.")
    return tuple(hooks)


def _states() -> list[torch.Tensor]:
    """Return the states of the generators from which torch draws by default."""
    return [generator.get_state() for generator in (torch.default_generator, *torch.cuda.default_generators)]


def _check_drawn(before: Sequence[torch.Tensor]) -> None:
    """Check that no numbers were drawn since the states were those: another run of f would draw others.

    Raises:
        UntracedError: Some were.
    """
    with isolated():
        are_same = all(map(torch.equal, before, _states()))
    if not are_same:
        raise UntracedError(
            "hooked: f draws random numbers",
            got="other numbers for the derivatives that hooks see than for those that they are put into",
            expected="the same",
            remedy="Draw them outside of f, and pass them.",
        )


def _tapped(f: Function, names: Sequence[str], args: tuple, kwargs: dict) -> tuple[Any, dict[str, Any]]:
    """Return what a function returns, and what it taps, in the order in which it does."""
    anew()
    with Tapping("hooked", None, names, ()) as run:
        value = f(*args, **kwargs)
    return value, run.values


def _replaced(f: Function, name: str, hook: Hook, order: int, args: tuple, kwargs: dict) -> Function:
    """Return a function of which the derivatives by a tap are what a hook makes of them at some arguments."""
    anew()
    _, *found = derivatives(f, order, wrt=name)(*args, **kwargs)
    changes = [_change(name, hook, derivative, place) for place, derivative in enumerate(found, start=1)]

    def with_changes(*args: Any, **kwargs: Any) -> Any:
        value, tapped = _tapped(f, (name,), args, kwargs)
        leaves, spec = tree_flatten(value)
        steps = [_step(leaf) for leaf in tree_flatten(tapped[name])[0]]
        for place, change in enumerate(changes, start=1):
            if change is not None:
                leaves = _added(leaves, change, steps, place)
        return tree_unflatten(leaves, spec)

    return update_wrapper(with_changes, f, updated=())


def _change(name: str, hook: Hook, derivative: Any, order: int) -> list[torch.Tensor] | None:
    """Return by how much a hook changes a derivative, None if it leaves it."""
    constant = tree_map_only(torch.Tensor, torch.Tensor.detach, derivative)
    returned = hook(constant, order)
    if returned is None:
        return None
    (before, spec), (after, structure) = tree_flatten(constant), tree_flatten(returned)
    pairs = zip(before, after, strict=False)
    if spec != structure or any(not isinstance(new, torch.Tensor) or new.shape != old.shape for old, new in pairs):
        got = f"{[tuple(each.shape) if isinstance(each, torch.Tensor) else type(each).__name__ for each in after]}"
        expected = f"the structure and shapes of the derivative, {[tuple(each.shape) for each in before]}"
        refuse("hooked", f"what the hook of {name!r} returns at order {order}", got, expected, "Or None to leave it.")
    return [(new - old).detach() for old, new in zip(before, after, strict=True)]


def _step(value: torch.Tensor) -> torch.Tensor:
    """Return how far a tapped value is from where it is: zero, with the derivatives of the value."""
    parts = by_parts(value)
    finite = torch.where(parts.isfinite(), parts, 0)
    return finite - finite.detach()


def _added(
    leaves: Sequence[Any], change: Sequence[torch.Tensor], steps: Sequence[torch.Tensor], order: int
) -> list[Any]:
    """Add the term of an order of the polynomial to outputs."""
    result = list(leaves)
    slots = product(range(len(leaves)), product(range(len(steps)), repeat=order))
    for (output, places), coefficient in zip(slots, change, strict=True):
        term = coefficient
        for place in reversed(places):
            term = torch.tensordot(term, steps[place].to(term.dtype), dims=steps[place].dim())
        result[output] = result[output] + term / factorial(order)
    return result
