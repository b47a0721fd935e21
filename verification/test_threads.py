"""Threads may call one transform at once.

Claim: several threads that call the same transform, each at its own point and with no plan made yet, each get what one
thread gets alone.
Source: recording keeps its state in the call; what is shared, the cache of plans, is locked.
Falsifier: a tape, a label counter or a register file that threads share; modes that leak from one to the other.
Tolerance: none, since all run the same steps. Each thread is told its number of threads, as conftest.py tells the main
one: where none is set, MKL's inverse transforms in threads of Python's own round otherwise (torch 2.13, 4e-16).
"""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_leaves

import hofunc
from hofunc.arguments import STRATEGIES
from hofunc.run import cache
from verification.blocks import inputs_of, reachable
from verification.programs import Program, programs
from verification.rows import rows_of

THREADS = 4
FORWARD_MODE = ("func.jvp", "func.jacfwd", "func.hessian")  # whose levels all threads of torch share: they raise


@given(programs(max_elements=6), st.integers(1, 3), st.sampled_from(STRATEGIES))
def test_threads_at_points_of_their_own(program: Program, order: int, strategy: str) -> None:
    assume(not any(name in program.definition for name in FORWARD_MODE))
    order, numbers = reachable(program, order), inputs_of(program)
    derivative = hofunc.derivatives(program, order, numbers, strategy=strategy)
    points = list(zip(*rows_of(program, THREADS), strict=True))
    cache.forget()
    alone = [tree_leaves(derivative(*point)) for point in points]
    cache.forget()
    start = Barrier(THREADS)

    def call(point: tuple[Tensor, ...]) -> list[Tensor]:
        start.wait()
        return tree_leaves(derivative(*point))

    with ThreadPoolExecutor(THREADS, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        together = list(pool.map(call, points))
    for found, expected in zip(together, alone, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
