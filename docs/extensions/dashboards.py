"""The dashboards, inside the site: built anew with it, those of asv too where `make bench-site` has what they load."""

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from asv_benchmarks.site.build import CONFIG, MODULES, build


def place(app: Sphinx, error: Exception | None) -> None:
    """Build them beside the pages."""
    if error is None and app.builder.format == "html":
        build(Path(app.outdir) / "dashboards", MODULES, CONFIG)


def setup(app: Sphinx) -> dict[str, Any]:
    """Be called before links are checked."""
    app.connect("build-finished", place, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
