"""Structured derivatives in notebooks."""

import torch
from torch import Tensor

import hofunc
from hofunc.structured.shown import readable, table


def test_a_derivative() -> None:
    def f(x: Tensor) -> Tensor:
        return x.sum(1).sin().sum() + 2 * x.prod() + (x * x).sum()

    d = hofunc.hessian(f, layout="compact", strategy="reverse")(torch.ones(4, 3))
    html = d._repr_html_()
    assert html.startswith("<table><caption>Derivative () × (4, 3) × (4, 3), torch.float32 on cpu, ")
    assert html.count("<tr>") == 1 + len(d.terms)
    assert "(), i j, k l" in html
    ones = hofunc.hessian(lambda x: (x * x).sum(), layout="compact")(torch.ones(3))
    assert "<td>(), b, b</td><td>2</td><td>ones</td>" in ones._repr_html_()
    assert (
        "Derivative (2,) × (3,) × (3,)"
        in torch.func.vmap(hofunc.jacobian(torch.sin, layout="compact"))(torch.ones(2, 3))._repr_html_()
    )


def test_cells_are_escaped() -> None:
    assert table("<&", ("a",), [("<b>",)]) == (
        "<table><caption>&lt;&amp;</caption><tr><th>a</th></tr><tr><td>&lt;b&gt;</td></tr></table>"
    )


def test_sizes() -> None:
    got = [readable(size) for size in (0, 999, 1500, 3_200_000_000, 5 * 10**15)]
    assert got == ["0 bytes", "999 bytes", "1.5 kB", "3.2 GB", "5e+03 TB"]
