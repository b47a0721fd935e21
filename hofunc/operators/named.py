"""What named operators have in common: a pattern, and the keyword arguments that their vectors are."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypedDict

import torch

from hofunc.contracted import Einsum
from hofunc.given import refuse
from hofunc.pattern import Pattern, Tree
from hofunc.plan.blueprint import Limits
from hofunc.transforms import Names


class Options(TypedDict, total=False):
    """The options that all operators take, with the meaning that they have for `hofunc.einsum`."""

    wrt: Names
    has_aux: bool
    strategy: str
    chunk_size: int | None
    max_bytes: int | None


class SampleOptions(Options, total=False):
    """The options of estimates, likewise."""

    directions: str
    generator: torch.Generator | None
    with_error: bool


class Operator(Einsum):
    """A function with the signature of f, and of an operator's vectors, that computes a contraction of a derivative.

    Args:
        name: What the operator is called.
        f: The function.
        pattern: The pattern.
        argnums: What it is differentiated by, one entry a slot.
        vectors: For every operand the keyword argument that it is; one may be several.
        wrt: In place of argnums, the name of a parameter or of a tap, or a tuple of several, for every slot.
        has_aux: As for `hofunc.einsum`, as are the others.
        strategy: As there.
        chunk_size: As there.
        max_bytes: As there.
    """

    def __init__(
        self,
        name: str,
        f: Callable[..., Any],
        pattern: str,
        argnums: tuple[Any, ...],
        vectors: tuple[str, ...] = (),
        *,
        wrt: Names = None,
        has_aux: bool = False,
        strategy: str = "auto",
        chunk_size: int | None = None,
        max_bytes: int | None = None,
    ):
        slots: Any = argnums
        names: Any = None
        if wrt is not None:
            slots = 0 if all(each == 0 for each in argnums) else argnums
            names = (wrt,) * len(argnums)
        self._vectors, self._keywords = vectors, tuple(dict.fromkeys(vectors))
        super().__init__(name, f, pattern, slots, has_aux, strategy, Limits(chunk_size, max_bytes), names)

    def _told_apart(self) -> tuple[Hashable, ...]:
        return self._vectors

    def _given(self, given: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        name = self._options.name
        for keyword in self._keywords:
            if keyword not in given:
                expected = f"{keyword}=..., beside the arguments of f"
                refuse(name, keyword, "none", expected, f"Pass it by name: {name}(f)(x, {keyword}=v).")
        return [[given[keyword] for keyword in self._vectors]]

    def _operand(self, number: int) -> str:
        return self._vectors[number]

    def _check_shapes(self, pattern: Pattern, output: Tree, slots: Sequence[Tree], operands: Sequence[Tree]) -> None:  # noqa: ARG002
        for keyword, vector in zip(self._vectors, operands, strict=False):
            check_vector(
                self._options.name, keyword, vector, output.as_factors() if keyword == "cotangent" else slots[0]
            )


def check_vector(name: str, keyword: str, vector: Tree, like: Tree) -> None:
    """Check that a vector is like the argument, or the output, that it stands for.

    Raises:
        ArgumentError: It is not.
    """
    remedy, found = f"Pass what is like {like.name}.", vector.like(like)
    if found is None:
        refuse(name, keyword, vector.shown(), f"a pytree like {like.name}, {like.shown()}", remedy)
    for leaf, expected in enumerate(map(like.given, range(len(like.shapes)))):
        is_complex = expected != tuple(like.shapes[leaf])
        if tuple(found.shapes[leaf]) != tuple(like.shapes[leaf]) if is_complex else found.given(leaf) != expected:
            got, kind = f"a tensor of shape {tuple(found.given(leaf))}", "a complex one" if is_complex else "one"
            refuse(name, keyword, got, f"{kind} of shape {expected}, like {like.name}", remedy)
