"""A function called twice: whether it returns the same, and leaves its arguments alone."""

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from hofunc.arguments import check_outputs
from hofunc.errors import ArgumentError, MutationError
from hofunc.internals import keystr, tree_flatten, tree_flatten_with_path, tree_leaves, tree_map_only
from hofunc.testing.entries import identical, largest, worst


def repeated(name: str, f: Callable[..., Any], args: tuple) -> Any:
    """Return the value of f, called twice on copies of its arguments.

    Args:
        name: Who asks, for errors.
        f: The function.
        args: Its arguments.

    Returns:
        What it returned first.

    Raises:
        ArgumentError: It returns something else at the second call, anything but real floating-point tensors, or
            draws random numbers.
        MutationError: It writes to an argument.
    """
    copies = tree_map_only(torch.Tensor, torch.clone, args)
    output = f(*copies)
    check_outputs(name, output, tree_leaves(output))
    state = torch.get_rng_state()  # after one call, so that a function that sets its own seed is let pass
    _check_unchanged(name, args, copies)
    (leaves, spec), (leaves_again, spec_again) = tree_flatten(output), tree_flatten(f(*copies))
    if spec != spec_again or [leaf.shape for leaf in leaves] != [leaf.shape for leaf in leaves_again]:
        _refuse(name, "a result of another structure at its second call")
    if not torch.equal(state, torch.get_rng_state()):
        _refuse(name, "random numbers drawn")
    noise = [100 * torch.finfo(leaf.dtype).eps * largest([leaf]) for leaf in leaves]  # sums in another order
    values, values_again = ([leaf.detach().double() for leaf in part] for part in (leaves, leaves_again))
    changed = worst(values, values_again, noise)
    if changed is not None:
        path = keystr(tree_flatten_with_path(output)[0][changed.tensor][0])
        where = f"f(*args){path}{list(changed.index) or ''}"
        _refuse(name, f"{where} of {changed.got:.9g} and of {changed.expected:.9g} at the second call")
    return output


def _check_unchanged(name: str, args: tuple, copies: tuple) -> None:
    for (path, before), after in zip(tree_flatten_with_path(args)[0], tree_leaves(copies), strict=True):
        if isinstance(before, torch.Tensor) and not identical(before, after).all():
            raise MutationError(
                f"{name}: f is not pure",
                got=f"args{keystr(path)} with other values after a call",
                expected="a function that leaves its arguments as they are",
                remedy="Write to a clone.",
            )


def _refuse(name: str, got: str) -> NoReturn:
    raise ArgumentError(
        f"{name}: f is not pure",
        got=got,
        expected="a function that returns the same whenever it is called with the same arguments",
        remedy="Make what else it depends on an argument: random numbers, masks of dropout, counters.",
    )
