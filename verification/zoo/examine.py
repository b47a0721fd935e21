"""One entry, examined in a process of its own: `python -m verification.zoo.examine KEY`."""

import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version

import torch

import hofunc
from verification.conformance.limits import TooSlowError, limited
from verification.conformance.sample import Sample
from verification.conformance.verdicts import RIGHT
from verification.zoo import shims
from verification.zoo.entries import ENTRIES
from verification.zoo.entry import Case, Entry
from verification.zoo.judge import ORDERS, SECONDS, sample_of, verdict
from verification.zoo.pace import pace
from verification.zoo.results import Found, load, save

SEED = 0


def examine(entry: Entry) -> Found:
    """Judge an entry at every order, and time it where it is right."""
    torch.set_default_dtype(torch.float64)
    found = Found(entry.key, version(entry.library))
    sample, judged_on = _seeded(entry.make), _seeded(entry.like or entry.make)
    for order in ORDERS:
        judged = verdict(entry, sample, judged_on, order)
        found = replace(found, verdicts=(*found.verdicts, judged))
        save(found)
        if judged.verdict == RIGHT:
            with suppress(TooSlowError), limited(2 * SECONDS), hofunc.options(**entry.resolved()):
                timed = pace(sample, order, tries_func=not entry.kills_torch)
                found = replace(found, paces=(*found.paces, timed))
                save(found)
    return found


def _seeded(make: Callable[[], Case]) -> Sample:
    torch.manual_seed(SEED)
    return sample_of(make())


def main() -> None:
    """Examine the entry that is named, and keep what was found."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    entry, _kept = ENTRIES[sys.argv[1]], shims.install()
    try:
        save(Found(entry.key))
        save(examine(entry))
    except Exception as error:  # a library may fail in any way
        save(replace(load()[entry.key], failure=f"{type(error).__name__}: {error}"[:500]))
        raise


if __name__ == "__main__":
    main()
