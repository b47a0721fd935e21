"""The execution of ops while a function is recorded, which may have taken place before they are looked at."""

from typing import Any

from hofunc.graph.route import reshapes
from hofunc.graph.survey import Survey


class Execution:
    """Executes ops.

    Attributes:
        survey: Takes note of what is executed; None if nothing does.
        is_over: Whether they were executed before, and what they returned is given; but for changes of shape.
        returned: What the next one returned, in that case.
    """

    __slots__ = ("is_over", "returned", "survey")

    def __init__(self) -> None:
        self.survey: Survey | None = None
        self.is_over = False
        self.returned: Any = None

    def __call__(self, op: Any, args: tuple, kwargs: dict) -> Any:
        """Return what a call of an op returns."""
        if self.is_over and not reshapes(op):
            return self.returned
        if self.survey is not None and reshapes(op):
            self.survey.reshape(args[0])
        out = op(*args, **kwargs)
        if self.survey is not None:
            self.survey.made += 1
        return out
