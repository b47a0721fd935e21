"""How much memory a derivative takes at most, the result included, by hofunc and by the peers in torch.

Run it as `python -m asv_benchmarks.memory`: it prints a table in Markdown. The figures are what torch's allocator for
CPUs handed out during one call, at its highest, over the size of the result; they are the same in every run.
"""

import argparse
from contextlib import suppress

import torch
from torch.profiler import ProfilerActivity, profile

from asv_benchmarks import table
from asv_benchmarks.benchmarks.nests import Call
from asv_benchmarks.benchmarks.peers import Point, ours, peers
from asv_benchmarks.benchmarks.points import points
from asv_benchmarks.benchmarks.ways import Peer

KINDS = ("eager", "captured")
OURS = ("hofunc", "hofunc plan")


def peak(call: Call) -> int:
    """Return the bytes that a call holds at most, beyond those held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        call()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = highest = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        highest = max(highest, held)
    return highest


def measured(peer: Peer) -> int:
    """Return the peak of the third call of a way, what is made once being made by then."""
    call = peer.prepare()
    call()
    call()
    return peak(call)


def least(workload: Point) -> tuple[int, str]:
    """Return the least peak of the peers, and whose it is; those fail that need a forward mode which torch has not."""
    peaks = []
    for peer in peers(workload):
        if peer.kind in KINDS and "naive" not in peer.name:
            with suppress(NotImplementedError):
                peaks.append((measured(peer), peer.name))
    return min(peaks)


def row(workload: Point) -> str:
    """Return the table's row of a workload: hofunc's ways, and of the peers who takes the least."""
    own = [measured(peer) for peer in ours(workload) if peer.name in OURS]
    nbytes, name = least(workload)
    parts = [f"{each / workload.nbytes:.2f}" for each in (*own, nbytes)]
    return f"| {workload.name} | {table.size(workload.nbytes)} | {' | '.join(parts)} {name} |"


def main() -> None:
    """Print a row for every point."""
    parser = argparse.ArgumentParser(prog="memory", description="Peak memory of a call over the size of its result.")
    parser.add_argument("--workload", default="", metavar="NAME", help="only those whose name starts so")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    print("| workload | result | hofunc | hofunc, plan | least of the peers |")
    print("| --- | --- | --- | --- | --- |")
    for workload in points():
        if workload.name.startswith(chosen.workload):
            print(row(workload), flush=True)


if __name__ == "__main__":
    main()
