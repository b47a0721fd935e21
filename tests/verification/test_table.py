"""The table of ops against the registry of rules: which rules no program can meet, and why."""

import re
from itertools import product

import torch

import hofunc.rules  # noqa: F401 - enters the rules
from hofunc.graph.record import record
from hofunc.rules.registry import RULES
from verification.programs.build import Builder, Step
from verification.programs.draw import SHAPES
from verification.programs.table import ROWS

# Why a rule is not met by what a row calls; patterns of names of ops.
REASONS = {
    "random numbers, so that the function is not pure": (
        "bernoulli|cauchy|exponential|geometric|log_normal|normal|poisson|rand|uniform"
    ),
    "kernels of other devices": "_scaled_dot_product_(cudnn|efficient|flash)_attention$|mkldnn",
    "recorded in inference mode only, where torch takes nothing apart": (
        "_conj|_reshape_alias|contiguous|flatten|lift|numpy_T|positive|reshape|resolve_|rsub|square|sub.Scalar|to.dtype|"
        "unflatten|lift_fresh|where.Scalar"
    ),
    "made by compilers and functionalization only": (
        "_unsafe_|_new_zeros|_neg_view|new_empty|empty_like|diagonal_backward"
    ),
    "layers of modules in evaluation mode": "_native_multi_head|_transformer_encoder",
    "without a derivative, and with values that jump": "floor_divide|histc|div.Tensor_mode|round.decimals|frexp",
}
LEAST = 0.6  # of the rules that have no such reason


def met() -> set[str]:
    """Return the ops that are recorded for some use of some row."""
    ops: set[str] = set()
    for row in ROWS:
        uses: set[str] = set()
        for shapes in product(SHAPES[:12] if row.arity < 3 else SHAPES[:4], repeat=row.arity):
            for number, use in enumerate(row.fitting(*shapes)):
                if use not in uses:
                    uses.add(use)
                    builder = Builder(shapes, seed=1, max_elements=10**6, rows=(row,))
                    builder.take(Step(1, 0, number))
                    f = builder.program(1, 0)
                    nodes = record(lambda leaves, _, f=f: f(*leaves), f.inputs).graph.nodes
                    ops |= {str(node.op) for node in nodes}
    return ops


def test_most_rules_are_met_by_programs() -> None:
    named = {str(op) for op in RULES if isinstance(op, torch._ops.OpOverload)}
    wanted = {op for op in named if not any(re.search(rf"aten\.({names})", op) for names in REASONS.values())}
    missing = wanted - met()
    assert len(missing) <= (1 - LEAST) * len(wanted), sorted(missing)
    assert len(wanted) > 200


def test_every_reason_is_one() -> None:
    names = {str(op) for op in RULES}
    for reason, patterns in REASONS.items():
        assert any(re.search(rf"aten\.({patterns})", name) for name in names), reason
