"""The registry: one rule for each op, and every op of it in some table of these tests."""

import importlib
import pkgutil
from contextlib import nullcontext
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from torch._ops import OpOverload

import hofunc
import tests.rules.ops
from hofunc.graph.record import record
from hofunc.rules.kinds import Composite, Constant, Elementwise, ElementwisePair, Linear, Multilinear, PiecewiseLinear
from hofunc.rules.registry import (
    RULES,
    define,
    define_composite,
    define_constant,
    define_elementwise,
    define_elementwise_pair,
    define_multilinear,
    define_piecewise_linear,
    define_relabelling,
    define_sum,
)
from tests.rules.opcase import OpCase

# Functions of one number are tested by parametrising over the registry, in test_elementwise.py.
OF_NUMBERS = (Elementwise, ElementwisePair, Constant)

# Kernels of other devices, and ops that return a real tensor itself, so that there is nothing new to record.
NOT_RECORDED_HERE = {
    "aten.lift.default",
    "aten.lift_fresh.default",
    "aten.positive.default",
    "aten.resolve_conj.default",
    "aten.resolve_neg.default",
    "aten._scaled_dot_product_flash_attention.default",
    "aten._scaled_dot_product_flash_attention_backward.default",
    "aten._scaled_dot_product_efficient_attention.default",
    "aten._scaled_dot_product_efficient_attention_backward.default",
    "aten._scaled_dot_product_cudnn_attention.default",
    "aten._scaled_dot_product_cudnn_attention_backward.default",
    "aten._conj.default",
    "aten.cudnn_batch_norm.default",
}

# What no row of a table can record, since it is a layer, takes lengths, is refused or made of complex numbers: the file
# that tests it, and a word of it that calls it.
TESTED_ELSEWHERE = {
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": (
        "rules/ops/test_attention.py",
        "autograd.grad(energy",
    ),
    "_power_of_log": ("rules/ops/test_power_logs.py", "x * x.log()"),
    "_without_derivatives": ("rules/ops/test_power_logs.py", "x * x.log()"),
    "_nuclear_norm": ("rules/ops/test_spectral.py", 'linalg.matrix_norm(a, "nuc")'),
    "_direction": ("rules/ops/test_norms.py", "layer_norm"),
    "aten._native_multi_head_attention.default": ("rules/ops/test_attention.py", "MultiheadAttention"),
    "aten._transformer_encoder_layer_fwd.default": ("rules/ops/test_attention.py", "TransformerEncoderLayer"),
    "aten._ctc_loss.default": ("rules/ops/test_ctc.py", "F.ctc_loss"),
    "aten._ctc_loss.Tensor": ("rules/ops/test_ctc.py", "F.ctc_loss"),
    "aten._pack_padded_sequence.default": ("rules/ops/test_packed.py", "pack_padded_sequence"),
    "aten._pad_packed_sequence.default": ("rules/ops/test_packed.py", "pad_packed_sequence"),
    "aten._cdist_backward.default": ("rules/ops/test_distances.py", "gradient_of(distances)"),
    "aten._pdist_backward.default": ("rules/ops/test_distances.py", "gradient_of(distances)"),
    "aten._embedding_bag.default": ("rules/ops/test_embedding.py", "F.embedding_bag"),
    "aten.segment_reduce.default": ("rules/ops/test_segments.py", "torch.segment_reduce"),
    "aten.as_strided_scatter.default": ("rules/ops/test_strided.py", "torch.as_strided_scatter"),
    "aten.renorm.default": ("rules/ops/test_scales.py", "x.renorm(p, 0, 0.5)"),
    "real_to_complex": ("rules/ops/test_complex_numbers.py", "rfft"),
    "complex_to_real": ("rules/ops/test_complex_numbers.py", "irfft"),
    "complex_to_complex": ("rules/ops/test_complex_numbers.py", "fft.fft"),
    "aten.linalg_eig.default": ("rules/ops/test_holomorphic.py", "eig(a)"),
    "aten.linalg_eigvals.default": ("rules/ops/test_holomorphic.py", "eigvals(a)"),
}


def name_of(op: Any) -> str:
    """Return the name of an op, or of one of hofunc's functions that stand for one."""
    return op.__name__ if isinstance(op, FunctionType) else str(op)


def every_case() -> list[OpCase]:
    """Return the rows of all tables."""
    names = [module.name for module in pkgutil.iter_modules(tests.rules.ops.__path__)]
    modules = [importlib.import_module(f"tests.rules.ops.{name}") for name in names]
    return [case for module in modules for case in getattr(module, "CASES", ()) if isinstance(case, OpCase)]


def recorded_ops(case: OpCase) -> set[Any]:
    """Return the ops that a row of a table records."""

    def f(leaves: list[torch.Tensor], _: Any) -> Any:
        with torch.inference_mode() if case.inference else nullcontext():  # in which composites arrive whole
            return case.recorded(*leaves)

    return {node.op for node in record(f, case.arguments(torch.device("cpu"))).graph.nodes}


def is_of_numbers(rule: Any) -> bool:
    """Tell whether a rule is a function of numbers, or a composite that stands among those."""
    module = getattr(getattr(rule, "function", None), "__module__", "")
    return isinstance(rule, OF_NUMBERS) or (isinstance(rule, Composite) and module in MODULES_OF_NUMBERS)


MODULES_OF_NUMBERS = {
    f"hofunc.rules.ops.{name}" for name in ("elementwise", "activations", "special", "pairs", "constant")
}


@pytest.mark.filterwarnings(  # torch's own
    "ignore:The reduce argument:UserWarning",
    "ignore:index_reduce:UserWarning",
    "ignore:torch.(triangular_solve|cholesky) is deprecated:UserWarning",
)
def test_every_op_is_in_a_table() -> None:
    recorded = {name_of(op) for case in every_case() for op in recorded_ops(case)}
    with_rules = {name_of(op) for op, rule in RULES.items() if not is_of_numbers(rule)}
    with_rules = {name for name in with_rules if not name.startswith("tests.")}  # which other tests define
    assert with_rules - recorded - NOT_RECORDED_HERE - {*TESTED_ELSEWHERE} == set()


@pytest.mark.parametrize("name", TESTED_ELSEWHERE)
def test_what_is_tested_elsewhere_is(name: str) -> None:
    file, call = TESTED_ELSEWHERE[name]
    assert call in (Path(tests.__file__).parent / file).read_text(encoding="utf-8")
    assert name in map(name_of, RULES)


def test_what_need_not_be_recorded_has_a_rule() -> None:
    assert {str(op) for op in RULES} >= NOT_RECORDED_HERE


def test_two_rules_for_one_op_are_refused() -> None:
    op = torch.ops.aten.mm.default
    before = RULES[op]
    message = r"hofunc\.rules: a rule for aten\.mm\.default: got a second one, expected one rule for each op"
    with pytest.raises(hofunc.ArgumentError, match=message):
        define_constant(op)
    assert RULES[op] is before


@pytest.mark.parametrize("wrong", [torch.exp, torch.ops.aten.exp, "aten.exp.default", lambda x: x, None])
def test_a_rule_is_of_an_op(wrong: Any) -> None:
    count = len(RULES)
    with pytest.raises(
        hofunc.ArgumentError, match=r"hofunc\.rules: op: got .*, expected an overload of an op, a custom "
    ):
        define_constant(wrong)
    assert len(RULES) == count


@pytest.mark.parametrize(
    ("enter", "kind"),
    [
        (define_constant, Constant),
        (lambda op: define_elementwise(op, lambda x, y, r: y), Elementwise),
        (lambda op: define_elementwise_pair(op, lambda x, z, r, s: x), ElementwisePair),
        (lambda op: define_piecewise_linear(op, lambda x, y: x.sign()), PiecewiseLinear),
        (lambda op: define_multilinear(op, "ik,kj->ij"), Multilinear),
        (lambda op: define_relabelling(op, lambda x: x), Linear),
        (lambda op: define_sum(op, lambda x: (1,)), Linear),
        (lambda op: define_composite(op, torch.sin), Composite),
    ],
)
def test_one_line_enters_a_rule(enter: Any, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    op = torch.ops.aten.cumprod.default
    monkeypatch.delitem(RULES, op)  # which is put back at the end
    enter(op)
    assert isinstance(RULES[op], kind)


def test_an_op_of_ones_own(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    op = torch.ops.aten.cumprod.default
    monkeypatch.setitem(RULES, op, Constant())
    del RULES[op]
    define(op, Composite(lambda x, dim: torch.stack([x.narrow(dim, 0, n + 1).prod(dim) for n in range(x.shape[dim])])))
    x = torch.tensor([2.0, 3.0, 5.0], dtype=torch.float64, device=device)
    got = hofunc.hod(lambda x: x.cumprod(0)[2], 3)(x)
    assert got[0, 1, 2] == 1
    assert got.sum() == 6


def test_ops_are_the_objects_that_torch_has() -> None:
    """An overload asked for anew, past the cache of its packet, would be another object than modules hold already."""
    for op in RULES:
        if isinstance(op, OpOverload) and op.namespace == "aten":
            assert getattr(getattr(torch.ops.aten, op._schema.name.removeprefix("aten::")), op._overloadname) is op
