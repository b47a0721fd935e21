"""Training steps through an estimated Laplacian in many dimensions: `python -m asv_benchmarks.estimates`.

The equation is that of Allen and Cahn on the unit ball, with the two-body solution of the STDE paper (Shi, Hu, Lin and
Kawaguchi, 2024, section 5.1): a network of four layers of 128, times 1 - |x|^2, 100 points, sampled coordinates.
"""

import argparse
import resource
import time
from itertools import pairwise

import torch
from torch import Tensor

import hofunc

WIDTH, LAYERS, POINTS = 128, 4, 100


def network(size: int, generator: torch.Generator) -> list[Tensor]:
    """Return the weights of a network from so many coordinates to a number."""
    widths = [size, *[WIDTH] * (LAYERS - 1), 1]
    return [torch.randn(pair, generator=generator).div_(pair[0] ** 0.5).requires_grad_() for pair in pairwise(widths)]


def ansatz(x: Tensor, weights: list[Tensor]) -> Tensor:
    """Return a network of points, which vanishes on the sphere."""
    hidden = x
    for weight in weights[:-1]:
        hidden = torch.tanh(hidden @ weight)
    return (1 - (x**2).sum(-1)) * (hidden @ weights[-1]).squeeze(-1)


def solution(x: Tensor, factors: Tensor) -> Tensor:
    """Return (1 - |x|^2) sum_i c_i sin(x_i + cos x_{i+1} + x_{i+1} cos x_i), given the factors c."""
    one, two = x[..., :-1], x[..., 1:]
    return (1 - (x**2).sum(-1)) * (factors * torch.sin(one + two.cos() + two * one.cos())).sum(-1)


def source(x: Tensor, factors: Tensor) -> Tensor:
    """Return laplacian(u) + u - u^3 of the solution u, in closed form."""
    one, two, square = x[..., :-1], x[..., 1:], (x**2).sum(-1)
    phase = one + two.cos() + two * one.cos()
    by_one, by_two = 1 - two * one.sin(), one.cos() - two.sin()
    total = (factors * phase.sin()).sum(-1)
    along = (factors * phase.cos() * (one * by_one + two * by_two)).sum(-1)  # x times the gradient of the sum
    bent = -phase.cos() * (two * one.cos() + two.cos()) - phase.sin() * (by_one**2 + by_two**2)
    laplacian = (1 - square) * (factors * bent).sum(-1) - 4 * along - 2 * x.shape[-1] * total
    u = (1 - square) * total
    return laplacian + u - u**3


def points(size: int, generator: torch.Generator) -> Tensor:
    """Return points of the unit ball, at radii that are uniform."""
    directions = torch.randn(POINTS, size, generator=generator)
    radii = torch.rand(POINTS, 1, generator=generator)
    return radii * directions / directions.norm(dim=-1, keepdim=True)


def steps_a_second(size: int, samples: int, seconds: float) -> tuple[float, int]:
    """Return how many training steps a second are made, and the bytes that the plan of the Laplacian holds."""
    generator = torch.Generator().manual_seed(0)
    weights, factors = network(size, generator), torch.randn(size - 1, generator=generator)
    optimizer = torch.optim.Adam(weights, 1e-3)
    estimate = hofunc.laplacian(ansatz, samples=samples, directions="coordinates", generator=generator)
    plan = estimate.plan(points(size, generator), weights)
    count, start = 0, time.process_time()
    while time.process_time() - start < seconds or count < 2:
        x = points(size, generator)
        u = ansatz(x, weights)
        loss = ((plan(x, weights) + u - u**3 - source(x, factors)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count += 1
    return count / (time.process_time() - start), plan.plan.peak_bytes  # type: ignore[attr-defined]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="estimates", description="Training steps through an estimated Laplacian.")
    parser.add_argument("sizes", nargs="*", type=int, default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=20, help="of processor time for each size")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, float32, {POINTS} points, {chosen.samples} coordinates a step")
    print("| dimensions | steps a second | the plan holds, MB | the process held at most, MB |")
    print("| --- | --- | --- | --- |")
    for size in chosen.sizes:
        rate, held = steps_a_second(size, chosen.samples, chosen.seconds)
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"| {size:,} | {rate:.1f} | {held / 1e6:.2f} | {most:.0f} |", flush=True)


if __name__ == "__main__":
    main()
