"""What code asks that no name in it stands for: settings of torch, and variables of the environment.

Code of libraries is not searched for names, but what it says of these comes from a few functions.
"""

import os
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any

from hofunc.graph.holding import Holding, of_answer
from hofunc.internals_settings import SETTINGS

LOOKING_UP = type(os.environ).__getitem__.__code__


class Asked:
    """Notes what is asked."""

    def __init__(self) -> None:
        self._settings: set[str] = set()
        self._variables: dict[str, Any] = {}

    def ask(self, function: Any) -> None:
        """Note a call of a function that bears a name of SETTINGS."""
        if function is SETTINGS[function.__name__]:
            self._settings.add(function.__name__)

    def look_up(self, frame: FrameType) -> None:
        """Note which variable of the environment a call of LOOKING_UP asks for."""
        variables, key = frame.f_locals["self"], frame.f_locals["key"]
        if variables is os.environ and isinstance(key, str):
            self._variables[key] = variables.encodekey(key)

    def holdings(self) -> Iterator[Holding]:
        """Yield what was answered. A setting that the function changes and brings back is what it is now."""
        for name in sorted(self._settings):
            yield of_answer("the settings of torch", name, SETTINGS[name], SETTINGS[name])
        variables = vars(os.environ)["_data"]  # which tells in a tenth of the time
        for key, encoded in sorted(self._variables.items()):
            yield of_answer("the environment", key, os.environ, partial(variables.get, encoded))
