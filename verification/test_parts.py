"""Derivatives by inputs that are read in parts are exact, however many inputs and layers there are.

Claim: of programs that read rows, columns and runs of one to twelve inputs at any layer, derivatives of order two are
those of nested torch.func, by every strategy and in both layouts.
Source: what is read is a linear function of the input, so that the chain rule says where each part of a block lies.
Falsifier: parts of one input that meet other inputs in different layers, parts read twice, the first and the last.
Tolerance: 1e-9, since both compute the same sums in another order.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import hofunc
from verification.oracles import nested_reverse, relative_error
from verification.profiles import PER_PROPERTY, PROFILE, database

WIDTH, PARTS = 3, 5
SHAPES = ((PARTS, WIDTH), (PARTS * WIDTH,), (WIDTH, PARTS), (WIDTH,), (WIDTH, WIDTH), ())


class Layer(NamedTuple):
    """What a layer does with a part of an input."""

    kind: int
    source: int
    place: int


KINDS = 7
MORE = 4  # times as many examples as of other properties
LAYERS = st.lists(
    st.builds(Layer, st.integers(0, KINDS - 1), st.integers(0, 99), st.integers(0, PARTS - 1)), min_size=3, max_size=20
)
INPUTS = st.lists(st.sampled_from(SHAPES), min_size=1, max_size=12)


def part(x: Tensor, place: int) -> Tensor:
    """Return as many numbers of an input as a state has: a row, a column or a run of it."""
    if x.shape == (PARTS * WIDTH,):
        return x[place * WIDTH : (place + 1) * WIDTH]
    if x.shape == (WIDTH, PARTS):
        return x[:, place]
    return x[min(place, len(x) - 1)] if x.dim() == 2 else x.expand(WIDTH)


def computed(layers: Sequence[Layer], inputs: Sequence[Tensor]) -> Tensor:
    """Run layers one after the other, and sum up what is left and what some of them add."""
    state, total = torch.linspace(-1, 1, WIDTH).to(inputs[0]), inputs[0].new_zeros(())
    for kind, source, place in layers:
        x = inputs[source % len(inputs)]
        read = part(x, place)
        if kind == 0:
            state = (state + read).tanh()
        elif kind == 1:
            state = state * read.sum().sigmoid() + read.flip(0)
        elif kind == 2 and x.shape == (WIDTH, WIDTH):
            state = (x @ state).sin()
        elif kind == 3:
            state = (state * read).cos()
        elif kind == 4:
            total = total + (state * read).sum() ** 2
        elif kind == 5:
            state = torch.cat([state[1:], read[:1].exp().reciprocal()])
        else:
            total = total + (part(x, (place + 1) % PARTS) * read).sum().sin() * state.sum()
    return total + state.square().sum()


@settings(max_examples=MORE * PER_PROPERTY[PROFILE], database=database(), deadline=None)
@given(LAYERS, INPUTS, st.sampled_from(["auto", "forward", "reverse", "mixed"]), st.sampled_from(["dense", "compact"]))
def test_derivatives_by_what_is_read_in_parts(
    layers: list[Layer], shapes: list[tuple[int, ...]], strategy: str, layout: str
) -> None:
    generator = torch.Generator().manual_seed(len(layers))
    inputs = [0.6 * torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]

    def f(*x: Tensor) -> Tensor:
        return computed(layers, x)

    check(f, inputs, strategy, layout)


@settings(max_examples=MORE * PER_PROPERTY[PROFILE], database=database(), deadline=None)
@given(
    st.lists(st.booleans(), min_size=5, max_size=12),
    st.integers(1, 5),
    st.integers(2, 5),
    st.integers(2, 6),
    st.sampled_from(["auto", "reverse", "mixed"]),
    st.sampled_from(["dense", "compact"]),
)
def test_derivatives_by_an_input_of_which_layers_take_a_part_each(
    layers: list[bool], every: int, count: int, width: int, strategy: str, layout: str
) -> None:
    """A layer has a matrix or a factor for each number, and after some of them a part of the first input is added."""
    generator = torch.Generator().manual_seed(len(layers))
    shapes = [(count * width,), *((width, width) if layer else (width,) for layer in layers)]
    inputs = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]

    def f(parts: Tensor, *weights: Tensor) -> Tensor:
        state = torch.linspace(-1, 1, width, dtype=parts.dtype)
        for number, weight in enumerate(weights):
            state = weight @ state if weight.dim() == 2 else weight * state
            place = number // every
            if number % every == 0 and place < count:
                state = state + parts[place * width : (place + 1) * width]
            state = state.tanh()
        return state.square().sum()

    check(f, inputs, strategy, layout)


def check(f: Callable[..., Tensor], inputs: Sequence[Tensor], strategy: str, layout: str) -> None:
    """Check the Hessian by all inputs."""
    numbers = tuple(range(len(inputs)))
    got = hofunc.hessian(f, argnums=numbers, strategy=strategy, layout=layout)(*inputs)
    expected = nested_reverse(f, 2, numbers)(*inputs)
    for one, other in zip(got, expected, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            assert relative_error(mine.dense() if layout == "compact" else mine, theirs) < 1e-9
