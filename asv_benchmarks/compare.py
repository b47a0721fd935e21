"""Time hofunc beside all its peers, in one run and in turn: `make bench-compare`."""

import argparse
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from asv_benchmarks import results, table
from asv_benchmarks.benchmarks.points import grid, points
from asv_benchmarks.benchmarks.record import OPS, Overhead
from asv_benchmarks.benchmarks.timing import keep_memory, keep_to_processors
from asv_benchmarks.benchmarks.ways import KINDS, Peer
from asv_benchmarks.contest import BURST, WARM, Budget, contest, limit_memory


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="compare", description="Time hofunc beside all its peers, in turn.")
    parser.add_argument("--threads", type=int, choices=(1, 2), default=1)
    parser.add_argument(
        "--workload", default="", metavar="NAME", help="only those whose name starts so, as T or `P tanh`"
    )
    parser.add_argument("--grid", action="store_true", help="every point, not only those that stand for them")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of peers (default: all)")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument(
        "--busy", action="store_true", help="other work runs as well: count the time of this process alone"
    )
    parser.add_argument("--prepare", type=float, default=120.0, metavar="SECONDS", help="a peer may take to prepare")
    parser.add_argument("--call", type=float, default=1.0, metavar="SECONDS", help="a call may take")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="add the contests to this file, for `markdown`")
    parser.add_argument("--memory", type=float, default=8.0, metavar="GB", help="the process may take")
    return parser.parse_args(arguments)


def main() -> None:
    """Print every comparison, and the ratios together."""
    chosen = options()
    torch.set_num_threads(chosen.threads)
    torch.set_grad_enabled(False)
    keep_memory()
    keep_to_processors(chosen.threads)
    limit_memory(chosen.memory)
    print(f"torch {torch.__version__}, Python {platform.python_version()}, float32, {chosen.threads} thread(s) each.")
    print(f"{chosen.rounds} rounds of all in turn, each turn {1e3 * BURST:g} ms of calls, after {WARM:g} s of each.")
    print("ratio: time over the best of hofunc in the same class; difference: the largest over the largest entry.")
    clock = time.process_time if chosen.busy else time.perf_counter
    budget = Budget(chosen.prepare, chosen.call, chosen.rounds, clock)

    def taken(peer: Peer) -> bool:
        return peer.kind in chosen.kinds

    contests = []
    for workload in grid() if chosen.grid else points():
        if workload.name.startswith(chosen.workload):
            contests.append(contest(workload, budget, taken))
            print(*table.rows(contests[-1]), sep="\n", flush=True)
            if chosen.keep:
                results.add(chosen.keep, contests[-1])
    print(*table.summary(contests), sep="\n")
    overhead = Overhead()
    overhead.setup()
    print(f"\nRecording, beyond running: {overhead.track_per_op():.1f} microseconds an op (chain of {OPS} tanh)")


if __name__ == "__main__":
    main()
