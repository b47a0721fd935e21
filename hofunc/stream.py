"""Streams: dense derivatives that are written to files as they are computed, and resumed where they ended.

A chunk is written whole, and on the disk, before the journal says that it is there; so whatever is not in the journal
is computed again, and nothing is lost but the chunk that was under way.
"""

import ctypes
import importlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from hashlib import sha256
from itertools import product
from math import prod
from pathlib import Path
from struct import pack
from typing import Any, NoReturn

import torch

from hofunc.errors import ArgumentError
from hofunc.given import path_of
from hofunc.graph.draws import draws
from hofunc.graph.node import Node
from hofunc.graph.recording import Recording
from hofunc.plan.blueprint import Blueprint, Limits
from hofunc.plan.operators import zeros
from hofunc.progress import Progress, check_progress, display
from hofunc.run.pieces import Block, Piece, blocks_of, number_of_chunks, pieces_of
from hofunc.run.room import free_bytes

FORMAT = 1  # of the files and of the journal; another one is another meaning
JOURNAL = "journal.jsonl"
_BEGIN = '{"format": '
_COPIED = 1 << 16  # bytes of an entry that are copied at a time
MOST = 1 << 30  # bytes that may be held at once unless it is said how many

_DTYPES = {torch.float64: "<f8", torch.float32: "<f4", torch.float16: "<f2"}


def in_pieces(limits: Limits, device: torch.device) -> Limits:
    """Return limits for results in pieces."""
    if limits.max_bytes is None and limits.chunk_size is None:
        return Limits(None, int(min(MOST, free_bytes(device) // 2)), in_pieces=True)
    return limits._replace(in_pieces=True)


class Stream:
    """A folder to which dense derivatives are written as they are computed, for results larger than memory.

    It is given to a transform as ``out``, whose call then holds at once what one chunk takes: at most max_bytes, a GiB
    unless that or chunk_size is given, or half of what is free if that is less. The tensors that it returns are views
    of the files, which are read as they are asked for; what is written to them stays in memory. They have no history.

    Every derivative that does not vanish is a file of its own, ``0-1-2.npy`` for that of the first output by the
    second and the third input, which ``numpy.load(..., mmap_mode="r")`` reads. Derivatives that differ by the order of
    inputs are one file. A journal beside the files says which chunks are written. A call that was interrupted, however
    it was, is resumed by the same call: of the same function at the same values.

    Args:
        path: The folder, which is made if it is not there, in one that is.
        progress: Whether to show a bar, by tqdm; or what is called with the number of chunks done, and of all;
            `hofunc.options` says it otherwise.

    Raises:
        ArgumentError: As soon as it is given to a transform that is called, and before derivatives are computed: the
            folder cannot be written to, holds something else, is being written to by another process, or is of another
            function, of other values, shapes, dtypes or of another version of hofunc; the disk has too little room;
            the dtype is none of numpy's; or the inputs are on the meta device.

    Example:
        >>> import os, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> hessian = hofunc.hessian(lambda x: (x**3).sum(), out=hofunc.Stream(folder))
        >>> hessian(torch.tensor([1.0, 2.0]))
        tensor([[ 6.,  0.],
                [ 0., 12.]])
        >>> sorted(os.listdir(folder))
        ['0-0-0.npy', 'journal.jsonl']
    """

    def __init__(self, path: str | os.PathLike[str], *, progress: Progress | None = None):
        self.path = path_of("Stream", path)
        check_progress("Stream", progress)
        self._progress = progress

    def __repr__(self) -> str:
        return f"Stream({str(self.path)!r})"

    def limits(self, limits: Limits, device: torch.device) -> Limits:
        """Return the limits to plan with: the chunks of what was begun, if something was."""
        if device.type == "meta":
            raise ArgumentError(
                "hofunc.Stream: an input",
                got="a tensor on the meta device",
                expected="one with numbers",
                remedy="Leave out= out for the shapes alone.",
            )
        header, _ = self._read()
        return in_pieces(limits, device) if header is None else Limits(int(header["chunk"]), None, in_pieces=True)

    def written(self, identity: dict[str, Any], made: Blueprint, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Write what a plan computes, or what is left of it, and return the results.

        Args:
            identity: What tells the function and the values from others.
            made: The plan.
            values: What it takes.
        """
        blocks, total = blocks_of(made), number_of_chunks(made)
        chunk = 1 if made.chunks is None else max(made.chunks.sizes, default=1)
        shapes = [{"file": _name(block), "shape": list(block.shape), "dtype": str(block.dtype)} for block in blocks]
        header = {"format": FORMAT, **identity, "derivatives": shapes, "chunk": chunk}
        files = {(block.output, block.inputs): _File(self.path / _name(block), block) for block in blocks}
        shown = display(self._progress, f"hofunc.Stream: {self.path}")
        with shown(total, "chunk") as show, self._opened(header, files) as (journal, done), torch.no_grad():
            show(len(done))
            for number, pieces in pieces_of(made, values, done):
                for file in {files[piece.output, piece.inputs].write(piece) for piece in pieces}:
                    os.fsync(file)
                pieces.clear()
                os.write(journal, f"{number}\n".encode())
                os.fsync(journal)
                done.add(number)
                show(len(done))
        return [file.tensor() for file in files.values()]

    def _read(self) -> tuple[dict[str, Any] | None, set[int]]:
        """Return what the journal begins with, and the numbers of the chunks that are written."""
        try:
            text = (self.path / JOURNAL).read_text(encoding="utf-8")
            if "\n" not in text and text[: len(_BEGIN)] == _BEGIN[: len(text)]:  # it was interrupted as it began
                return None, set()
            first, *lines = text.split("\n")
            header = json.loads(first)
            if not isinstance(header, dict) or not isinstance(header.get("chunk"), int):
                raise ValueError("it is of something else")
            return header, {int(line) for line in lines[:-1]}  # the last one has no end
        except FileNotFoundError:
            return None, set()
        except (OSError, ValueError) as error:
            self._refuse(f"a journal that cannot be read: {error}", "one that a stream has written")

    def _opened(self, header: dict[str, Any], files: "_Files") -> "AbstractContextManager[_Open]":
        """Return a context in which files are open to be written, and the journal."""
        try:
            return self._checked(header, files)
        except OSError as error:
            self._refuse(f"{type(error).__name__}: {error}", "a folder that can be written to")

    def _checked(self, header: dict[str, Any], files: "_Files") -> "AbstractContextManager[_Open]":
        self.path.mkdir(exist_ok=True)
        names = {path.name for path in self.path.iterdir()}
        if self._read()[0] is None and names - {JOURNAL}:
            self._refuse("a folder of something else", "an empty one, or that of a stream")
        journal = os.open(self.path / JOURNAL, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            self._lock(journal)
            done = self._begun(journal, header, files)
        except BaseException:
            os.close(journal)
            raise
        return _open(files, journal, done)

    def _begun(self, journal: int, header: dict[str, Any], files: "_Files") -> set[int]:
        """Begin, or go on with what was begun; returns the numbers of the chunks that are written."""
        before, done = self._read()  # once nobody else writes
        self._compare(before, header)
        self._check_disk([file for file in files.values() if not file.is_there])
        _cut(journal)
        if before is None:
            os.write(journal, f"{json.dumps(header)}\n".encode())
            os.fsync(journal)
        for file in files.values():
            if not done:  # whatever there is of it
                file.make()
            elif not file.is_there:
                self._refuse(f"no {file.path.name} of the right size", "the file that the journal tells of")
        _sync(self.path)
        return done

    def _lock(self, journal: int) -> None:
        """Keep others from writing."""
        with suppress(ImportError):  # it is not everywhere
            fcntl = importlib.import_module("fcntl")
            try:
                fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._refuse("a folder to which another process is writing", "one of its own for every call")

    def _compare(self, before: dict[str, Any] | None, header: dict[str, Any]) -> None:
        """Check that what was begun is what is asked for."""
        if before is None:
            return
        for name, value in header.items():
            if before.get(name) != value:
                got = f"a stream of which the journal says {name}={_short(before.get(name))}"
                self._refuse(got, f"{name}={_short(value)}, as of this call: {_MEANING[name]}")

    def _check_disk(self, files: "Sequence[_File]") -> None:
        needed, free = sum(file.size for file in files), shutil.disk_usage(self.path).free
        if needed > free:
            self._refuse(f"{free} bytes that are free on the disk", f"{needed} at least, for the results")

    def _refuse(self, got: str, expected: str) -> NoReturn:
        raise ArgumentError(
            f"hofunc.Stream: {self.path}",
            got=got,
            expected=expected,
            remedy="Nothing was computed. Name another folder, or delete what is in this one.",
        )


_Files = dict[tuple[int, tuple[int, ...]], "_File"]
_Open = tuple[int, set[int]]


@contextmanager
def _open(files: _Files, journal: int, done: set[int]) -> Iterator[_Open]:
    try:
        for file in files.values():
            file.open()
        yield journal, done
    finally:
        for file in files.values():
            file.close()
        os.close(journal)


def _sync(folder: Path) -> None:
    """Put on the disk which files are in a folder."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _cut(journal: int) -> None:
    """Cut off a line that was not written to its end."""
    text = os.pread(journal, os.fstat(journal).st_size, 0)
    os.ftruncate(journal, text.rfind(b"\n") + 1)


def _name(block: Block) -> str:
    return "-".join(map(str, (block.output, *block.inputs))) + ".npy"


_MEANING = {  # of what may differ from what the journal says
    "format": "another release of hofunc wrote it",
    "function": "the transform or its function has another name",
    "graph": "the function takes other ops, or tensors of other shapes or dtypes",
    "values": "an argument, a captured tensor or a random number has another value",
    "derivatives": "other derivatives, or of other shapes or dtypes, are asked for",
    "chunk": "others are computed at a time",
}


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 80 else text[:77] + "..."


class _File:
    """A file of numpy's format with one derivative.

    Args:
        path: Where it is.
        block: The derivative.

    Attributes:
        path: Where it is.
        size: How many bytes it has.
    """

    def __init__(self, path: Path, block: Block):
        if block.dtype not in _DTYPES:
            raise ArgumentError(
                "hofunc.Stream: the dtype of an output",
                got=str(block.dtype),
                expected=f"one of {[*map(str, _DTYPES)]}",
                remedy="Convert it inside f.",
            )
        self.path, self._block = path, block
        shape = "".join(f"{size}, " for size in block.shape)
        text = f"{{'descr': '{_DTYPES[block.dtype]}', 'fortran_order': False, 'shape': ({shape}), }}"
        text += " " * (-(len(text) + 11) % 64) + "\n"
        self._head = b"\x93NUMPY\x01\x00" + pack("<H", len(text)) + text.encode("latin1")
        self.size = len(self._head) + prod(block.shape) * block.dtype.itemsize
        self._number = -1

    @property
    def is_there(self) -> bool:
        """Whether it is there, with all its bytes."""
        return self.path.exists() and self.path.stat().st_size == self.size

    def make(self) -> None:
        """Make it, with zeros for all entries, and take the room for them."""
        number = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            os.pwrite(number, self._head, 0)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(number, 0, self.size)
            else:
                os.ftruncate(number, self.size)
            os.fsync(number)
        finally:
            os.close(number)

    def open(self) -> None:
        """Open it to be written."""
        self._number = os.open(self.path, os.O_RDWR)

    def close(self) -> None:
        """Close it again."""
        if self._number >= 0:
            os.close(self._number)

    def write(self, piece: Piece) -> int:
        """Write a part of the derivative, and return the number of the open file."""
        tensor = piece.tensor.detach().to("cpu")
        row = prod(self._block.rest) * tensor.element_size()
        rows = tensor.shape[len(self._block.before)] if tensor.is_contiguous() else max(1, _COPIED // max(1, row))
        for number, index in enumerate(product(*map(range, self._block.before))):
            place = len(self._head) + (number * self._block.rows + piece.start) * row
            for part in tensor[index].split(rows):  # which is copied if it is not in order
                place = self._put(part.contiguous(), place)
        return self._number

    def _put(self, part: torch.Tensor, place: int) -> int:
        """Write a tensor, and return the place after it."""
        left = memoryview((ctypes.c_char * part.nbytes).from_address(part.data_ptr()) if part.nbytes else b"")
        while left:
            count = os.pwrite(self._number, left, place)
            left, place = left[count:], place + count
        return place

    def tensor(self) -> torch.Tensor:
        """Return a view of it, of which what is written stays in memory."""
        storage = torch.UntypedStorage.from_file(str(self.path), False, self.size)
        whole = torch.empty(0, dtype=torch.uint8).set_(storage)[len(self._head) :]  # type: ignore[arg-type]
        return whole.view(self._block.dtype).reshape(self._block.shape)


def identity_of(name: str, recording: Recording) -> dict[str, Any]:
    """Return what tells a recorded call from others: its name, its graph, and the values that it starts from.

    Random numbers that f drew are among the values; tensors on the meta device, on which torch finds shapes in forward
    mode, have none.
    """
    graph = recording.graph
    digest, values = sha256(), sha256()
    for node, value in zip(graph.nodes, recording.values, strict=True):
        digest.update(_text(node).encode())
        if not value.is_meta and (node.is_given or draws(node)):
            for part in value.detach().reshape(-1).split(1 << 22):
                tensor = part.to("cpu").contiguous()
                values.update(ctypes.string_at(tensor.data_ptr(), tensor.nbytes))
    digest.update(repr((graph.inputs, graph.outputs)).encode())
    return {"function": name, "graph": digest.hexdigest(), "values": values.hexdigest()}


def _text(node: Node) -> str:
    """Write a node so that it reads the same in another process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr((str(node.op), *node[2:9])))


def without_memory(function: Callable[..., Any], *args: Any) -> Any:
    """Call what arranges results, but let those that are zero take no memory."""
    if function is zeros:
        shape, dtype, device = args
        return torch.zeros((), dtype=dtype, device=device).expand(shape)
    return function(*args)
