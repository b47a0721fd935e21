"""The releases of torch that hofunc works with: an older one is refused on import, and a newer one is warned of.

hofunc reads what torch keeps to itself, in `hofunc.internals`, and any release may change that. So it is tested with
the present release and the two before it. A newer one may be installed all the same, since most change nothing here.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hofunc.errors import UntestedTorchWarning, VersionError, warn

VERSION = "0.1.0.dev0"  # of hofunc

TESTED = ((2, 13), (2, 14), (2, 15))


def release_of(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version, such as 2.15.0+cpu; none if it does not begin with them."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return () if found is None else tuple(map(int, found.groups()))


def _named(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))


_EXPECTED = f"a release from {_named(TESTED[0])} to {_named(TESTED[-1])}"
RELEASE = release_of(torch.__version__) or TESTED[-1]  # the one that is installed


def check_release(version: str) -> None:
    """Check that torch is not too old, and warn if it is too new to have been tried.

    Args:
        version: Its version.

    Raises:
        VersionError: It is older than all releases that hofunc is tested with.
    """
    release = release_of(version)
    if release in TESTED:
        return
    if () < release < TESTED[0]:
        raise VersionError(
            "hofunc: torch is too old",
            got=f"torch {version}",
            expected=_EXPECTED,
            remedy=f"pip install 'torch>={_named(TESTED[0])}'",
        )
    warn(
        f"hofunc is not tested with torch {version}, but with {_EXPECTED}. Look for a newer hofunc, or compare "
        "derivatives with torch's own: hofunc.hodcheck.",
        UntestedTorchWarning,
    )


@contextmanager
def reading(version: str = torch.__version__) -> Iterator[None]:
    """Import within what reads torch.

    Args:
        version: The version of torch that is installed.

    Raises:
        VersionError: Something is not there, in a release that hofunc was not tested with.
    """
    try:
        yield
    except (AttributeError, ImportError) as error:
        if release_of(version) in TESTED:
            raise
        raise VersionError(
            "hofunc: torch has no longer all that hofunc reads of it",
            got=f"torch {version}: {error}",
            expected=_EXPECTED,
            remedy=f"Look for a newer hofunc, or pip install 'torch=={_named(TESTED[-1])}.*'.",
        ) from error


check_release(torch.__version__)
