"""The contractions that gradients of contractions are, told without tensors."""

import torch

from hofunc.graph.node import INPUT, Graph, Node
from hofunc.plan.gradients import Cut, cut, given, with_gradients
from hofunc.plan.wanted import Contraction, Contractions


def graph(*shapes: tuple[int, ...]) -> Graph:
    """Return a graph of inputs, the last of which is the output as well."""
    nodes = [
        Node(number, INPUT, (), (), None, (), shape, torch.float64, torch.device("cpu"), True)
        for number, shape in enumerate(shapes)
    ]
    return Graph(tuple(nodes), tuple(range(len(nodes))), (len(nodes) - 1,))


def at(found: Graph, learned: int, *results: tuple[int, ...]) -> Cut:
    """Return the graph cut at one node, with as many results."""
    first = len(found.nodes)
    seeds = [given(first + place, shape, found.nodes[0]) for place, shape in enumerate(results)]
    return cut(found, [given(learned, found.nodes[learned].shape, found.nodes[learned])], seeds)


def test_a_gradient_has_a_slot_more_and_what_comes_back_for_an_operand() -> None:
    laplacian = Contraction((0, ("b",)), (((0, ("b", "i")),), ((0, ("b", "i")),)), (), ("b",))
    where = at(graph((4, 3), (3, 2), (4,)), 1, (4,))
    assert where.seeds == (3,)
    found = with_gradients(Contractions(((laplacian,),)), where)
    assert found is not None
    names = ("by 0", "by 1")
    expected = laplacian._replace(slots=(*laplacian.slots, ((1, names),)), operands=((3, ("b",)),), result=names)
    assert found.sums == ((laplacian,), (expected,))


def test_results_by_many_variables_come_back_along_one_direction() -> None:
    vector = ((0, ("p",)), (1, ("q", "r")))
    operands = ((2, ("p",)), (3, ("q", "r")))
    products = tuple(Contraction((0, ()), ((one,), vector), operands, one[1]) for one in ((0, ("s",)), (1, ("t", "u"))))
    where = at(graph((3,), (2, 2), (3,), (2, 2), ()), 0, (3,), (2, 2))
    found = with_gradients(Contractions(tuple((one,) for one in products)), where)
    assert found is not None
    ((gradient,),) = found.sums[2:]
    slot, same, learned = gradient.slots
    assert [node for node, _ in slot] == [0, 1]
    assert (same, learned) == (vector, ((0, ("by 0",)),))
    assert [node for node, _ in gradient.operands] == [2, 3, 5, 6]
    assert [names for _, names in gradient.operands[2:]] == [names for _, names in slot]


def test_operands_have_gradients_that_are_contractions_if_others_have_their_labels() -> None:
    slots = (((0, ("b", "i")),), ((0, ("b", "j")),))
    weighted = Contraction((0, ("b",)), slots, ((1, ("i", "j")),), ("b",))
    where = at(graph((4, 3), (3, 3), (4,)), 1, (4,))
    found = with_gradients(Contractions(((weighted,),)), where)
    assert found is not None
    (_, own), names = found.sums[1], ("by 0", "by 1")
    assert own == Contraction((0, ("b",)), (((0, ("b", "by 0")),), ((0, ("b", "by 1")),)), ((3, ("b",)),), names)
    alone = weighted._replace(operands=((1, ("i", "k")),))
    assert with_gradients(Contractions(((alone,),)), where) is None
    diagonal = weighted._replace(operands=((1, ("i", "i")),))
    assert with_gradients(Contractions(((diagonal,),)), where) is None
