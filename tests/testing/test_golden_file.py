"""Golden files: exact, written at once or not at all, and read only if they are whole."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import hofunc
from hofunc.testing.golden_file import Golden, Kept, load, save

VALUES = [0.1, -0.0, 1e-320, 1.7e308, float("inf"), float("-inf"), float("nan")]


@pytest.fixture
def golden() -> Golden:
    return Golden(
        2,
        (0, 2),
        (Kept("args[0]", "float64", torch.tensor(VALUES, dtype=torch.float64)),),
        (
            Kept("a", "float32", torch.tensor([[0.1, 2.0]]).double()),
            Kept("b", "bfloat16", torch.tensor(0.1, dtype=torch.bfloat16).double()),
            Kept("c", "float64", torch.zeros(0, 3, dtype=torch.float64)),
        ),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "golden" / "test_it" / "name.json"


def shown(golden: Golden) -> list[Any]:
    tensors = (*golden.inputs, *golden.derivative)
    bits = [[value.hex() for value in kept.values.flatten().tolist()] for kept in tensors]
    return [golden.order, golden.argnums, [(kept.name, kept.dtype, kept.values.shape) for kept in tensors], bits]


def test_what_is_saved_is_loaded_to_the_last_bit(golden: Golden, path: Path) -> None:
    save(path, golden)
    assert shown(load(path)) == shown(golden)
    assert [*path.parent.iterdir()] == [path]


def test_a_file_is_text_that_says_what_it_is(golden: Golden, path: Path) -> None:
    save(path, golden._replace(argnums=1))
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[:5] == ["{", ' "format": "hofunc golden",', ' "version": 1,', ' "order": 2,', ' "argnums": 1,']
    assert '    "0x1.999999999999ap-4",' in lines
    assert path.read_text(encoding="utf-8").endswith("}\n")
    save(path.with_name("again.json"), load(path))
    assert path.with_name("again.json").read_bytes() == path.read_bytes()


def test_a_file_may_be_read_by_whom_any_new_file_may(golden: Golden, path: Path, tmp_path: Path) -> None:
    save(path, golden)
    (tmp_path / "other").touch()
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("step", ["open", "replace"])
def test_a_failure_leaves_everything_as_it_was(
    step: str, golden: Golden, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(path, golden)
    before = path.read_bytes()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, step, fail)
    with pytest.raises(OSError, match="no space left"):
        save(path, golden._replace(order=3))
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [*path.parent.iterdir()] == [path]


def test_no_file(path: Path) -> None:
    with pytest.raises(hofunc.GoldenError) as caught:
        load(path)
    assert str(caught.value).startswith(
        f"hofunc_golden: {path}: got no such file, expected a golden derivative (called"
    )
    assert str(caught.value).endswith("). Run the test with --hofunc-golden-update to make it, and look at it.")


@pytest.mark.parametrize("version", [0, 2, "1", None, True])
def test_another_version(version: Any, golden: Golden, path: Path) -> None:
    save(path, golden)
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(content | {"version": version}), encoding="utf-8")
    with pytest.raises(hofunc.GoldenError) as caught:
        load(path)
    assert f"{path}: got version {version!r}, expected version 1 (called at" in str(caught.value)
    remedy = "Run the test with --hofunc-golden-update to write it anew, or with the release of hofunc that wrote it."
    assert remedy in str(caught.value)


def damaged(text: str) -> list[bytes]:
    """Return what may have become of a file."""
    content = json.loads(text)
    kept = content["derivative"][0]
    changes: list[Any] = [
        [content],
        {key: value for key, value in content.items() if key != "format"},
        content | {"format": "other"},
        {key: value for key, value in content.items() if key != "order"},
        content | {"order": "two"},
        content | {"order": None},
        content | {"argnums": None},
        content | {"argnums": "01"},
        content | {"inputs": {"a": 1}},
        content | {"derivative": [7]},
        content | {"derivative": [kept | {"shape": [3]}]},
        content | {"derivative": [kept | {"shape": [-1]}]},
        content | {"derivative": [kept | {"shape": "12"}]},
        content | {"derivative": [kept | {"values": ["0x1.8p+0", "2.0q"]}]},
        content | {"derivative": [kept | {"values": [1.0, 2.0]}]},
        content | {"derivative": [kept | {"values": ["0x1p+99999", "0x0p+0"]}]},
        content | {"derivative": [kept | {"dtype": "load"}]},
        content | {"derivative": [{"name": "a"}]},
    ]
    texts = ["", text[: len(text) // 2], "<<<<<<< HEAD\n" + text, text.replace("{", "[", 1)]
    return [*(json.dumps(change).encode() for change in changes), *(text.encode() for text in texts), b"\xff\xfe{}"]


def test_a_damaged_file(golden: Golden, path: Path) -> None:
    save(path, golden)
    for content in damaged(path.read_text(encoding="utf-8")):
        path.write_bytes(content)
        with pytest.raises(hofunc.GoldenError) as caught:
            load(path)
        assert re.fullmatch(
            rf"hofunc_golden: {re.escape(str(path))}: got \w+: .*, expected a golden file as hofunc writes it "
            r"\(called at test_golden_file\.py:\d+\)\. Restore it from version control, or run the test with "
            r"--hofunc-golden-update to write it anew\.",
            str(caught.value),
        ), (content, str(caught.value))


def test_a_folder_in_place_of_a_file(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(hofunc.GoldenError, match="IsADirectoryError"):
        load(path)
