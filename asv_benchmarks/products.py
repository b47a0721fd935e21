"""How fast matrix products are by torch, by JAX, and by the kernel of compiled plans, of which networks of P consist.

Run it as `python -m asv_benchmarks.products`: it prints a table in Markdown, of billions of operations a second in
float32 on one thread, two for every multiplication, in chains of products; medians of calls in turn. It needs JAX.
"""

from importlib import import_module
from statistics import median
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from asv_benchmarks.benchmarks.timing import interleaved, keep_memory, keep_to_processors
from hofunc.internals_files import compiled_by_inductor
from hofunc.run.products import by_own_products

ROUNDS = 50
CHAIN = 16  # products of a call
WIDTH = 64  # of P
ROWS = (128, 1024, 11264)  # of P: points, times the directions that are propagated together


def rates(rows: int) -> dict[str, float]:
    """Return the rate of each library at products of a matrix (rows, WIDTH) with square ones, one after another."""
    jax = import_module("jax")  # which takes as many threads as there are processors by now
    x, weight = torch.randn(rows, WIDTH), torch.randn(WIDTH, WIDTH) / WIDTH**0.5

    def chain(x: Any, weight: Any) -> Any:
        for _ in range(CHAIN):
            x = x @ weight
        return x

    arrays, compiled = [jax.numpy.asarray(matrix.numpy()) for matrix in (x, weight)], jax.jit(chain)
    own = compiled_by_inductor(make_fx(chain)(x, weight), [x, weight], by_own_products())
    calls = {
        "torch": lambda: chain(x, weight),
        "hofunc": lambda: own(x, weight),
        "JAX": lambda: compiled(*arrays).block_until_ready(),
    }
    seconds = interleaved(calls, ROUNDS, burst=1e-3)
    return {name: 2e-9 * CHAIN * rows * WIDTH**2 / median(taken) for name, taken in seconds.items()}


def main() -> None:
    """Print a row for every shape."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    keep_memory()
    keep_to_processors(1)
    print("| product | torch, GFLOP/s | compiled plans, GFLOP/s | JAX, GFLOP/s |")
    print("| --- | --- | --- | --- |")
    for rows in ROWS:
        rate = rates(rows)
        shown = " | ".join(f"{rate[name]:.0f}" for name in ("torch", "hofunc", "JAX"))
        print(f"| {rows} x {WIDTH} x {WIDTH} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
