"""Who takes note of derivatives that a function takes by transforms of hofunc, see NOTE [calls]."""

from hofunc.graph.call_notes import CallNotes
from hofunc.graph.calls import Again
from hofunc.internals import count_function_modes, current_function_mode


def notes() -> CallNotes | Again | None:
    """Return what notes calls, or compares them, as long as nothing else sees them first; None if nothing does."""
    mode = current_function_mode() if count_function_modes() else None
    return mode if isinstance(mode, CallNotes | Again) else None
