"""The documentation site, for Sphinx: `make docs` builds it into build/docs."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "extensions")]

from hofunc.releases import VERSION  # noqa: E402

project = "hofunc"
author = "the developers of hofunc"
project_copyright = "2026, the developers of hofunc, under Apache-2.0"
version = release = VERSION

extensions = [
    "dashboards",
    "docstrings",
    "mathml",
    "offline",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinx_reredirects",
]
exclude_patterns = ["gallery", "examples"]
default_role = "code"
nitpicky = True
# Types of other libraries, and those that are made by hofunc and named by no user: there is nothing to link them to.
nitpick_ignore_regex = [("py:.*", r"(torch|collections|pathlib|os|hofunc\.[a-z_]+)\..*|Einsum|(Sample|_)?Options")]

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
myst_update_mathjax = False
html_math_renderer = "mathml"
myst_url_schemes = ("http", "https")

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Returns"]  # whose text may have a colon, and does not begin with a type

# What a reader copies is what he would type.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "generated/gallery",
    "filename_pattern": "plot_",
    "subsection_order": ["gallery/physics", "gallery/learning"],
    "capture_repr": (),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
    "backreferences_dir": None,
    "remove_config_comments": True,
    "within_subsection_order": "FileNameSortKey",
    "matplotlib_animations": False,
}

html_theme = "furo"
html_title = f"hofunc {VERSION}"
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_css_files = ["pages.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}

# Pages were in one folder before there was a site.
MOVED = {
    "how-to": (
        "adding-an-op anomalies autograd-inside blocks buffers compile complex control-flow derivative einsum indices "
        "jit memory physics plans taps testing"
    ),
    "explanations": "planning torch-errors",
    "reference": "benchmarks benchmarks-contractions conformance conformance-complex zoo",
}
redirects = {page: f"{folder}/{page}.html" for folder, pages in MOVED.items() for page in pages.split()}
redirects["thesis/figures"] = "../explanations/thesis/figures.html"
