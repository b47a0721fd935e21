"""Rules of dtypes that the compiler is told once are those that it has, and again where these change."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._inductor import lowering, utils  # noqa: F401 - the former has the rules
from torch._inductor.dtype_propagation import DtypePropagationOpsHandler
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND

from hofunc.internals_types import tell_types

NAME = "an_op_of_no_one"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Return a list that grows where the rules are made anew."""
    monkeypatch.setattr(DtypePropagationOpsHandler, "__init__", _own())
    monkeypatch.setattr(DtypePropagationOpsHandler, "_instance", None)
    found: list[int] = []
    own = DtypePropagationOpsHandler.__init__

    def noted(handler: Any) -> None:
        found.append(1)
        own(handler)

    monkeypatch.setattr(DtypePropagationOpsHandler, "__init__", noted)
    tell_types()
    yield found
    utils.op_dtype_propagation_rules.pop(NAME, None)


def _own() -> Callable[[Any], None]:
    """Return what the compiler has itself."""
    found: Any = DtypePropagationOpsHandler.__init__
    return getattr(found, "before", found)


def test_made_once(made: list[int]) -> None:
    first = DtypePropagationOpsHandler()
    assert all(DtypePropagationOpsHandler() is first for _ in range(3))
    assert len(made) == 1


def test_made_again_for_another_rule(made: list[int]) -> None:
    DtypePropagationOpsHandler()
    for dtype in (torch.int8, torch.bool):  # a new one, and one that is replaced
        utils.register_op_dtype_propagation_rules(NAME, ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT, dtype)
        assert getattr(DtypePropagationOpsHandler(), NAME)() == dtype
    assert len(made) == 3


def test_told_once(made: list[int]) -> None:  # noqa: ARG001 - puts back what is replaced
    told = DtypePropagationOpsHandler.__init__
    tell_types()
    assert DtypePropagationOpsHandler.__init__ is told


def test_rules_are_those_of_the_compiler(made: list[int]) -> None:  # noqa: ARG001 - as above
    told = vars(DtypePropagationOpsHandler())
    own: Any = object.__new__(DtypePropagationOpsHandler)
    _own()(own)
    assert {name: _rule(each) for name, each in told.items() if name in vars(own)} == {
        name: _rule(each) for name, each in vars(own).items()
    }


def _rule(rule: Any) -> tuple[Any, ...]:
    return rule.func, rule.args, rule.keywords
