"""Options: what hofunc does where a caller may want it otherwise."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from math import inf
from types import TracebackType
from typing import Any

from hofunc.errors import ArgumentError
from hofunc.given import shown
from hofunc.spelling import spelt

FALLBACKS = ("warn", "error", "quiet")
PASSES = ("backward", "forward")
PLANNINGS = ("auto", "quick", "full")
RATES = ("measured", "standard")

# Functions of libraries, of the old form, that were read: their backward is the derivative of their forward, which is
# made of ops, and is there for speed or memory. So the forward is recorded, whatever the options are.
KNOWN = frozenset(
    {
        "gpytorch.functions.matern_covariance.MaternCovariance",
        "gpytorch.functions.rbf_covariance.RBFCovariance",
        "linear_operator.functions._inv_quad.InvQuad",
        "linear_operator.functions._matmul.Matmul",
        "linear_operator.functions._solve.Solve",
        "torchdiffeq._impl.rk_common._UncheckedAssign",
    }
)

OF_OPS = "torch._library.autograd"  # where torch makes one for each op of a library, whose forward is the op itself


class _Current:
    """The options that hold now, for the whole process."""

    fallback = "warn"
    functions: "str | frozenset[type]" = "backward"
    planning = "auto"
    max_plan_seconds = inf
    cache_bytes = 256 << 20
    rates = "measured"
    progress = False
    beside: "type | None" = None  # the custom Function of which the forward is recorded beside its backward


_NAMES = ("fallback", "functions", "planning", "max_plan_seconds", "cache_bytes", "rates", "progress")


def records_forward(function: type) -> bool:
    """Tell whether of a custom autograd.Function the forward is recorded, rather than that its backward is used."""
    chosen = _Current.functions
    return is_known(function) or (chosen == "forward" if isinstance(chosen, str) else function in chosen)


def is_known(function: type) -> bool:
    """Tell whether a custom autograd.Function is known to have a backward that is the derivative of its forward."""
    is_listed = f"{function.__module__}.{function.__qualname__}" in KNOWN or function.__module__ == OF_OPS
    return is_listed or function is _Current.beside


@contextmanager
def beside_backward(function: type) -> Iterator[None]:
    """Have the forward of a custom autograd.Function recorded, of which the backward is used."""
    before, _Current.beside = _Current.beside, function
    try:
        yield
    finally:
        _Current.beside = before


def records_forwards() -> bool:
    """Tell whether options say that the forward of any custom autograd.Function is recorded."""
    return _Current.functions not in ("backward", frozenset())


def fallback() -> str:
    """Return what is done with an op that has no rule."""
    return _Current.fallback


def of_recording() -> tuple[bool, "str | frozenset[type]"]:
    """Return what options say of recording: whether an op without a rule is an error; whose forward is recorded."""
    return _Current.fallback == "error", _Current.functions


def planning() -> str:
    """Return how much planning a call may take."""
    return _Current.planning


def max_plan_seconds() -> float:
    """Return how long planning may take once there is a plan."""
    return _Current.max_plan_seconds


def cache_bytes() -> int:
    """Return how many bytes the plans that are kept may hold."""
    return _Current.cache_bytes


def rates_by() -> str:
    """Return by which rates of devices costs are estimated."""
    return _Current.rates


def shows_progress() -> bool:
    """Return whether what takes long shows how far it is."""
    return _Current.progress


class options:  # noqa: N801 - it is called as a function is, as torch.set_grad_enabled
    """Set options, from now on or, as a context manager, for a block.

    Args:
        fallback: What is done with an op that has no rule, and is differentiated by nested torch.func: ``"warn"``, a
            `FallbackWarning` once for each op, which is the default; ``"error"``, an `UnsupportedOpError`; ``"quiet"``,
            nothing. Plans that are made already, by ``.plan``, stay as they are.
        functions: What is differentiated of a custom ``torch.autograd.Function`` that has no rule: ``"backward"``, the
            default, its own backward, by its ops, or by nested torch.func or torch.autograd;
            ``"forward"`` the ops of its forward, for those whose backward is the derivative of that, which is not
            checked, with a `FallbackWarning` once for each; or a collection of the classes of which the forward is to
            be taken.
        planning: How much planning a call may take: ``"quick"``, by the strategy that needs the fewest steps of
            planning, and by others that promise to be faster; ``"full"``, by all that could be; ``"auto"``, the
            default, the former until calls have taken as long as the latter would. Derivatives are the same but for
            rounding. ``.plan`` is always planned in full.
        max_plan_seconds: After how many seconds of planning the best plan that is found by then is taken. The first
            plan is made however long it takes: it can be interrupted, and leaves nothing behind.
        cache_bytes: How many bytes the plans that are kept may hold, by estimate, above all constants and index
            vectors; 256 MiB unless set. Those not used for longest are dropped first, with the next plan that is made;
            the last one is kept however large it is.
        rates: By which rates of a device the time of plans is estimated, to take the fastest: ``"measured"``, the
            default, by those of this machine, which are measured in some 50 ms when a device is first planned for with
            so many threads, and kept in ``$XDG_CACHE_HOME/hofunc`` or ``~/.cache/hofunc``, if that can be written to;
            ``"standard"``, by those that hofunc has, so that plans are the same on every machine.
        progress: Whether planning, compiling, chunks and streams show how far they are, once they have taken two
            seconds: by tqdm, in notebooks and in terminals. ``progress=`` of `Plan.compile` and `Stream` comes first.

    Raises:
        ArgumentError: It is none of these; or there is no tqdm to show progress.

    Cost:
        None; options hold for all threads.

    Example:
        >>> with hofunc.options(fallback="error"):
        ...     hofunc.hessian(torch.special.bessel_y0)(torch.tensor(1.0))
        Traceback (most recent call last):
        hofunc.errors.UnsupportedOpError: hofunc: no rule for aten.special_bessel_y0.default: ...
    """

    @spelt
    def __init__(
        self,
        *,
        fallback: str | None = None,
        functions: str | Iterable[type] | None = None,
        planning: str | None = None,
        max_plan_seconds: float | None = None,
        cache_bytes: int | None = None,
        rates: str | None = None,
        progress: bool | None = None,
    ):
        _check_word("fallback", fallback, FALLBACKS)
        chosen = functions if functions is None or isinstance(functions, str) else _classes(functions)
        is_right = not isinstance(chosen, str) or chosen in PASSES
        passes = f"one of {PASSES}, or a collection of classes of torch.autograd.Function"
        _check("functions", functions, is_right, passes, "'backward'")
        _check_word("planning", planning, PLANNINGS)
        seconds = "a number of seconds above zero"
        _check("max_plan_seconds", max_plan_seconds, _is_positive(max_plan_seconds), seconds, "math.inf")
        is_right = type(cache_bytes) is int and cache_bytes >= 0
        _check("cache_bytes", cache_bytes, is_right, "a number of bytes, 0 or more", "256 << 20")
        _check_word("rates", rates, RATES)
        is_right = type(progress) is bool and not (progress and find_spec("tqdm") is None)
        expected = "False, or True where tqdm is installed: pip install tqdm"
        _check("progress", progress, is_right, expected, "False")
        self._before = {name: getattr(_Current, name) for name in _NAMES}
        _Current.fallback = fallback or _Current.fallback
        _Current.functions = _Current.functions if chosen is None else chosen
        _Current.planning = planning or _Current.planning
        _Current.max_plan_seconds = max_plan_seconds or _Current.max_plan_seconds
        _Current.cache_bytes = _Current.cache_bytes if cache_bytes is None else cache_bytes
        _Current.rates = rates or _Current.rates
        _Current.progress = _Current.progress if progress is None else progress

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, value in self._before.items():
            setattr(_Current, name, value)


def _check(name: str, value: Any, is_right: bool, expected: str, default: str) -> None:
    """Refuse what an option is set to, unless it is left out."""
    if value is not None and not is_right:
        raise ArgumentError(
            f"hofunc.options: {name}",
            got=shown(value),
            expected=expected,
            remedy=f"{default} is what holds unless it is set.",
        )


def _check_word(name: str, value: Any, words: Sequence[str]) -> None:
    """Refuse what an option is set to that is one of some words, the first of which holds unless it is set."""
    _check(name, value, isinstance(value, str) and value in words, f"one of {words}", repr(words[0]))


def _is_positive(value: Any) -> bool:
    return type(value) in {int, float} and value > 0


def _classes(given: Iterable[type]) -> "str | frozenset[type]":
    """Return a set of classes; what is no collection of such as it is printed, which is none of the names."""
    try:
        classes = frozenset(given)
    except TypeError:
        return repr(given)
    return classes if all(isinstance(one, type) for one in classes) else repr(given)
