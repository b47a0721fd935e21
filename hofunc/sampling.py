"""Estimates of contractions: the sum over a label by sampled places or along random directions.

The sum over a label that two tensors bear is E[r r^T] put between them, for random vectors r of independent entries of
mean zero and variance one; so it is estimated by the mean of products with samples of r, each of which is an operand of
its own label. The sum over a label that any number of tensors bear is n times the mean over places drawn at random.
Source: Hutchinson (1990) for traces; Hu, Shi, Karniadakis and Kawaguchi, stochastic dimension gradient descent (2023),
and Shi, Hu, Lin and Kawaguchi, Stochastic Taylor Derivative Estimator (2024), for differential operators.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from itertools import chain
from math import prod
from typing import Any, NamedTuple

import torch

from hofunc.complex_tensors import by_parts
from hofunc.given import check_choice, check_flag, refuse, shown
from hofunc.graph.uncompiled import opaque
from hofunc.internals import tree_flatten, tree_map, tree_unflatten
from hofunc.methods import Method
from hofunc.pattern import Group, Pattern, parsed
from hofunc.run.room import SMALL, free_bytes

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
        text: The pattern, with an operand for every place where such a label stands; if the standard error is wanted,
            the label of the samples is the first of the result.
        uses: For each of these operands the number of the label, whose samples it is.
        axes: For every label, a slot that bears it, and at which of its axes.
    """

    text: str
    uses: tuple[int, ...]
    axes: Mapping[str, tuple[int, int]]


def checked(transform: str, estimate: Any, directions: Any, generator: Any, with_error: Any) -> Sampling:
    """Check what is asked of an estimate.

    Raises:
        ArgumentError: The estimate is no dict of positive ints, or as from `check_drawing`.
    """
    counts = [*estimate.values()] if isinstance(estimate, Mapping) else []
    if not counts or not all(type(count) is int and count > 0 for count in counts):
        refuse(
            transform, "estimate", shown(estimate), "a dict of names of labels and numbers of samples", "As {'i': 16}."
        )
    if len({*counts}) > 1:
        expected = "one number for all labels, which are sampled together"
        refuse(transform, "estimate", repr(estimate), expected, "Estimate by the larger number.")
    check_drawing(transform, directions, generator, with_error)
    if with_error and counts[0] < 2:
        refuse(transform, "estimate", repr(estimate), "two samples at least, for a standard error", "Take more.")
    return Sampling(dict(estimate), directions, generator, with_error)


def check_drawing(transform: str, directions: Any, generator: Any, with_error: Any) -> None:
    """Check what says how samples are drawn.

    Raises:
        ArgumentError: There is no such kind of directions, no such generator, or the error is neither wanted nor not.
    """
    check_choice(transform, "directions", directions, DIRECTIONS, "'rademacher' has the least variance.")
    if generator is not None and not isinstance(generator, torch.Generator):
        expected = "a torch.Generator, or None"
        refuse(transform, "generator", type(generator).__name__, expected, "Leave it out if in doubt.")
    check_flag(transform, "with_error", with_error)


def check_unsampled(transform: str, option: str, options: Mapping[str, Any]) -> None:
    """Check that nothing says how to draw samples of which there are none.

    Args:
        transform: Name of the transform.
        option: The option that asks for samples.
        options: The options that it was given.

    Raises:
        ArgumentError: Something does.
    """
    for name in ("directions", "generator", "with_error"):
        if name in options:
            got = f"{name} without {option}"
            refuse(transform, name, got, "it with an estimate alone", f"Say by {option} how many to draw.")


def sampled(pattern: Pattern, slots: int, sampling: Sampling) -> Sampled:
    """Return a pattern in which labels are sampled.

    Args:
        pattern: The pattern.
        slots: How many of its groups after the first are slots.
        sampling: How.

    Raises:
        ArgumentError: A label is not summed, or stands where it cannot be sampled.
    """
    groups, given = [pattern.output, *pattern.others[:slots]], pattern.others[slots:]
    texts = [[token.text for token in group.tokens] for group in (*groups, *given)]
    known = {*chain(*texts)}
    uses: list[int] = []
    axes: dict[str, tuple[int, int]] = {}
    samples = _unused("samples", known)
    for use, name in enumerate(sampling.counts):
        places = [place for place, group in enumerate(groups) for token in group.tokens if token.text == name]
        _check_label(pattern, name, given, places, sampling)
        for place, number in [(p, n) for p in dict.fromkeys(places) for n, text in enumerate(texts[p]) if text == name]:
            if place:
                axes[name] = (place - 1, _axis(pattern, groups[place], number))
            texts[place][number] = _unused(f"{name}_{len(uses)}", known)
            texts.append([samples, texts[place][number]])
            uses.append(use)
    result = [*[samples] * sampling.with_error, *(token.text for token in pattern.result.tokens)]
    return Sampled(f"{', '.join(map(' '.join, texts))} -> {' '.join(result)}", tuple(uses), axes)


def _unused(name: str, known: set[str]) -> str:
    """Return a name like one that is not known yet, and know it from now on."""
    while name in known:
        name += "_"
    known.add(name)
    return name


def _check_label(
    pattern: Pattern, name: str, given: Sequence[Group], places: Sequence[int], sampling: Sampling
) -> None:
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


class Estimate(Method):
    """A function with the signature of f that estimates a contraction, as `hofunc.einsum` returns it for an estimate.

    Args:
        transform: Its name.
        pattern: The pattern.
        sampling: How it is sampled.
        make: Given a pattern, and how many operands come before the samples, returns what computes the contraction.
        variables: By what the slots are: numbers of arguments, or names of taps.
    """

    def __init__(
        self,
        transform: str,
        pattern: Any,
        sampling: Sampling,
        make: Callable[[Sampled, int], Any],
        variables: int | str | Sequence[Any],
    ):
        self._pattern, self._sampling, self._make = parsed(transform, pattern), sampling, make
        self._variables = variables
        self._made: dict[int, tuple[Sampled, Any]] = {}

    @opaque
    def __call__(self, *args: Any, operands: Sequence[Any] = (), **kwargs: Any) -> Any:
        """Draw samples and return the estimate, or the pair of it and of its standard error; see `hofunc.einsum`."""
        found, exact = self._exact(operands)
        given, sizes = self._drawn(found, exact, args, kwargs)
        return self._summarised(exact(*args, operands=(*operands, *given), **kwargs), sizes)

    @opaque
    def plan(self, *args: Any, operands: Sequence[Any] = (), **kwargs: Any) -> Callable[..., Any]:
        """Return a function that draws samples at every call, and computes with them by one plan."""
        found, exact = self._exact(operands)
        given, _ = self._drawn(found, exact, args, kwargs)
        plan = exact.plan(*args, operands=(*operands, *given), **kwargs)

        def call(*args: Any, operands: Sequence[Any] = (), **kwargs: Any) -> Any:
            given, sizes = self._drawn(found, exact, args, kwargs)
            return self._summarised(plan(*args, operands=(*operands, *given), **kwargs), sizes)

        call.plan = plan  # type: ignore[attr-defined]
        return call

    def over(self, wrap: Callable[[Any], Any]) -> "Estimate":
        """Return the same estimate by what a function makes of the transforms that compute with samples."""
        other, make = copy(self), self._make
        other._make, other._made = lambda found, operands: wrap(make(found, operands)), {}
        return other

    def _exact(self, given: Any) -> tuple[Sampled, Any]:
        """Return the pattern for the operands of the caller, and what computes it."""
        if not isinstance(given, tuple | list):
            refuse(self._pattern.transform, "operands", shown(given), "a tuple of tensors", "Pass operands=(v,).")
        operands = len(given)
        if operands not in self._made:
            found = sampled(self._pattern, len(self._pattern.others) - operands, self._sampling)
            self._made[operands] = found, self._make(found, operands)
        return self._made[operands]

    def _drawn(
        self, found: Sampled, exact: Any, args: tuple, kwargs: Mapping[str, Any]
    ) -> tuple[list[torch.Tensor], list[int]]:
        """Return the samples of every label, and their sizes, given what computes with them, and its arguments."""
        sampling, sizes, vectors = self._sampling, [], []
        for name, count in sampling.counts.items():
            slot, axis = found.axes[name]
            variable = self._variables if isinstance(self._variables, int | str) else self._variables[slot]
            like = exact.tapped(variable, args, kwargs) if isinstance(variable, str) else args[variable]
            if not isinstance(like, torch.Tensor) or not like.dim():
                got = f"a tensor of shape {()}" if isinstance(like, torch.Tensor) else type(like).__name__
                what = f"args[{variable}]" if isinstance(variable, int) else f"what is tapped as {variable!r}"
                remedy = "Differentiate by one tensor, of which an axis is sampled."
                refuse(self._pattern.transform, what, got, "a tensor with axes", remedy)
            like = by_parts(like)
            sizes.append(like.shape[axis])
            _check_room(self._pattern.transform, count, like.shape[axis], like)
            vectors.append(_vectors(count, like.shape[axis], like, sampling))
        return vectors, sizes

    def _summarised(self, found: Any, sizes: Sequence[int]) -> Any:
        """Return the mean of what samples came to, or their sum times what it takes, and its standard error."""
        weight = prod(sizes) if self._sampling.directions == "coordinates" else 1
        if not self._sampling.with_error:
            count = next(iter(self._sampling.counts.values()))
            return tree_map(lambda value: value * (weight / count), found)
        values, spec = tree_flatten(tree_map(lambda value: value * weight, found))
        pairs = [_summarised(value, self._sampling, sizes) for value in values]
        return tuple(tree_unflatten([pair[place] for pair in pairs], spec) for place in range(2))


def _check_room(transform: str, count: int, size: int, like: torch.Tensor) -> None:
    """Check that samples fit into the memory that is free.

    Raises:
        ArgumentError: They take more.
    """
    needed = count * size * (like.element_size() + torch.long.itemsize)  # of which the latter are given back
    if needed > SMALL and needed > (free := free_bytes(like.device)):
        got = f"{shown(count)}, which take {needed} bytes to draw for an axis of {size}"
        remedy = "Take fewer, and the mean of several calls, each of which draws its own."
        refuse(transform, "a number of samples", got, f"at most {int(free)} bytes, which are free", remedy)


def _vectors(count: int, size: int, like: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Draw vectors: of signs, of normal numbers, or with a one at a random place, none twice while others are left."""
    options: Any = {"device": like.device, "generator": sampling.generator}
    if sampling.directions == "gaussian":
        return torch.randn(count, size, dtype=like.dtype, **options)
    if sampling.directions == "rademacher":
        return torch.randint(0, 2, (count, size), **options).to(like.dtype) * 2 - 1
    rounds = [torch.randperm(size, **options) for _ in range(-(-count // size))]
    return torch.nn.functional.one_hot(torch.cat(rounds)[:count], size).to(like.dtype)


def _summarised(values: torch.Tensor, sampling: Sampling, sizes: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean of values of single samples and its standard error.

    Args:
        values: The values, samples first.
        sampling: How they were sampled.
        sizes: The sizes of the labels.
    """
    count = values.shape[0]
    variance = values.var(0) / count
    if sampling.directions == "coordinates" and len(sizes) == 1 and count <= sizes[0]:
        variance = variance * (1 - count / sizes[0])  # no place is drawn twice
    return values.mean(0), variance.sqrt()
