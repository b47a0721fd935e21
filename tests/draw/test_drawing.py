"""Drawings of plans: in notebooks, in files, and where graphviz is not there."""

import shutil
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import torch

import hofunc
from hofunc import ArgumentError, Drawing
from tests.checks import refused
from tests.markup import read

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz draws")


@pytest.fixture
def drawing() -> Drawing:
    return hofunc.hessian(lambda x: (x**3).sum().sin()).plan(torch.ones(2)).draw()


@needs_dot
def test_it_is_drawn(drawing: Drawing) -> None:
    html = drawing._repr_html_()
    assert html is not None
    tags, text = read(html)
    assert "aten.pow.Tensor_Scalar" in text
    assert "hessian(<lambda>)" in text
    assert tags.count("polygon") >= 4
    assert drawing._repr_mimebundle_() == {"text/html": html, "text/plain": repr(drawing)}
    assert ET.fromstring(drawing.svg()).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314 - made here


@needs_dot
def test_it_is_saved(drawing: Drawing, tmp_path: Path) -> None:
    begins = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}
    for suffix, begin in begins.items():
        drawing.save(tmp_path / f"plan{suffix}")
        assert (tmp_path / f"plan{suffix}").read_bytes().startswith(begin)


def test_text_needs_nothing(drawing: Drawing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    for suffix, text in ((".dot", drawing.dot), (".mmd", drawing.mermaid)):
        drawing.save(str(tmp_path / f"plan{suffix}"))
        assert (tmp_path / f"plan{suffix}").read_text(encoding="utf-8") == text
    assert drawing._repr_mimebundle_() == {"text/vnd.mermaid": drawing.mermaid, "text/plain": repr(drawing)}
    refused(lambda: drawing.save(tmp_path / "plan.svg"), ArgumentError, "no program dot, which draws svg", "apt-get")
    refused(drawing.svg, ArgumentError, "no program dot", "Install graphviz")
    refused(lambda: drawing.save(tmp_path / "plan.jpeg"), ArgumentError, "'plan.jpeg'", ".svg, .png, .pdf, .dot, .mmd")


def test_a_graphviz_that_fails(drawing: Drawing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "dot"
    broken.write_text("#!/bin/sh\necho no fonts >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda _: str(broken))
    refused(drawing.svg, ArgumentError, "got no fonts", "Save it as .dot or .mmd")
    assert "text/vnd.mermaid" in drawing._repr_mimebundle_()


def test_a_plan_that_was_loaded_draws_the_same(drawing: Drawing, tmp_path: Path) -> None:
    hofunc.hessian(lambda x: (x**3).sum().sin()).plan(torch.ones(2)).save(tmp_path / "plan")
    assert hofunc.load_plan(tmp_path / "plan").draw() == drawing


def test_a_large_plan_is_folded() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(150):
            x = (x * 1.01).sin()
        return x.sum()

    drawing = hofunc.jacobian(f).plan(torch.ones(2)).draw()
    assert repr(drawing).startswith("Drawing(7 boxes")
    assert "302 nodes in 6 boxes" in drawing.mermaid
    assert "149 times" in drawing.mermaid
