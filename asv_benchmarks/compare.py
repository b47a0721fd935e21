"""Time hofunc beside nested torch.func, in one run: `make bench`, or `python -m asv_benchmarks.compare`."""

from statistics import quantiles

import torch

from asv_benchmarks.benchmarks.record import OPS, Overhead
from asv_benchmarks.benchmarks.thesis import (
    BATCH,
    LAYERS,
    WIDTH,
    Contenders,
    row_hessians,
    row_thirds,
    whole_hessians,
)
from asv_benchmarks.benchmarks.timing import interleaved

ROUNDS = 25


def table(title: str, contenders: Contenders) -> list[str]:
    """Time the contenders and tabulate their medians, quartiles and ratios to the first, which is hofunc."""
    reference, *others = [function() for function in contenders.values()]
    errors = [float((other - reference).abs().max() / reference.abs().max()) for other in others]
    seconds = interleaved(contenders, ROUNDS)
    lines = [f"\n{title}", f"{'milliseconds':32}{'median':>9}{'quartiles':>20}{'ratio':>8}{'difference':>12}"]
    ours = quantiles(next(iter(seconds.values())))[1]
    for (name, taken), error in zip(seconds.items(), [0.0, *errors], strict=True):
        low, middle, high = (1e3 * value for value in quantiles(taken))
        spread = f"{low:.2f} .. {high:.2f}"
        lines.append(f"{name:32}{middle:9.2f}{spread:>20}{middle / (1e3 * ours):8.1f}{error:12.0e}")
    return lines


def main() -> None:
    """Print every comparison."""
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread, float32; {ROUNDS} rounds of all in turn.")
    print("hofunc records the function in every call and takes its plan from the cache.")
    print("ratio: time over hofunc's; difference: the largest, over the largest entry.")
    network = f"network of the thesis, {LAYERS} layers, batch {BATCH}, width {WIDTH}"
    print(*table(f"Hessian of the batch by the input, {network}", whole_hessians()), sep="\n")
    print(*table(f"Hessian of every row, {network}", row_hessians()), sep="\n")
    print(*table(f"Third derivative of every row, {network}", row_thirds()), sep="\n")
    overhead = Overhead()
    overhead.setup()
    print(f"\nRecording, beyond running: {overhead.track_per_op():.1f} microseconds an op (chain of {OPS} tanh)")


if __name__ == "__main__":
    main()
