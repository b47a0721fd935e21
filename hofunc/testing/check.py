"""hodcheck: a check of hod on one's own function, by what shares no rule with it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch

from hofunc.arguments import check_strategy, check_transform, split
from hofunc.chosen import BlocksAsked, GroupsAsked, Which, checked
from hofunc.contracted import STRATEGIES
from hofunc.errors import ArgumentError, HodcheckError
from hofunc.given import check_amount, check_flag, check_tolerance, listed, refuse, shown
from hofunc.graph.uncompiled import opaque
from hofunc.internals import tree_leaves
from hofunc.spelling import spelt
from hofunc.testing.chosen import check_blocks
from hofunc.testing.contractions import check_contraction, slots_of
from hofunc.testing.entries import largest
from hofunc.testing.judgement import Tolerances, check
from hofunc.testing.oracles import Subject, of_parts
from hofunc.testing.repeated import repeated


@opaque
@spelt
def hodcheck(
    f: Callable[..., Any],
    args: torch.Tensor | Sequence[Any],
    order: int = 2,
    argnums: int | Sequence[int] = 0,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    strategy: str = "auto",
    pattern: str | None = None,
    operands: tuple[Any, ...] = (),
    blocks: BlocksAsked = "all",
    groups: GroupsAsked | None = None,
    max_entries: int = 1_000_000,
    raise_exception: bool = True,
) -> bool:
    """Check the derivatives of f by `hod`, of every order up to the given one, as gradcheck checks gradients.

    Each order is compared, entry by entry, with ``torch.func.jacrev``, nested, and along one direction with
    differences of the order below, which has been checked before it. Where one of them does not agree, or torch
    cannot differentiate f that often, differences for every entry decide, each with an estimate of its error: torch's
    own formulas are not always right.

    Args:
        f: Pure function, as for `hod`. Differences judge it only if it is smooth near args, to within about 0.01; to
            them, as to gradcheck, what ``.detach()`` or ``.item()`` returns is no constant.
        args: Its positional arguments, or its only one if that is a tensor. Those to differentiate by are float64, or
            float32, in which tolerances are looser and differences often cannot judge. Complex ones, and complex
            outputs, are checked by real and imaginary part.
        order: The highest order to check, at least 1.
        argnums: As for `hod`.
        rtol: How far off an entry may be, relative to the largest of its tensor. Unless given, the square root of the
            resolution of the least precise dtype of inputs and outputs: 1.5e-8 for float64, 3.5e-4 for float32.
        atol: How far off it may be besides. Unless given, the largest entry of f(*args) and of its derivatives so far
            times 100 times the resolution, 2.2e-14 for float64 and 1.2e-5 for float32.
        strategy: As for `hod`, or `einsum` with a pattern.
        pattern: As for `hofunc.einsum`. Then the contraction is checked as well, against ``torch.einsum`` of the
            derivative of the order that the pattern says, in place of ``order``.
        operands: Its operands.
        blocks: As for `hod`. Then these blocks of the highest order are checked as well, computed alone, against those
            of the whole derivative.
        groups: As for `hod`, likewise.
        max_entries: The most entries that the derivative of the highest order may have.
        raise_exception: Whether to raise a HodcheckError, rather than to return False.

    Returns:
        True if the derivatives are right; False, unless raise_exception, if one is not or cannot be judged.

    Raises:
        HodcheckError: An entry is off, or torch does not confirm it and differences cannot tell.
        ArgumentError: An argument is not as described, f is not finite at args or returns another value when it is
            called again, or the derivative has too many entries. This and the errors of `hod` are always raised.
        MutationError: f writes to an argument.

    Cost:
        For each order, ``jacrev`` nested, and 25 calls of `hod` of the order below; where differences decide, as
        many for each element of the inputs.

    Example:
        >>> x = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
        >>> hofunc.hodcheck(lambda x: x.sin().prod(), x, order=3)
        True
        >>> hofunc.hodcheck(lambda x: x.sin().prod(), x, pattern=", i, i -> ")
        True
    """
    if not isinstance(operands, tuple | list):
        refuse("hodcheck", "operands", shown(operands), "a tuple of tensors", "Pass operands=(v,), with a pattern.")
    if pattern is not None:
        check_strategy("hodcheck", strategy, STRATEGIES)
        order = slots_of(pattern, operands)
    check_transform("hodcheck", f, order, argnums, "dense", "auto" if pattern else strategy)
    which = Which(blocks, groups)
    checked("hodcheck", which, order, all_orders=False, orders_below=False)
    check_tolerance("hodcheck", "rtol", rtol)
    check_tolerance("hodcheck", "atol", atol)
    check_amount("hodcheck", "max_entries", max_entries, 1, "A million unless given.")
    check_flag("hodcheck", "raise_exception", raise_exception)
    args = (args,) if isinstance(args, torch.Tensor) else listed("hodcheck", "args", args, *_ARGS)
    point = f, tuple(args)
    f, args = of_parts("hodcheck", f, args, argnums)
    arguments = split("hodcheck", args, {}, argnums)
    _check_precise("an input to differentiate by", arguments.leaves)
    output = repeated("hodcheck", f, args)
    _check_precise("an output of f", tree_leaves(output))
    _check_finite(tree_leaves(output))
    subject = Subject.at("hodcheck", f, args, argnums, output, "auto" if pattern else strategy)
    _check_size(subject, order, max_entries)
    eps = max((torch.finfo(leaf.dtype).eps for leaf in (*arguments.leaves, *tree_leaves(output))), default=0.0)
    below = subject.derivative(0)
    scale = largest(below)
    try:
        for k in range(1, order + 1):
            found = subject.derivative(k)
            scale = max(scale, largest(found))
            tolerances = Tolerances(eps**0.5 if rtol is None else rtol, 100 * eps * scale if atol is None else atol)
            check(subject, k, below, found, tolerances)
            below = found
        check_blocks(subject, order, which, below, tolerances)
        if pattern is not None:
            check_contraction(replace(subject, strategy=strategy), point, pattern, operands, below, tolerances)
    except HodcheckError:
        if raise_exception:
            raise
        return False
    return True


_ARGS = ("a tensor, or a tuple of the arguments of f", "Pass hodcheck(f, (x, y)).")


def _check_precise(what: str, leaves: Sequence[torch.Tensor]) -> None:
    for leaf in leaves:
        if leaf.dtype not in {torch.float64, torch.float32}:
            raise ArgumentError(
                f"hodcheck: {what}",
                got=f"dtype {leaf.dtype}",
                expected="torch.float64, or torch.float32",
                remedy="Check f in double precision: convert its arguments, and what it captured, with .double().",
            )


def _check_finite(outputs: Sequence[torch.Tensor]) -> None:
    if not all(leaf.isfinite().all() for leaf in outputs):
        raise ArgumentError(
            "hodcheck: f(*args)",
            got="an entry that is not finite",
            expected="a point at which f has derivatives",
            remedy="Pass other args.",
        )


def _check_size(subject: Subject, order: int, max_entries: int) -> None:
    inputs, outputs = (sum(prod(entry.shape) for entry in entries) for entries in (subject.inputs, subject.outputs))
    entries = outputs * inputs**order
    if entries > max_entries:
        raise ArgumentError(
            "hodcheck: order",
            got=f"{order}, at which the derivative has {outputs} x {inputs}^{order} = {entries} entries",
            expected=f"at most max_entries={max_entries}, since the oracles need all of them",
            remedy="Check a lower order or smaller arguments, or raise max_entries.",
        )
