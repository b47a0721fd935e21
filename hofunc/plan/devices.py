"""How fast the devices of this machine work, measured when one is first planned for and kept in the user's cache.

What is planned goes by ratios of rates alone, and by how they compare with planning. So they are told in seconds of the
machine of the standard rates, on which a call of torch takes as long as they say: all else is measured in such calls.
"""

import json
import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from math import fsum, isfinite, prod, sqrt
from os import environ
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from hofunc.files import write_whole
from hofunc.internals_linear import has_linear, linear
from hofunc.options import rates_by
from hofunc.plan.rates import RATES, SLOWER, Rates
from hofunc.releases import RELEASE, VERSION

REPEATS = 5  # of a measurement, of which the least time counts: what else the machine does only adds to it
MOST_REPEATS, SHORT = 20, 1e-3  # seconds, in which it is repeated more often
SEVERAL = 50  # calls of nothing much, timed together
LONG = 30  # calls, which what computes has to take
LARGE = 100  # calls that a large product takes, of matrices of some hundred rows
LEAST = 32  # the size from which that is looked for
MOST = 64 << 20  # bytes of what is computed with
LET_GO = 33 << 20  # bytes of a tensor, of which common allocators keep none for the next one
WIDTHS = 5, 8, 12  # of small matrices, as some are much slower than others
ROW = 4  # numbers
WORTH = 1.2  # times as many operations in a second, for which another library is called than torch calls
FAR = 20  # times as fast or slow as a standard device, beside its calls: what is further off was kept from it

_CPU = torch.device("cpu")
_known: dict[tuple[torch.device, int], Rates] = {}


def rates_of(device: torch.device) -> Rates:
    """Return how fast a device works: as measured here, or as a standard one of its kind where options say so.

    One that cannot be measured works as the standard one does, and one of an unknown kind as a GPU.
    """
    standard = RATES.get(device.type, RATES["cuda"])
    if rates_by() == "standard" or device.type == "meta":
        return standard
    key = device, torch.get_num_threads()
    if key not in _known:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():  # when nothing else may be started
            return standard
        _known[key] = _kept_or_measured(device, standard)
    return _known[key]


def kept_at() -> Path:
    """Return the folder in which rates are kept."""
    return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "hofunc"


def _kept_or_measured(device: torch.device, standard: Rates) -> Rates:
    """Return the rates that were kept of a device, or measure and keep them if that can be done."""
    try:
        with ThreadPoolExecutor(1, "hofunc-rates") as aside:  # where no mode is on that is on here
            of = aside.submit(_what_is_measured, device, standard).result()
            path = kept_at() / f"rates-{sha256(json.dumps(of).encode()).hexdigest()[:16]}.json"
            found = _kept(path)
            if found is None or not is_likely(found, standard):
                pace = 1.0 if device.type == "cpu" else rates_of(_CPU).pace
                found = aside.submit(measured, device, standard, pace).result()
                if not is_likely(found, standard):
                    return standard  # and another process measures again
                _keep(path, of, found)
    except Exception:
        return standard
    return found


def is_likely(rates: Rates, standard: Rates) -> bool:
    """Tell whether a device may work at some rates.

    Threads that wait for each other, while other programs have the cores, seem to work a thousand times as slowly.
    """
    pairs = [(getattr(rates, name), getattr(standard, name)) for name in ("view", "flops", "bytes", "place")]
    are_near = all(here <= FAR * usual and usual <= FAR * here for here, usual in pairs)
    are_near = are_near and rates.linear <= FAR * standard.flops  # which may be nothing, as the others may
    return are_near and rates.item <= FAR * standard.item and rates.row <= FAR * standard.row


def _kept(path: Path) -> Rates | None:
    """Return the rates that a file holds; None if there is none, or another one."""
    try:
        rates = Rates(**json.loads(path.read_bytes())["rates"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return rates if all(type(each) in {int, float} and isfinite(each) and each >= 0 for each in rates) else None


def _keep(path: Path, of: dict[str, Any], rates: Rates) -> None:
    """Write rates to a file, if that can be done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"of": of, "rates": rates._asdict()}, indent=1).encode())
    except OSError:
        pass


def _what_is_measured(device: torch.device, standard: Rates) -> dict[str, Any]:
    """Return what rates depend on, the standard ones among it, from which they have what is not measured."""
    processor = _processor()
    return {
        "device": processor if device.type == "cpu" else torch.get_device_module(device).get_device_name(device),
        "processor": processor,
        "threads": torch.get_num_threads(),
        "torch": ".".join(map(str, RELEASE)),
        "hofunc": VERSION,
        "standard": standard._asdict(),
    }


def _processor() -> str:
    """Return the name of the processor, as far as it is told."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (
        f"{platform.machine()} {names[0] if names else platform.processor()} {torch.backends.cpu.get_cpu_capability()}"
    )


@torch.no_grad()
def measured(device: torch.device, standard: Rates, pace: float) -> Rates:
    """Return how fast a device works, which takes some dozens of milliseconds.

    Args:
        device: The device.
        standard: The rates of a standard one of its kind, from which it has what is not measured.
        pace: How long one of the standard seconds takes here; of a CPU it follows from what is measured.
    """
    clock = _Clock(device)
    small, number = clock.ones(ROW), torch.float32.itemsize
    view, call = [clock.seconds(run, SEVERAL) for run in (lambda: small.unsqueeze(0), lambda: small + small)]
    pace = call / standard.call if device.type == "cpu" else pace
    size, seconds = clock.beyond(call, lambda n: (n, n), _product, LARGE)
    flops = 2 * size**3 / seconds
    linear, linear_call = _linear(clock, size, call) if device.type == "cpu" and has_linear() else (0.0, 0.0)
    moved = sqrt(prod([_moved(clock, call, run) for run in (_in_order, _out_of_order)]))
    item = fsum(_item(clock, call, flops, width) for width in WIDTHS) / len(WIDTHS)
    size, seconds = clock.beyond(call, lambda n: (n, ROW), _added)
    row = max(0.0, seconds / size - 3 * number * ROW / moved)
    size, seconds = clock.beyond(call, lambda n: (n,), _placed)
    return standard._replace(
        view=view / pace,
        call=call / pace,
        item=item / pace,
        flops=flops * pace,
        bytes=moved * pace,
        fresh=standard.fresh if standard.large > MOST else _fresh(clock, LET_GO // number, call, moved) * pace,
        place=seconds / size / pace,
        row=row / pace,
        pace=pace,
        linear=linear * pace if linear > WORTH * flops else 0.0,
        linear_call=linear_call / pace,
    )


def _linear(clock: "_Clock", size: int, call: float) -> tuple[float, float]:
    """Return the operations in a second of a product by oneDNN, of matrices of a size, and the seconds beside."""
    small, large = clock.ones(ROW, ROW), clock.ones(size, size)
    beside = max(0.0, clock.seconds(lambda: linear(small, small), SEVERAL) - call)
    return 2 * size**3 / max(call, clock.seconds(lambda: linear(large, large)) - beside - call), beside


def _moved(clock: "_Clock", call: float, run: Callable[[torch.Tensor], Callable[[], Any]]) -> float:
    """Return the bytes in a second that an elementwise op reads and writes."""
    size, seconds = clock.beyond(call, lambda n: (n, ROW, ROW), run)
    return 3 * torch.float32.itemsize * ROW**2 * size / seconds


def _item(clock: "_Clock", call: float, flops: float, width: int) -> float:
    """Return the seconds that one product of a batch of small matrices takes beyond what it computes."""
    size, seconds = clock.beyond(call, lambda n: (n, width, width), _product)
    return max(0.0, seconds / size - 2 * width**3 * SLOWER / flops)


def _fresh(clock: "_Clock", size: int, call: float, moved: float) -> float:
    """Return the bytes in a second of memory that is let go and given anew, as that of all large tensors is."""
    one = clock.ones(size)
    seconds = clock.seconds(lambda: one + one) - call - 3 * one.nbytes / moved
    return one.nbytes / max(one.nbytes / moved, seconds)  # as it is where memory is at hand all the same


class _Clock:
    """Tells how long a device takes.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device):
        self._device, self._wait = device, torch.get_device_module(device).synchronize

    def ones(self, *shape: int) -> torch.Tensor:
        """Return ones, single precision."""
        return torch.ones(shape, dtype=torch.float32, device=self._device)

    def seconds(self, run: Callable[[], Any], times: int = 1) -> float:
        """Return the least time that a call takes."""
        run()
        taken: list[float] = []
        while len(taken) < REPEATS or (len(taken) < MOST_REPEATS and fsum(taken) < SHORT):
            self._wait()
            start = perf_counter()
            for _ in range(times):
                run()
            self._wait()
            taken.append(perf_counter() - start)
        return min(taken) / times

    def beyond(
        self,
        call: float,
        shape: Callable[[int], tuple[int, ...]],
        run: Callable[[torch.Tensor], Callable[[], Any]],
        calls: int = LONG,
    ) -> tuple[int, float]:
        """Return the first power of two at which what takes a tensor of that size takes long, and the seconds beyond.

        Args:
            call: How long a call takes.
            shape: From the size to the shape of the tensor.
            run: Returns what is called, for a tensor of ones.
            calls: How many calls that is to be as long as.
        """
        size = LEAST
        while True:
            tensor = self.ones(*shape(size))
            seconds = self.seconds(run(tensor)) - call
            if seconds > calls * call or tensor.nbytes > MOST:
                return size, max(seconds, call)
            size *= 2


def _product(matrix: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: torch.matmul(matrix, matrix)


def _in_order(one: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: one * one


def _out_of_order(one: torch.Tensor) -> Callable[[], torch.Tensor]:
    other = one.transpose(1, 2)
    return lambda: one * other


def _added(rows: torch.Tensor) -> Callable[[], torch.Tensor]:
    total, places = torch.zeros_like(rows), torch.arange(len(rows), device=rows.device).flip(0)
    return lambda: total.index_add_(0, places, rows)


def _placed(entries: torch.Tensor) -> Callable[[], torch.Tensor]:
    places = torch.arange(len(entries), device=entries.device).flip(0).expand(2, -1)
    shape = (len(entries), len(entries))
    return lambda: torch.sparse_coo_tensor(places, entries, shape, check_invariants=False).coalesce()
