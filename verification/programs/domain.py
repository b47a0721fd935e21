"""Where an op is smooth, and how an operand is brought there."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Guards = Callable[[tuple[int, ...]], tuple[tuple[str, ...], ...]]

MARGIN = 0.05  # how far values stay from a kink, several times the steps of finite differences


@dataclass(frozen=True)
class Domain:
    """Where an op is smooth.

    Attributes:
        contains: Whether operands of these values are well inside.
        guards: From the shape of the first operand, what to put in place of the operands where they are not, to be
            tried in turn: for each operand an expression of it, in which ``{0}`` is the operand.
    """

    contains: Callable[..., bool]
    guards: Guards


def between(low: float, high: float, *guards: str) -> Domain:
    """Return the domain of numbers from low to high."""
    return Domain(lambda x: bool(((x >= low) & (x <= high)).all()), lambda _: tuple((guard,) for guard in guards))


SHIFTS = (0.17, -0.29, 0.41, -0.53, 0.71, -0.83)


def off(*kinks: float, period: float | None = None) -> Domain:
    """Return the domain of numbers that are not close to a kink, nor to it plus a multiple of the period."""

    def contains(x: Tensor) -> bool:
        gaps = [x - kink for kink in kinks]
        if period is not None:
            gaps = [torch.remainder(gap + period / 2, period) - period / 2 for gap in gaps]
        return all(bool((gap.abs() >= MARGIN).all()) for gap in gaps)

    squeezed = f"(0.2 * {{0}}.sin() + {kinks[0] + 0.35})"
    return Domain(contains, lambda _: (*((f"({{0}} + {shift})",) for shift in SHIFTS), (squeezed,)))


def _apart(x: Tensor) -> bool:
    steps = x.flatten().sort()[0].diff()
    return bool((steps >= MARGIN).all())


def _different(x: Tensor, *others: Tensor) -> bool:
    """Tell whether no element is close to the one of another operand that it meets."""
    return all(bool(((x - other).abs() >= MARGIN).all()) for other in others)


def of_each(*domains: Domain) -> Domain:
    """Return the domain of operands each of which is in its own, brought there by its last guard, the surest."""

    def contains(*operands: Tensor) -> bool:
        return all(domain.contains(x) for domain, x in zip(domains, operands, strict=True))

    def guards(shape: tuple[int, ...]) -> tuple[tuple[str, ...], ...]:
        return (tuple((domain.guards(shape) or (("{0}",),))[-1][0] for domain in domains),)

    return Domain(contains, guards)


EVERYWHERE = Domain(lambda *_: True, lambda _: ())
POSITIVE = between(0.3, 5.0, "({0} * {0} + 0.5)", "({0}.tanh() + 1.5)")
UNIT = between(-0.85, 0.85, "(0.8 * {0}.sin())")
BEYOND_ONE = between(1.3, 5.0, "({0} * {0} + 1.4)", "({0}.tanh() + 2.5)")
NONZERO = off(0.0)
# {r:shape} is a ramp of steps of 0.3
APART = Domain(_apart, lambda shape: ((f"(0.1 * {{0}}.sin() + {{r:{','.join(map(str, shape))}}})",),))
DIFFERENT = Domain(
    _different,
    lambda _: (*((f"({{0}} + {shift})", "{0}") for shift in SHIFTS), ("(0.2 * {0}.sin() + 1)", "(0.3 * {0}.sin())")),
)
