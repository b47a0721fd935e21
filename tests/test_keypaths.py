"""Parts of arguments, named by positions and paths."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node

import hofunc
from hofunc.arguments import Arguments, split
from hofunc.keypaths import Part, is_entry, part_of
from tests.checks import refused

Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Nameless:
    """A class whose parts have no names for torch."""

    left: Any
    right: Any


register_pytree_node(
    Nameless, lambda each: ([each.left, each.right], None), lambda parts, _: Nameless(*parts), serialized_type_name="x"
)


def arguments(*args: Any, argnums: Any = 0) -> Arguments:
    return split("hod", args, {}, argnums)


def x() -> Tensor:
    return torch.zeros(2)


NESTED: dict[Any, Any] = {"layers": [{"w": x(), "b": x()}, {"w": x()}], "pair": Pair(x(), [x()]), 0: x(), True: x()}


@pytest.mark.parametrize(
    ("entry", "path", "tree"),
    [
        (0, (0,), {"layers": [{"w": 0, "b": 1}, {"w": 2}], "pair": Pair(3, [4]), 0: 5, True: 6}),
        (-2, (0,), {"layers": [{"w": 0, "b": 1}, {"w": 2}], "pair": Pair(3, [4]), 0: 5, True: 6}),
        ("layers", (0, "layers"), [{"w": 0, "b": 1}, {"w": 2}]),
        (("layers", 1), (0, "layers", 1), {"w": 2}),
        (("layers", 0, "b"), (0, "layers", 0, "b"), 1),
        ((0, "layers", 0, "b"), (0, "layers", 0, "b"), 1),
        (("pair", "second"), (0, "pair", "second"), [4]),
        ((0, 0), (0, 0), 5),
        ((0, True), (0, True), 6),
        ((True,), (0, True), 6),
    ],
)
def test_paths_lead_to_parts(entry: Any, path: tuple[Any, ...], tree: Any) -> None:
    assert part_of("hod", entry, arguments(NESTED, x())) == Part(tree, path)


def test_leaves_are_numbered_over_all_arguments() -> None:
    given = arguments([x(), x()], x(), {"w": x()}, argnums=(2, 0))
    assert part_of("hod", 2, given).tree == {"w": 0}
    assert part_of("hod", (0, 1), given).tree == 2
    assert part_of("hod", "w", given).tree == 0


def test_classes_that_are_pytrees() -> None:
    given = arguments(Nameless(x(), OrderedDict(w=x())))
    assert part_of("hod", (0, 0), given).tree == 0
    assert part_of("hod", (0, 1, "w"), given).tree == 1


def test_what_names_nothing_is_refused_with_what_is_close() -> None:
    given = arguments(NESTED, x())

    def named(entry: Any) -> Any:
        return lambda: part_of("hod", entry, given)

    error = hofunc.ArgumentError
    refused(named("b"), error, "hod: an entry", "'b', which names no tensor", "Did you mean (0, 'layers', 0, 'b')?")
    refused(named((0, "layer", 0)), error, "(0, 'layers', 0)")
    refused(named(("layers", 2)), error, "('layers', 2), which", "(0, 'layers', 1)")
    refused(named(1), error, "one of what is differentiated by, 0, or a path in one")
    refused(named(-3), error, "got -3")
    refused(named("qqqqqqqq"), error, "There are (0, 'layers'), (0, 'layers', 0), ")
    refused(named(("layers", 0, "w", "w")), error, "which names no tensor")
    refused(lambda: part_of("hod", "w", arguments(x())), error, "Name an argument.")
    refused(lambda: part_of("hod", "e", arguments({"w": x(), "e": {}})), error, "'e', which names no tensor")


def test_what_names_several_is_refused() -> None:
    given = arguments({"w": x()}, {"w": x(), "v": x()}, argnums=(0, 1))
    refused(lambda: part_of("hod", "w", given), hofunc.ArgumentError, "args[0]['w'] and args[1]['w']", "(0, 'w')")
    assert part_of("hod", (1, "w"), given).tree == 1
    assert part_of("hod", "v", given).tree == 2


@pytest.mark.parametrize("entry", [0, -1, "w", ("layers", 0), (0,), (None, 1.5)])
def test_entries(entry: Any) -> None:
    assert is_entry(entry)


@pytest.mark.parametrize("entry", [True, 1.0, None, (), ["w"], {"w"}, x(), (0, x()), (0, ["w"])])
def test_what_is_no_entry(entry: Any) -> None:
    assert not is_entry(entry)
