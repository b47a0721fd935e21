"""Structured derivatives in notebooks."""

import torch
from torch import Tensor

import hofunc
from hofunc.structured.shown import ROWS, folded, readable, table
from tests.markup import read


def test_a_derivative() -> None:
    def f(x: Tensor) -> Tensor:
        return x.sum(1).sin().sum() + 2 * x.prod() + (x * x).sum()

    d = hofunc.hessian(f, layout="compact", strategy="reverse")(torch.ones(4, 3))
    html = d._repr_html_()
    tags, text = read(html)
    assert "Derivative () × (4, 3) × (4, 3), torch.float32 on cpu, " in text
    assert (tags.count("tr"), tags.count("svg"), tags.count("details")) == (1 + len(d.terms), 1, 1)
    assert "(), i j, k l" in html
    ones = hofunc.hessian(lambda x: (x * x).sum(), layout="compact")(torch.ones(3))
    assert [*read(ones._repr_html_())[1].split("core ")[1].split()] == ["(),", "b,", "b", "2", "ones"]
    assert (
        "Derivative (2,) × (3,) × (3,)"
        in torch.func.vmap(hofunc.jacobian(torch.sin, layout="compact"))(torch.ones(2, 3))._repr_html_()
    )


def test_whatever_it_is_of() -> None:
    def shown(x: Tensor) -> Tensor:
        read(hofunc.hessian(lambda x: x[[0, 0, 1]].sin().sum(), layout="compact")(x)._repr_html_())
        return x.sum()

    x = torch.ones(3)
    torch.func.vmap(shown)(torch.ones(2, 3))
    torch.func.grad(shown)(x)
    hofunc.hessian(shown)(x)
    d = hofunc.hessian(lambda x: (x**3).sum(), layout="compact")(x)
    for other in (0 * d, d.to("meta"), torch.utils._pytree.tree_map(lambda _: None, d)):
        read(other._repr_html_())
    assert "0 terms" in hofunc.hessian(lambda x: 2 * x, layout="compact")(x)._repr_html_()
    assert "<svg" not in hofunc.hessian(torch.sin, layout="compact")(torch.ones(0))._repr_html_()


def test_many_terms_are_folded_and_not_all_there() -> None:
    d = hofunc.hessian(lambda x: torch.cat([x[n : n + 1].sin() for n in range(60)]), layout="compact")(torch.ones(60))
    many = hofunc.Derivative(d.terms * 100, d.shapes, d.dtype, d.device)
    tags, text = read(many._repr_html_())
    assert tags.count("tr") == 1 + min(ROWS, len(many.terms))
    assert len(many.terms) <= ROWS or f"and {len(many.terms) - ROWS} more" in text
    assert "<details><summary>" in many._repr_html_()
    assert len(many._repr_html_()) < 50_000


def test_cells_are_escaped_and_not_too_long() -> None:
    left = 'style="text-align:left"'
    shown = f"<table><tr><th {left}>a&lt;</th></tr><tr><td {left}>&lt;b&gt;</td></tr></table>"
    assert table(("a<",), [("<b>",)]) == shown
    assert table(("a<",), [("<b>",)], right=[0]) == shown.replace("left", "right")
    assert folded("<x>", "") == "<details><summary>&lt;x&gt;</summary></details>"
    assert len(table(("a",), [("&" * 9999,)])) < 2000
    assert "and 3 more" in table(("a",), [("b",)], more=3)
    assert "and 7 more" in table(("a",), [("b",)] * (ROWS + 7))


def test_sizes() -> None:
    got = [readable(size) for size in (0, 999, 1500, 3_200_000_000, 5 * 10**15)]
    assert got == ["0 bytes", "999 bytes", "1.5 kB", "3.2 GB", "5e+03 TB"]
