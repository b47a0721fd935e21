"""Fixtures of the engine's tests."""

from collections.abc import Iterator

import pytest
import torch

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    """Every device that there is."""
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Make random numbers the same in every run and order of the tests."""
    torch.manual_seed(0)


@pytest.fixture
def threads() -> Iterator[None]:
    """Let torch have two threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
