"""Examine the zoo, entry by entry: `python -m verification.zoo [PART OF A KEY ...]`, all without an argument."""

import subprocess
import sys
from dataclasses import replace

from verification.zoo import table
from verification.zoo.entries import ENTRIES
from verification.zoo.results import DIED, Found, load, save

SECONDS = 600.0  # for one entry, beside the limits that it keeps itself


def run(key: str) -> Found:
    """Examine an entry in a process of its own, which may hang or die, and return what was found."""
    save(Found(key, failure=DIED))
    try:
        command = [sys.executable, "-m", "verification.zoo.examine", key]
        subprocess.run(command, timeout=SECONDS, check=False, capture_output=True)  # noqa: S603 - a key of ours
    except subprocess.TimeoutExpired:
        save(replace(load()[key], failure=f"over {SECONDS:.0f} s"))
    return load()[key]


def main(chosen: list[str]) -> int:
    """Examine the chosen entries; returns 1 if one is wrong, or fails in a way that its entry does not say."""
    failed = 0
    for key in ENTRIES:
        if not chosen or any(part in key for part in chosen):
            found = run(key)
            failed |= not table.is_as_expected(found)
            print(table.line(found), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
