"""What stands in the boxes of a drawing, and the arrows between them."""

import torch
from torch import Tensor

import hofunc
from hofunc.draw.boxes import Sketch, sketch_of
from hofunc.outline import outline_of
from tests.cases import rand
from tests.draw.test_folding import layers


def sketch(transform: hofunc.transform.Transform, *args: Tensor) -> Sketch:
    return sketch_of(outline_of(transform.plan(*args)._subject))  # type: ignore[arg-type]


def test_every_node_and_result_has_a_box(device: torch.device) -> None:
    w = rand(device, 3, 5)
    with hofunc.detect_anomaly():
        found = sketch(
            hofunc.hessian(lambda x: (x @ w).tanh().sum(), layout="compact", strategy="reverse"), rand(device, 4, 3)
        )
    kinds = [box.kind for box in found.boxes]
    assert kinds == ["input", "constant", "multilinear", "elementwise", "linear", "result"]
    assert [(source, target) for source, target, _ in found.arrows] == [(0, 2), (1, 2), (2, 3), (3, 4), (4, 5)]
    name, shape, line, cost = found.boxes[3].lines
    assert (name, shape) == ("aten.tanh.default  (3)", "4x5")
    assert line.startswith("test_boxes.py:")
    assert cost.endswith("flops")
    assert found.boxes[3].strength > found.boxes[0].strength == 0
    assert found.boxes[5].lines == ("output 0", "by args[0], args[0]", "pattern (), b i, b j")
    assert found.title[0] == "hessian(<lambda>): order 2, by the strategy reverse"
    assert [name for name, _ in found.legend][:2] == ["differentiated by", "given or constant"]


def test_vectors_and_the_results_of_contractions(device: torch.device) -> None:
    found = sketch(hofunc.laplacian(lambda x: (x.sin() * x).sum(-1).exp()), rand(device, 4, 3))
    assert any(line.endswith(" vectors") for box in found.boxes for line in box.lines)
    assert found.boxes[-1].lines[0] == "output 0"


def test_many_results(device: torch.device) -> None:
    found = sketch(hofunc.hessian(lambda *x: sum(x).sin().sum(), tuple(range(6))), *[rand(device, 2)] * 6)
    results = [box.lines for box in found.boxes if box.kind == "result"]
    assert len(results) == 13
    assert results[-1] == ("and 9 other results",)


def test_repeats_are_counted(device: torch.device) -> None:
    plan = hofunc.hessian(lambda x: (x**2).sum()).plan(rand(device, 3))
    outline = outline_of(plan._subject)  # type: ignore[arg-type]
    items = tuple(each._replace(share=1 / 200) for each in layers(50))
    found = sketch_of(outline._replace(items=items, outputs=(items[-1].number,)))
    assert [*found.regions.values()] == [49]
    assert any("201 nodes in 9 boxes" in line for line in found.title)
    inside = [place for place, box in enumerate(found.boxes) if box.region is not None]
    times = {(source in inside, target in inside): n for source, target, n in found.arrows if source > 1}
    assert times[True, True] in {1, 48}, "once a layer, and from each layer to the next"
    (together,) = [box for box in found.boxes if box.lines[0].startswith("captured 1,")]
    assert together.lines == ("captured 1, captured 2 to captured 49", "49 of 3", "25% of the time")
