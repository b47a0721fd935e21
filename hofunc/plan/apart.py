"""Apart: along which of their labels contractions are multiplied by unit vectors, to be computed for some at a time.

Labels of a result are those of a slot, or of the output, that follow each other. Labels that are summed stand at
several axes of the derivative, or on operands alone.
"""

from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from math import prod
from typing import NamedTuple

from hofunc.plan.blueprint import Blueprint
from hofunc.plan.slots import Slot, canonical, is_tag, labels_of
from hofunc.plan.units import ROW, Multiplied, Part, Units, blocks_of
from hofunc.plan.wanted import Contraction, Contractions, InGraph
from hofunc.rules.lower import Lowered

Labels = tuple[str, ...]


class Along(NamedTuple):
    """Labels along which a contraction is multiplied, each of them by matrices of its own if it is summed over them."""

    names: Labels
    is_summed: bool


def of_contractions(lowered: Lowered, whole: Blueprint, wanted: Contractions, count: int) -> list[Multiplied]:
    """Return the contractions that a blueprint computes, along so many labels that they sum over.

    Along one, they may be labels that follow each other in a slot, or in the output, and in the result, instead. There
    is one way for each label, or for each number of labels; none if there is nothing to take apart.
    """
    in_graph = InGraph(lowered.graph)
    asked = [(output, number, wanted.sums[number]) for output, (number,) in blocks_of(whole)]
    sizes = {one: in_graph.sizes(in_graph.of(one)) for *_, sums in asked for one in sums}
    runs = [Along(_run_of(first, sizes[first]), is_summed=False) for *_, (first, *_) in asked]
    ways: list[list[list[Along]]] = []
    if count == 1:
        ways.append([[run] * len(sums) for run, (*_, sums) in zip(runs, asked, strict=True)])
    every = {one: _summed(one, sizes[one]) for one in sizes}
    tried = range(max(map(len, every.values()), default=0)) if count == 1 else [0]
    ways += [
        [
            [Along(found, is_summed=True) if (found := _some(every[one], chosen, count)) else run for one in sums]
            for run, (*_, sums) in zip(runs, asked, strict=True)
        ]
        for chosen in tried
    ]
    made = [_along(lowered, asked, sizes, way) for way in ways]
    different = {tuple(map(_form, each.parts)): each for each in made[::-1] if each is not None}
    return [*different.values()][::-1]


def _form(part: Part) -> Hashable:
    """Return what is the same of parts that differ only by which of two labels is meant that stand alike."""
    forms = []
    for asked in part.contractions:
        whole = asked.whole()
        late = tuple([bearer for bearer in asked.operands if bearer not in [each.bearer for each in whole.operands]])
        fixed = (*asked.result, *labels_of([asked.output, *late]))
        forms.append((asked.output, canonical(whole, fixed)[0], late, asked.result))
    return part.group, part.output, part.place, tuple(forms)


def most_summed(lowered: Lowered, wanted: Contractions) -> int:
    """Return along how many labels that it sums over a contraction can be multiplied."""
    in_graph = InGraph(lowered.graph)
    return max((len(_summed(one, in_graph.sizes(in_graph.of(one)))) for one in chain(*wanted.sums)), default=0)


def _some(names: Labels, chosen: int, count: int) -> Labels:
    """Return one of some labels, or so many."""
    return names[min(chosen, len(names) - 1) :][:1] if count == 1 else names[:count]


def _along(
    lowered: Lowered,
    asked: Sequence[tuple[int, int, Sequence[Contraction]]],
    sizes: Mapping[Contraction, Mapping[str, int]],
    way: Sequence[Sequence[Along]],
) -> Multiplied | None:
    """Return contractions along the labels that are chosen for each; None if there is only one row."""
    found: list[tuple[int, int, Sequence[Contraction], Along]] = []
    for place, ((output, _, sums), each) in enumerate(zip(asked, way, strict=True)):
        if any(along.is_summed for along in each):  # each by itself, as their labels are of other sizes
            found += [(output, place, (one,), along) for one, along in zip(sums, each, strict=True)]
        else:
            found.append((output, place, sums, each[0]))
    shapes = []
    for *_, (first, *_), (names, is_summed) in found:
        shape = tuple([int(sizes[first][name]) for name in names])
        shapes.append(tuple([(size,) for size in shape]) if is_summed else (shape,))
    extents = [prod(chain(*each)) for each in shapes]
    if 0 in extents or max(extents, default=0) < 2:
        return None
    names_of = [ROW if along.is_summed else along.names for *_, along in found]
    groups = [*zip(names_of, shapes, strict=True)]
    units = Units(lowered, {group: group[1] for group in groups})
    parts = []
    for (output, place, sums, (names, is_summed)), group in zip(found, groups, strict=True):
        shape = joint = tuple([int(sizes[sums[0]][name]) for name in sums[0].result])
        if is_summed:
            multiplied = tuple([units.summed(one, group, names) for one in sums])
        else:
            start = sums[0].result.index(names[0]) if names else 0
            multiplied = tuple([units.multiplied(one, group, [names], start) for one in sums])
            joint = (*shape[:start], units.rows[group], *shape[start + len(names) :])
        parts.append(Part(group, output, multiplied, shape, joint, place))
    return Multiplied(units, tuple(parts))


def _run_of(asked: Contraction, sizes: Mapping[str, int]) -> Labels:
    """Return the labels that follow each other in a slot, or in the output, and in the result, which stand for most."""
    runs = [_run(slot, asked.result) for slot in (*asked.slots, (asked.output,))]
    return max(runs, key=lambda run: prod([int(sizes[name]) for name in run]))


def _summed(asked: Contraction, sizes: Mapping[str, int]) -> Labels:
    """Return the labels whose entries a contraction can be the sum over, those that stand for most first.

    These stand at several axes of the derivative, or only on operands that multiply slots. Others would be as much to
    compute for each entry as for all of them.
    """
    slots = chain(*asked.slots)
    of_one = {*labels_of(bearer for bearers in asked.slots if len(bearers) == 1 for bearer in bearers)}
    of_several = {*labels_of(bearer for bearers in asked.slots if len(bearers) > 1 for bearer in bearers)}
    axes = [index for _, indices in (*slots, asked.output) for index in indices]
    operands = [indices for _, indices in asked.operands]
    meeting = {*chain(*(indices for indices in operands if not of_one.isdisjoint(indices)))}
    found, read = [], []
    for name in labels_of([asked.output, *chain(*asked.slots), *asked.operands]):
        if name in asked.result or name in of_several or is_tag(name) or sizes[name] < 2:
            continue
        if axes.count(name) > 1 and name in of_one:
            found.append(name)
        elif name in meeting and name not in axes and all(indices.count(name) < 2 for indices in operands):
            read.append(name)
    read = sorted(read, key=lambda name: -sizes[name])[:1]  # along one axis of each operand
    return tuple(sorted([*found, *read], key=lambda name: -sizes[name]))


def _run(slot: Slot, result: Sequence[str]) -> tuple[str, ...]:
    """Return the labels of a slot that follow each other in a result, from its first on; none of several inputs."""
    (_, indices), *others = slot
    names = [] if others else [name for name in indices if name in result]
    count = len(names)
    while count and tuple(result[result.index(names[0]) :][:count]) != tuple(names[:count]):
        count -= 1
    return tuple([str(name) for name in names[:count]])
