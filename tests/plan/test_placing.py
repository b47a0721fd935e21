"""Many parts of a dense tensor, placed at once, against adding them one by one."""

import pytest
import torch

from hofunc.algebra.extents import Rows
from hofunc.algebra.labels import Axes, Label, Segment, full
from hofunc.plan.builder import Builder
from hofunc.plan.placing import joint
from hofunc.plan.program import Register
from hofunc.run.executor import compiled
from hofunc.views import Labelled, Part, assembled
from tests.cases import rand
from tests.graph.recordings import recorded
from tests.plan.plans import builder_of, names

SIZE = 9


@pytest.fixture
def builder(device: torch.device) -> Builder:
    return builder_of(recorded(torch.sin, rand(device, 40)))


def part(builder: Builder, coefficient: float, *axes: tuple[Label | None, int], missing: int = 0) -> Part:
    """Return a part of a square whose source has the labels of its axes, but for some of the last."""
    labels = [label for label in dict.fromkeys(label for label, _ in axes) if label is not None][: 2 - missing]
    tensor = builder.value(0)
    count = 1
    for label in labels:
        count *= label.size
    tensor = builder.emit(torch.narrow, tensor, 0, 3 * int(abs(coefficient)), count)
    tensor = builder.emit(torch.reshape, tensor, tuple(label.size for label in labels))
    where: Axes = tuple((Segment(label, start, SIZE),) for label, start in axes)
    return Part(coefficient, Labelled(tensor, tuple(labels)), where)


def parts_of(builder: Builder, kind: str) -> list[Part]:
    i, j = Label(2), Label(3)
    some = {
        "scalars": [part(builder, k + 1, (None, k), (None, (2 * k) % SIZE)) for k in range(SIZE)],
        "scalars that meet": [part(builder, k + 1, (None, k % 2), (None, 0)) for k in range(SIZE)],
        "ranges": [part(builder, k - 3, (i, k), (j, 6 - k)) for k in range(7)] + [part(builder, 2, (j, 0), (None, 8))],
        "diagonals": [part(builder, k + 1, (j, k), (j, 6 - k)) for k in range(7)] * 2,
        "what is constant along an axis": [part(builder, k + 1, (i, k), (j, 0), missing=1) for k in range(7)] * 2,
        "turned": [turned(builder, part(builder, 1 - 3 * (k % 2), (i, k), (j, 6 - k))) for k in range(7)] * 2,
        "all of it": [part(builder, k + 1, (None, k), (j, 3 * n)) for k in range(SIZE) for n in range(3)],
    }
    return some[kind]


def turned(builder: Builder, part: Part) -> Part:
    """Return a part whose source has its labels in the other order than its axes."""
    tensor, labels = part.source
    return part._replace(source=Labelled(builder.emit(torch.transpose, tensor, 0, 1), labels[::-1]))


def run(builder: Builder, register: Register, device: torch.device) -> torch.Tensor:
    x = rand(device, 40)
    return compiled(builder.program([register]))([x, x.sin()])[0]


@pytest.mark.parametrize(
    "kind",
    ["scalars", "scalars that meet", "ranges", "diagonals", "what is constant along an axis", "turned", "all of it"],
)
def test_parts_are_placed_at_once(kind: str, builder: Builder, device: torch.device) -> None:
    parts = parts_of(builder, kind)
    one_by_one = run(builder, assembled(builder.emit, parts), device)
    register = joint(builder, parts)
    torch.testing.assert_close(run(builder, register, device), one_by_one)
    found = names(builder.program([register]))
    assert [name for name in found if name in ("scattered", "gathered")] == [
        "gathered" if kind == "all of it" else "scattered"
    ]


def test_a_coefficient_of_many_parts_is_multiplied_with_once(builder: Builder) -> None:
    parts = parts_of(builder, "turned")
    assert len({part.coefficient for part in parts}) == 2
    found = names(builder.program([joint(builder, parts)]))
    assert (found.count("mul"), found.count("flat"), found.count("permute")) == (1, 1, 0)


def test_few_parts_and_rows_are_not(builder: Builder) -> None:
    few = parts_of(builder, "scalars")[:4]
    assert "scattered" not in names(builder.program([joint(builder, few)]))
    rows = Label(Rows(3))
    marked = [
        Part(
            1,
            Labelled(builder.emit(torch.narrow, builder.value(0), 0, k, 3), (rows,)),
            ((full(rows),), (Segment(None, k, 9),)),
        )
        for k in range(9)
    ]
    assert "scattered" not in names(builder.program([joint(builder, marked)]))
