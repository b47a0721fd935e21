"""What is read of the settings of torch, with a test of the fact, as for `hofunc.internals`.

It looks through hundreds of names, and so is imported where a plan asks which settings a function asks for.
"""

import re
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["SETTINGS"]

# What tells a setting that a program may change, by its name; others like them say what is traced, or want arguments.
SETTINGS: dict[str, Callable[[], Any]] = {
    name: value
    for name, value in vars(torch._C).items()
    if re.fullmatch(
        r"get_num_\w+|_get_\w*(enabled|precision|reduction|allow_\w+|benchmark|deterministic|backend|engine)", name
    )
    and callable(value)
}
