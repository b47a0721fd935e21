"""Blocks of an evaluated call, in the order in which they are asked for."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import hofunc
from hofunc.errors import UntracedError
from hofunc.run.evaluate import Evaluation, evaluate
from tests.cases import rand
from tests.graph.recordings import recorded
from verification.oracles import nested_reverse, relative_error


def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return (x.exp() @ y.sin()) * y.sum(), y * 2


@pytest.fixture
def inputs(device: torch.device) -> tuple[Tensor, Tensor]:
    return rand(device, 2, 3), rand(device, 3, seed=1)


def evaluated(inputs: tuple[Tensor, ...], order: int, *, compact: bool) -> Evaluation:
    return evaluate(recorded(f, *inputs), inputs, 2, (order,), compact=compact)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("slots", [(0,), (1,), (0, 1), (1, 0), (1, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, 0)])
@pytest.mark.parametrize("output", [0, 1])
def test_slots_are_in_the_order_asked_for(
    output: int, slots: tuple[int, ...], compact: bool, inputs: tuple[Tensor, Tensor]
) -> None:
    evaluation = evaluated(inputs, len(slots), compact=compact)
    place = list(product(range(2), *[range(2)] * len(slots))).index((output, *slots))
    got = evaluation.compact(len(slots))[place].dense() if compact else evaluation.dense(len(slots))[place]
    expected = nested_reverse(lambda *args: f(*args)[output], len(slots), (0, 1))(*inputs)
    for slot in slots:
        expected = expected[slot]
    assert relative_error(got, expected) < 1e-12


def test_a_block_that_vanishes_is_zero_of_its_full_shape(inputs: tuple[Tensor, Tensor]) -> None:
    evaluation = evaluated(inputs, 2, compact=False)
    block = evaluation.dense(2)[5]
    assert block.shape == (3, 2, 3, 3)
    assert block.dtype == torch.float64
    assert not block.any()


def test_equal_blocks_share_memory(inputs: tuple[Tensor, Tensor]) -> None:
    evaluation = evaluated(inputs, 2, compact=False)
    _, one, other, *_ = evaluation.dense(2)
    assert one.data_ptr() == other.data_ptr()
    assert torch.equal(one, other.permute(0, 2, 3, 1))


def test_what_f_returned(inputs: tuple[Tensor, Tensor]) -> None:
    evaluation = evaluated(inputs, 1, compact=False)
    assert all(map(torch.equal, evaluation.tensors, f(*inputs)))


def test_tensors_beyond_the_outputs_are_not_differentiated(inputs: tuple[Tensor, Tensor]) -> None:
    evaluation = evaluate(recorded(f, *inputs), inputs, 1, (1,), compact=False)
    outputs = {output for output, _ in evaluation.plan.dense}
    assert outputs == {evaluation.plan.lowered.graph.outputs[0]}
    assert torch.equal(evaluation.tensors[1], inputs[1] * 2)


# While torch traces.


def _affine(x: Tensor) -> Tensor:
    return x.exp().log_softmax(0).pow(3).sum()


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_a_trace_computes_the_derivatives(mode: Any, device: torch.device) -> None:
    x, y = rand(device, 3), rand(device, 3, seed=1)
    traced = make_fx(hofunc.hod(_affine, 2), tracing_mode=mode)(x)
    assert torch.equal(traced(y), hofunc.hod(_affine, 2)(y))


def test_a_trace_for_any_shape_is_refused_unless_a_plan_fixes_it(device: torch.device) -> None:
    x, y = rand(device, 3), rand(device, 3, seed=1)
    with pytest.raises(UntracedError, match=r"a tensor of symbolic shape \(s\d+,\), .*\. Make a plan"):
        make_fx(hofunc.hod(_affine, 2), tracing_mode="symbolic")(x)
    plan = hofunc.hod(_affine, 2).plan(x)
    assert torch.equal(make_fx(lambda x: plan(x), tracing_mode="symbolic")(x)(y), plan(y))


def test_fake_tensors_have_fake_derivatives_or_are_named(device: torch.device) -> None:
    x = rand(device, 3)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        found = hofunc.hod(_affine, 3)(fake)
        assert isinstance(found, FakeTensor)
        assert found.shape == (3, 3, 3)
        assert isinstance(hofunc.hod(lambda x: torch.linalg.inv(x * x[:, None] + 1).sum(), 2)(fake), FakeTensor)
        with pytest.raises(UntracedError, match=r"got a FakeTensor, of which it was asked: .*\. Make a plan"):
            hofunc.hod(lambda x: torch.linalg.eigvalsh(x * x[:, None] + 1).sum(), 2)(fake)
        with pytest.raises(hofunc.ArgumentError, match="hod: plan: got a tensor without elements"):
            hofunc.hod(_affine, 2).plan(fake)
    assert relative_error(hofunc.hod(_affine, 3)(x), nested_reverse(_affine, 3)(x)) < 1e-12


def test_a_trace_for_any_shape_is_refused_where_its_plan_was_the_last_to_be_found(device: torch.device) -> None:
    x = rand(device, 3)
    for _ in range(3):
        hofunc.hod(_affine, 2)(x)
    with pytest.raises(UntracedError, match="symbolic shape"):
        make_fx(hofunc.hod(_affine, 2), tracing_mode="symbolic")(x)
