"""Which sizes are measured: few that stand for all, and the whole grid.

The largest result is the Hessian by input and parameters at width 50: 8000 x 8000, 256 MB. Results over RESULT_LIMIT
are no points; what a way needs on the way to a result may be far more, and then that way is skipped.
"""

from collections.abc import Iterator
from itertools import chain

from . import contractions
from .contractions import Contraction
from .graphs import bag_whole, convolution_whole, elements_whole, filters_whole, pairs_whole, sentence_whole
from .workloads import (
    RESULT_LIMIT,
    Workload,
    attention_whole,
    classifier_parameters,
    convolutional_whole,
    perceptron_rows,
    thesis_parameters,
    thesis_rows,
    thesis_whole,
)


def points() -> Iterator[Workload | Contraction]:
    """Yield the points that `make bench-compare` takes: the ends of the grid and its middle."""
    yield from _whole_points()
    for contraction in contracted():
        yield from (contraction, contractions.step(contraction))


def _whole_points() -> Iterator[Workload]:
    for batch, width in ((10, 10), (100, 10), (10, 100)):
        yield thesis_rows(batch, width)
        yield thesis_whole(batch, width)
    yield thesis_rows(10, 10, depth=8)
    yield from (thesis_rows(10, width, order) for order in (3, 4) for width in (4, 8))
    yield from (thesis_parameters(width) for width in (5, 20))
    for activation, inputs, order, rows in (
        ("tanh", 2, 2, 128),
        ("tanh", 10, 2, 128),
        ("tanh", 2, 2, 1024),
        ("tanh", 10, 2, 1024),
        ("silu", 5, 2, 128),
        ("sin", 5, 2, 128),
        ("tanh", 2, 3, 128),
        ("tanh", 5, 3, 128),
        ("tanh", 2, 4, 128),
    ):
        yield perceptron_rows(inputs, order, rows, activation)
    yield from (attention_whole(length, width) for length, width in ((8, 8), (32, 16)))
    yield from (classifier_parameters(hidden) for hidden in (20, 70))
    yield from map(convolutional_whole, ("input", "parameters"))
    yield from map(pairs_whole, (27, 64, 256))
    yield pairs_whole(32, order=3)
    yield from map(elements_whole, (128, 512))
    yield from (filters_whole(27, depth=2), filters_whole(64))
    yield from map(convolution_whole, ("features", "parameters"))
    yield from (bag_whole(), sentence_whole())


def contracted() -> Iterator[Contraction]:
    """Yield the contractions that `make bench-compare` takes, each without and with a training step through it."""
    yield from (contractions.of_rows("Laplacian", inputs) for inputs in (2, 10, 50))
    yield contractions.of_rows("Laplacian", 3, activation="sin")
    yield contractions.of_rows("Laplacian", 10, rows=1024)
    yield contractions.weighted(10)
    yield from (contractions.of_rows("biharmonic", inputs) for inputs in (2, 5))
    yield from (contractions.partial_derivative(order) for order in (3, 4))
    yield contractions.product_of_classifier()
    yield contractions.product_of_attention()
    yield contractions.divergence()


def _all_contracted() -> Iterator[Contraction]:
    """Yield all contractions of the grid."""
    for rows in (128, 1024):
        for activation in ("tanh", "sin"):
            yield from (contractions.of_rows("Laplacian", inputs, rows, activation) for inputs in (2, 3, 10, 50, 200))
            yield contractions.weighted(10, rows, activation)
            yield from (contractions.of_rows("biharmonic", inputs, rows, activation) for inputs in (2, 5))
            yield from (contractions.partial_derivative(order, rows, activation) for order in (3, 4))
            yield contractions.divergence(10, rows, activation)
    yield from (contractions.product_of_classifier(70, batch) for batch in (32, 128, 1024))
    yield from (contractions.product_of_attention(*shape) for shape in ((32, 16), (128, 32)))


def grid() -> Iterator[Workload | Contraction]:
    """Yield every point, but for results over RESULT_LIMIT."""
    sizes = range(10, 101, 10)
    shapes = dict.fromkeys([*((batch, 10) for batch in sizes), *((10, width) for width in sizes)])
    everything: list[Workload | Contraction] = [
        *(make(*shape) for make in (thesis_rows, thesis_whole) for shape in shapes),
        *(thesis_rows(10, 10, depth=depth) for depth in range(2, 9) if depth != 3),
        *(thesis_rows(10, width, order) for order in (3, 4) for width in range(4, 9)),
        *(thesis_parameters(width) for width in (5, 10, 20, 30, 40, 50)),
        *(
            perceptron_rows(inputs, order, rows, activation)
            for order in (2, 3, 4)
            for rows in (128, 1024)
            for activation in ("tanh", "silu", "sin")
            for inputs in range(1, 11)
        ),
        *(attention_whole(*shape) for shape in ((8, 8), (16, 8), (16, 16), (32, 16))),
        *(classifier_parameters(hidden) for hidden in (20, 70)),
        *(convolutional_whole(by, side) for side in (8, 16) for by in ("input", "parameters")),
        *map(pairs_whole, (27, 64, 125, 256, 343, 1000)),
        *(pairs_whole(count, order=3) for count in (32, 64)),
        *map(elements_whole, (128, 512, 2048)),
        *(filters_whole(count, depth, width) for count in (27, 64) for depth in (1, 2) for width in (16, 32)),
        *(convolution_whole(by, nodes) for nodes in (64, 256) for by in ("features", "parameters")),
        *(bag_whole(vocabulary) for vocabulary in (100, 1000)),
        *(sentence_whole(vocabulary) for vocabulary in (100, 1000)),
        *chain.from_iterable((each, contractions.step(each)) for each in _all_contracted()),
    ]
    yield from (workload for workload in everything if workload.nbytes <= RESULT_LIMIT)


def tracked() -> Iterator[Workload | Contraction]:
    """Yield the points of which asv keeps the history: one of each kind, small enough for every peer."""
    yield thesis_rows(100, 10)
    yield thesis_whole(10, 10)
    yield thesis_rows(10, 6, order=3)
    yield thesis_parameters(10)
    yield perceptron_rows(2, 2)
    yield perceptron_rows(2, 3)
    yield attention_whole(8, 8)
    yield classifier_parameters(20)
    yield convolutional_whole("input")
    yield pairs_whole(64)
    yield elements_whole(128)
    yield filters_whole(64)
    yield convolution_whole("features")
    yield bag_whole()
    yield contractions.of_rows("Laplacian", 10)
    yield contractions.of_rows("biharmonic", 5)
    yield contractions.partial_derivative(4)
    yield contractions.product_of_classifier()


def heavy() -> Iterator[Workload | Contraction]:
    """Yield the points of which asv keeps the peak memory: so large that torch itself, 320 MB, does not hide it."""
    yield thesis_whole(100, 50)
    yield thesis_parameters(30)
    yield perceptron_rows(10, 2, rows=1024)
    yield perceptron_rows(5, 3)
    yield attention_whole(32, 16)
    yield classifier_parameters(70)
