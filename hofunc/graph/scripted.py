"""Functions and modules of TorchScript: while a function is recorded, their ops run one by one, as they are written.

After some calls TorchScript runs several ops as one, past every mode, or cuts tensors off from what they are computed
of, and has one step of autograd for all: what a script returns would be a constant, its derivatives silently zero.
"""

from collections.abc import Callable
from typing import Any

from hofunc.graph.tape import innermost_tape
from hofunc.internals import count_dispatch_modes
from hofunc.internals_scripts import Script, before_scripts, run_as_written


def _run(call: Callable[..., Any], script: Script, args: tuple, kwargs: dict[str, Any]) -> Any:
    tape = innermost_tape() if count_dispatch_modes() else None
    if tape is None:
        return call(script, *args, **kwargs)
    tape.runs(script)
    return run_as_written(call, script, args, kwargs)


before_scripts(_run)
