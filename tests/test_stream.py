"""Streams: what is written, what is resumed after whatever interruption, and what is refused with nothing lost."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import hofunc
from hofunc.stream import JOURNAL
from tests.cases import rand
from verification.memory import SLACK, taken
from verification.oracles import relative_error

CPU = torch.device("cpu")
FEATURES = rand(CPU, 12, 4, seed=7)


def network(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return a number, and some that depend on each of two inputs and not on a third."""
    return ((FEATURES @ p["u"]).tanh() @ p["v"]).square().mean(), (p["u"].sum(0) * p["v"]).exp()


@pytest.fixture
def parameters() -> dict[str, Tensor]:
    """Return what the network takes."""
    return {"u": rand(CPU, 4, 3), "v": rand(CPU, 3, seed=1), "w": rand(CPU, 2, seed=2)}


def hessian(path: Path, **options: Any) -> Callable[..., Any]:
    """Return the Hessian of the network, streamed in chunks of five."""
    progress = options.pop("progress", False)
    return hofunc.hessian(network, chunk_size=5, out=hofunc.Stream(path, progress=progress), **options)


def assert_same(got: Any, expected: Any) -> None:
    """Check that structures of tensors are the same."""
    for one, other in zip(tree_leaves(got), tree_leaves(expected), strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        assert relative_error(one, other) < 1e-12


def contents(path: Path) -> dict[str, bytes]:
    """Return all that a folder holds."""
    return {each.name: each.read_bytes() for each in path.iterdir()}


def test_results_are_those_of_the_whole_and_files_those_of_numpy(tmp_path: Path, parameters: dict[str, Tensor]) -> None:
    expected = hofunc.hessian(network)(parameters)
    got = hessian(tmp_path / "s")(parameters)
    assert_same(got, expected)
    names = {"0-0-0", "0-0-1", "0-1-1", "1-0-0", "1-0-1", "1-1-1"}
    assert {path.name for path in (tmp_path / "s").iterdir()} == {JOURNAL, *(f"{name}.npy" for name in names)}
    file = np.load(tmp_path / "s" / "1-0-1.npy", mmap_mode="r")
    assert np.array_equal(file, got[1]["u"]["v"].numpy())
    got[1]["u"]["v"].zero_()
    assert file.any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_all_orders_and_dtypes(tmp_path: Path, dtype: torch.dtype) -> None:
    x = rand(CPU, 5).to(dtype)
    f = lambda x: (x[:-1] * x[1:]).sin().sum()  # noqa: E731 - as short as it can be
    value, *got = hofunc.derivatives(f, 3, chunk_size=2, out=hofunc.Stream(tmp_path))(x)
    assert torch.equal(value, f(x))
    for order, one in enumerate(got, 1):
        assert torch.allclose(one, hofunc.hod(f, order)(x), rtol=2 * torch.finfo(dtype).eps)
        assert np.load(tmp_path / ("-".join("0" * (order + 1)) + ".npy")).dtype == str(dtype)[6:]


def test_what_is_small_or_vanishes(tmp_path: Path) -> None:
    x = rand(CPU, 3)
    stream = hofunc.Stream(tmp_path / "number")
    assert relative_error(hofunc.hessian(torch.sin, out=stream)(x[0]), -x[0].sin()) < 1e-14
    got = hofunc.hessian(torch.sum, out=hofunc.Stream(tmp_path / "zero"))(x)
    assert torch.equal(got, torch.zeros(3, 3).to(x))
    assert got.untyped_storage().nbytes() == 8
    assert hofunc.hessian(torch.prod, out=hofunc.Stream(tmp_path / "empty"))(x[:0]).shape == (0, 0)


# Interruptions.


@pytest.mark.parametrize("call", ["fsync", "pwrite", "write", "posix_fallocate"])
def test_whatever_interrupts_it_it_is_resumed(
    call: str, tmp_path: Path, parameters: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = hofunc.hessian(network)(parameters)
    original = getattr(os, call)
    for number in range(0, 100, 3):
        counts = iter(range(100))

        def interrupted(*args: Any) -> Any:
            if next(counts) == number:  # noqa: B023 - called in this turn
                raise KeyboardInterrupt
            return original(*args)

        path, seen = tmp_path / f"{call}{number}", list[tuple[int, int]]()
        with monkeypatch.context() as patched:
            patched.setattr(os, call, interrupted)
            try:
                hessian(path)(parameters)
            except KeyboardInterrupt:
                pass
            else:
                break
        assert_same(hessian(path, progress=lambda *now: seen.append(now))(parameters), expected)  # noqa: B023
        done = len((path / JOURNAL).read_text().splitlines()) - 1
        assert (done, done) == seen[-1]
    assert number > 0


def test_a_chunk_is_computed_again_if_its_mark_was_not_written_whole(
    tmp_path: Path, parameters: dict[str, Tensor]
) -> None:
    expected = hofunc.hessian(network)(parameters)
    hessian(tmp_path)(parameters)
    journal = tmp_path / JOURNAL
    *lines, last = journal.read_text().splitlines()
    with (tmp_path / "0-1-1.npy").open("r+b") as opened:
        opened.seek(-8, os.SEEK_END)
        opened.write(b"\xff" * 8)
    journal.write_text("\n".join(lines) + "\n" + last)
    seen: list[tuple[int, int]] = []
    assert_same(hessian(tmp_path, progress=lambda *now: seen.append(now))(parameters), expected)
    assert seen == [(3, 4), (4, 4)]
    assert journal.read_text().splitlines() == [*lines, last]


def test_chunks_are_those_that_it_was_begun_with(tmp_path: Path, parameters: dict[str, Tensor]) -> None:
    expected = hessian(tmp_path)(parameters)
    journal = tmp_path / JOURNAL
    journal.write_text("\n".join(journal.read_text().splitlines()[:3]) + "\n")
    other = hofunc.hessian(network, chunk_size=2, out=hofunc.Stream(tmp_path))
    assert_same(other(parameters), expected)
    assert json.loads(journal.read_text().splitlines()[0])["chunk"] == 5


def test_random_numbers_are_values_too(tmp_path: Path) -> None:
    f = lambda x: (x.outer(x) * torch.rand(3, 3)).sin().sum()  # noqa: E731 - as short as it can be
    x = rand(CPU, 3).float()
    call = hofunc.hessian(f, out=hofunc.Stream(tmp_path))
    torch.manual_seed(0)
    first = call(x)
    with pytest.raises(hofunc.ArgumentError, match=r"the journal says values=.* random number has another value"):
        call(x)
    torch.manual_seed(0)
    assert torch.equal(call(x), first)


def test_entries_that_do_not_lie_in_order_are_written_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hofunc.stream._COPIED", 100)
    x = rand(CPU, 7, 2)
    f = lambda x: torch.stack([(x @ x.T).sin().sum(), x.prod()])  # noqa: E731 - as short as it can be
    assert_same(hofunc.hessian(f, out=hofunc.Stream(tmp_path))(x), hofunc.hessian(f)(x))


# What is refused.


@pytest.fixture
def begun(tmp_path: Path, parameters: dict[str, Tensor]) -> Iterator[Path]:
    """Return the folder of a stream, and check that nothing of it is lost."""
    hessian(tmp_path / "begun")(parameters)
    before = contents(tmp_path / "begun")
    yield tmp_path / "begun"
    assert contents(tmp_path / "begun") == before


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("function", lambda s, p: hofunc.jacobian(network, out=s)(p)),
        ("graph", lambda s, p: hofunc.hessian(network, out=s)({**p, "v": p["v"][:2], "u": p["u"][:, :2]})),
        ("graph", lambda s, p: hofunc.hessian(network, out=s)({n: t.float() for n, t in p.items()})),
        ("values", lambda s, p: hofunc.hessian(network, out=s)({**p, "u": p["u"] + 1})),
    ],
)
def test_a_stream_of_something_else_is_left_alone(
    field: str, call: Callable[..., Any], begun: Path, parameters: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    if field == "graph":
        monkeypatch.setitem(globals(), "FEATURES", FEATURES.to(torch.float64))
    with pytest.raises((hofunc.ArgumentError, RuntimeError), match=f"the journal says {field}=|dtype"):
        call(hofunc.Stream(begun), parameters)


def test_another_function_of_the_same_name(begun: Path, parameters: dict[str, Tensor]) -> None:
    def network(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return ((FEATURES @ p["u"]).sinh() @ p["v"]).square().mean(), (p["u"].sum(0) * p["v"]).exp()

    with pytest.raises(hofunc.ArgumentError, match=r"the journal says graph=.* takes other ops"):
        hofunc.hessian(network, out=hofunc.Stream(begun))(parameters)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('{"format": 0, "chunk": 5}\n', "says format=0"),
        ("{\n", "a journal that cannot be read"),
        ("[1]\n", "of something else"),
    ],
)
def test_another_format(text: str, match: str, tmp_path: Path, parameters: dict[str, Tensor]) -> None:
    (tmp_path / JOURNAL).write_text(text)
    with pytest.raises(hofunc.ArgumentError, match=match):
        hessian(tmp_path)(parameters)
    assert contents(tmp_path) == {JOURNAL: text.encode()}


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, parameters: dict[str, Tensor]) -> None:
    (tmp_path / "0-0-0.npy").write_text("mine")
    for path in (tmp_path, tmp_path / "0-0-0.npy", tmp_path / "no" / "where"):
        with pytest.raises(hofunc.ArgumentError, match=r"hofunc\.Stream: .*Nothing was computed"):
            hessian(path)(parameters)
    assert contents(tmp_path) == {"0-0-0.npy": b"mine"}


def test_a_file_that_is_gone_is_missed(tmp_path: Path, parameters: dict[str, Tensor]) -> None:
    hessian(tmp_path)(parameters)
    (tmp_path / "0-0-1.npy").unlink()
    with pytest.raises(hofunc.ArgumentError, match=r"no 0-0-1\.npy of the right size"):
        hessian(tmp_path)(parameters)


def test_a_full_disk_is_told_of_before_anything_is_computed(
    tmp_path: Path, parameters: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(hofunc.ArgumentError, match=r"got 1000 bytes that are free on the disk, expected \d+"):
        hessian(tmp_path, progress=lambda *now: seen.append(now))(parameters)
    assert not seen
    monkeypatch.undo()
    assert_same(hessian(tmp_path)(parameters), hofunc.hessian(network)(parameters))


def test_two_calls_do_not_write_to_one_folder(tmp_path: Path, parameters: dict[str, Tensor]) -> None:
    def again(done: int, _: int) -> None:
        if done == 1:
            with pytest.raises(hofunc.ArgumentError, match="another process is writing"):
                hessian(tmp_path)(parameters)

    assert_same(hessian(tmp_path, progress=again)(parameters), hofunc.hessian(network)(parameters))


def test_what_another_process_wrote_meanwhile_is_not_written_over(
    tmp_path: Path, parameters: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, locked = hofunc.Stream._lock, iter([True])

    def late(stream: hofunc.Stream, journal: int) -> None:
        if next(locked, False):
            hessian(tmp_path)(parameters)
        lock(stream, journal)

    monkeypatch.setattr(hofunc.Stream, "_lock", late)
    seen: list[tuple[int, int]] = []
    hessian(tmp_path, progress=lambda *now: seen.append(now))(parameters)
    assert seen == [(4, 4)]


def test_a_function_in_forward_mode_that_makes_tensors_without_numbers(tmp_path: Path) -> None:
    def slopes(x: Tensor) -> Tensor:
        return torch.func.jacfwd(lambda y: (y * x.sum()).sin())(x).sum()

    x, stream = rand(CPU, 3), hofunc.Stream(tmp_path / "s")
    for _ in range(2):
        assert_same(hofunc.hessian(slopes, out=stream)(x), hofunc.hessian(slopes)(x))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda s, x: hofunc.hessian(torch.sum, out=s, layout="compact")(x), "layout='compact'"),
        (
            lambda s, x: hofunc.hessian(torch.sum, out=str(s.path))(x),  # type: ignore[arg-type]
            "got str, expected a hofunc.Stream",
        ),
        (lambda s, x: hofunc.hessian(torch.sum, out=s).plan(x), "out: got a plan"),
        (lambda s, x: torch.func.vmap(hofunc.hessian(torch.sum, out=s))(x[None]), "out: got a call inside"),
        (lambda s, x: hofunc.jacobian(lambda x: hofunc.hessian(torch.prod, out=s)(x))(x), "out: got a call inside"),
        (lambda s, x: hofunc.hessian(lambda x: x.cfloat().exp().sum(), out=s)(x), "a complex output of f"),
        (lambda s, x: hofunc.hessian(lambda x: x.prod(), out=s)(x.bfloat16()), r"torch\.bfloat16"),
        (lambda s, x: hofunc.hessian(torch.prod, out=s)(x.to("meta")), "got a tensor on the meta device"),
    ],
)
def test_what_is_not_streamed(call: Callable[..., Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(hofunc.ArgumentError, match=match):
        call(hofunc.Stream(tmp_path / "new"), rand(CPU, 3))
    assert not (tmp_path / "new").exists() or not any((tmp_path / "new").iterdir())


# Memory and progress.


def large(x: Tensor) -> Tensor:
    """Return a number of which the Hessian is full."""
    return x.sin().sum() ** 2


def test_what_is_held_is_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, limit = rand(CPU, 300), 60_000
    stream = hofunc.hessian(large, max_bytes=limit, out=hofunc.Stream(tmp_path / "0"))
    stream(x)
    counts = iter(range(1, 9))
    monkeypatch.setattr("hofunc.stream._File.tensor", lambda _: None)  # which counts as memory, but is a file
    call = lambda: hofunc.hessian(large, max_bytes=limit, out=hofunc.Stream(tmp_path / str(next(counts))))(x)  # noqa: E731
    assert taken(call) <= limit + SLACK
    assert 10 * limit < 300 * 300 * 8
    monkeypatch.undo()
    assert torch.allclose(call(), hofunc.hessian(large)(x))
    with pytest.raises(hofunc.ArgumentError, match="expected at most max_bytes=5000"):
        hofunc.hessian(large, max_bytes=5000, out=hofunc.Stream(tmp_path / "few"))(x)


def test_progress_is_shown_by_tqdm_if_it_is_there(
    tmp_path: Path, parameters: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Any] = []

    class Bar:
        n = 0

        def __init__(self, total: int, unit: str, desc: str, delay: int):
            shown.append((total, unit, delay))
            assert desc.startswith("hofunc.Stream: ")

        def __enter__(self) -> "Bar":
            return self

        def __exit__(self, *_: object) -> None:
            shown.append("closed")

        def update(self, count: int) -> None:
            self.n += count
            shown.append(self.n)

    monkeypatch.setitem(__import__("sys").modules, "tqdm.auto", type("tqdm.auto", (), {"tqdm": Bar}))
    hessian(tmp_path / "0", progress=True)(parameters)
    assert shown == [(4, "chunk", 0), 0, 1, 2, 3, 4, "closed"]
    monkeypatch.setitem(__import__("sys").modules, "tqdm.auto", None)
    with pytest.raises(hofunc.ArgumentError, match="tqdm is not installed"):
        hessian(tmp_path / "1", progress=True)(parameters)


# Pieces.


def test_pieces_are_the_parts_of_all_derivatives(parameters: dict[str, Tensor]) -> None:
    expected = hofunc.hessian(network)(parameters)
    names = ["u", "v", "w"]
    found: dict[Any, list[Tensor]] = {}
    for piece in hofunc.hessian(network, chunk_size=5).pieces(parameters):
        parts = found.setdefault((piece.output, *piece.inputs), [])
        dims = expected[piece.output]["w"]["w"].dim() - 2
        assert piece.start == sum(part.shape[dims] for part in parts)
        assert piece.stop - piece.start == piece.tensor.shape[dims]
        parts.append(piece.tensor)
    assert len(found) == 6
    for (output, first, second), parts in found.items():
        whole = expected[output][names[first]][names[second]]
        dims = expected[output]["w"]["w"].dim() - 2
        assert relative_error(torch.cat(parts, dims).reshape(whole.shape), whole) < 1e-12


def test_pieces_are_computed_as_they_are_asked_for() -> None:
    x, limit = rand(CPU, 300), 60_000
    pieces = hofunc.hessian(large, max_bytes=limit).pieces

    def total() -> float:
        return sum(float(piece.tensor.square().sum()) for piece in pieces(x))

    assert total() == pytest.approx(float(hofunc.hessian(large)(x).square().sum()))
    assert taken(lambda: next(pieces(x))) <= limit + SLACK


def test_pieces_of_what_is_no_whole_derivative_are_refused() -> None:
    x = rand(CPU, 3)
    for call in (
        lambda: hofunc.hessian(large, layout="compact").pieces(x),
        lambda: hofunc.einsum(large, ", i, i ->").pieces(x),
    ):
        with pytest.raises(hofunc.ArgumentError, match="pieces of what is not computed by coordinates"):
            call()
    with pytest.raises(hofunc.ArgumentError, match="pieces: got a complex output"):
        hofunc.hessian(lambda x: x.cfloat().exp().sum()).pieces(x)
    with pytest.raises(hofunc.ArgumentError, match="pieces: got a call inside"):
        torch.func.vmap(lambda x: next(hofunc.hessian(large).pieces(x)).tensor)(x[None])
