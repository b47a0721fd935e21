"""Every option of every public function: what is no value of it is refused, in words."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import hofunc
from hofunc.errors import ArgumentError
from hofunc.given import MOST_ORDERS, listed, shown

X = torch.tensor([1.0, 2.0, 3.0])
ROWS = X.expand(2, 3)
TERMS = hofunc.hessian(torch.sin, layout="compact")(X)


class Other:
    """Something that no option takes, and that neither has a truth value nor can be compared."""

    def __bool__(self) -> bool:
        raise ValueError("no truth value")

    def __eq__(self, other: object) -> bool:
        raise ValueError("cannot be compared")

    def __hash__(self) -> int:
        raise TypeError("not hashable")

    def __repr__(self) -> str:
        return "Other()"


def total(x: torch.Tensor) -> torch.Tensor:
    return (x**3).sum()


def each_row(x: torch.Tensor) -> torch.Tensor:
    return (x**3).sum(-1)


def set_for_a_block(**options: Any) -> None:
    with hofunc.options(**options):
        pass


def called(transform: Callable[..., Any], f: Callable[..., Any], x: torch.Tensor, **fixed: Any) -> Callable[..., Any]:
    return lambda **options: transform(f, **fixed, **options)(x)


FLAG: list[Any] = [1, 0, None, "yes", X, Other(), []]
COUNT: list[Any] = [0, -1, True, 2.0, "2", float("nan"), X, Other(), (), torch.tensor(2)]
ORDER: list[Any] = [*COUNT, None, MOST_ORDERS + 1, 10**20, 10**9999]
LIMIT: list[Any] = COUNT
WORD: list[Any] = ["other", 1, True, X, Other(), ("auto",), b"auto"]
TOLERANCE: list[Any] = [-1, "1", True, float("nan"), X, Other(), 1j, []]
OBJECT: list[Any] = ["one", 1, X, Other(), ()]
PATH: list[Any] = [1, None, b"x", X, Other(), ("x",)]
LISTED: list[Any] = [1, None, Other(), 1.5]

OF_ALL: dict[str, list[Any]] = {"has_aux": FLAG, "strategy": WORD, "chunk_size": LIMIT, "max_bytes": LIMIT}
OF_HOD: dict[str, list[Any]] = {**OF_ALL, "layout": WORD, "strict": FLAG, "holomorphic": FLAG, "out": OBJECT}
DRAWN: dict[str, list[Any]] = {"directions": WORD, "generator": OBJECT, "with_error": FLAG}

OPTIONS: dict[str, tuple[Callable[..., Any], Mapping[str, list]]] = {
    "hod": (called(hofunc.hod, total, X), {"order": ORDER, **OF_HOD}),
    "derivatives": (called(hofunc.derivatives, total, X), {"order": ORDER, **OF_HOD}),
    "jacobian": (called(hofunc.jacobian, total, X), OF_HOD),
    "hessian": (called(hofunc.hessian, total, X), OF_HOD),
    "einsum": (called(hofunc.einsum, total, X, pattern=", i, i -> "), {**OF_ALL, **DRAWN}),
    "estimate": (called(hofunc.einsum, total, X, pattern=", i, i -> ", estimate={"i": 2}), {**OF_ALL, **DRAWN}),
    "laplacian": (called(hofunc.laplacian, each_row, ROWS), {"samples": [*COUNT, 10**20], **OF_ALL}),
    "biharmonic": (called(hofunc.biharmonic, each_row, ROWS), {"samples": [*COUNT, 10**20], **OF_ALL}),
    "gradient": (called(hofunc.gradient, each_row, ROWS), OF_ALL),
    "partial": (called(hofunc.partial, each_row, ROWS, coordinates=(0, 1)), OF_ALL),
    "directional": (lambda **options: hofunc.directional(total, **options)(X, vector=X), {"order": ORDER, **OF_ALL}),
    "hvp": (lambda **options: hofunc.hvp(total, **options)(X, vector=X), OF_ALL),
    "ggnvp": (lambda **options: hofunc.ggnvp(torch.sin, total, **options)(X, vector=X), {"has_aux": FLAG}),
    "hooked": (called(hofunc.hooked, total, X, hooks={"h": lambda d, _: d}), {"order": ORDER}),
    "hodcheck": (
        lambda **options: hofunc.hodcheck(total, X, **options),
        {
            "order": ORDER,
            "rtol": TOLERANCE,
            "atol": TOLERANCE,
            "max_entries": [*COUNT, None],
            "raise_exception": FLAG,
            "strategy": WORD,
            "operands": LISTED,
        },
    ),
    "hodcheck of args": (lambda args: hofunc.hodcheck(total, args), {"args": LISTED}),
    "jit": (
        lambda **options: hofunc.jit(hofunc.hessian(total), **options),
        {"compile": [*WORD[2:], 0, 1], "max_plans": COUNT, "on_miss": WORD, "static_argnames": LISTED},
    ),
    "options": (
        set_for_a_block,
        {
            "fallback": WORD,
            "planning": WORD,
            "max_plan_seconds": [0, -1, True, float("nan"), "1", X, Other()],
            "cache_bytes": [-1, True, 1.5, "1", X, Other()],
            "progress": [1, 0, "yes", X, Other()],
        },
    ),
    "unpack": (lambda order: hofunc.unpack(X, (2,), order), {"order": [*COUNT, 10**20]}),
    "load_plan": (hofunc.load_plan, {"path": PATH}),
    "Plan.save": (hofunc.hessian(total).plan(X).save, {"path": PATH}),
    "Plan.compile": (hofunc.hessian(total).plan(X).compile, {"progress": [1, "yes", X, Other()]}),
    "Stream": (hofunc.Stream, {"path": PATH}),
    "Stream in a folder": (
        lambda progress: hofunc.Stream("x", progress=progress),
        {"progress": [1, "yes", X, Other()]},
    ),
    "Derivative.dense": (TERMS.dense, {"keep_batch": FLAG}),
    "Derivative.packed": (TERMS.packed, {"keep_batch": FLAG}),
    "Derivative.plot": (TERMS.plot, {"ax": OBJECT}),
}


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name, (_, options) in OPTIONS.items() for option in options]
)
def test_what_is_no_value_of_an_option_is_refused_in_words(name: str, option: str) -> None:
    function, options = OPTIONS[name]
    for given in options[option]:
        if option == "compile" and given is True:
            continue
        try:
            function(**{option: given})
        except ArgumentError as error:
            message = str(error)
            assert ": got " in message, message
            assert "expected " in message, message
            assert len(message) < 700, message
        else:
            pytest.fail(f"{name}({option}={shown(given)}) is taken")


def test_what_is_given_is_shown_in_short() -> None:
    assert shown("x") == "'x'"
    assert shown(torch.ones(1000)) == "Tensor of shape (1000,)"
    assert shown(10**9999) == "an int of 33216 bits"
    assert shown("x" * 1000) == "'" + "x" * 76 + "..."


def test_an_order_may_be_as_high_as_its_factorial_is_a_number() -> None:
    x = torch.tensor(0.5, dtype=torch.float64)
    torch.testing.assert_close(hofunc.hod(torch.sin, MOST_ORDERS)(x), -x.sin())


def test_a_collection_is_listed() -> None:
    assert listed("f", "what", [1, 2], "a list", "Pass one.") == (1, 2)


def test_more_samples_than_fit_are_refused_before_they_are_drawn() -> None:
    with pytest.raises(ArgumentError, match="a number of samples: got 1000000000000, which take"):
        hofunc.laplacian(each_row, samples=10**12)(ROWS)


def test_a_path_may_be_one_of_pathlib(tmp_path: Path) -> None:
    assert hofunc.Stream(tmp_path).path == hofunc.Stream(str(tmp_path)).path
