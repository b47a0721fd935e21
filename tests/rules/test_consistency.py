"""Linear ops are consistent with themselves: the Jacobian, applied to what the op takes, is what it returns.

So it is for what is only homogeneous, as norms and largest elements are (Euler). That is a witness which needs no other
derivatives; torch's own are wrong of some (docs/explanations/torch-errors.md).
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._ops import OpOverload

import hofunc
from hofunc.graph.node import Node, call_of
from hofunc.graph.record import record
from hofunc.rules.kinds import Composite, Constant, Linear
from hofunc.rules.registry import RULES
from tests.cases import rand
from tests.rules.opcase import OpCase
from tests.rules.test_registry import NOT_RECORDED_HERE, every_case, name_of

# What has another derivative than its values say, as in torch. Embeddings are in the table of verification/indexed.py.
BY_CONVENTION = {
    "aten.embedding.default": "the row of padding_idx has none",
    "aten._embedding_bag_forward_only.default": "the row of padding_idx has none",
    "aten._linalg_eigh.default": "reads one half of a matrix, and is differentiated by both",
    "aten.linalg_eigvalsh.default": "reads one half of a matrix, and is differentiated by both",
    "aten.to.dtype": "rounds, to what it casts to",
}
INTEGERS = {torch.int64, torch.int32, torch.bool}
SEVERAL = 3  # uses of an op that are tried

pytestmark = pytest.mark.filterwarnings(  # torch's own
    "ignore:The reduce argument:UserWarning",
    "ignore:index_reduce:UserWarning",
    "ignore:torch.(triangular_solve|cholesky) is deprecated:UserWarning",
    "ignore::hofunc.FallbackWarning",
)


def uses() -> dict[str, list[tuple[Node, list[Tensor]]]]:
    """Return nodes of the tables' rows by op, of different shapes or arguments, with the values that they take."""
    found: dict[str, dict[Any, tuple[Node, list[Tensor]]]] = {}
    for case in every_case():
        for node, values in _nodes(case):
            shapes = tuple(value.shape for value in values)
            of_op = found.setdefault(name_of(node.op), {})
            if len(of_op) < SEVERAL:
                of_op.setdefault((repr(node.args[1:]), shapes), (node, values))
    return {name: [*of_op.values()] for name, of_op in found.items()}


def _nodes(case: OpCase) -> Iterator[tuple[Node, list[Tensor]]]:
    def f(leaves: list[Tensor], _: Any) -> Any:
        with torch.inference_mode() if case.inference else nullcontext():  # in which composites arrive whole
            return case.f(*leaves)

    recording = record(f, case.arguments(torch.device("cpu")))
    for node in recording.graph.nodes:
        values = [recording.values[operand].detach().clone() for operand in node.operands]
        is_real = {torch.float64} == {node.dtype} | {value.dtype for value in values if value.dtype not in INTEGERS}
        is_constant = isinstance(RULES.get(node.op), Constant)
        if isinstance(node.op, OpOverload) and node.active and is_real and not is_constant:
            yield node, values


def of_numbers(node: Node, values: list[Tensor]) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """Return a node's op as a function of its operands with real numbers, and other such operands."""
    places = [place for place, value in enumerate(values) if value.dtype.is_floating_point]

    def f(*numbers: Tensor) -> Tensor:
        operands = list(values)
        for place, number in zip(places, numbers, strict=True):
            operands[place] = number
        outputs = call_of(node)(*operands)
        return outputs if node.output is None else outputs[node.output]

    return f, [rand(values[place].device, *values[place].shape, seed=place) for place in places]


def is_homogeneous(f: Callable[..., Tensor], args: list[Tensor]) -> bool:
    """Tell from its values whether what a function adds to its value at zero grows as its arguments do."""
    try:
        zero = f(*[torch.zeros_like(arg) for arg in args])
        grown = f(*[3 * arg for arg in args]) - zero
        return bool(grown.isfinite().all()) and torch.allclose(grown, 3 * (f(*args) - zero), rtol=1e-9, atol=1e-9)
    except RuntimeError:  # of matrices that have no factorisation, and numbers that are no probabilities
        return False


def is_consistent(f: Callable[..., Tensor], args: list[Tensor]) -> bool:
    """Tell whether the Jacobians of a function, applied to its arguments, give its value less that at zero."""
    jacobians = hofunc.jacobian(f, argnums=tuple(range(len(args))))(*args)
    got = f(*[torch.zeros_like(arg) for arg in args])
    for jacobian, arg in zip(jacobians, args, strict=True):
        got = got + torch.tensordot(jacobian, arg, arg.dim())
    return torch.allclose(got, f(*args), rtol=1e-12, atol=1e-12)


def test_jacobians_of_linear_ops_are_consistent_with_their_values() -> None:
    right, wrong = set(), set()
    for name, nodes in uses().items():
        for node, values in nodes if name not in BY_CONVENTION else []:
            f, args = of_numbers(node, values)
            if is_homogeneous(f, args):
                right.add(name)
                if not is_consistent(f, args):
                    wrong.add((name, node.args))
    assert not wrong
    of_kind = {
        kind: {name_of(op) for op, rule in RULES.items() if type(rule) is kind and isinstance(op, OpOverload)}
        for kind in (Linear, Composite)
    }
    assert of_kind[Linear] - right - NOT_RECORDED_HERE - BY_CONVENTION.keys() == set()
    assert len(of_kind[Composite] & right) > 50
