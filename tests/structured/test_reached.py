"""Pictures of where entries may be: nothing is left out, and nothing is added where that can be told."""

from collections.abc import Callable
from xml.etree import ElementTree as ET

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.algebra.labels import fresh_axes
from hofunc.algebra.term import Term, identity
from hofunc.structured import reached
from hofunc.structured.plotted import magnitudes
from hofunc.structured.reached import Picture, as_svg, picture_of
from tests.cases import rand

EDGES = torch.tensor([[0, 3, 3, 9, 17], [5, 4, 3, 11, 0]])
FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "rows": (lambda x: (x.prod(-1).sin() + (x**3).sum(-1)).sum(), (7, 3)),
    "columns": (lambda x: x.sum(0).sin().sum(), (3, 7)),
    "all": (lambda x: x.sum().sin(), (5, 4)),
    "nothing": (lambda x: 2 * x, (5,)),
    "parts": (lambda x: torch.cat([x[:5].sin(), x[9:].cos()]), (20,)),
    "transposed": (lambda x: (x * x.T).sin(), (4, 4)),
    "edges": (lambda x: (x[EDGES[0]] - x[EDGES[1]]).sin().sum(), (18,)),
    "blocks": (lambda x: ((x @ x) ** 2).sum(), (3, 3)),
    "one number": (torch.sin, ()),
    "a reshape": (lambda x: (x.reshape(3, 4).sum(0).sin() * x[::3]).sum(), (12,)),
}


def filled(picture: Picture) -> Tensor:
    bits = [[bool(row >> column & 1) for column in range(picture.columns)] for row in picture.rows]
    return torch.tensor(bits).reshape(len(picture.rows), picture.columns)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_has_what_there_is(name: str, order: int) -> None:
    f, shape = FUNCTIONS[name]
    d = hofunc.hod(f, order, layout="compact")(rand(torch.device("cpu"), *shape) + 0.1)
    d = torch.utils._pytree.tree_map(lambda t: 1 + t.abs() if t.is_floating_point() else t, d)  # no zeros in cores
    output, *slots = map(len, d.shapes)
    for most in (4, 32):
        picture = picture_of(d.terms, d.shapes, most)
        expected = ~magnitudes(d.to_sparse(), output, slots, most).isnan()
        assert not (expected & ~filled(picture)).any(), f"{name}: it leaves something out"
        if picture.is_sharp:
            assert torch.equal(expected, filled(picture)), f"{name}: it has more than there is"


def test_what_is_told_exactly() -> None:
    for name, (f, shape) in FUNCTIONS.items():
        d = hofunc.hessian(f, layout="compact")(rand(torch.device("cpu"), *shape))
        assert picture_of(d.terms, d.shapes).is_sharp, name


def test_a_size_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reached, "_BOXES", 700)
    axes = fresh_axes((10**9, 3))
    shapes = [(), (10**9, 3), (10**9, 3)]
    diagonal = Term(1, (), (), (axes, axes))
    assert picture_of([diagonal], shapes, 8) == Picture(8, tuple(1 << n for n in range(8)), True)
    one, other = fresh_axes((10**9, 3)), fresh_axes((10**9, 3))
    assert picture_of([Term(1, (), (), (one, other))], shapes, 8) == Picture(8, (255,) * 8, True)


def test_beyond_its_limit_it_has_too_much_rather_than_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reached, "_BOXES", 3)
    assert picture_of([identity(fresh_axes((8,)))], [(8,), (8,)]).is_sharp is False
    assert int(filled(picture_of([identity(fresh_axes((8,)))], [(8,), (8,)])).diagonal().sum()) == 8


def test_indices_that_are_not_looked_at_may_be_any(monkeypatch: pytest.MonkeyPatch) -> None:
    f, shape = FUNCTIONS["edges"]
    d = hofunc.hessian(f, layout="compact")(rand(torch.device("cpu"), *shape))
    monkeypatch.setattr(reached, "_INDICES", 1)
    picture = picture_of(d.terms, d.shapes)
    assert (picture.is_sharp, bool(filled(picture).all())) == (False, True)


def test_without_elements() -> None:
    for shape in ((0,), (3, 0)):
        d = hofunc.hessian(torch.sin, layout="compact")(torch.ones(shape))
        assert as_svg(picture_of(d.terms, d.shapes)) == ""


def test_the_svg() -> None:
    picture = Picture(3, (0b011, 0b000, 0b101), True)
    svg = ET.fromstring(as_svg(picture, side=60))  # noqa: S314 - made here
    assert (svg.get("width"), svg.get("height"), svg.get("viewBox")) == ("60", "60", "0 0 3 3")
    assert [part.get("d") for part in svg if part.get("d")] == ["M0 0h2v1h-2zM0 2h1v1h-1zM2 2h1v1h-1z"]
    assert {part.get("fill") for part in svg} == {None, "currentColor"}
