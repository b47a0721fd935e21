"""Deltas and maps: applied to one operand where that can be, built as a matrix where it cannot."""

import numpy as np
import pytest
import torch

from hofunc.algebra.labels import Axes, Label, full
from hofunc.algebra.operators import DELTA, Map
from hofunc.algebra.term import Factor
from hofunc.plan.operators import MANY, applied, applied_to_diagonals, eye_like, matrix, one_like, passed_on, weighted
from tests.algebra.dense import RandomTerms
from tests.plan.plans import names
from tests.plan.workbench import Workbench


def axes(*labels: Label) -> Axes:
    """Return one whole axis per label."""
    return tuple((full(label),) for label in labels)


def test_new_tensors_have_the_dtype_and_device_asked_for(device: torch.device) -> None:
    like = torch.zeros(4, dtype=torch.float32, device=device)
    assert torch.equal(eye_like(like, 3), torch.eye(3, dtype=torch.float32, device=device))
    assert torch.equal(one_like(like), torch.ones((), dtype=torch.float32, device=device))


def test_an_operand_that_the_delta_does_not_touch_is_passed_on(device: torch.device) -> None:
    draw = RandomTerms(0)
    a, b, c, other = Label(2), Label(3), Label(6), Label(4)
    host, bystander = draw.factor(axes(a, b)), draw.factor(axes(other))
    bench = Workbench(draw, device)
    builder = bench.builder
    operands = [builder.read(bench.named_source(source), axes) for source, axes in (host, bystander)]
    delta = Factor(DELTA, ((full(c),), (full(a), full(b))))
    got = applied(builder, delta, operands, {c, other})
    assert got is not None
    assert got[0] is operands[1]
    assert got[1].labels == (c,)
    assert names(builder.program([got[1].tensor])) == ["reshape"]
    np.testing.assert_array_equal(bench.run([got[1].tensor])[0], draw.tensors[host.source].reshape(-1))


def test_a_matrix_is_built_where_both_ends_are_needed(device: torch.device) -> None:
    draw = RandomTerms(0)
    bench = Workbench(draw, device)
    a, b, c = Label(2), Label(3), Label(6)
    delta = Factor(DELTA, ((full(c),), (full(a), full(b))))
    assert applied(bench.builder, delta, [], {a, b, c}) is None
    built = matrix(bench.builder, delta)
    order = [built.labels.index(label) for label in (c, a, b)]
    np.testing.assert_array_equal(bench.run([built.tensor])[0].transpose(order).reshape(6, 6), np.eye(6))


def test_ends_of_one_element_need_no_matrix(device: torch.device) -> None:
    draw = RandomTerms(0)
    bench = Workbench(draw, device)
    a, b = Label(1), Label(1)
    got = applied(bench.builder, Factor(DELTA, axes(a, b)), [], {a, b})
    assert got is not None
    assert bench.run([got[0].tensor])[0] == 1


def test_the_matrix_of_a_map_is_made_from_its_smaller_end(device: torch.device) -> None:
    draw = RandomTerms(0)
    bench = Workbench(draw, device)
    short, long = Label(2), Label(5)
    sizes = []
    for outs, ins in ((short, long), (long, short)):
        built = matrix(bench.builder, Factor(Map(stretched, stretched, (), outs=1), axes(outs, ins)))
        step = bench.builder.step_of(built.tensor)
        sizes.append([label.size for label in built.labels])
        assert step is not None
        np.testing.assert_array_equal(bench.run([built.tensor])[0], np.eye(2, 5))
    assert sizes == [[2, 5], [2, 5]]


def stretched(tensor: torch.Tensor) -> torch.Tensor:
    """Append three zeros; fails for what is longer than two."""
    assert tensor.shape[-1] == 2
    return torch.constant_pad_nd(tensor, (0, 3))


def running(rows: Label, columns: Label, to: Axes) -> Factor:
    """Return the factor of a map that adds up rows of a matrix."""
    taken = axes(rows, columns)

    def forward(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.cumsum(-2)

    def transpose(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.flip(-2).cumsum(-2).flip(-2)

    return Factor(Map(forward, transpose, (), 2, 2), (*to, *taken))


def test_a_map_is_applied_to_a_diagonal_of_few_columns(device: torch.device) -> None:
    draw = RandomTerms(0)
    rows, columns, others, to = Label(5), Label(4), Label(2), (Label(5), Label(4))
    host, bystander = draw.factor(axes(rows, columns, others)), draw.factor(axes(rows))
    bench = Workbench(draw, device)
    operands = [bench.builder.read(bench.named_source(source), axes) for source, axes in (host, bystander)]
    got = applied_to_diagonals(bench.builder, running(rows, columns, axes(*to)), operands, {rows, others, *to})
    assert got is not None
    assert got[0] is operands[1]
    assert {*got[1].labels} == {rows, others, *to}
    found = bench.run([got[1].tensor])[0].transpose([got[1].labels.index(label) for label in (*to, rows, others)])
    diagonal = np.einsum("rck,rs->csrk", draw.tensors[host.source], np.eye(5))
    np.testing.assert_allclose(found, diagonal.cumsum(1).transpose(1, 0, 2, 3))


def test_a_map_is_not_applied_to_what_has_not_all_that_is_needed_or_as_many_columns(device: torch.device) -> None:
    rows, columns, others, to = Label(5), Label(4), Label(4), (Label(5), Label(4))
    for labels, ends in (((columns,), to), ((rows, columns, others), to), ((rows, columns), (rows, to[1]))):
        draw = RandomTerms(0)
        host = draw.factor(axes(*labels))
        bench = Workbench(draw, device)
        operands = [bench.builder.read(bench.named_source(host.source), host.axes)]
        factor = running(rows, columns, axes(*ends))
        assert applied_to_diagonals(bench.builder, factor, operands, {rows, others, *to}) is None


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.long]
)
@pytest.mark.parametrize("rows", [3, MANY // 2])
def test_a_mask_passes_numbers_on_bit_by_bit(dtype: torch.dtype, rows: int, device: torch.device) -> None:
    """Those that are no number as well, and zeros are none below zero."""
    x = torch.arange(-rows, rows, device=device).reshape(2, rows).to(dtype)
    if dtype != torch.long:
        x[:, :2] = torch.tensor([torch.nan, -torch.inf])
    mask = torch.arange(2 * rows, device=device).reshape(rows, 2).T % 3 < 1
    for tensor in (x, x[:1], x[:, :1], x.T.contiguous().T):
        got, expected = passed_on(tensor, mask), torch.where(mask, tensor, 0)
        assert got.dtype == dtype
        assert got.stride() == expected.stride()
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(torch.signbit(got.real), torch.signbit(expected.real))


def test_what_a_mask_passes_on_has_slopes_and_may_be_mapped(device: torch.device) -> None:
    x, mask = torch.randn(3, MANY, device=device, requires_grad=True), torch.rand(3, MANY, device=device) < 0.5
    (slope,) = torch.autograd.grad(passed_on(x, mask).sum(), x)
    assert torch.equal(slope, mask.to(x.dtype))
    given = x.detach()
    assert torch.equal(torch.func.vmap(passed_on)(given, mask), torch.where(mask, given, 0))
    assert torch.equal(torch.func.jvp(lambda x: passed_on(x, mask), (given,), (given,))[1], torch.where(mask, given, 0))
    negative = torch.complex(given, given).conj().imag
    assert torch.equal(passed_on(negative, mask), torch.where(mask, -given, 0))


def test_weights_of_zero_hide_what_is_not_finite(device: torch.device) -> None:
    weights = torch.tensor([0.0, 2.0, 0.0, torch.nan], device=device).repeat(MANY)
    x = torch.tensor([torch.nan, 3.0, torch.inf, 1.0], device=device).repeat(MANY)
    expected = torch.tensor([0.0, 6.0, 0.0, torch.nan], device=device).repeat(MANY)
    torch.testing.assert_close(weighted(x, weights), expected, equal_nan=True)
