"""The pytest plugin of hofunc: the fixture ``hofunc_golden``, and the option that accepts what has changed.

pytest loads it wherever hofunc is installed. It lies beside the package, and imports it only when the fixture is used,
so that tests that do not use it need not wait for torch.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hofunc.testing.golden import Goldens

_OWNERS = pytest.StashKey[dict[Path, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("hofunc").addoption(
        "--hofunc-golden-update",
        action="store_true",
        help="write the golden derivatives that are missing or have changed, rather than fail",
    )


@pytest.fixture
def hofunc_golden(request: pytest.FixtureRequest) -> "Goldens":
    """Golden derivatives, kept in ``golden/<test file>/`` beside the test file: see `hofunc.testing.golden.Goldens`."""
    from hofunc.testing.golden import Goldens  # noqa: PLC0415 - see above

    folder = request.path.parent / "golden" / request.path.stem
    owners = request.config.stash.setdefault(_OWNERS, {})
    return Goldens(folder, request.node.nodeid, owners, update=request.config.getoption("--hofunc-golden-update"))
