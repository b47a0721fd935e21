"""The comparison of a contraction by einsum with torch.einsum of the dense derivative."""

from collections.abc import Callable, Sequence
from itertools import chain, product
from typing import Any

import torch

from hofunc.complex_tensors import by_parts
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
    subject: Subject,
    point: tuple[Callable[..., Any], tuple[Any, ...]],
    pattern: str,
    operands: tuple[Any, ...],
    dense: Leaves,
    tolerances: Tolerances,
) -> None:
    """Compare a contraction with that of the dense derivative, which has been checked.

    Args:
        subject: The function and the point, complex tensors by parts.
        point: The function and its arguments as they were given.
        pattern: The pattern.
        operands: Its operands.
        dense: The derivative, by parts.
        tolerances: How far off an entry may be; rounding of the terms of a sum comes on top.

    Raises:
        HodcheckError: An entry is off.
        ArgumentError: The pattern or the operands do not fit.
    """
    (f, args), inputs = point, len(subject.arguments.leaves)
    argnums = (subject.argnums,) * slots_of(pattern, operands)
    transform = Einsum("hodcheck", f, pattern, argnums, False, subject.strategy, Limits())
    found = [by_parts(leaf).detach().double() for leaf in tree_leaves(transform(*args, operands=operands))]
    wanted, leaves, factors = transform.contractions(f(*args), *args, operands=operands)
    values = [leaf.detach().double() for leaf in leaves]
    products = [
        _of_parts(_contracted(each, dense, values, inputs), n) for each, n in zip(wanted.sums, factors, strict=True)
    ]
    blocks, sizes = ([leaf.abs() for leaf in each] for each in (dense, values))
    terms = [_contracted(each, blocks, sizes, inputs) for each in wanted.sums]
    rounding = 100 * max(torch.finfo(each.dtype).eps for each in (*subject.inputs, *subject.outputs))
    allowed = [
        limit + rounding * largest([term])
        for limit, term in zip(tolerances.allowed([largest([each]) for each in products]), terms, strict=True)
    ]
    off = worst(found, products, allowed)
    if off is not None:
        raise HodcheckError(
            f"hodcheck: entry {list(off.index)} of {pattern!r} is {off}",
            got=f"{off.got:.17g}",
            expected=f"{off.expected:.17g} by torch.einsum of the derivative",
            remedy="This is a bug of hofunc: please report it, with f, args and operands.",
        )


def _of_parts(found: torch.Tensor, factors: int) -> torch.Tensor:
    """Return the parts of a product of complex numbers, given those of its factors along so many last axes."""
    for _ in range(factors - 1):
        (a, b), (c, d) = (
            (half.select(-1, 0), half.select(-1, 1)) for half in (found.select(-1, 0), found.select(-1, 1))
        )
        found = torch.stack([a - d, b + c], -1)
    return found


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
