"""What the first call of a function takes, recorded and planned, beside those after it, recorded only.

Run it as `python -m asv_benchmarks.cold`: it prints a table in Markdown. One thread, float32; medians of calls in turn
of the function itself, of hod with no plan in the cache, and with one. What Python and torch prepare once a process is
prepared before.
"""

from statistics import median

import torch

from asv_benchmarks.benchmarks.peers import derivative
from asv_benchmarks.benchmarks.points import tracked
from asv_benchmarks.benchmarks.timing import interleaved, keep_memory
from asv_benchmarks.benchmarks.workloads import Workload
from hofunc.run.cache import forget

ROUNDS = 15


def milliseconds(workload: Workload) -> dict[str, float]:
    """Return what calls take: of the function, of its derivative for the first time, and again."""
    call = derivative(workload)

    def cold() -> None:
        forget()
        call(*workload.args)

    calls = {"f": lambda: workload.f(*workload.args), "cold": cold, "warm": lambda: call(*workload.args)}
    return {name: 1e3 * median(seconds) for name, seconds in interleaved(calls, ROUNDS).items()}


def main() -> None:
    """Print a row for every workload of which asv keeps the history."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    keep_memory()
    print("| workload | f, ms | first call, ms | later calls, ms |")
    print("| --- | --- | --- | --- |")
    for workload in tracked():
        taken = milliseconds(workload)
        print(f"| {workload.name} | {taken['f']:.3g} | {taken['cold']:.3g} | {taken['warm']:.3g} |", flush=True)


if __name__ == "__main__":
    main()
