"""Estimates of contractions: the sum over a label by sampled places or along random directions.

The sum over a label that two tensors bear is E[r r^T] put between them, for random vectors r of independent entries of
mean zero and variance one; so it is estimated by the mean of products with samples of r, each of which is an operand of
its own label. The sum over a label that any number of tensors bear is n times the mean over places drawn at random.
Source: Hutchinson (1990) for traces; Hu, Shi, Karniadakis and Kawaguchi, stochastic dimension gradient descent (2023),
and Shi, Hu, Lin and Kawaguchi, Stochastic Taylor Derivative Estimator (2024), for differential operators.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any, NamedTuple

import torch

from hofunc.errors import ArgumentError
from hofunc.pattern import Group, Pattern, Token

DIRECTIONS = ("rademacher", "gaussian", "coordinates")


class Sampling(NamedTuple):
    """How sums over labels are estimated.

    Attributes:
        counts: The number of samples for every label.
        directions: One of DIRECTIONS.
        generator: What draws them; None for that of torch.
        with_error: Whether the standard error is wanted as well.
    """

    counts: Mapping[str, int]
    directions: str
    generator: torch.Generator | None
    with_error: bool


class Sampled(NamedTuple):
    """A pattern in which labels are sampled.

    Attributes:
        pattern: The pattern, with an operand for every place where such a label stands; the label of the samples is
            the first of the result, if the standard error is wanted.
        labels: For each of these operands the label.
        axes: For every label, a slot that bears it, and at which of its axes.
    """

    pattern: Pattern
    labels: tuple[str, ...]
    axes: Mapping[str, tuple[int, int]]


def checked(transform: str, estimate: Any, directions: Any, generator: Any, with_error: Any) -> Sampling | None:
    """Check what is asked of an estimate.

    Raises:
        ArgumentError: The estimate is no dict of positive ints, or there is no such kind of directions.
    """
    if estimate is None:
        return None
    counts = [*estimate.values()] if isinstance(estimate, Mapping) else []
    if not counts or not all(type(count) is int and count > 0 for count in counts):
        _refuse(transform, "estimate", repr(estimate), "a dict of names of labels and numbers of samples", "As {'i': 16}.")
    if len({*counts}) > 1:
        expected = "one number for all labels, which are sampled together"
        _refuse(transform, "estimate", repr(estimate), expected, "Estimate by the larger number.")
    if with_error and counts[0] < 2:
        _refuse(transform, "estimate", repr(estimate), "two samples at least, for a standard error", "Take more.")
    if directions not in DIRECTIONS:
        _refuse(transform, "directions", repr(directions), f"one of {DIRECTIONS}", "'rademacher' has the least variance.")
    if generator is not None and not isinstance(generator, torch.Generator):
        _refuse(transform, "generator", type(generator).__name__, "a torch.Generator, or None", "Leave it out if in doubt.")
    return Sampling(dict(estimate), directions, generator, bool(with_error))


def sampled(pattern: Pattern, slots: int, sampling: Sampling) -> Sampled:
    """Return a pattern in which labels are sampled.

    Args:
        pattern: The pattern.
        slots: How many of its groups after the first are slots.
        sampling: How.

    Raises:
        ArgumentError: A label is not summed, or stands where it cannot be sampled.
    """
    groups, given = [pattern.output, *pattern.others[:slots]], [*pattern.others[slots:]]
    labels: list[str] = []
    axes: dict[str, tuple[int, int]] = {}
    for name in sampling.counts:
        places = [place for place, group in enumerate(groups) for token in group.tokens if token.text == name]
        _check_label(pattern, name, given, places, sampling)
        for place in dict.fromkeys(places):
            tokens = list(groups[place].tokens)
            for number, token in enumerate(tokens):
                if token.text != name:
                    continue
                new = Token(f"{name}'{len(labels)}", token.start)
                if place:
                    axes[name] = (place - 1, _axis(pattern, groups[place], number))
                tokens[number] = new
                given.append(Group((Token("samples'", token.start), new), token.start))
                labels.append(name)
            groups[place] = groups[place]._replace(tokens=tuple(tokens))
    kept = (Token("samples'", pattern.result.start),) if sampling.with_error else ()
    result = pattern.result._replace(tokens=(*kept, *pattern.result.tokens))
    changed = pattern._replace(output=groups[0], others=(*groups[1:], *given), result=result)
    return Sampled(changed, tuple(labels), axes)


def _check_label(pattern: Pattern, name: str, given: Sequence[Group], places: Sequence[int], sampling: Sampling) -> None:
    """Check that the sum over a label can be estimated.

    Raises:
        ArgumentError: It is not summed, no slot bears it, an operand bears it, or it is not on two axes, as random
            directions need it: of four slots of one label they would give the sum over pairs as well.
    """
    for token in chain(pattern.result.tokens, *(group.tokens for group in given)):
        if token.text == name:
            expected = "a label that only the output and slots bear"
            pattern.refuse(token, f"{name!r} to be estimated", expected, "Sample another label.")
    group = pattern.result
    if not any(places):
        pattern.refuse(group, f"{name!r} to be estimated", "a label that a slot bears", "Name one of the pattern.")
    if sampling.directions != "coordinates" and len(places) != 2:
        got = f"{name!r} on {len(places)} axes, to be estimated along random directions"
        remedy = "directions='coordinates' samples a label of any number of axes."
        pattern.refuse(group, got, "a label of two axes", remedy)


def _axis(pattern: Pattern, group: Group, number: int) -> int:
    """Return the axis of a slot that a token stands for, counted from behind if it has to be."""
    tokens = group.tokens
    if not any(token.is_several for token in tokens[:number]):
        return number
    if any(token.is_several for token in tokens[number + 1 :]):
        got = "a label between names that stand for several axes"
        pattern.refuse(tokens[number], got, "one whose axis can be told", "Name the axes one by one.")
    return number - len(tokens)


def drawn(found: Sampled, sampling: Sampling, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Draw the operands of a pattern in which labels are sampled, given the input of every slot."""
    vectors: dict[str, torch.Tensor] = {}
    for name, count in sampling.counts.items():
        slot, axis = found.axes[name]
        vectors[name] = _vectors(count, inputs[slot].shape[axis], inputs[slot], sampling)
    operands, scaled = [], set[str]()
    for name in found.labels:
        vector = vectors[name]
        if name not in scaled and sampling.directions == "coordinates":
            vector = vector * vector.shape[1]
        if not scaled and not sampling.with_error:
            vector = vector / sampling.counts[name]
        scaled.add(name)
        operands.append(vector)
    return operands


def _vectors(count: int, size: int, like: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Draw vectors: of signs, of normal numbers, or with a one at a random place, no place twice while there are any."""
    options: Any = {"device": like.device, "generator": sampling.generator}
    if sampling.directions == "gaussian":
        return torch.randn(count, size, dtype=like.dtype, **options)
    if sampling.directions == "rademacher":
        return torch.randint(0, 2, (count, size), **options).to(like.dtype) * 2 - 1
    rounds = [torch.randperm(size, **options) for _ in range(-(-count // size))]
    return torch.nn.functional.one_hot(torch.cat(rounds)[:count], size).to(like.dtype)


def summarised(values: torch.Tensor, sampling: Sampling, sizes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean of values of single samples and its standard error.

    Args:
        values: The values, samples first.
        sampling: How they were sampled.
        sizes: The sizes of the labels.
    """
    count = values.shape[0]
    variance = values.var(0) / count
    if sampling.directions == "coordinates" and len(sizes) == 1 and count <= prod(sizes):
        variance = variance * (1 - count / sizes[0])  # no place is drawn twice
    return values.mean(0), variance.sqrt()


def _refuse(name: str, what: str, got: str, expected: str, remedy: str) -> None:
    raise ArgumentError(f"{name}: {what}", got=got, expected=expected, remedy=remedy)
