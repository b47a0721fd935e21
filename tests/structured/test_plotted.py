"""Pictures of structured derivatives."""

import sys

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc import ArgumentError
from hofunc.structured.plotted import magnitudes
from tests.cases import rand
from tests.checks import assert_equal, refused


def row(x: Tensor) -> Tensor:
    return x.prod(-1).sin() + (x**3).sum(-1)


def test_magnitudes(device: torch.device) -> None:
    x = rand(device, 4, 3)
    d = hofunc.hessian(row, layout="compact")(x)
    expected = d.dense().reshape(4, 12, 12).abs().amax(0)
    got = magnitudes(d.to_sparse(), 1, [2, 2])
    assert_equal(got.nan_to_num(0), expected)
    assert torch.equal(got.isnan(), expected == 0)
    coarse = magnitudes(d.to_sparse(), 1, [2, 2], most=4)
    assert_equal(coarse.nan_to_num(0), expected.reshape(4, 3, 4, 3).amax((1, 3)))
    first = hofunc.jacobian(row, layout="compact")(x)
    assert_equal(magnitudes(first.to_sparse(), 1, [2]).nan_to_num(0), first.dense().reshape(4, 12).abs())
    whole = hofunc.jacobian(lambda x: x.sum(), layout="compact")(x)
    assert_equal(magnitudes(whole.to_sparse(), 0, [2]), torch.ones(1, 12, dtype=x.dtype, device=device))
    third = hofunc.hod(row, 3, layout="compact")(x)
    expected = third.dense().reshape(4, 12, 12, 12).abs().amax((0, 2))
    assert_equal(magnitudes(third.to_sparse(), 1, [2, 2, 2]).nan_to_num(0), expected)


def test_panels(device: torch.device) -> None:
    x = rand(device, 4, 3)
    d = hofunc.hessian(row, layout="compact")(x)
    figure = d.plot()
    panel, bar = figure.axes
    assert panel.get_title() == d.pattern
    assert panel.images[0].get_array().shape == (12, 12)
    assert d.plot(ax=panel) is figure
    blocks = hofunc.hessian(lambda w, b: ((w * b).sin()).sum(), (0, 1), layout="compact")(x, x[0])
    titles = [panel.get_title() for panel in blocks.plot().axes if panel.images]
    assert titles == ["args[0], args[0]", "args[0], args[1]", "args[1], args[0]", "args[1], args[1]"]
    assert len(torch.func.vmap(hofunc.hessian(row, layout="compact"))(x[None]).plot().axes) == 2
    nothing = hofunc.hessian(lambda x: 2 * x, layout="compact")(x)
    assert nothing.plot().axes[0].images[0].get_array().mask.all()
    del bar


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    d = hofunc.hessian(torch.sin, layout="compact")(torch.ones(2))
    refused(d.plot, ArgumentError, "hofunc.Derivative.plot: got no matplotlib", "pip install hofunc[plot]")
