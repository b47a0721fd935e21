"""The direction of imports: a file imports only from layers below its own, and no two files import each other."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# From the bottom to the top, as in design.md; what is beside each other does not import each other.
LAYERS = [
    {"errors"},
    {"spelling", "given"},
    {"releases", "options", "files"},
    {"internals", "replacing"},
    {
        "internals_files",
        "internals_inference",
        "internals_linear",
        "internals_loops",
        "internals_saving",
        "internals_scatters",
        "internals_scripts",
        "internals_settings",
        "internals_strides",
        "internals_types",
    },
    {"internals_buffers", "internals_compiler", "internals_products", "internals_symbols"},
    {"methods", "trees", "progress"},
    {"graph", "algebra"},
    {"rules", "views"},
    {"ops", "scatter"},
    {"sparse", "structured"},
    {"derivative", "complex_tensors", "taps", "words"},
    {"plan"},
    {"run", "pattern"},
    {"stream"},
    {"arguments"},
    {"signature", "outline", "repeat", "strict", "sampling", "keypaths", "travel", "forms", "slot_arguments"},
    {"explain", "draw"},
    {"notebook"},
    {"callable_plan", "chosen", "blockwise"},
    {"taken"},
    {"completed"},
    {"freeze", "kept_plans", "traced_call"},
    {"dynamo"},
    {"transform"},
    {"transforms"},
    {"contracted", "hooks"},
    {"operators", "testing", "jitted"},
    {"selfcheck"},
    {"__init__"},
    {"__main__"},
]


def sources(package: str) -> dict[str, Path]:
    """Return the source files of a package by module."""
    paths = sorted((ROOT / package).rglob("*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}


def imported(path: Path) -> Iterator[str]:
    """Yield the dotted names that a file imports, inside functions too; names of a package's modules as modules."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = (ROOT / inner.replace(".", "/")).with_suffix(".py").exists()
                is_package = (ROOT / inner.replace(".", "/")).is_dir()
                yield inner if is_module or is_package else node.module or ""


def package_of(module: str) -> str:
    """Return the part of hofunc that a module belongs to; the catalogue of ops is one beside the engine of rules."""
    parts = module.removesuffix(".__init__").split(".")
    return "ops" if parts[1:3] == ["rules", "ops"] or parts[1:] == ["rules"] else (*parts, "__init__")[1]


def layer_of(module: str) -> int:
    """Return the number of the layer of a module of hofunc."""
    part = package_of(module)
    found = [number for number, layer in enumerate(LAYERS) if part in layer]
    assert found, f"{module} is in no layer: say in tests/test_layout.py where it belongs"
    return found[0]


HOFUNC = sources("hofunc")


@pytest.mark.parametrize("module", HOFUNC)
def test_a_file_imports_only_from_layers_below(module: str) -> None:
    for other in imported(HOFUNC[module]):
        if other.split(".")[0] == "hofunc" and package_of(other) != package_of(module):
            assert layer_of(other) < layer_of(module), f"{module} imports {other}"


def test_no_files_import_each_other() -> None:
    graph = {module: {other for other in imported(path) if other in HOFUNC} for module, path in HOFUNC.items()}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert {*order} == {*HOFUNC}
    assert order.index("hofunc.errors") < order.index("hofunc.graph.tape") < order.index("hofunc.transforms")


@pytest.mark.parametrize("module", [module for module in HOFUNC if module.startswith("hofunc.algebra")])
def test_the_algebra_knows_no_tensors(module: str) -> None:
    assert not {name.split(".")[0] for name in imported(HOFUNC[module])} & {"torch", "numpy", "opt_einsum"}


@pytest.mark.parametrize("module", HOFUNC)
def test_hofunc_imports_nothing_that_is_made_to_check_it(module: str) -> None:
    outside = {"tests", "verification", "asv_benchmarks", "docs", "pytest", "hypothesis", "numpy"}
    assert not {name.split(".")[0] for name in imported(HOFUNC[module])} & outside


def test_oracles_do_not_use_what_they_judge() -> None:
    for path in sources("verification/oracles").values():
        assert "hofunc" not in {name.split(".")[0] for name in imported(path)}


def test_verification_does_not_use_the_tests() -> None:
    for path in sources("verification").values():
        assert "tests" not in {name.split(".")[0] for name in imported(path)}


def test_tests_mirror_the_packages() -> None:
    """A test file of a package's folder is named after a file of the package."""
    for package in ("algebra", "draw", "graph", "plan", "run", "structured", "testing"):
        for path in (ROOT / "tests" / package).glob("test_*.py"):
            assert (ROOT / "hofunc" / package / path.name.removeprefix("test_")).exists(), path
