"""Every page of the gallery runs, and the values that it checks itself against hold."""

import runpy
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import torch

GALLERY = Path(__file__).parent.parent / "docs" / "gallery"
PAGES = sorted(GALLERY.glob("*/plot_*.py"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem.removeprefix("plot_"))
def test_a_page_of_the_gallery(page: Path) -> None:
    mpl.use("agg")
    dtype = torch.get_default_dtype()
    try:
        runpy.run_path(str(page))
        assert plt.get_fignums(), "a page of the gallery has a picture"
    finally:
        plt.close("all")
        torch.set_default_dtype(dtype)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem.removeprefix("plot_"))
def test_a_page_checks_its_numbers(page: Path) -> None:
    source = page.read_text(encoding="utf-8")
    assert "\nassert " in source or "torch.testing.assert_close" in source
