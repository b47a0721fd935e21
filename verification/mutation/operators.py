"""The mutants that cosmic-ray finds, and their texts. Only this file and ``trial`` need it."""

from collections.abc import Iterator
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from verification.mutation.mutant import Mutant, Place


def find(root: Path, packages: tuple[str, ...]) -> Iterator[Place]:
    """Yield where operators without arguments change the files of packages of hofunc."""
    names = [name for name in operator_names() if not get_operator(name).arguments()]
    for package in packages:
        for path in sorted((root / "hofunc" / package).rglob("*.py")):
            yield from _places(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8"), names)


def _places(path: str, source: str, names: list[str]) -> Iterator[Place]:
    nodes = list(ast_nodes(get_ast(source)))
    for name in names:
        operator = get_operator(name)()
        starts = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        for occurrence, (line, _) in enumerate(starts):
            yield Place(path, name, occurrence, line)


def make(root: Path, place: Place) -> Mutant:
    """Return the mutant of a place."""
    before = (root / place.path).read_text(encoding="utf-8")
    after = mutate_code(before, get_operator(place.operator)(), place.occurrence)
    return Mutant(place, before, after or before)
