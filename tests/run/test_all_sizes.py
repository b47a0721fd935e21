"""Graphs for all sizes: what is alike for some becomes one that takes the sizes, and nothing else does."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from hofunc.graph.node import Graph
from hofunc.run.all_sizes import Made, Subject, made_for_all
from hofunc.run.sizes import Sizes

NOTHING = Graph((), (), ())


def subject(function: Callable[[Tensor], Tensor], **others: Any) -> Subject:
    """Return a function of some rows, as what is to be made for all numbers of them."""

    def make(sizes: Sizes) -> Made:
        return Made(make_fx(lambda x: (function(x),))(torch.rand(sizes[0], 3)), [0], "one")

    standard: dict[str, Any] = {"allow": lambda sizes: True, "make": make, "record": lambda sizes: NOTHING}
    agreed = {"agrees": lambda made, sizes: len(made.graph(torch.rand(sizes[0], 3), *sizes)) == 1}
    return Subject((6,), [(2, None)], frozenset({3}), **{**standard, **agreed, **others})


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.reshape(-1) / (3 * len(x)),
        lambda x: x.mul(len(x) ** 2).new_ones(len(x) + 2),
        lambda x: x.sin(),
        lambda x: x[: len(x) - 1] - 1 / (len(x) - 1) ** 2,
    ],
)
def test_one_graph(function: Callable[[Tensor], Tensor]) -> None:
    made = made_for_all(subject(function))
    assert made is not None
    for rows in (2, 4, 30):
        x = torch.rand(rows, 3)
        torch.testing.assert_close(made.graph(x, rows)[0], function(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[: len(x) // 2],
        lambda x: x * torch.tensor([*range(len(x))])[:, None],
        lambda x: x * len(x) ** 0.5,
    ],
)
def test_no_graph_for_all(function: Callable[[Tensor], Tensor]) -> None:
    assert made_for_all(subject(function)) is None


def test_what_is_not_alike_far_off() -> None:
    """What is recorded otherwise for another size is for one, whatever some graphs have in common; so is what fails."""

    def record(sizes: Sizes) -> Graph:
        return NOTHING if sizes[0] > 4 else Graph((), (0,), ())

    def refuse(*_: Any) -> None:
        raise ValueError

    def halves(x: Tensor) -> Tensor:
        return x.sin() if len(x) % 2 else x.cos()

    assert made_for_all(subject(torch.sin, record=record)) is None
    assert made_for_all(subject(halves, record=lambda sizes: Graph((), (sizes[0] % 2,), ()))) is None
    assert made_for_all(subject(torch.sin, agrees=lambda made, sizes: False)) is None
    assert made_for_all(subject(torch.sin, agrees=refuse)) is None
    assert made_for_all(subject(torch.sin, make=refuse)) is None


def test_plans_are_not_made_in_vain() -> None:
    """They take long: none where recordings are not alike, and few where they hold other tensors."""

    def counted(function: Callable[[Tensor], Tensor], **others: Any) -> int:
        made: list[Sizes] = []

        def make(sizes: Sizes) -> Made:
            made.append(sizes)
            return subject(function).make(sizes)

        assert made_for_all(subject(function, make=make, **others)) is None
        return len(made)

    assert counted(torch.sin, record=lambda sizes: Graph((), (sizes[0] % 2,), ())) == 0
    assert counted(lambda x: x * torch.tensor([*range(len(x))])[:, None]) == 2
    assert counted(lambda x: x * len(x) ** 0.5) == 5
    assert counted(lambda x: torch.cat([x] * len(x))) < 8


def test_what_is_no_refusal_is_raised() -> None:
    def fail(*_: Any) -> Made:
        raise AttributeError

    with pytest.raises(AttributeError):
        made_for_all(subject(torch.sin, make=fail))


def test_sizes_that_may_not_occur_are_not_tried() -> None:
    def make(sizes: Sizes) -> Made:
        assert 5 <= sizes[0] <= 40
        return subject(torch.sin).make(sizes)

    assert made_for_all(subject(torch.sin, make=make, allow=lambda sizes: 5 <= sizes[0] <= 40)) is not None
    assert made_for_all(subject(torch.sin, allow=lambda sizes: sizes == (6,))) is None
