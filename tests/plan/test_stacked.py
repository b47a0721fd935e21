"""Parts of a node that meet in a block are all of those whose compositions do not vanish."""

from collections.abc import Callable
from itertools import combinations_with_replacement, permutations

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.algebra.compose import compose
from hofunc.algebra.labels import Label, Segment
from hofunc.algebra.partitions import Key
from hofunc.algebra.term import Term
from hofunc.plan.stacked import LEAST, Stacked
from tests.cases import rand
from tests.plan.plans import lowered_plan
from verification.oracles import nested_reverse, relative_error

COUNT = LEAST + 1
CPU = torch.device("cpu")


def local(widths: list[int]) -> dict[Key, list[Term]]:
    """Return the derivatives of what is concatenated of parts of some widths, the last input first."""
    found: dict[Key, list[Term]] = {}
    start, whole = 0, sum(widths)
    for number, width in enumerate(widths):
        label = Label(width) if width > 1 else None
        out = ((Segment(label, start, whole),),)
        found[(len(widths) - number,)] = [Term(1, (), out, (((Segment(label, 0, width),),),))]
        start += width
    return found


def tied(*slots: tuple[int, int], extent: int) -> Term:
    """Return a term of which slots bear one label, each from a place on, and the others a label of their own."""
    label = Label(min(size for _, size in slots))
    return Term(1, (), (), tuple([((Segment(label, start, extent),),) for start, _ in slots]))


@pytest.mark.parametrize("widths", [[1] * COUNT, [2] * COUNT, [1, 3, 2] * 3])
@pytest.mark.parametrize("starts", [(0, 0), (1, 0), (2, 0), (0, 0, 0), (1, 0, 2)])
def test_parts_that_meet_are_those_whose_compositions_do_not_vanish(widths: list[int], starts: tuple[int, ...]) -> None:
    parts, extent = local(widths), sum(widths)
    found = Stacked.of(parts)
    assert found is not None
    size = extent - max(starts)
    terms = [tied(*((start, size) for start in order), extent=extent) for order in permutations(starts)]
    key = (99,) * len(starts)
    expected = [
        [*way]
        for way in combinations_with_replacement(sorted(parts), len(starts))
        if any(compose(term, [parts[each][0] for each in way]) is not None for term in terms)
    ]
    assert 0 < len(expected) < len([*combinations_with_replacement(parts, len(starts))])
    assert found.meeting(99, key, terms) == expected


def test_slots_that_are_not_tied_meet_in_all_parts() -> None:
    parts = local([2] * COUNT)
    labels = [Label(2 * COUNT), Label(2 * COUNT)]
    term = Term(1, (), (), tuple([((Segment(label, 0, 2 * COUNT),),) for label in labels]))
    found = Stacked.of(parts)
    assert found is not None
    assert len(found.meeting(99, (3, 99, 99), [term._replace(slots=((), *term.slots))])) == COUNT * (COUNT + 1) // 2


def test_what_is_not_put_together_of_many_has_no_parts() -> None:
    parts = local([1] * COUNT)
    overlapping = {key: [term._replace(out=parts[(1,)][0].out) for term in terms] for key, terms in parts.items()}
    assert Stacked.of(local([1] * (LEAST - 1))) is None
    assert Stacked.of(overlapping) is None
    assert Stacked.of(parts | {(1, 2): parts[(1,)]}) is None
    assert Stacked.of(parts | {(1,): parts[(1,)] * 2}) is None


def _neighbours(*leaves: Tensor) -> Tensor:
    x = torch.cat([leaf.reshape(-1) for leaf in leaves])
    return (x[1:] * x[:-1]).sin().sum() + (x[2:] * x[:-2] ** 2).exp().sum()


def _rows(*leaves: Tensor) -> Tensor:
    x = torch.stack(leaves, 1)
    return (x[:, 1:] * x[:, :-1]).sin().sum(1) + x.pow(3).sum(1)


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize(("f", "shape"), [(_neighbours, ()), (_neighbours, (2,)), (_rows, (2,))])
def test_derivatives_by_parts(f: Callable[..., Tensor], shape: tuple[int, ...], order: int) -> None:
    leaves = [rand(CPU, *shape, seed=seed) for seed in range(COUNT)]
    argnums = tuple(range(COUNT))
    found = hofunc.hod(f, order, argnums, strategy="reverse")(*leaves)
    assert relative_error(found, nested_reverse(f, order, argnums)(*leaves)) < 1e-12


def test_planning_by_many_leaves_is_in_proportion_to_what_meets() -> None:
    efforts = []
    for count in (40, 80):
        leaves = [rand(CPU, seed=seed) for seed in range(count)]
        efforts.append(lowered_plan(_neighbours, *leaves).effort)
    assert efforts[1] < 2.3 * efforts[0]
