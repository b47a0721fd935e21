"""Build the pages of measurements: `python -m asv_benchmarks.site.build`, as `make bench-site` does."""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from asv_benchmarks import accepted
from asv_benchmarks.site.libraries import make_local
from asv_benchmarks.site.page import page
from verification import scores

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MODULES = ROOT / "build" / "npm" / "node_modules"
CONFIG = HERE.parent / "asv.conf.json"
HEAD = """\
    <meta name="viewport" content="width=device-width, initial-scale=1">
    <link rel="stylesheet" href="narrow.css">
    <script src="points.js"></script>
  </head>"""
LINK = '<li><a href="../index.html">All figures</a></li>\n\t<li id="nav-li-" '


def build(out: Path, modules: Path, config: Path) -> None:
    """Build the pages anew.

    Args:
        out: The folder that they fill; it can be copied anywhere.
        modules: Where npm has installed the packages of package.json.
        config: asv's settings. Its pages are left out where it has measured nothing, or npm has installed nothing.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    asv = out / "asv"
    if has_asv := modules.exists() and publish(asv, config):
        make_local(asv, modules)
        fit(asv)
    shutil.copyfile(HERE / "style.css", out / "style.css")
    text = page(accepted.read(), scores.read(), asv=has_asv)
    (out / "index.html").write_text(text, encoding="utf-8")


def publish(out: Path, config: Path) -> bool:
    """Write asv's pages, of those benchmarks of which there are figures, and tell whether there are any."""
    results = config.parent / json.loads(config.read_text(encoding="utf-8"))["results_dir"]
    if not (results / "benchmarks.json").exists():
        return False
    command = [sys.executable, "-m", "asv", "publish", "--config", str(config), "--html-dir", str(out)]
    subprocess.run(command, check=True)  # noqa: S603 - ours
    measured = {path.stem for path in (out / "graphs" / "summary").glob("*.json")}
    index = json.loads((out / "index.json").read_text(encoding="utf-8"))
    index["benchmarks"] = {name: each for name, each in index["benchmarks"].items() if name in measured}
    (out / "index.json").write_text(json.dumps(index), encoding="utf-8")
    if not measured:
        shutil.rmtree(out)
    return bool(measured)


def fit(asv: Path) -> None:
    """Make asv's pages fit a narrow screen, show what has one point, and lead back to the first page."""
    for name in ("narrow.css", "points.js"):
        shutil.copyfile(HERE / name, asv / name)
    index = asv / "index.html"
    text = index.read_text(encoding="utf-8")
    index.write_text(text.replace("  </head>", HEAD).replace('<li id="nav-li-" ', LINK), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="build", description="Build the pages of measurements.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "dashboards")
    parser.add_argument("--modules", type=Path, default=MODULES)
    parser.add_argument("--config", type=Path, default=CONFIG)
    chosen = parser.parse_args(arguments)
    build(chosen.out, chosen.modules, chosen.config)
    print(f"dashboards: {chosen.out}; serve them by `python -m http.server -d {chosen.out}`")


if __name__ == "__main__":
    main()
