"""asv's pages with the scripts and styles that they load from elsewhere beside them, out of npm packages."""

import re
import shutil
from pathlib import Path

# What asv's page loads, by the name of the file, and where the packages of package.json have it.
LIBRARIES = {
    "jquery-3.3.1.min.js": "jquery/dist/jquery.min.js",
    "jquery.flot.min.js": "flot/jquery.flot.js",
    "jquery.flot.time.min.js": "flot/jquery.flot.time.js",
    "jquery.flot.selection.min.js": "flot/jquery.flot.selection.js",
    "jquery.flot.categories.min.js": "flot/jquery.flot.categories.js",
    "jquery.flot.orderBars.js": "flot-orderbars/js/jquery.flot.orderBars.js",
    "stupidtable.min.js": "stupid-table-plugin/stupidtable.min.js",
    "md5.min.js": "blueimp-md5/js/md5.min.js",
    "bootstrap.min.js": "bootstrap/dist/js/bootstrap.min.js",
    "bootstrap.min.css": "bootstrap/dist/css/bootstrap.min.css",
}
BESIDE = {"bootstrap": ("dist/fonts/glyphicons-halflings-regular.woff",)}  # what styles of a package load
FOLDER = "libraries"
_LOADED = re.compile(r"""<(?:script|link|img)\b[^>]*?\b(?:src|href)=["']((?:https?:)?//[^"']+)["'][^>]*>""")
_ADDRESS = re.compile(r"""url\(["']?(?:https?:)?//|@import\s+["'](?:https?:)?//""")


def make_local(site: Path, modules: Path) -> None:
    """Copy what the pages of a folder load from elsewhere, and load the copies.

    Args:
        site: The folder; its pages are changed.
        modules: Where npm has installed the packages.

    Raises:
        ValueError: A page or a style loads something that is not in the packages.
    """
    for page in sorted(site.glob("*.html")):
        text = page.read_text(encoding="utf-8")
        page.write_text(_LOADED.sub(lambda tag: _local(tag, site, modules), text), encoding="utf-8")
    if found := loaded_from_elsewhere(site):
        raise ValueError(f"dashboards: pages load from elsewhere: {', '.join(found)}; add it to libraries.py")


def _local(tag: re.Match[str], site: Path, modules: Path) -> str:
    place = LIBRARIES.get(tag[1].rsplit("/", maxsplit=1)[-1])
    if place is None:
        return tag[0]
    package = place.split("/", maxsplit=1)[0]
    licences = (path.relative_to(modules).as_posix() for path in (modules / package).glob("LICENSE*"))
    for name in (place, *licences, *(f"{package}/{file}" for file in BESIDE.get(package, ()))):
        target = site / FOLDER / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(modules / name, target)
    address = f"{FOLDER}/{place}"
    return f'<script src="{address}">' if place.endswith(".js") else f'<link rel="stylesheet" href="{address}">'


def loaded_from_elsewhere(site: Path) -> list[str]:
    """Return which pages and styles of a folder load what from other hosts."""
    pages = {page: _LOADED.findall(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}
    styles = {style: _ADDRESS.findall(style.read_text(encoding="utf-8")) for style in site.rglob("*.css")}
    return sorted(f"{file.relative_to(site)} ({each})" for file, found in (pages | styles).items() for each in found)
