"""What hofunc reads of inductor to compile faster: by which rule the dtype of an op is found, told once.

What writes code asks one object for the dtype of each op, which it makes anew each time: there is one instance, but
Python initialises it whenever its class is called, with a rule for each of all ops. That was a sixth of all Python of
compiling a derivative. It imports the compiler, which takes seconds, and so is imported where something is compiled.
"""

from typing import Any

from torch._inductor import utils
from torch._inductor.codegen import common
from torch._inductor.dtype_propagation import DtypePropagationOpsHandler

_KNOWN = "known_to_hofunc"


def tell_types() -> None:
    """Let the compiler initialise what knows the rules of dtypes once, and again if rules have come or changed."""
    before = DtypePropagationOpsHandler.__init__
    if hasattr(before, "before"):
        return

    def initialise(handler: Any) -> None:
        known = vars(handler).get(_KNOWN)
        if known is not None and all(rules == copy for rules, copy in known):
            return
        before(handler)
        rules = utils.op_dtype_propagation_rules, common.pointwise_overrides_data
        setattr(handler, _KNOWN, [(each, dict(each)) for each in rules])

    initialise.before = before  # type: ignore[attr-defined]
    DtypePropagationOpsHandler.__init__ = initialise  # type: ignore[method-assign, assignment]
