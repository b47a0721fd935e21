"""What is freed by calls is kept for the next ones: no page has to be cleared again."""

import platform
import subprocess
import sys

import pytest
import torch

from hofunc.run import allocator

FEW = 1000  # pages of 4 kB, in ten calls, of which each writes to several tensors of 400 and more
CALLS = """
import resource, torch, hofunc
torch.set_num_threads(1)
weights = [torch.randn(10, 64), torch.randn(64, 64), torch.randn(64, 64)]
def f(x):
    for weight in weights:
        x = (x @ weight).tanh()
    return x.sum(-1)
transform, x = hofunc.laplacian(f), torch.randn(1024, 10)
with hofunc.options(planning="quick", rates="standard"):  # so that nothing is planned or measured between calls
    for _ in range(3):
        transform(x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        transform(x)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_later_calls_of_a_new_process_clear_no_pages() -> None:
    found = subprocess.run(  # noqa: S603 - the commands are written here
        [sys.executable, "-c", CALLS], capture_output=True, text=True, check=True
    )
    assert int(found.stdout) < FEW


def test_only_what_is_more_than_before_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(allocator, "_kept", allocator.LEAST)
    monkeypatch.setattr(torch, "empty", lambda count, **_: asked.append(count))
    cpu = torch.device("cpu")
    for count in (1000, 5 << 20, 4 << 20, 1 << 30, 1 << 30):
        allocator.keep(count, cpu)
    allocator.keep(1 << 30, torch.device("meta"))
    assert asked == [5 << 20, allocator.MOST]
