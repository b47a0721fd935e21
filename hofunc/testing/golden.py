"""Golden derivatives: what `hod` returned once, kept beside a test, to see by entry what has changed since."""

import re
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch

from hofunc.arguments import check_transform
from hofunc.errors import ArgumentError, GoldenError
from hofunc.internals import tree_leaves
from hofunc.testing.entries import largest, worst
from hofunc.testing.golden_file import UPDATE, Golden, Kept, load, save
from hofunc.testing.oracles import Subject, of_parts


class Goldens:
    """The golden derivatives of a test, as the fixture ``hofunc_golden`` gives them.

    Args:
        folder: Where their files are.
        test: The test.
        owners: Which test has which file, of all tests that have run.
        update: Whether to write what is missing or has changed, rather than to raise.
    """

    def __init__(self, folder: Path, test: str, owners: dict[Path, str], *, update: bool = False):
        self._folder, self._test, self._owners, self._update = folder, test, owners, update
        self._names: set[str] = set()

    def check(
        self,
        name: str,
        f: Callable[..., Any],
        args: torch.Tensor | Sequence[Any],
        order: int = 2,
        argnums: int | Sequence[int] = 0,
        *,
        rtol: float | None = None,
        atol: float | None = None,
    ) -> None:
        """Compare a derivative of f with the one that is kept.

        Args:
            name: What it is kept as, in ``golden/<test file>/<name>.json`` beside the test file; letters, digits, and
                ``_``, ``-`` and ``.``.
            f: Pure function, as for `hod`.
            args: Its positional arguments, or its only one if that is a tensor.
            order: Order of the derivative; 0 for what f returns itself, as for f that is a contraction.
            argnums: As for `hod`.
            rtol: How far off an entry may be, relative to the largest of its tensor; unless given, the resolution of
                the output's dtype to the power of 2/3: 3.7e-11 for float64, 2.4e-5 for float32.
            atol: How far off it may be besides; unless given, 100 times the resolution, relative to the largest entry
                of f(*args) and the derivative.

        Raises:
            GoldenError: An entry, its input, or the structure is not as kept, or there is no file that can be read.
            ArgumentError: An argument is not as described, or the name is another derivative's. Other errors are
                those of `hod`.
        """
        __tracebackhide__ = True
        path = self._path(name)
        of_value = type(order) is int and not order
        check_transform("hofunc_golden", f, 1 if of_value else order, argnums, "dense", "auto")
        args = (args,) if isinstance(args, torch.Tensor) else tuple(args)
        f, args = of_parts("hofunc_golden", f, args, argnums)
        output = f(*args)
        found = _golden(Subject.at("hofunc_golden", f, args, argnums, output), order)
        scale = largest([*tree_leaves(output), *(kept.values for kept in found.derivative)])
        try:
            _compare(path, found, load(path), _Tolerances(rtol, atol, scale))
        except GoldenError as error:
            if not self._update:
                raise error.with_traceback(None) from None  # whose frames are no concern of the test's
            save(path, found)

    def _path(self, name: str) -> Path:
        """Return the file of a name, after seeing to it that it is not another derivative's."""
        if not re.fullmatch(r"\w[\w.-]*", name):
            _refuse_name(name, "letters, digits, '_', '-' and '.', not first")
        path = self._folder / f"{name}.json"
        owner = self._owners.setdefault(path, self._test)
        if owner != self._test or name in self._names:
            _refuse_name(name, f"a name of its own for every derivative; {owner} has it")
        self._names.add(name)
        return path


def _golden(subject: Subject, order: int) -> Golden:
    """Return what is to be kept of a derivative."""
    numbers = subject.arguments.argnums
    outputs = [entry for entry in subject.outputs for _ in range(len(subject.inputs) ** order)]
    leaves = subject.derivative(order)
    return Golden(
        order,
        numbers[0] if isinstance(subject.argnums, int) else numbers,
        tuple(
            Kept(entry.name, _dtype_name(entry.dtype), leaf.detach().double().cpu())
            for entry, leaf in zip(subject.inputs, subject.arguments.leaves, strict=True)
        ),
        tuple(
            Kept(subject.name(number, (), order), _dtype_name(entry.dtype), leaf.cpu())
            for number, (entry, leaf) in enumerate(zip(outputs, leaves, strict=True))
        ),
    )


class _Tolerances(NamedTuple):
    """How far off an entry may be: what was asked for, and the scale of what was not."""

    rtol: float | None
    atol: float | None
    scale: float

    def allowed(self, kept: Kept) -> float:
        """Return what is allowed in a tensor."""
        eps = torch.finfo(getattr(torch, kept.dtype)).eps
        rtol = eps ** (2 / 3) if self.rtol is None else self.rtol
        return (100 * eps * self.scale if self.atol is None else self.atol) + rtol * largest([kept.values])


def _compare(path: Path, found: Golden, kept: Golden, tolerances: _Tolerances) -> None:
    """Compare what there is with what was kept: structure, inputs, derivative."""
    for got, expected in zip_longest(_facts(found), _facts(kept), fillvalue="nothing more"):
        if got != expected:
            _refuse("hofunc_golden: another derivative", got, expected, path)
    inputs = _Tolerances(tolerances.rtol, tolerances.atol, 0.0)
    _compare_entries(path, found.inputs, kept.inputs, inputs, "; it was kept for other arguments")
    _compare_entries(path, found.derivative, kept.derivative, tolerances, "")


def _compare_entries(
    path: Path, found: Sequence[Kept], kept: Sequence[Kept], tolerances: _Tolerances, comment: str
) -> None:
    allowed = [tolerances.allowed(expected) for expected in kept]
    entry = worst([got.values for got in found], [expected.values for expected in kept], allowed)
    if entry is not None:
        what = f"hofunc_golden: entry {list(entry.index)} of {kept[entry.tensor].name} is {entry}{comment}"
        _refuse(what, f"{entry.got:.17g}", f"{entry.expected:.17g}", path)


def _facts(golden: Golden) -> list[str]:
    """Return what has to be the same, but for values."""
    tensors = (*golden.inputs, *golden.derivative)
    shapes = [f"{kept.name} of {kept.dtype} and shape {tuple(kept.values.shape)}" for kept in tensors]
    return [f"order {golden.order}", f"argnums {golden.argnums}", *shapes]


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _refuse(what: str, got: str, expected: str, path: Path) -> NoReturn:
    remedy = f"If the change is meant, run the test with {UPDATE} to accept it."
    raise GoldenError(what, got=got, expected=f"{expected}, as kept in {path}", remedy=remedy)


def _refuse_name(name: str, expected: str) -> NoReturn:
    remedy = "Files are shared by all tests of a file: put what tells derivatives apart into their names."
    raise ArgumentError("hofunc_golden: name", got=repr(name), expected=expected, remedy=remedy)
