"""Contractions of dense derivatives: nested torch.func, and torch.einsum."""

from collections.abc import Callable, Sequence
from itertools import chain
from string import ascii_letters
from typing import Any

import torch
from torch import Tensor


def nested_slots(f: Callable[..., Any], argnums: Sequence[int]) -> Callable[..., Any]:
    """Differentiate by one argument for every slot, by ``torch.func.jacfwd`` over one ``torch.func.jacrev``.

    Cannot judge: what `nested_forward_over_reverse` cannot.
    """
    for argnum in argnums[:1]:
        f = torch.func.jacrev(f, argnum)
    for argnum in argnums[1:]:
        f = torch.func.jacfwd(f, argnum)
    return f


def contraction(derivative: Tensor, pattern: str, operands: Sequence[Tensor] = ()) -> Tensor:
    """Return the contraction of a dense derivative by a pattern without names that stand for several axes."""
    text, result = pattern.split("->")
    groups = [group.split() for group in text.split(",")]
    axes = list(chain(*groups[: len(groups) - len(operands)]))
    taken = derivative[tuple([int(name) if name.isdigit() else slice(None) for name in axes])]
    names = dict.fromkeys(name for name in chain(*groups) if not name.isdigit())
    letters = dict(zip(names, ascii_letters, strict=False))
    tensors = [[name for name in axes if not name.isdigit()], *groups[len(groups) - len(operands) :]]
    subscripts = ",".join("".join(letters[name] for name in group) for group in tensors)
    return torch.einsum(f"{subscripts}->{''.join(letters[name] for name in result.split())}", taken, *operands)
