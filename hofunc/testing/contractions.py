"""The comparison of a contraction by einsum with torch.einsum of the dense derivative."""

from collections.abc import Sequence
from itertools import chain, product
from typing import Any

import torch

from hofunc.contracted import Einsum
from hofunc.errors import HodcheckError
from hofunc.internals import tree_leaves
from hofunc.pattern import parsed
from hofunc.plan.blueprint import Limits
from hofunc.plan.slots import Bearer, Indices, multiplying, of_axes
from hofunc.plan.wanted import Contraction
from hofunc.testing.entries import largest, worst
from hofunc.testing.judgement import Tolerances
from hofunc.testing.oracles import Leaves, Subject


def slots_of(pattern: str, operands: Sequence[Any]) -> int:
    """Return how many slots a pattern has beside operands.

    Raises:
        ArgumentError: It is no pattern.
    """
    return len(parsed("hodcheck", pattern).others) - len(operands)


def check_contraction(
    subject: Subject, pattern: str, operands: tuple[Any, ...], output: Any, dense: Leaves, tolerances: Tolerances
) -> None:
    """Compare a contraction with that of the dense derivative, which has been checked.

    Args:
        subject: The function and the point.
        pattern: The pattern.
        operands: Its operands.
        output: What the function returns.
        dense: The derivative.
        tolerances: How far off an entry may be; rounding of the terms of a sum comes on top.

    Raises:
        HodcheckError: An entry is off.
        ArgumentError: The pattern or the operands do not fit.
    """
    arguments = subject.arguments
    args, _ = arguments.joined(arguments.leaves, arguments.rest)
    argnums = (subject.argnums,) * slots_of(pattern, operands)
    transform = Einsum("hodcheck", subject.f, pattern, argnums, False, subject.strategy, Limits())
    found = [leaf.detach().double() for leaf in tree_leaves(transform(*args, operands=operands))]
    values = [leaf.detach().double() for leaf in (*arguments.leaves, *tree_leaves(operands))]
    sums = transform.contractions(output, *args, operands=operands).sums
    expected = [_contracted(each, dense, values, len(arguments.leaves)) for each in sums]
    blocks, factors = ([leaf.abs() for leaf in leaves] for leaves in (dense, values))
    terms = [_contracted(each, blocks, factors, len(arguments.leaves)) for each in sums]
    rounding = 100 * max(torch.finfo(leaf.dtype).eps for leaf in (*arguments.leaves, *tree_leaves(output)))
    allowed = [
        limit + rounding * largest([term])
        for limit, term in zip(tolerances.allowed([largest([each]) for each in expected]), terms, strict=True)
    ]
    off = worst(found, expected, allowed)
    if off is not None:
        raise HodcheckError(
            f"hodcheck: entry {list(off.index)} of {pattern!r} is {off}",
            got=f"{off.got:.17g}",
            expected=f"{off.expected:.17g} by torch.einsum of the derivative",
            remedy="This is a bug of hofunc: please report it, with f, args and operands.",
        )


def _contracted(contractions: Sequence[Contraction], dense: Leaves, values: Leaves, inputs: int) -> torch.Tensor:
    """Return a sum of contractions, of blocks that are numbered by output, and by the input of every slot."""
    terms = []
    for contraction in contractions:
        number, indices = contraction.output
        for chosen in product(*contraction.slots):
            place = number
            for each, _ in chosen:
                place = place * inputs + each
            operands = multiplying(contraction.slots, chosen, contraction.operands)
            names: Indices = tuple(chain(indices, *(own for _, own in chosen)))
            terms.append(_einsum(dense[place], names, operands, values, contraction.result))
    return torch.stack(terms).sum(0)


def _einsum(
    block: torch.Tensor, indices: Indices, operands: Sequence[Bearer], values: Leaves, result: Sequence[str]
) -> torch.Tensor:
    indices = of_axes(indices)
    taken = block[tuple([index if isinstance(index, int) else slice(None) for index in indices])]
    named = [(taken, [index for index in indices if isinstance(index, str)])]
    named += [(values[number], [str(index) for index in of_axes(own)]) for number, own in operands]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(chain(*(own for _, own in named))))}
    given = chain(*((tensor, [numbers[name] for name in own]) for tensor, own in named))
    return torch.einsum(*given, [numbers[name] for name in result])
