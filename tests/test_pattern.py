"""Patterns as they are read, and what they mean for shapes, without tensors."""

import pytest
from torch.utils._pytree import tree_flatten

import hofunc
from hofunc.pattern import Bound, Tree, bound, parsed


def tree(first: int, *shapes: tuple[int, ...], name: str = "args[0]") -> Tree:
    """Return a tensor, or a tuple of several, numbered from a number on."""
    structure = 0 if len(shapes) == 1 else tuple(shapes and [0] * len(shapes))
    return Tree(tuple(range(first, first + len(shapes))), shapes, tree_flatten(structure)[1], name)


def meaning(text: str, output: Tree, *slots: Tree, operands: tuple[Tree, ...] = ()) -> Bound:
    return bound(parsed("einsum", text), output, slots, operands)


def test_groups_and_their_places() -> None:
    pattern = parsed("einsum", "b o,  b  i, i *p 2 ... -> i b")
    assert [token.text for token in pattern.output.tokens] == ["b", "o"]
    assert [[token.text for token in group.tokens] for group in pattern.others] == [["b", "i"], ["i", "*p", "2", "..."]]
    assert [token.text for token in pattern.result.tokens] == ["i", "b"]
    for group in (pattern.output, *pattern.others, pattern.result):
        for token in group.tokens:
            assert pattern.text[token.start :].startswith(token.text)


@pytest.mark.parametrize("text", ["->", ", i -> i", " , , -> ", "a,b,c->", "ä_1 -> ä_1"])
def test_groups_may_be_empty_and_spaces_left_out(text: str) -> None:
    assert len(parsed("einsum", text).others) == text.count(",")


@pytest.mark.parametrize(
    "text", ["b", "b -> b -> b", "b -> c", "b -> b b", "b 2 -> 2", "b, -i -> b", "* ->", "a.b ->", "1a ->"]
)
def test_what_is_no_pattern(text: str) -> None:
    with pytest.raises(hofunc.ArgumentError, match=r"einsum: the pattern\n    .*\n *\^+\n: got .*, expected "):
        parsed("einsum", text)


def test_names_and_places() -> None:
    x = tree(0, (4, 3))
    (result,) = meaning("b, b i, b 2, i -> b", tree(0, (4,)), x, x, operands=(tree(1, (3,)),)).results
    (contraction,) = result
    assert contraction.output == (0, ("b",))
    assert contraction.slots == (((0, ("b", "i")),), ((0, ("b", 2)),))
    assert contraction.operands == ((1, ("i",)),)
    assert contraction.result == ("b",)


@pytest.mark.parametrize(
    ("text", "output", "slot", "rows", "rest"),
    [
        ("..., ... i -> ...", (4, 5), (4, 5, 3), 2, 0),
        ("..., ... i -> ...", (), (3,), 0, 0),
        ("... *o, ... i -> ... *o", (4, 6, 7), (4, 3), 1, 2),
        ("*o, *p -> *o *p", (4, 6), (2, 3, 5), 0, 5),
    ],
)
def test_several_axes(text: str, output: tuple, slot: tuple, rows: int, rest: int) -> None:
    ((contraction,),) = meaning(text, tree(0, output), tree(0, slot)).results
    assert len(contraction.result) == rows + rest
    assert len({*contraction.result}) == rows + rest
    assert [name.split(".0")[0] for name in contraction.result[:rows]] == ["..."] * rows


def test_leaves_of_pytrees() -> None:
    y, p, v = tree(0, (4,), (5,)), tree(0, (2,), (3,)), tree(2, (2,), (3,))
    nested = meaning("*o, *p, *q, *q -> *o *p", y, p, p, operands=(v,))
    assert nested.nests == (-1, 0)
    assert [len(contractions) for contractions in nested.results] == [1, 1, 1, 1]
    for (contraction,) in nested.results:
        own, direction = contraction.slots
        assert len(own) == 1
        assert [number for number, _ in direction] == [0, 1]  # of one direction, all leaves are varied at once
        assert [number for number, _ in contraction.operands] == [2, 3]
    trace = meaning("*o, *p, *p -> ", y, p, p)
    assert trace.nests == ()
    assert [len(contractions) for contractions in trace.results] == [4]  # no two leaves of a name that is one
    diagonal = meaning("*o, *p, *p -> *p", y, p, p)
    assert diagonal.nests == (0,)
    assert [len(contractions) for contractions in diagonal.results] == [2, 2]
    apart = meaning("o, p, q -> ", tree(0, (4,)), p, p)
    assert apart.nests == (-1, 0, 1)  # without a star every leaf stands for itself


def test_what_is_the_same_for_all_leaves_is_told_once() -> None:
    shapes = [(size,) for size in range(1, 7)]
    p, v = tree(0, *shapes), tree(6, *shapes)
    found = meaning(", *p, *q, *q -> *p", tree(0, ()), p, p, operands=(v,))
    assert len({id(contraction.slots[1]) for (contraction,) in found.results}) == 1
    mixed = tree(6, *[(4, *shape) for shape in shapes])
    found = meaning("b, *p, *q, b *q -> *p", tree(0, (4,)), p, p, operands=(mixed,))
    for (contraction,) in found.results:
        directions = [indices for _, indices in contraction.slots[1]]
        assert contraction.operands == tuple([(6 + leaf, ("b", *axes)) for leaf, axes in enumerate(directions)])


def test_operands_have_no_places() -> None:
    with pytest.raises(hofunc.ArgumentError, match="a number in an operand"):
        meaning("b, b i, 0 -> b", tree(0, (4,)), tree(0, (4, 3)), operands=(tree(1, (3,)),))
