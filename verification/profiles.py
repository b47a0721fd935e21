"""How many examples each property is tried on, by profile, and where those are kept; see verification/conftest.py."""

import os
from pathlib import Path
from typing import Any

from hypothesis.database import DirectoryBasedExampleDatabase

PER_PROPERTY = {"ci": 30, "dev": 5, "nightly": 1500}
PROFILE = os.environ.get("HOFUNC_PROFILE", "ci")
EXAMPLES = Path(__file__).parent / ".examples"


def database(part: str = "") -> DirectoryBasedExampleDatabase | None:
    """Return where examples that failed are kept, if the profile keeps them.

    Args:
        part: Name of a place of its own. Tests that one function makes need one each: Hypothesis tells them apart by
            their source, and deletes what another one left as soon as it does not fail any more.
    """
    return DirectoryBasedExampleDatabase(EXAMPLES / part) if PROFILE == "nightly" else None


def drawing(name: str) -> dict[str, Any]:
    """Return the settings of Hypothesis that tell how a profile draws: the same every time is kept nowhere."""
    is_fixed = name == "ci"
    kept = None if is_fixed else database()
    return {"max_examples": PER_PROPERTY[name], "derandomize": is_fixed, "database": kept}
