"""What only reads is named anew as it is composed."""

import pytest
import torch

from hofunc.algebra.compose import compose
from hofunc.algebra.extents import Rows
from hofunc.algebra.labels import Axes, Label, Segment, full
from hofunc.algebra.term import Factor, Term, pattern
from hofunc.graph.ledger import Ledger
from hofunc.graph.node import Ref
from hofunc.plan.builder import Builder
from hofunc.plan.program import Register
from hofunc.plan.reads import placed, read
from hofunc.rules.lower import lower
from tests.cases import rand


@pytest.fixture
def builder() -> Builder:
    value, ledger = rand(torch.device("cpu"), 2), Ledger()
    ledger.add_input(value, active=True)
    graph = ledger.graph([value])
    return Builder(lower(graph, [value], 1), value.dtype)


def whole(*sizes: int) -> Axes:
    return tuple([(full(Label(size)),) for size in sizes])


def row(at: int) -> Term:
    """Return twice the derivative of a row of a matrix of 5 x 3."""
    axes = whole(3)
    return Term(2, (), axes, (((Segment(None, at, 5),), *axes),))


def part(start: int) -> Term:
    """Return the derivative of three elements of a vector of seven."""
    label = Label(3)
    return Term(1, (), ((full(label),),), (((Segment(label, start, 7),),),))


def matrix() -> Term:
    """Return the derivative of a matrix that was laid flat."""
    one, other = Label(2), Label(3)
    axes = ((full(one), full(other)),)
    return Term(1, (), axes, (((full(one),), (full(other),)),))


def turned() -> Term:
    one, other = Label(3), Label(2)
    return Term(3, (), ((full(one),), (full(other),)), (((full(other),), (full(one),)),))


def blocks_by(shape: tuple[int, ...]) -> list[Term]:
    """Return a block by a node twice: a full one and a diagonal, and one of which a part is known."""
    out, first, second = whole(4), whole(*shape), whole(*shape)
    core = Factor(Register(-1), (*out, *first, *second))
    label, rest = Label(shape[0] - 1), whole(*shape[1:])
    known = ((Segment(label, 1, shape[0]),), *rest)
    return [
        Term(1, (core,), out, (first, second)),
        Term(2, (Factor(Register(-2), (*out, *first)),), out, (first, first)),
        Term(3, (Factor(Register(-3), ((full(label),), *rest)),), (), (known, known)),
    ]


@pytest.mark.parametrize("is_read", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("inner", [row(0), row(4), part(2), turned()], ids=["row", "last row", "part", "turned"])
def test_a_read_is_its_composition(builder: Builder, inner: Term, is_read: tuple[bool, bool]) -> None:
    for outer in blocks_by(tuple([axis[0].extent for axis in inner.out])):
        before = builder.effort
        found = read(builder, outer, is_read, inner)
        expected = compose(outer, [inner if reads else None for reads in is_read])
        assert found is not None
        assert expected is not None
        assert pattern(found) == pattern(expected)
        assert found.coefficient == expected.coefficient
        assert [factor.source for factor in found.factors] == [factor.source for factor in expected.factors]
        assert builder.effort == before + 1


def test_what_takes_more_than_names_is_left_to_composing(builder: Builder) -> None:
    label, axes = Label(3), whole(3)
    outer = Term(1, (Factor(Register(-1), axes),), (), (axes,))
    summed = Term(1, (), (), (((full(label),),),))
    spread = Term(1, (), whole(2, 3), (axes,))
    scaled = Term(1, (Factor(Register(-2), axes),), axes, (axes,))
    assert read(builder, Term(1, (), (), ((),)), [True], summed) is None
    assert read(builder, Term(1, (), (), (whole(2, 3),)), [True], spread) is None
    assert read(builder, outer, [True], scaled) is None
    assert read(builder, outer, [True], matrix()) is None


def flipped(term: Term) -> Term:
    """Return the derivative of a node that has another one as a part, given that of one that reads such a part."""
    return term._replace(out=term.slots[0], slots=(term.out,))


@pytest.mark.parametrize(
    "outer", [row(0), row(4), part(2), flipped(matrix()), turned()], ids=["row", "last row", "part", "flat", "turned"]
)
def test_a_part_is_placed_as_it_is_composed(builder: Builder, outer: Term) -> None:
    outer = flipped(outer)
    shape = tuple([axis[0].extent for axis in outer.slots[0]])
    for block in blocks_by(shape):
        inner = block._replace(out=block.slots[0], slots=(block.slots[1], block.out))
        found, expected = placed(builder, outer, inner), compose(outer, [inner])
        assert found is not None
        assert expected is not None
        assert pattern(found) == pattern(expected)
        assert found.coefficient == expected.coefficient
        assert [factor.source for factor in found.factors] == [factor.source for factor in expected.factors]


def test_what_is_not_only_placed_is_left_to_composing(builder: Builder) -> None:
    label, axes, rows = Label(3), whole(3), whole(Rows(3))
    inner = Term(1, (Factor(Register(-1), axes),), axes, ())
    assert placed(builder, Term(1, (), (), (((full(label),),),)), inner) is None  # a sum
    assert placed(builder, Term(1, (Factor(Register(-2), axes),), axes, (axes,)), inner) is None
    assert placed(builder, Term(1, (), axes, (axes, axes)), inner) is None
    assert placed(builder, Term(1, (), rows, (rows,)), inner) is None  # axes that meet are the rows then
    assert placed(builder, Term(1, (), axes, (axes,)), inner._replace(factors=(Factor(Ref(0), axes),))) is None
