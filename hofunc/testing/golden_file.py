"""Golden files: derivatives as JSON, written whole or not at all.

Floats are kept as hexadecimal text, which is exact, may hold nan, and reads and merges line by line; unlike a pickle, a
file from elsewhere cannot run anything.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch

from hofunc.errors import GoldenError
from hofunc.files import write_whole

FORMAT = "hofunc golden"
VERSION = 1
UPDATE = "--hofunc-golden-update"


class Kept(NamedTuple):
    """A tensor: what it is called, its dtype, and its values in float64."""

    name: str
    dtype: str
    values: torch.Tensor


class Golden(NamedTuple):
    """A derivative, and where it was taken."""

    order: int
    argnums: int | tuple[int, ...]
    inputs: tuple[Kept, ...]
    derivative: tuple[Kept, ...]


def save(path: Path, golden: Golden) -> None:
    """Write a golden file, in place of the one that there may be, at once.

    Args:
        path: The file; its folder is made if there is none.
        golden: What it is to hold.

    Raises:
        OSError: It cannot be written; what was there is as it was.
    """
    content = {
        "format": FORMAT,
        "version": VERSION,
        "order": golden.order,
        "argnums": golden.argnums,
        "inputs": [_written(kept) for kept in golden.inputs],
        "derivative": [_written(kept) for kept in golden.derivative],
    }
    text = json.dumps(content, indent=1) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.encode())


def load(path: Path) -> Golden:
    """Read a golden file.

    Args:
        path: The file.

    Returns:
        What it holds.

    Raises:
        GoldenError: There is none, it is of another version, or damaged.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        _refuse(path, "no such file", "a golden derivative", f"Run the test with {UPDATE} to make it, and look at it.")
    except (OSError, ValueError) as error:  # of JSON, and of Unicode
        _refuse_damaged(path, error)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        _refuse_damaged(path, ValueError(f'no "format": "{FORMAT}"'))
    version = content.get("version")
    if type(version) is not int or version != VERSION:
        remedy = f"Run the test with {UPDATE} to write it anew, or with the release of hofunc that wrote it."
        _refuse(path, f"version {version!r}", f"version {VERSION}", remedy)
    try:
        argnums = content["argnums"]
        return Golden(
            _int(content["order"]),
            tuple(_int(number) for number in argnums) if isinstance(argnums, list) else _int(argnums),
            tuple(_read(kept) for kept in content["inputs"]),
            tuple(_read(kept) for kept in content["derivative"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:  # the last of shapes
        _refuse_damaged(path, error)


def _written(kept: Kept) -> dict[str, Any]:
    values = [value.hex() for value in kept.values.flatten().tolist()]
    return {"name": kept.name, "dtype": kept.dtype, "shape": list(kept.values.shape), "values": values}


def _read(kept: dict[str, Any]) -> Kept:
    values = torch.tensor([float.fromhex(value) for value in kept["values"]], dtype=torch.float64)
    dtype = getattr(torch, kept["dtype"], None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or not isinstance(kept["name"], str):
        raise ValueError(f"a tensor of dtype {kept['dtype']}, called {kept['name']}")
    return Kept(kept["name"], kept["dtype"], values.reshape([_int(size) for size in kept["shape"]]))


def _int(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} in place of a number")
    return value


def _refuse_damaged(path: Path, error: Exception) -> NoReturn:
    got = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    remedy = f"Restore it from version control, or run the test with {UPDATE} to write it anew."
    _refuse(path, got, "a golden file as hofunc writes it", remedy)


def _refuse(path: Path, got: str, expected: str, remedy: str) -> NoReturn:
    raise GoldenError(f"hofunc_golden: {path}", got=got, expected=expected, remedy=remedy)
