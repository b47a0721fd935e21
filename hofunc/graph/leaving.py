"""Numbers that leave torch: what is computed of them in numpy or Python has no derivative, which is an error here."""

from collections.abc import Sequence

import torch

from hofunc.errors import UntracedError
from hofunc.graph.ledger import Ledger

_DETACH = torch.ops.aten.detach.default
# Ops that take of a tensor no more than its form.
_FORM = (
    *[f"new_{each}" for each in ("ones", "zeros", "full", "empty")],
    *[f"{each}_like" for each in ("ones", "zeros", "full", "empty", "rand", "randn")],
)

# A number by itself, `.item()`, is what branches are made on; an array or a list is what is computed with. Copies that
# are not ops, and functions of Python that tensors are filled by, have no derivative for autograd either.
_OUT = ("numpy", "tolist", "__array__", "__dlpack__", "__deepcopy__", "apply_", "map_", "map2_")
LEAVING = frozenset({f"torch.Tensor.{name}" for name in _OUT})


def check_leaving(ledger: Ledger, tensors: Sequence[torch.Tensor], by: str) -> None:
    """Refuse that numbers leave torch which have a derivative, unless it is off.

    Raises:
        UntracedError: They do.
    """
    if by in LEAVING and torch.is_grad_enabled() and any(_varies(ledger, each) for each in ledger.nodes_of(tensors)):
        raise UntracedError(
            "hofunc: f computes outside of torch, where derivatives are lost",
            got=f"{by} of a tensor that depends on what f is differentiated by",
            expected="ops of torch, or values that are meant to be constants",
            remedy="Compute it by torch, or write x.detach() first for values without derivatives.",
        )


def _varies(ledger: Ledger, number: int) -> bool:
    """Tell whether a node depends on an active input by numbers that are not cut off from it."""
    waiting, seen = [number], {number}
    while waiting:
        node = ledger.nodes[waiting.pop()]
        is_number = node.dtype.is_floating_point or node.dtype.is_complex
        if not node.active or not is_number or node.op is _DETACH or getattr(node.op, "__name__", "").startswith(_FORM):
            continue
        if not node.operands:
            return True
        waiting += {*node.operands} - seen
        seen.update(node.operands)
    return False
