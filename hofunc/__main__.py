"""``python -m hofunc``: what is installed, and whether derivatives are what they should be here."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

import torch

from hofunc.internals import find_cpp_compiler
from hofunc.releases import TESTED, VERSION
from hofunc.selfcheck import Outcome, outcomes

_OPTIONAL = ("tqdm", "matplotlib", "scipy")  # what progress, plot and to_scipy take


def main() -> int:
    """Print what is installed and the outcome of the self-check; return the exit status: 1 if something is wrong."""
    sys.stdout.write(f"hofunc {VERSION}\n")
    sys.stdout.writelines(f"  {name:<12}{value}\n" for name, value in _facts())
    statuses = [_checked(device, dtype) for device, dtype in _computing_on()]
    return max(statuses)


def _facts() -> Iterator[tuple[str, str]]:
    """Yield what an issue should tell, by name."""
    tested = ", ".join(".".join(map(str, release)) for release in TESTED)
    yield "from", str(Path(__file__).parent)
    yield "torch", f"{torch.__version__} (tested: {tested})"
    yield "python", f"{platform.python_version()}, {platform.python_implementation()}"
    yield "opt_einsum", _version("opt_einsum")
    yield "platform", platform.platform()
    yield "threads", f"{torch.get_num_threads()} of torch, {os.cpu_count()} processors"
    yield "devices", ", ".join(_devices())
    yield "compiler", _compiler()
    yield "triton", _version("triton")
    for name in _OPTIONAL:
        yield name, _version(name)
    yield "graphviz", shutil.which("dot") or "not found; plan.draw() shows mermaid and saves text"


def _version(name: str) -> str:
    if find_spec(name) is None:
        return "not found"
    try:
        return version(name)
    except PackageNotFoundError:  # it is there in another way
        return "found"


def _devices() -> Iterator[str]:
    yield "cpu"
    kind = torch.accelerator.current_accelerator()
    for number in range(torch.accelerator.device_count() if kind is not None else 0):
        name = f" ({torch.cuda.get_device_name(number)})" if kind is not None and kind.type == "cuda" else ""
        yield f"{kind}:{number}{name}"


def _compiler() -> str:
    """Return which C++ compiler torch.compile would call."""
    try:
        return find_cpp_compiler()
    except RuntimeError:
        return "no C++ compiler found; all but plan.compile() and jit(compile=True) works without"


def _computing_on() -> Iterator[tuple[torch.device, torch.dtype]]:
    yield torch.device("cpu"), torch.float64
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        yield accelerator, torch.float32 if accelerator.type == "mps" else torch.float64  # mps has no other


def _checked(device: torch.device, dtype: torch.dtype) -> int:
    """Print what the self-check comes to on a device; return 1 if something is wrong."""
    start = perf_counter()
    found = [*outcomes(device, dtype)]
    wrong, seconds = [outcome for outcome in found if not outcome.is_right], perf_counter() - start
    compared = f"{len(found)} derivatives with closed forms on {device} in {seconds:.1f} s"
    if not wrong:
        largest = max(outcome.error for outcome in found)
        sys.stdout.write(f"Compared {compared}: all are right (largest relative error {largest:.0e})\n")
        return 0
    sys.stdout.writelines(map(_line, wrong))
    remedy = "Reinstall torch and hofunc; if that does not help, please report this with all of the above."
    sys.stdout.write(f"Compared {compared}: {len(wrong)} are wrong. {remedy}\n")
    return 1


def _line(outcome: Outcome) -> str:
    return f"WRONG: {outcome.what}: {outcome.told or f'relative error {outcome.error:.1e}'}\n"


if __name__ == "__main__":
    sys.exit(main())
