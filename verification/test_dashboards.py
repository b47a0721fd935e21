"""The pages of measurements open from any server of files: nothing fails, or comes from elsewhere, and plots are drawn.

`make dashboard-test` installs what this needs: asv, and by npm what the pages load and a browser. Elsewhere it is
skipped where any of these is missing. The figures of asv are of a toy project, measured at two commits.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

from asv_benchmarks.site.build import HERE, ROOT, build

NPM = Path(os.environ.get("HOFUNC_NPM", ROOT / "build" / "npm"))
MISSING = [
    name
    for name, found in {
        "asv": find_spec("asv"),
        "node": shutil.which("node"),
        "the browser of asv_benchmarks/site/package.json": (NPM / "node_modules" / "@sparticuz" / "chromium").exists(),
    }.items()
    if not found
]
if MISSING and "HOFUNC_NPM" in os.environ:
    raise FileNotFoundError(f"dashboards: {', '.join(MISSING)} not found: run `make dashboard-test`")
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"needs {', '.join(MISSING)}; `make dashboard-test` installs them"
)

CONFIG = {
    "version": 1,
    "project": "toy",
    "repo": ".",
    "branches": ["HEAD"],
    "environment_type": "existing",
    "benchmark_dir": "benchmarks",
    "results_dir": "results",
    "html_dir": "html",
}
BENCHMARK = """
def time_sum(size):
    sum(range(size))

time_sum.params = [1000, 2000]
time_sum.param_names = ["size"]

def time_never():
    pass

def track_size():  # another benchmark at every commit, as its text is another, so that it has one figure
    return {}
"""
PAGES = [
    {"path": "index.html", "name": "first", "plots": 9},
    {"path": "asv/index.html", "name": "grid", "plots": 1, "wait": "#summarygrid-display canvas.flot-base"},
    {"path": "asv/index.html#/summarylist", "name": "list", "plots": 0, "wait": "#summarylist-body td"},
    {"path": "asv/index.html#toy.time_sum", "name": "graph", "plots": 1, "wait": "#main-graph canvas.flot-base"},
    {"path": "asv/index.html#/regressions", "name": "regressions", "plots": 0, "wait": "#regressions-body *"},
]


def call(*command: str, folder: Path) -> str:
    """Run a program in a folder, with settings of its own, and return what it printed."""
    settings = {"HOME": str(folder.parent), "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    who = {f"GIT_{role}_{part}": "toy@example.com" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    environment = {**os.environ, **settings, **who}
    return subprocess.check_output(command, cwd=folder, env=environment, text=True)  # noqa: S603 - ours


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the settings of asv of a project that was measured at two commits."""
    project = tmp_path_factory.mktemp("measured") / "project"
    (project / "benchmarks").mkdir(parents=True)
    (project / "benchmarks" / "__init__.py").touch()
    (project / "asv.conf.json").write_text(json.dumps(CONFIG))
    call("git", "init", "--quiet", "--initial-branch=main", folder=project)
    call(sys.executable, "-m", "asv", "machine", "--yes", folder=project)
    for size in (1, 2):
        (project / "benchmarks" / "toy.py").write_text(BENCHMARK.format(size))
        call("git", "add", "benchmarks", folder=project)
        call("git", "commit", "--quiet", "--message", f"size {size}", folder=project)
        head = call("git", "rev-parse", "HEAD", folder=project).strip()
        run = [
            sys.executable,
            "-m",
            "asv",
            "run",
            "--quick",
            "--python=same",
            f"--set-commit-hash={head}",
            "--bench=sum|size",
        ]
        call(*run, folder=project)
    return project / "asv.conf.json"


@contextmanager
def served(root: Path) -> Iterator[str]:
    """Serve a folder, and yield its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=root)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    """A server that says nothing."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def looked_at(address: str, pages: list[dict[str, object]], shots: Path | None = None) -> list[str]:
    """Open pages in the browser, and return what is wrong with them."""
    task = json.dumps({"url": address, "pages": pages, "shots": shots and str(shots)})
    temporary = NPM / "node_modules" / ".unpacked"
    temporary.mkdir(exist_ok=True)
    # So it unpacks the libraries that it brings, into a folder of its own.
    environment = {**os.environ, "TMPDIR": str(temporary), "AWS_EXECUTION_ENV": "AWS_Lambda_nodejs20.x"}
    command, script = ["node", "--input-type=module", "-", task], (HERE / "look.mjs").read_text(encoding="utf-8")
    printed = subprocess.check_output(command, input=script, cwd=NPM, env=environment, text=True, timeout=300)  # noqa: S603
    return json.loads(printed)


def test_pages_are_whole_on_a_desktop_and_on_a_phone(measured: Path, tmp_path: Path) -> None:
    build(tmp_path / "docs" / "dashboards", NPM / "node_modules", measured)  # below the root, as in the docs
    with served(tmp_path) as address:
        assert looked_at(f"{address}docs/dashboards/", PAGES, ROOT / "build" / "dashboards-seen") == []


WRONG = {
    '<svg aria-label="bare" viewBox="0 0 9 9"><line x2="9"/></svg>': "empty plot: bare",
    '<svg aria-label="flat" viewBox="0 0 9 9"><rect width="0" height="9"/></svg>': "empty plot: flat",
    '<p id="axes"><canvas class="flot-base" width="9" height="9"></canvas></p>': "empty plot: axes",
    "<script>console.error('said')</script>": "console: said",
    "<script>undefined.name</script>": "error: Cannot read",
    '<img src="nowhere.png">': "404: ",
    '<script src="http://127.0.0.2:9/a.js"></script>': "another host: ",
    '<p style="width: 2000px">': "pixels wider than the window",
    "": "0 plots, not at least 1",
}


def test_what_is_wrong_with_a_page_is_seen(tmp_path: Path) -> None:
    pages = [{"path": f"{number}.html", "name": f"page {number}", "plots": 1} for number in range(len(WRONG))]
    for body, page in zip(WRONG, pages, strict=True):
        (tmp_path / str(page["path"])).write_text(f"<!doctype html><link rel=icon href=data:,><body>{body}</body>")
    with served(tmp_path) as address:
        found = looked_at(address, pages)
    for number, wrong in enumerate(WRONG.values()):
        assert [line for line in found if line.startswith(f"page {number}, phone: ") and wrong in line], wrong
