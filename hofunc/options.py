"""Options: what hofunc does where a caller may want it otherwise."""

from types import TracebackType

from hofunc.errors import ArgumentError

FALLBACKS = ("warn", "error", "quiet")


class _Current:
    """The options that hold now, for the whole process."""

    fallback = "warn"


def fallback() -> str:
    """Return what is done with an op that has no rule."""
    return _Current.fallback


class options:  # noqa: N801 - it is called as a function is, as torch.set_grad_enabled
    """Set options, from now on or, as a context manager, for a block.

    Args:
        fallback: What is done with an op that has no rule, and is differentiated by nested torch.func: ``"warn"``, a
            `FallbackWarning` once for each op, which is the default; ``"error"``, an `UnsupportedOpError`; ``"quiet"``,
            nothing. Plans that are made already, by ``.plan``, stay as they are.

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

    def __init__(self, *, fallback: str):
        if fallback not in FALLBACKS:
            raise ArgumentError(
                "hofunc.options: fallback",
                got=repr(fallback),
                expected=f"one of {FALLBACKS}",
                remedy="'warn' is what holds unless it is set.",
            )
        self._before = _Current.fallback
        _Current.fallback = fallback

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _Current.fallback = self._before
