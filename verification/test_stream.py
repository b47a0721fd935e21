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
from typing import Any

import numpy as np
import pytest
import torch

SIZE = 300
PROGRAM = f"""
import sys, time, torch, hofunc
a = torch.randn(20, {SIZE}, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
x = torch.linspace(-0.2, 0.2, {SIZE}, dtype=torch.float64)

def f(x):
    return (a @ x).tanh().square().sum() ** 2

def show(done, total):
    print(done, total, flush=True)
    time.sleep(0.01)

if __name__ == "__main__":
    hofunc.hessian(f, chunk_size=10, out=hofunc.Stream(sys.argv[1], progress=show))(x)
"""


@pytest.mark.parametrize("after", [0, 7, 29])
def test_a_killed_stream_is_resumed(after: int, tmp_path: Path) -> None:
    folder, root = tmp_path / "stream", Path(__file__).parent.parent
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:  # noqa: S603 - as above
        assert process.stdout is not None
        for line in process.stdout:
            if int(line.split()[0]) >= after:
                break
        time.sleep(0.005 * (after % 3))
        process.send_signal(signal.SIGKILL)
    marked = len((folder / "journal.jsonl").read_text().splitlines()) - 1
    assert marked >= after
    resumed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)  # noqa: S603
    shown = resumed.stdout.splitlines()  # one line, if all was marked before the signal came
    assert marked - 1 <= int(shown[0].split()[0]) <= marked
    assert shown[-1] == "30 30"
    held: dict[str, Any] = {"__name__": "held"}
    exec(PROGRAM, held)
    expected = torch.func.hessian(held["f"])(held["x"])
    got = torch.from_numpy(np.load(folder / "0-0-0.npy"))
    assert (got - expected).abs().max() <= 1e-12 * expected.abs().max()
