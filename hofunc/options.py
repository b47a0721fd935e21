"""Options: what hofunc does where a caller may want it otherwise."""

from collections.abc import Iterable
from types import TracebackType

from hofunc.errors import ArgumentError

FALLBACKS = ("warn", "error", "quiet")
PASSES = ("backward", "forward")


class _Current:
    """The options that hold now, for the whole process."""

    fallback = "warn"
    functions: "str | frozenset[type]" = "backward"
    cache_bytes = 256 << 20


def records_forward(function: type) -> bool:
    """Tell whether of a custom autograd.Function the forward is recorded, rather than that its backward is used."""
    chosen = _Current.functions
    return chosen == "forward" if isinstance(chosen, str) else function in chosen


def records_forwards() -> bool:
    """Tell whether the forward of any custom autograd.Function is recorded."""
    return _Current.functions not in ("backward", frozenset())


def fallback() -> str:
    """Return what is done with an op that has no rule."""
    return _Current.fallback


def cache_bytes() -> int:
    """Return how many bytes the plans that are kept may hold."""
    return _Current.cache_bytes


class options:  # noqa: N801 - it is called as a function is, as torch.set_grad_enabled
    """Set options, from now on or, as a context manager, for a block.

    Args:
        fallback: What is done with an op that has no rule, and is differentiated by nested torch.func: ``"warn"``, a
            `FallbackWarning` once for each op, which is the default; ``"error"``, an `UnsupportedOpError`; ``"quiet"``,
            nothing. Plans that are made already, by ``.plan``, stay as they are.
        functions: What is differentiated of a custom ``torch.autograd.Function`` that has no rule: ``"backward"``, the
            default, its own backward, by nested torch.func, for which it has to have a ``setup_context``; ``"forward"``
            the ops of its forward, for those whose backward is the derivative of that, which is not checked, with a
            `FallbackWarning` once for each; or a collection of the classes of which the forward is to be taken.
        cache_bytes: How many bytes the plans that are kept may hold, by estimate, above all constants and index
            vectors; 256 MiB unless set. Those not used for longest are dropped first, with the next plan that is made;
            the last one is kept however large it is.

    Raises:
        ArgumentError: It is none of these.

    Cost:
        None; options hold for all threads.

    Example:
        >>> with hofunc.options(fallback="error"):
        ...     hofunc.hessian(torch.special.bessel_y0)(torch.tensor(1.0))
        Traceback (most recent call last):
        hofunc.errors.UnsupportedOpError: hofunc: no rule for aten.special_bessel_y0.default: ...
    """

    def __init__(
        self,
        *,
        fallback: str | None = None,
        functions: str | Iterable[type] | None = None,
        cache_bytes: int | None = None,
    ):
        if fallback is not None and fallback not in FALLBACKS:
            raise ArgumentError(
                "hofunc.options: fallback",
                got=repr(fallback),
                expected=f"one of {FALLBACKS}",
                remedy="'warn' is what holds unless it is set.",
            )
        chosen = functions if functions is None or isinstance(functions, str) else _classes(functions)
        if isinstance(chosen, str) and chosen not in PASSES:
            raise ArgumentError(
                "hofunc.options: functions",
                got=repr(functions),
                expected=f"one of {PASSES}, or a collection of classes of torch.autograd.Function",
                remedy="'backward' is what holds unless it is set.",
            )
        if cache_bytes is not None and (type(cache_bytes) is not int or cache_bytes < 0):
            raise ArgumentError(
                "hofunc.options: cache_bytes",
                got=repr(cache_bytes),
                expected="a number of bytes, 0 or more",
                remedy="256 << 20 is what holds unless it is set.",
            )
        self._before = _Current.fallback, _Current.functions, _Current.cache_bytes
        _Current.fallback = fallback or _Current.fallback
        _Current.functions = _Current.functions if chosen is None else chosen
        _Current.cache_bytes = _Current.cache_bytes if cache_bytes is None else cache_bytes

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _Current.fallback, _Current.functions, _Current.cache_bytes = self._before


def _classes(given: Iterable[type]) -> "str | frozenset[type]":
    """Return a set of classes; what is no collection of such as it is printed, which is none of the names."""
    try:
        classes = frozenset(given)
    except TypeError:
        return repr(given)
    return classes if all(isinstance(one, type) for one in classes) else repr(given)
