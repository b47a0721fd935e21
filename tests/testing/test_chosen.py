"""hodcheck of blocks that are computed alone: it confirms those that are right, and finds those that are wrong."""

from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc import hodcheck
from hofunc.transforms import Transform
from tests.cases import rand

CPU = torch.device("cpu")


def model(parameters: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    return {"y": (x * parameters["w"]).sum(-1).sin() * parameters["b"], "z": parameters["b"] ** 3}


def point() -> tuple[dict[str, Tensor], Tensor]:
    return {"w": rand(CPU, 3), "b": rand(CPU, seed=1)}, rand(CPU, 2, 3, seed=2)


@pytest.mark.parametrize("strategy", ["auto", "forward", "mixed", "reverse"])
@pytest.mark.parametrize("options", [{"blocks": "diagonal"}, {"blocks": [("w", 1)]}, {"groups": [["b", 1]]}])
def test_blocks_are_confirmed(options: dict[str, Any], strategy: str) -> None:
    assert hodcheck(model, point(), 2, (0, 1), strategy=strategy, **options)


def test_a_block_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Transform._assembled

    def wrong(self: Transform, *args: Any) -> Any:
        found = original(self, *args)
        return found if self._options.chosen is None else {**found, "y": tuple(each + 1 for each in found["y"])}

    monkeypatch.setattr(Transform, "_assembled", wrong)
    message = (
        r"d\^2 f\(\*args\)\['y'\]\[0\] / d args\[0\]\['b'\] d args\[0\]\['w'\]\[\d\] of the blocks asked for is 1 off"
    )
    with pytest.raises(hofunc.HodcheckError, match=message):
        hodcheck(model, point(), blocks=[("b", "w")])
    assert not hodcheck(model, point(), blocks=[("b", "w")], raise_exception=False)


def test_blocks_that_miss_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "hofunc.testing.chosen.hod", lambda *_, **__: lambda *args: torch.zeros((), dtype=torch.float64)
    )
    with pytest.raises(hofunc.HodcheckError, match="hodcheck: blocks: got 1 tensors, expected 2 tensors, of the"):
        hodcheck(model, point(), blocks=[("b", "w")])


def test_blocks_that_are_none_are_refused() -> None:
    with pytest.raises(hofunc.ArgumentError, match="hodcheck: blocks"):
        hodcheck(model, point(), blocks="diagnal")
    with pytest.raises(hofunc.ArgumentError, match=r"hodcheck: an entry.*Did you mean \(0, 'w'\)"):
        hodcheck(model, point(), blocks=[((0, "ww"), 0)])
