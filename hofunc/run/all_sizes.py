"""Graphs for all sizes, made of graphs for some.

A plan is for sizes that are numbers. It is made for several, near those that are asked for. Where the graphs are alike
but for numbers in them, and these are forms in the sizes, the forms take the place of the numbers: of what a rule of
derivatives, a label or a product is, nothing depends on a size in another way. Which steps are cheaper does, so that
graphs for sizes far apart are often not alike, and both are right; but the recorded functions have to be, for the least
size and for a large one. Whatever is not so, or holds tensors that depend on sizes, is for one size.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import islice
from operator import add, mul, truediv
from typing import Any, NamedTuple

import torch
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from hofunc.errors import HofuncError
from hofunc.graph.node import Graph, Ref
from hofunc.internals import tree_flatten, tree_unflatten
from hofunc.run.sizes import SPARE, Form, Sizes, form_of

LEAST = 2  # axes of size one are nobody's
_TRIES = 5  # how many graphs may be made in vain, as they are not like others
_PRIME, _ROOTS = 31, (3, 11, 12)  # of which powers are in no order, and no two alike in a row of thirty
REFUSALS = (HofuncError, RuntimeError, ValueError, IndexError, ArithmeticError)  # of sizes that do not fit a function
_SMALL = 5  # what is below is like other numbers: of axes, or of derivatives


class _Described(NamedTuple):
    """A graph but for its numbers, and these.

    Attributes:
        form: What is equal if graphs are alike.
        tensors: The tensors in it.
        numbers: Its ints and floats, in order.
    """

    form: Hashable
    tensors: Sequence[torch.Tensor]
    numbers: Sequence[float]

    def is_like(self, other: "_Described") -> bool:
        """Tell whether graphs are alike: whether only numbers tell one from the other."""
        return self.form == other.form and all(map(_are_equal, self.tensors, other.tensors))


class _Number:
    """Stands for a number in what describes a graph."""


def _described(module: GraphModule) -> _Described:
    """Describe an FX graph."""
    places = {node: Ref(place) for place, node in enumerate(module.graph.nodes)}
    tensors = [getattr(module, node.target) for node in module.graph.nodes if node.op == "get_attr"]
    parts = [
        (node.op, node.target if node.op == "call_function" else None, map_arg((node.args, node.kwargs), places.get))
        for node in module.graph.nodes
    ]
    numbers: list[float] = []
    return _Described(_taken_apart(parts, numbers), tensors, numbers)


def _described_recording(graph: Graph) -> _Described:
    """Describe the graph of a recorded function."""
    numbers: list[float] = []
    ends = [*map(Ref, (*graph.inputs, *graph.outputs, *graph.aux))]
    parts = [(node.op, node.args, node.kwargs, str(node.output), node.shape, node.dtype) for node in graph.nodes]
    return _Described(_taken_apart([parts, ends], numbers), (), numbers)


def _taken_apart(parts: Any, numbers: list[float]) -> Hashable:
    """Return something with a class in the place of each number, and append these."""
    if type(parts) in (int, float):
        numbers.append(parts)
        return _Number, type(parts)
    if isinstance(parts, Ref):
        return parts
    if isinstance(parts, Mapping):
        return tuple((name, _taken_apart(each, numbers)) for name, each in parts.items())
    if isinstance(parts, list | tuple):
        return type(parts).__name__, tuple([_taken_apart(each, numbers) for each in parts])
    return parts


def _are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one is other:
        return True
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    return type(one) is type(other) is torch.Tensor and torch.equal(one, other)


def _forms(graphs: Sequence[_Described], sizes: Sequence[Sizes]) -> list[Form | None] | None:
    """Return what each number of graphs that are alike is in terms of the sizes that they are for.

    Returns:
        For every number its form, None if it is the same in all; None in all if one is no form in sizes.
    """
    known: dict[tuple, Form | None] = {}
    found: list[Form | None] = []
    for values in zip(*(graph.numbers for graph in graphs), strict=True):
        if len({*map(repr, values)}) == 1:
            found.append(None)
            continue
        if values not in known:
            known[values] = form_of(values, sizes)
        if known[values] is None:
            return None
        found.append(known[values])
    return found


# What is made for all sizes.


class Made(NamedTuple):
    """What stands for a call of a transform.

    Attributes:
        graph: An FX graph.
        inputs: What it takes: tensors, and the numbers of others.
        returned: What is returned, but for tensors.
    """

    graph: GraphModule
    inputs: Sequence[Any]
    returned: Any

    def is_like(self, other: "Made") -> bool:
        """Tell whether nothing but the graphs may tell one from the other."""
        pairs = zip(self.inputs, other.inputs, strict=True)
        alike = len(self.inputs) == len(other.inputs) and self.returned == other.returned
        return alike and all(
            _are_equal(one, each) if isinstance(one, torch.Tensor) and isinstance(each, torch.Tensor) else one == each
            for one, each in pairs
        )


class Subject(NamedTuple):
    """What is to be made for all sizes.

    Attributes:
        hints: Some sizes.
        bounds: The least and the largest value of each, None if there is none.
        fixed: Other sizes, which are numbers.
        allow: Tells whether some sizes may occur.
        make: Makes it for some sizes.
        record: Returns the graph that it is planned from, for some sizes.
        agrees: Tells whether what was made for all sizes returns for some what is made for these.
    """

    hints: Sizes
    bounds: Sequence[tuple[int, int | None]]
    fixed: frozenset[int]
    allow: Callable[[Sizes], bool]
    make: Callable[[Sizes], Made]
    record: Callable[[Sizes], Graph]
    agrees: Callable[[Made, Sizes], bool]


def made_for_all(subject: Subject) -> Made | None:
    """Return what is made of a subject, whose graph takes the sizes after its other inputs; None if there is none.

    What takes least time comes first, as most of what is not for all sizes is told from that.
    """
    far = [each for each in (_least(subject), _large(subject)) if each is not None]
    try:
        alike = _alike(subject, far, len(subject.hints) + 1 + SPARE)
        if not alike:
            return None
        sizes, (made, *_), graphs = zip(*alike, strict=True)
        found = _forms(graphs, sizes)
        if found is None:
            return None
        _generalized(made.graph, found, len(subject.hints))
        return made if all(subject.agrees(made, each) for each in far) else None
    except REFUSALS:
        return None


def _alike(subject: Subject, far: Sequence[Sizes], most: int) -> list[tuple[Sizes, Made, _Described]]:
    """Return so many graphs that are alike, for sizes near each other, with these and what they are of; or none.

    Those that are not alike may be for other orders of the same steps, but recordings have to be alike for all sizes,
    far ones too, and numbers in them forms in sizes. Nor may graphs hold other tensors, which would depend on sizes.
    """
    near = [*islice(_near(subject), most + _TRIES)]
    recorded: list[_Described] = []
    groups: list[list[tuple[Sizes, Made, _Described]]] = []

    def is_one(sizes: Sizes) -> bool:
        recorded.append(_described_recording(subject.record(sizes)))
        return recorded[0].is_like(recorded[-1])

    if len(near) < most or not all(map(is_one, [near[0], *far])):
        return []
    for place, sizes in enumerate(near):
        if place and not is_one(sizes):
            return []
        made = subject.make(sizes)
        graph = _described(made.graph)
        group = next((each for each in groups if each[0][2].form == graph.form), None)
        if group is None:
            groups.append(group := [])
        elif not (group[0][2].is_like(graph) and group[0][1].is_like(made)):
            return []
        group.append((sizes, made, graph))
        if len(group) == most:
            return group if _forms(recorded, [near[0], *far, *near[1 : place + 1]]) is not None else []
        if max(map(len, groups)) + len(near) - place - 1 < most:
            return []
    return []


def _near(subject: Subject) -> Iterator[Sizes]:
    """Yield sizes near the hints, of which none is that of something else.

    No size is a polynomial in another one: a form in one of them must not look like a form in the other.
    """
    seen = set()
    for step in range(4 * _TRIES):
        for sign in (1, -1):
            sizes: list[int] = []
            for place, hint in enumerate(subject.hints):
                offset = step if place == 0 else pow(_ROOTS[place % len(_ROOTS)], step, _PRIME) - 1
                size = max(hint, _SMALL) + sign * (offset + max(offset - 1, 0) * (hint // 16))
                while size in subject.fixed or size in sizes:
                    size += sign
                sizes.append(size)
            if (near := tuple(sizes)) not in seen and subject.allow(near):
                seen.add(near)
                yield near
                break


def _least(subject: Subject) -> Sizes | None:
    """Return the least sizes that may occur."""
    starts = [
        tuple(max(least, LEAST) for least, _ in subject.bounds),
        *[tuple(h // k for h in subject.hints) for k in (4, 2)],
    ]
    return _first(subject, starts, 1)


def _large(subject: Subject) -> Sizes | None:
    """Return large sizes that may occur."""
    large = 2 * max((*subject.hints, *subject.fixed)) + 1
    ends = [tuple(large if most is None else min(large, most) for _, most in subject.bounds)]
    return _first(subject, [*ends, *[tuple(k * hint for hint in subject.hints) for k in (4, 2)]], -1)


def _first(subject: Subject, starts: Sequence[Sizes], sign: int) -> Sizes | None:
    moved = (
        tuple(size + sign * (step + place) for place, size in enumerate(start)) for start in starts for step in range(8)
    )
    return next((sizes for sizes in moved if subject.allow(sizes)), None)


def _generalized(module: GraphModule, found: Sequence[Form | None], count: int) -> None:
    """Let a graph take sizes after its other inputs, with forms of these in the place of its numbers.

    Args:
        module: The graph for some sizes.
        found: What each of its numbers is, None for one that stays.
        count: How many sizes there are.
    """
    graph = module.graph
    nodes = [node for node in graph.nodes if node.op != "placeholder"]
    rest = nodes[0]
    with graph.inserting_before(rest):
        sizes = [graph.placeholder(f"size_{number}") for number in range(count)]
    computed: dict[Form, Any] = {}
    supply = iter(found)

    def filled(leaf: Any) -> Any:
        form = next(supply) if type(leaf) in (int, float) else None
        if form is None:
            return leaf
        if form not in computed:
            with graph.inserting_before(rest):
                computed[form] = _written(graph, form, sizes)
        return computed[form]

    for node in nodes:
        leaves, spec = tree_flatten((node.args, node.kwargs))
        node.args, node.kwargs = tree_unflatten([*map(filled, leaves)], spec)
    module.recompile()


def _written(graph: FxGraph, form: Form, sizes: Sequence[Node]) -> Any:
    """Write what computes a form into a graph."""
    call: Callable[..., Any] = graph.call_function

    def powered(powers: Sequence[int], sign: int) -> Any:
        factors = [size for size, power in zip(sizes, powers, strict=True) for _ in range(max(sign * power, 0))]
        return _folded(lambda one, other: call(mul, (one, other)), factors)

    def term(coefficient: Any, powers: Sizes) -> Any:
        over, under = powered(powers, 1), powered(powers, -1)
        value = coefficient if over is None else over if coefficient == 1 else call(mul, (over, coefficient))
        return value if under is None else call(truediv, (value, under))

    total = _folded(lambda one, other: call(add, (one, other)), [term(*each) for each in form.terms])
    if form.power > 0:
        return total
    return call(truediv, (float(form.sign), _folded(lambda one, other: call(mul, (one, other)), [total] * -form.power)))


def _folded(join: Callable[[Any, Any], Any], parts: Sequence[Any]) -> Any:
    found = parts[0] if parts else None
    for part in parts[1:]:
        found = join(found, part)
    return found
