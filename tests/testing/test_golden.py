"""Golden derivatives: what is accepted, what is told, and what is written."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.testing.golden import Goldens

X = torch.tensor([0.5, 1.0], dtype=torch.float64)


@pytest.fixture
def goldens(tmp_path: Path) -> Callable[..., Goldens]:
    """Return a function that makes the golden derivatives of a test, by default one that has not run yet."""
    owners: dict[Path, str] = {}

    def make(test: str = "", *, update: bool = False) -> Goldens:
        return Goldens(tmp_path / "golden", test or f"test_{len(owners)}", {} if not test else owners, update=update)

    return make


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "golden" / "cube.json"


def cube(x: Tensor) -> Tensor:
    return (x**3).sum()


def refused(call: Callable[[], Any]) -> str:
    """Return the message of a refusal."""
    with pytest.raises(hofunc.GoldenError) as caught:
        call()
    return str(caught.value)


def test_a_golden_is_made_only_when_asked_for(goldens: Callable, path: Path) -> None:
    message = refused(lambda: goldens().check("cube", cube, X))
    assert f"hofunc_golden: {path}: got no such file" in message
    assert "with --hofunc-golden-update to make it" in message
    assert not path.parent.exists()
    goldens(update=True).check("cube", cube, X)
    goldens().check("cube", cube, X)
    goldens().check("cube", cube, (X,), order=2, argnums=-1)


def test_a_change_is_told_by_entry_and_accepted_when_asked_for(goldens: Callable, path: Path) -> None:
    def changed(x: Tensor) -> Tensor:
        return cube(x) + 0.125 * x[1] ** 2

    goldens(update=True).check("cube", cube, X)
    before = path.read_bytes()
    message = refused(lambda: goldens().check("cube", changed, X))
    assert re.fullmatch(
        r"hofunc_golden: entry \[1, 1\] of d\^2 f\(\*args\) / d args\[0\] d args\[0\] is 0\.25 off, "
        r"2\.\d+e-10 allowed; 1 of 4 entries differ: got 6\.25, expected 6, as kept in "
        rf"{re.escape(str(path))} \(called at test_golden\.py:\d+\)\. "
        r"If the change is meant, run the test with --hofunc-golden-update to accept it\.",
        message,
    ), message
    assert path.read_bytes() == before
    goldens(update=True).check("cube", changed, X)
    goldens().check("cube", changed, X)
    refused(lambda: goldens().check("cube", cube, X))


def test_what_has_not_changed_is_not_written_again(goldens: Callable, path: Path) -> None:
    goldens(update=True).check("cube", cube, X)
    before = path.read_text(encoding="utf-8").replace("0x1.8000000000000p+2", "0x1.8000000000001p+2")
    path.write_text(before, encoding="utf-8")
    goldens(update=True).check("cube", cube, X)
    assert path.read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    ("f", "args", "options", "got", "expected"),
    [
        (cube, X, {"order": 3}, "order 3", "order 2"),
        (cube, X, {"argnums": (0,)}, "argnums (0,)", "argnums 0"),
        (cube, X[:1], {}, "args[0] of float64 and shape (1,)", "args[0] of float64 and shape (2,)"),
        (cube, X.float(), {}, "args[0] of float32 and shape (2,)", "args[0] of float64 and shape (2,)"),
        (
            lambda x: {"a": cube(x)},
            X,
            {},
            "d^2 f(*args)['a'] / d args[0] d args[0] of float64 and shape (2, 2)",
            "d^2 f(*args) / d args[0] d args[0] of float64 and shape (2, 2)",
        ),
        (
            lambda x: cube(x).float(),
            X,
            {},
            "d^2 f(*args) / d args[0] d args[0] of float32 and shape (2, 2)",
            "d^2 f(*args) / d args[0] d args[0] of float64 and shape (2, 2)",
        ),
        (lambda x: (), X, {}, "nothing more", "d^2 f(*args) / d args[0] d args[0] of float64 and shape (2, 2)"),
    ],
)
def test_another_derivative(f: Callable, args: Any, options: Any, got: str, expected: str, goldens: Callable) -> None:
    goldens(update=True).check("cube", cube, X)
    message = refused(lambda: goldens().check("cube", f, args, **options))
    assert f"hofunc_golden: another derivative: got {got}, expected {expected}, as kept in" in message


def test_other_arguments_are_told_from_another_function(goldens: Callable) -> None:
    goldens(update=True).check("cube", cube, X)
    message = refused(lambda: goldens().check("cube", cube, X + 0.25))
    assert "hofunc_golden: entry [0] of args[0] is 0.25 off" in message
    assert "2 of 2 entries differ; it was kept for other arguments: got 0.75, expected 0.5, as kept in" in message


@pytest.mark.parametrize(
    ("off", "options", "is_accepted"),
    [
        (1e-12, {}, True),
        (1e-8, {}, False),
        (1e-6, {"rtol": 1e-5}, True),
        (1e-6, {"atol": 1e-4}, True),
        (1e-12, {"rtol": 1e-14}, False),
        (1e-12, {"rtol": 0.0, "atol": 0.0}, False),
    ],
)
def test_tolerances(off: float, options: dict, is_accepted: bool, goldens: Callable) -> None:
    goldens(update=True).check("cube", cube, X)

    def check() -> None:
        goldens().check("cube", lambda x: cube(x) * (1 + off), X, **options)

    if is_accepted:
        check()
    else:
        refused(check)


def test_entries_that_vanish_up_to_rounding_are_the_same(goldens: Callable) -> None:
    weight = torch.tensor([1.0, 1.0], dtype=torch.float64)
    goldens(update=True).check("cube", lambda x: (x.softmax(0) * weight).sum(), X)
    goldens().check("cube", lambda x: (x.softmax(0) * weight.flip(0) + 1e-17 * x).sum(), X)


@pytest.mark.parametrize("content", ["", '{"format": "hofunc golden", "version": 9}'])
def test_files_that_cannot_be_read_are_replaced_only_when_asked_for(
    content: str, goldens: Callable, path: Path
) -> None:
    path.parent.mkdir()
    path.write_text(content, encoding="utf-8")
    assert str(path) in refused(lambda: goldens().check("cube", cube, X))
    assert path.read_text(encoding="utf-8") == content
    goldens(update=True).check("cube", cube, X)
    goldens().check("cube", cube, X)


def test_a_derivative_that_raises_leaves_the_file(goldens: Callable, path: Path) -> None:
    goldens(update=True).check("cube", cube, X)
    before = path.read_bytes()
    with pytest.raises(hofunc.ArgumentError, match="hofunc_golden: an output of f: got dtype"):
        goldens(update=True).check("cube", lambda x: x > 0, X)
    with pytest.raises(hofunc.MutationError):
        goldens(update=True).check("cube", lambda x: x.add_(1), X.clone())
    assert path.read_bytes() == before


def test_pytrees_and_other_dtypes(goldens: Callable, path: Path) -> None:
    def f(p: dict[str, Tensor], scale: float, x: Tensor) -> list[Tensor]:
        return [(x * p["w"]).tanh() * scale, (x.sum() * p["b"]).exp()]

    args = ({"w": X.float(), "b": torch.tensor(0.5)}, 2.0, X.float())
    goldens(update=True).check("cube", f, args, 3, (0, 2))
    goldens().check("cube", f, args, 3, (0, 2))
    content = json.loads(path.read_text(encoding="utf-8"))
    assert [kept["name"] for kept in content["inputs"]] == ["args[0]['w']", "args[0]['b']", "args[2]"]
    assert len(content["derivative"]) == 2 * 3**3
    names = {kept["name"] for kept in content["derivative"]}
    assert "d^3 f(*args)[1] / d args[0]['b'] d args[2] d args[0]['w']" in names


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "../a", "a b", "a\n", "-a"])
def test_names_that_are_no_file_names(name: str, goldens: Callable) -> None:
    with pytest.raises(hofunc.ArgumentError, match=re.escape(f"hofunc_golden: name: got {name!r}, expected letters")):
        goldens().check(name, cube, X)


def test_every_derivative_has_a_name_of_its_own(goldens: Callable) -> None:
    first = goldens("a", update=True)
    first.check("cube", cube, X)
    first.check("cube-2.order_3", cube, X, 3)
    for other in (first, goldens("b", update=True)):
        with pytest.raises(hofunc.ArgumentError, match=r"got 'cube', expected a name of its own .*; a has it"):
            other.check("cube", cube, X)
    goldens("a").check("cube", cube, X)  # the same test, run again


@pytest.mark.parametrize(("options", "what"), [({"order": -1}, "order"), ({"argnums": 1}, "argnums")])
def test_bad_arguments(options: dict, what: str, goldens: Callable) -> None:
    with pytest.raises(hofunc.ArgumentError, match=f"hofunc_golden: {what}"):
        goldens().check("cube", cube, X, **options)


def test_a_contraction_is_kept_as_a_value(goldens: Callable, path: Path) -> None:
    laplacian = hofunc.laplacian(lambda x: (x**4).sum(-1))
    goldens(update=True).check("cube", laplacian, X, order=0)
    assert json.loads(path.read_text())["order"] == 0
    goldens().check("cube", laplacian, X, order=0)
    message = refused(lambda: goldens().check("cube", lambda x: laplacian(x) + 0.125, X, order=0))
    assert "entry [] of f(*args) is 0.125 off" in message
    with pytest.raises(hofunc.ArgumentError, match="order"):
        goldens().check("cube", laplacian, X, order=-1)
