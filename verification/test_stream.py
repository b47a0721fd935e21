"""Streams that are killed at any time are resumed with every block right.

Claim: a process that writes a stream may be killed, without notice, at any time; the same call in another process
completes it, computing again no more than what was not marked, and the files hold the derivative.
Source: the kernel's SIGKILL; entries by torch.func's own product of the Hessian with a vector.
Falsifier: a chunk that is marked before it is on the disk, a mark that is cut off, files that are begun twice.
Tolerance: 1e-12 of the largest entry.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

SIZE = 300
PROGRAM = """
import sys, time, torch, hofunc
a = torch.randn(20, {size}, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
x = torch.linspace(-0.2, 0.2, {size}, dtype=torch.float64)

def f(x):
    return (a @ x).tanh().square().sum() ** 2

def show(done, total):
    print(done, total, flush=True)
    time.sleep(0.01)

if __name__ == "__main__":
    hofunc.hessian(f, chunk_size=10, out=hofunc.Stream(sys.argv[1], progress=show))(x)
""".format(size=SIZE)


@pytest.mark.parametrize("after", [0, 1, 7, 15, 29])
def test_a_killed_stream_is_resumed(after: int, tmp_path: Path) -> None:
    program, folder = tmp_path / "program.py", tmp_path / "stream"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line.split()[0]) >= after:
                break
        time.sleep(0.005 * (after % 3))
        process.send_signal(signal.SIGKILL)
    marked = len((folder / "journal.jsonl").read_text().splitlines()) - 1
    assert marked >= after
    resumed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent.parent)
    first, *_, last = resumed.stdout.splitlines()
    assert marked - 1 <= int(first.split()[0]) <= marked
    assert last == "30 30"
    held: dict[str, object] = {"__name__": "held"}
    exec(PROGRAM, held)  # noqa: S102 - it is the text above
    expected = torch.func.hessian(held["f"])(held["x"])  # type: ignore[arg-type, operator]
    got = torch.from_numpy(np.load(folder / "0-0-0.npy"))
    assert (got - expected).abs().max() <= 1e-12 * expected.abs().max()
