"""How fast a matrix product is by torch and by JAX: what neither hofunc nor a peer can change about the networks of P.

Run it as `python -m asv_benchmarks.products`: it prints a table in Markdown, of billions of operations a second in
float32 on one thread, two for every multiplication; medians of calls in turn. It needs JAX.
"""

from statistics import median

import torch

from asv_benchmarks.benchmarks import jaxed
from asv_benchmarks.benchmarks.timing import interleaved, keep_memory

ROUNDS = 50
SHAPES = ((128, 64, 64), (1024, 64, 64), (11264, 64, 64))  # of P: points times directions, and its width


def rates(rows: int, inner: int, columns: int) -> dict[str, float]:
    """Return the rate of each library at a product of (rows, inner) and (inner, columns)."""
    import jax  # noqa: PLC0415 - it has to be started with a number of threads

    left, right = torch.randn(rows, inner), torch.randn(inner, columns)
    arrays, product = [jax.numpy.asarray(matrix.numpy()) for matrix in (left, right)], jax.jit(jax.numpy.matmul)
    calls = {"torch": lambda: torch.mm(left, right), "JAX": lambda: product(*arrays).block_until_ready()}
    seconds = interleaved(calls, ROUNDS, burst=1e-3)
    return {name: 2e-9 * rows * inner * columns / median(taken) for name, taken in seconds.items()}


def main() -> None:
    """Print a row for every shape."""
    torch.set_num_threads(1)
    keep_memory()
    jaxed.start(1)
    print("| product | torch, GFLOP/s | JAX, GFLOP/s |")
    print("| --- | --- | --- |")
    for shape in SHAPES:
        rate = rates(*shape)
        print(f"| {' x '.join(map(str, shape))} | {rate['torch']:.0f} | {rate['JAX']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
