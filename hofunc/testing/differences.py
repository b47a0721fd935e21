"""Derivatives by differences, with an estimate of their error: what decides where formulas disagree."""

from collections.abc import Callable
from typing import NamedTuple

import torch

STEP = 0.05
LEVELS = 12


class Estimate(NamedTuple):
    """A derivative as differences give it, and how far off each entry may be: infinitely, where they cannot tell."""

    value: torch.Tensor
    error: torch.Tensor


def slope(g: Callable[[float], torch.Tensor], step: float = STEP, levels: int = LEVELS) -> Estimate:
    """Differentiate a function of a number at zero by central differences, extrapolated to step zero.

    Every entry is taken from where in the table two columns and two rows agree best, so that steps that leave the
    domain, or that are lost in rounding, do no harm. Half of the jump of the slope, extrapolated likewise, is part of
    the error, since central differences agree perfectly with each other at a kink.

    Args:
        g: Function of a number to a tensor.
        step: The largest step; each level halves it.
        levels: How many steps are combined.

    Returns:
        The derivative of g at zero, of the shape of its results.

    Source: Ridders, Accurate computation of F'(x) and F'(x) F''(x), Advances in Engineering Software 4 (1982).
    """
    centre = g(0.0)
    best = Estimate(torch.full_like(centre, torch.nan), torch.full_like(centre, torch.inf))
    coarser: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
    for level in range(levels):
        h = step / 2**level
        ahead, behind = g(h), g(-h)
        slopes, jumps = [(ahead - behind) / (2 * h)], [(ahead - 2 * centre + behind) / (2 * h)]
        for column, (slope_before, jump_before) in enumerate(zip(*coarser, strict=True), 1):
            slopes.append(slopes[-1] + (slopes[-1] - slope_before) / (4**column - 1))
            jumps.append(jumps[-1] + (jumps[-1] - jump_before) / (2 ** (2 * column - 1) - 1))
            error = (slopes[-1] - slopes[-2]).abs().maximum((slopes[-1] - slope_before).abs()) + jumps[-1].abs()
            is_better = error < best.error  # not where it is nan
            best = Estimate(*(torch.where(is_better, *pair) for pair in zip((slopes[-1], error), best, strict=True)))
        coarser = slopes, jumps
    return best
