"""Family G: functions that read at the indices of a graph, once for torch and JAX, and which derivative is wanted."""

import torch
from torch import Tensor

from .functions import Array, Ops, attention
from .workloads import Random, Workload

SPACING = 1.2  # of atoms, in units of the length of Lennard-Jones
CUTOFF = 2.0  # of neighbour lists: those beside an atom, and across a square


def pairs(_: Ops, constants: tuple[Array, Array], x: Array) -> Array:
    """Return the Lennard-Jones energy of pairs among points x (n, 3), given by two vectors of indices."""
    first, second = constants
    inverse = 1 / ((x[first] - x[second]) ** 2).sum(-1) ** 3
    return (4 * (inverse * inverse - inverse)).sum()


def elements(_: Ops, constants: tuple[Array, Array], x: Array) -> Array:
    """Return the neo-Hookean energy of triangles among points x (n, 2), given by corners (m, 3) and rest (m, 2, 2)."""
    corners, inverses = constants
    at = x[corners]
    one, other = at[:, 1] - at[:, 0], at[:, 2] - at[:, 0]
    stretch = one[:, :, None] * inverses[:, :1] + other[:, :, None] * inverses[:, 1:]
    area = stretch[:, 0, 0] * stretch[:, 1, 1] - stretch[:, 0, 1] * stretch[:, 1, 0]
    return ((stretch * stretch).sum((-2, -1)) / area + (area - 1) ** 2).sum()


def continuous_filters(ops: Ops, constants: tuple[Array, ...], x: Array) -> Array:
    """Return the energy of atoms at x (n, 3) by layers of messages as in SchNet, along edges within CUTOFF.

    A message is the sender's features (n, w) times a filter, which a network makes of Gaussians of the distance.
    """
    (receivers, senders), (centres, sharpness), features, layers, (weight, readout) = constants
    distance = ((x[receivers] - x[senders]) ** 2).sum(-1) ** 0.5
    basis = ops.exp(-sharpness * (distance[:, None] - centres) ** 2)
    reach = (1 - (distance / CUTOFF) ** 2)[:, None] ** 2  # goes to zero smoothly
    for first, second, before, after in layers:
        filters = ops.tanh(basis @ first) @ second * reach
        heard = ops.add_at(len(x), receivers, (features @ before)[senders] * filters)
        features = features + ops.tanh(heard @ after)
    return (ops.tanh(features @ weight) @ readout).sum()


def graph_convolution(ops: Ops, constants: tuple[Array, ...], features: Array, parameters: dict[str, Array]) -> Array:
    """Return the mean cross-entropy of nodes by two layers that average over neighbours, of their features (n, d)."""
    (receivers, senders, scales), targets = constants

    def averaged(values: Array) -> Array:
        return ops.add_at(len(targets), receivers, values[senders] * scales[:, None])

    hidden = ops.tanh(averaged(features @ parameters["weight1"]) + parameters["bias1"])
    return ops.cross_entropy(averaged(hidden @ parameters["weight2"]) + parameters["bias2"], targets)


def convolution_by_features(ops: Ops, constants: tuple[Array, ...], features: Array) -> Array:
    """Return the network on a graph with its parameters among the constants."""
    graph, parameters = constants
    return graph_convolution(ops, graph, features, parameters)


def convolution_by_parameters(ops: Ops, constants: tuple[Array, ...], parameters: dict[str, Array]) -> Array:
    """Return the network on a graph with its features among the constants."""
    graph, features = constants
    return graph_convolution(ops, graph, features, parameters)


def bag(ops: Ops, constants: tuple[Array, ...], table: Array) -> Array:
    """Return the mean cross-entropy of sentences (N, T) of tokens, by a network of the mean of their embeddings."""
    tokens, targets, first, second = constants
    return ops.cross_entropy(ops.tanh(table[tokens].mean(1) @ first) @ second, targets)


def sentence(ops: Ops, constants: tuple[Array, ...], table: Array) -> Array:
    """Return attention among the embeddings of tokens (T,)."""
    tokens, *of_attention = constants
    return attention(ops, tuple(of_attention), table[tokens])


# Workloads.


def _grid(*counts: int) -> Tensor:
    """Return the points of a grid of distance one, each moved a little."""
    points = torch.cartesian_prod(*[torch.arange(float(count)) for count in counts])
    return points + 0.1 * Random()(*points.shape)


def _atoms(count: int) -> Tensor:
    """Return the first atoms of the smallest cube that has as many."""
    side = next(side for side in range(count) if side**3 >= count)
    return SPACING * _grid(side, side, side)[:count]


def pairs_whole(count: int, order: int = 2) -> Workload:
    """All pairs of atoms: the dense derivative of their Lennard-Jones energy, (atoms, 3, atoms, 3, ...)."""
    x = _atoms(count)
    first, second = torch.triu_indices(count, count, 1)
    name = f"G Lennard-Jones{_of(order)}, {count} points"
    return Workload(name, pairs, (first, second), (x,), order, rows=False)


def _of(order: int) -> str:
    return "" if order == 2 else f" order {order}"


def elements_whole(triangles: int) -> Workload:
    """Triangles of a rectangle: the dense Hessian of their neo-Hookean energy, (points, 2, points, 2)."""
    squares = triangles // 2
    rows = next(count for count in range(int(squares**0.5), 0, -1) if squares % count == 0)
    shape = rows + 1, squares // rows + 1
    numbers = torch.arange(shape[0] * shape[1]).view(shape)
    a, b, c, d = (part.flatten() for part in (numbers[:-1, :-1], numbers[1:, :-1], numbers[:-1, 1:], numbers[1:, 1:]))
    corners = torch.cat([torch.stack([a, b, c], 1), torch.stack([d, c, b], 1)])
    ones = torch.eye(2).expand(len(a), 2, 2)
    name = f"G finite elements, {len(corners)} triangles"
    return Workload(name, elements, (corners, torch.cat([ones, -ones])), (_grid(*shape),), 2, rows=False)


def filters_whole(count: int, depth: int = 1, width: int = 16, order: int = 2) -> Workload:
    """Atoms with neighbours within CUTOFF: the dense derivative of the energy of a network like SchNet."""
    random, x = Random(), _atoms(count)
    edges = tuple(((torch.cdist(x, x) < CUTOFF) & ~torch.eye(count, dtype=torch.bool)).nonzero().T.contiguous())
    layers = tuple(tuple(random(width, width) / width**0.5 for _ in range(4)) for _ in range(depth))
    readout = random(width, width) / width**0.5, random(width)
    gaussians = torch.linspace(0.5, CUTOFF, width), 10.0
    name = f"G SchNet-like{_of(order)}, {count} points, depth {depth}, width {width}"
    constants = (edges, gaussians, random(count, width), layers, readout)
    return Workload(name, continuous_filters, constants, (x,), order, rows=False)


def convolution_whole(by: str, nodes: int = 64, width: int = 8, hidden: int = 16, classes: int = 4) -> Workload:
    """A network on a random graph, three edges a node: the dense Hessian by its "features" or its "parameters"."""
    random = Random()
    parameters = {
        "bias1": random(hidden) / 2,  # sorted by name, as JAX sorts them
        "bias2": random(classes) / 2,
        "weight1": random(width, hidden) / width**0.5,
        "weight2": random(hidden, classes) / hidden**0.5,
    }
    nearest = random(nodes, nodes).topk(3).indices
    linked = torch.eye(nodes).scatter(1, nearest, 1.0)
    linked = torch.maximum(linked, linked.T)
    receivers, senders = linked.nonzero().T.contiguous()
    degrees = linked.sum(1)
    edges = receivers, senders, (degrees[receivers] * degrees[senders]).rsqrt()
    graph, features = (edges, torch.arange(nodes) % classes), random(nodes, width)
    name = f"G graph convolution by {by}, {nodes} nodes"
    if by == "features":
        return Workload(name, convolution_by_features, (graph, parameters), (features,), 2, rows=False)
    return Workload(name, convolution_by_parameters, (graph, features), (parameters,), 2, rows=False)


def bag_whole(vocabulary: int = 100, width: int = 8, sentences: int = 32, length: int = 8) -> Workload:
    """A classifier of sentences: the dense Hessian by its table of embeddings."""
    random, classes = Random(), 4
    tokens = torch.randint(vocabulary, (sentences, length), generator=random.generator)
    weights = random(width, width) / width**0.5, random(width, classes) / width**0.5
    name = f"G bags of tokens by embedding, {vocabulary}x{width}, {sentences} bags of {length}"
    constants = (tokens, torch.arange(sentences) % classes, *weights)
    return Workload(name, bag, constants, (random(vocabulary, width),), 2, rows=False)


def sentence_whole(vocabulary: int = 100, width: int = 8, length: int = 16) -> Workload:
    """Attention among the tokens of a sentence: the dense Hessian by the table of embeddings."""
    random = Random()
    tokens = torch.randint(vocabulary, (length,), generator=random.generator)
    maps = (random(width, width) / width**0.5 for _ in range(3))
    name = f"G sentence by embedding, {vocabulary}x{width}, {length} tokens"
    constants = (tokens, *maps, random(length, width))
    return Workload(name, sentence, constants, (random(vocabulary, width),), 2, rows=False)
