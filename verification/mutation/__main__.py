"""``python -m verification.mutation``: run a sample of mutants and print the score."""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path

from verification.mutation.counting import differs
from verification.mutation.explained import read, stale
from verification.mutation.mutant import Mutant, sample
from verification.mutation.operators import find, make
from verification.mutation.report import counted, keep, survivors, table, unexplained
from verification.mutation.session import Session
from verification.mutation.trial import Outcome, copy_checkout, try_mutant, try_original

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "build" / "mutation"
COPIES = FOLDER / "checkouts"
PACKAGES = ("algebra", "rules", "plan")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m verification.mutation", description=__doc__)
    parser.add_argument("--size", type=int, default=500, help="mutants in the sample (500)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--packages", nargs="+", choices=PACKAGES, default=PACKAGES, help="run those of the sample in")
    parser.add_argument("--run", type=int, help="run at most so many that were not run yet, and leave the others")
    parser.add_argument("--limit", type=float, default=300.0, metavar="SECONDS", help="a mutant's tests may take (300)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (one a core)")
    parser.add_argument("--again", action="store_true", help="try survivors again, after tests have changed")
    return parser.parse_args()


def counts(mutant: Mutant) -> bool:
    """Tell whether a mutant is one that the tests could see."""
    return differs(mutant.before, mutant.after)


def chosen(options: argparse.Namespace) -> list[Mutant]:
    """Draw as many mutants from one package as from another, although the rules are most of the code."""
    share, rest = divmod(options.size, len(PACKAGES))
    sizes = {package: share + (number < rest) for number, package in enumerate(PACKAGES)}
    return [
        mutant
        for package in options.packages
        for mutant in sample(list(find(ROOT, (package,))), sizes[package], options.seed, partial(make, ROOT), counts)
    ]


def trials(waiting: Sequence[Mutant], limit: float, jobs: int) -> Iterator[tuple[Mutant, Outcome]]:
    """Try mutants, each process in a copy of the checkout of its own, and yield what came of each."""
    with ProcessPoolExecutor(jobs) as pool:
        yield from zip(waiting, pool.map(partial(trial, limit), waiting), strict=True)


def trial(limit: float, mutant: Mutant) -> Outcome:
    """Try a mutant in the copy of this process."""
    return try_mutant(copy_for(os.getpid()), mutant, limit)


@cache
def copy_for(process: int) -> Path:
    """Copy the checkout, once for a process: a forked one has this cache too."""
    folder = COPIES / str(process)
    copy_checkout(ROOT, folder)
    return folder


def main() -> int:
    """Run what was not run yet, print the report, keep the score, and return 1 for stale explanations."""
    options = arguments()
    mutants = chosen(options)
    session, explanations = Session(FOLDER / "session.sqlite"), read()
    if options.again:
        session.forget_survivors()
    known = session.verdicts()
    waiting = [mutant for mutant in mutants if mutant.key not in known][: options.run]
    if waiting:
        shutil.rmtree(COPIES, ignore_errors=True)
        try_original(copy_for(os.getpid()), {mutant.place.path for mutant in waiting}, options.jobs)
    for number, (mutant, outcome) in enumerate(trials(waiting, options.limit, options.jobs), 1):
        session.keep(mutant.key, outcome.verdict)
        print(f"{number}/{len(waiting)} {mutant.place.path}:{mutant.place.line} {outcome}", flush=True)
    verdicts = session.verdicts()
    session.close()
    killed = [mutant for mutant in mutants if verdicts.get(mutant.key, "survived") != "survived"]
    outdated = stale(explanations, ROOT, killed)
    print(survivors(unexplained(mutants, verdicts, explanations)), table(mutants, verdicts, explanations), sep="\n\n")
    if {*options.packages} == {*PACKAGES}:
        keep(counted(mutants, verdicts, explanations), options.seed)
    for entry in outdated:
        print(f"stale explanation, remove it: {entry}")
    return bool(outdated)


if __name__ == "__main__":
    sys.exit(main())
