"""The sizes of hofunc's plans beside a baseline that is kept with the code: `python -m asv_benchmarks.baseline`.

A plan counts its own steps, operations and bytes, from shapes alone, so that they are the same on every machine. So are
the steps that it takes to make the first plan of a program that grows.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

import hofunc
from asv_benchmarks.benchmarks import contracted
from asv_benchmarks.benchmarks.contractions import Contraction
from asv_benchmarks.benchmarks.peers import Point, plan
from asv_benchmarks.benchmarks.points import points, tracked
from asv_benchmarks.benchmarks.programs import PROGRAMS, Program

PATH = Path(__file__).with_name("baseline.json")
STRATEGY = "strategy"
QUANTITIES = ("steps", "flops", "peak_bytes")
EFFORTS = ("effort", "effort at twice the size")  # of a program
GROWTH = 0.02  # by which a quantity may be over its baseline
STALE = 0.10  # by which it may be under, before the baseline has to follow
ACCEPT = "python -m asv_benchmarks.baseline --accept"

Size = Mapping[str, int | str]


def workloads() -> dict[str, Point | Program]:
    """Return all points that are held to the baseline, by name; a training step has the plan of what it trains by."""
    every = (*points(), *tracked())
    plans = {point.name: point for point in every if not (isinstance(point, Contraction) and point.is_step)}
    return plans | {program.at(program.small): program for program in PROGRAMS if program.small}


def measured(point: Point | Program) -> dict[str, int | str]:
    """Return the strategy, and what the plan of a point counts, or what it takes to plan a program, or both."""
    with hofunc.options(rates="standard"):
        return _measured(point)


def _measured(point: Point | Program) -> dict[str, int | str]:
    """Return the same, by the rates that hold."""
    if isinstance(point, Program):
        one, two = (point.make(times * point.small).planned() for times in (1, 2))
        return {STRATEGY: two.plan.strategy, **dict(zip(EFFORTS, (one.effort, two.effort), strict=True))}
    with torch.no_grad():
        made = plan(point)
    counted = {STRATEGY: made.strategy, **{quantity: getattr(made, quantity) for quantity in QUANTITIES}}
    return counted | ({EFFORTS[0]: contracted.planned(point).effort} if isinstance(point, Contraction) else {})


def complaints(name: str, old: Size, new: Size) -> Iterator[str]:
    """Yield what is wrong with the plan of a point, or with its baseline: too much growth, or far less than kept."""
    turn = "" if old[STRATEGY] == new[STRATEGY] else f" (strategy {old[STRATEGY]} -> {new[STRATEGY]})"
    for quantity in (name for name in old if name != STRATEGY):
        before, now = int(old[quantity]), int(new[quantity])
        change = f"{name}: {quantity} {before} -> {now}, {now / before - 1:+.1%}{turn}"
        if now > before * (1 + GROWTH):
            yield f"{change}: over the {GROWTH:.0%} that it may grow. If it is meant to: {ACCEPT}"
        elif now < before * (1 - STALE):
            yield f"{change}: better by more than {STALE:.0%}, so that the baseline is stale. Keep it: {ACCEPT}"


def read() -> dict[str, Size]:
    """Return the baseline, by the name of the point."""
    kept: dict[str, Size] = json.loads(PATH.read_text(encoding="utf-8"))
    return kept


def write(sizes: Mapping[str, Size]) -> None:
    """Keep a baseline, a line for each point."""
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(size)}" for name, size in sizes.items())
    PATH.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def differences(old: Mapping[str, Size], new: Mapping[str, Size]) -> Iterator[str]:
    """Yield what is wrong with all points, those that only one side has included."""
    for name in dict.fromkeys((*old, *new)):
        if name in old and name in new:
            yield from complaints(name, old[name], new[name])
        else:
            side = "the baseline has" if name in old else "the benchmarks have"
            yield f"{name}: only {side} it. Keep it so: {ACCEPT}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare with the baseline, or keep a new one.

    Raises:
        SystemExit: A plan differs from its baseline by more than it may, or a point has none.
    """
    parser = argparse.ArgumentParser(
        prog="baseline", description="Compare the sizes of plans with those that are kept."
    )
    parser.add_argument("--accept", action="store_true", help="keep the sizes as they are now")
    chosen = parser.parse_args(arguments)
    new = {name: measured(workload) for name, workload in workloads().items()}
    found = list(differences(read() if PATH.exists() else {}, new))
    if chosen.accept:
        write(new)
        print(*found, f"kept: {len(new)} points in {PATH}", sep="\n")
    elif found:
        raise SystemExit("\n".join(found))


if __name__ == "__main__":
    main()
