"""Random programs: pure functions of tensors, drawn as graphs of the ops of a table, that print as plain torch."""

from verification.programs.draw import programs
from verification.programs.program import Program

__all__ = ["Program", "programs"]
