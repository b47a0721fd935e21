"""What all tests share, the examples in docstrings included."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import hofunc
from hofunc.rules.registry import RULES
from hofunc.run.cache import _dropped, _families

pytest_plugins = ["pytester"]

torch.set_num_threads(1)  # pytest-xdist runs one process a core
hofunc.options(rates="standard")  # so that plans are the same wherever tests run


def pytest_collection_finish() -> None:
    """Let what looks for cycles pass over what stays, and come less often: that is a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, Any]) -> None:
    """Give every example in a docstring the names hofunc and torch."""
    doctest_namespace.update(hofunc=hofunc, torch=torch)


@pytest.fixture(autouse=True)
def _calls_of_its_own() -> None:
    """Let no test be told of the calls of others that were planned anew."""
    _families.clear()
    _dropped.clear()


@pytest.fixture(autouse=True)
def _same_rules() -> Iterator[None]:
    """Take out what an example or a test enters into the registry."""
    before = dict(RULES)
    yield
    for op in RULES.keys() - before.keys():
        del RULES[op]
