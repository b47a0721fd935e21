"""The pages of measurements, as text: `verification/test_dashboards.py` looks at them in a browser."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from asv_benchmarks import accepted, markdown, table
from asv_benchmarks.accepted import Run
from asv_benchmarks.site import plots
from asv_benchmarks.site.build import HERE, build
from asv_benchmarks.site.libraries import BESIDE, LIBRARIES, loaded_from_elsewhere, make_local
from asv_benchmarks.site.page import page
from asv_benchmarks.table import Ratio
from verification import scores

PACKAGES = json.loads((HERE / "package.json").read_text())


def run(commit: str, title: str = "One thread", **values: float | None) -> Run:
    """Return a run whose workloads have one ratio in all classes; of None nobody took part."""
    workloads = {
        f"{name} 1": dict.fromkeys(table.CLASSES, Ratio(value, 1.0, value, "nested <torch>" if value else ""))
        for name, value in values.items()
    }
    return Run("benchmarks", title, commit, "2026-01-02", "alone", workloads)


def svgs(text: str) -> list[ElementTree.Element]:
    """Return the plots of a page, which are XML."""
    return [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]  # noqa: S314 - ours


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """Return a folder of packages with all files that pages may load."""
    folder = tmp_path / "node_modules"
    beside = [f"{package}/{file}" for package, files in BESIDE.items() for file in files]
    for name in [*LIBRARIES.values(), *beside, "jquery/LICENSE.txt"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_what_pages_load_from_elsewhere_is_put_beside_them(modules: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    tags = [f'<script src="https://cdn.example/a/{name}" integrity="x" onerror="f()"></script>' for name in LIBRARIES]
    tags[-1] = '<link rel="stylesheet" href="//cdn.example/bootstrap.min.css" crossorigin="anonymous">'
    link = '<a href="https://example.com/">elsewhere</a>'
    (site / "index.html").write_text("\n".join([*tags, '<script src="asv.js"></script>', link]))
    assert len(loaded_from_elsewhere(site)) == len(LIBRARIES)
    make_local(site, modules)
    text = (site / "index.html").read_text()
    assert loaded_from_elsewhere(site) == []
    assert '<script src="libraries/jquery/dist/jquery.min.js"></script>' in text
    assert '<link rel="stylesheet" href="libraries/bootstrap/dist/css/bootstrap.min.css">' in text
    assert link in text
    for name in LIBRARIES.values():
        assert (site / "libraries" / name).read_text() == name
    assert (site / "libraries/jquery/LICENSE.txt").exists()
    assert list((site / "libraries/bootstrap").rglob("*.woff"))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("index.html", '<script async src="https://cdn.example/new.js"></script>'),
        ("style.css", "@import 'https://cdn.example/a.css';"),
        ("style.css", "p { background: url(//cdn.example/a.png) }"),
    ],
)
def test_what_no_package_has_is_an_error(file: str, text: str, modules: Path, tmp_path: Path) -> None:
    (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=rf"load from elsewhere: {file}"):
        make_local(tmp_path, modules)


def test_packages_are_pinned_and_named_without_a_registry() -> None:
    lock = json.loads((HERE / "package-lock.json").read_text())["packages"]
    pinned = PACKAGES["dependencies"] | PACKAGES["devDependencies"]
    for name, version in pinned.items():
        assert re.fullmatch(r"\d+\.\d+\.\d+", version), name
        assert lock[f"node_modules/{name}"]["version"] == version
    assert {place.rsplit("/", place.count("/") - place.startswith("@"))[0] for place in LIBRARIES.values()} == {
        *PACKAGES["dependencies"]
    }
    for name, package in lock.items():
        assert "resolved" not in package, name
        assert not name or "integrity" in package, name


def test_the_first_page_shows_what_is_kept() -> None:
    runs = accepted.read()
    text = page(runs, scores.read(), asv=True)
    for ratios in accepted.latest(runs).values():
        for row in list(markdown.means(ratios))[2:]:
            for cell in row.strip("| ").split(" | ")[1:]:
                assert f">{cell}<" in text
    for commit in [run.commit for run in runs] + [score.commit for found in scores.read().values() for score in found]:
        assert commit in text
    assert 'href="asv/index.html"' in text
    assert "<script" not in text
    assert "//" not in re.sub(r"</", "", text)
    for plot in svgs(text):
        assert plot.attrib["aria-label"]
        assert len(plot) > 0


def test_without_figures_of_asv_the_page_says_how_to_make_them(tmp_path: Path) -> None:
    config = tmp_path / "asv.conf.json"
    config.write_text('{"results_dir": "results"}')
    build(tmp_path / "out", tmp_path / "node_modules", config)
    text = (tmp_path / "out" / "index.html").read_text()
    assert "make bench" in text
    assert "asv/index.html" not in text
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["index.html", "style.css"]


def test_a_family_that_was_not_measured_again_keeps_its_place_and_no_mark() -> None:
    runs = [run("aaaaaaa", T=2.0, P=0.5), run("bbbbbbb", T=4.0), run("ccccccc", "Two threads", T=1.0, L=None)]
    found = page(runs, scores.read(), asv=False)
    first = next(
        plot for plot in svgs(found) if plot.attrib["aria-label"] == "Geometric means by commit, eager, one thread"
    )
    notes = [note.text for note in first.iter("title")]
    assert notes == ["T at aaaaaaa: 2.00", "T at bbbbbbb: 4.00", "P at aaaaaaa: 0.50"]
    assert "P 1: 0.50 beside nested &lt;torch&gt;" in found
    assert "L contractions" not in "".join(text.text or "" for plot in svgs(found) for text in plot.iter("text"))


def test_places_of_labels_are_apart() -> None:
    assert plots.apart([30.0, 10.0, 11.0, 31.0], 5) == [30.0, 10.0, 15.0, 35.0]


def test_axes_reach_from_power_to_power() -> None:
    assert plots.powers([0.3, 5.0]) == (0.25, 8.0)
    assert plots.powers([2.0]) == plots.powers([1.0]) == (1.0, 2.0)
    axis = plots.Axis(0.25, 4, 100, 0)
    assert [axis(value) for value in axis.ticks()] == [100, 75, 50, 25, 0]
    assert plots.Axis(96, 100, 0, 4, logarithmic=False).ticks() == [96, 97, 98, 99, 100]
