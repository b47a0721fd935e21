"""In-place ops, which become reads and writes of memory, against nested torch.func."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, use
from verification.oracles import nested_reverse, relative_error

pytestmark = ORACLE_WARNINGS

Function = Callable[[Tensor], Tensor]


def _row(x: Tensor) -> Tensor:
    y = x.clone()
    y[0] = y[1] * x[0]
    return y


def _steps(x: Tensor) -> Tensor:
    y = x.clone()
    y[::2] *= x[1::2]
    return y


def _thirds(x: Tensor) -> Tensor:
    y = x.clone()
    y[::3].mul_(x[1:3])
    return y


def _column_of_a_transpose(x: Tensor) -> Tensor:
    y = x.clone()
    y.t()[0].mul_(x[:, 1])
    return y


def _diagonal(x: Tensor) -> Tensor:
    y = x.clone()
    y.diagonal().mul_(x[0])
    return y


def _block(x: Tensor) -> Tensor:
    y = torch.zeros(3, 4, dtype=x.dtype, device=x.device)
    y[1:, 1:3] = x
    y[:2, 2:].add_(x.t())
    return y


def _flat_view(x: Tensor) -> Tensor:
    y = x.clone()
    y.view(-1)[1:5] = x.reshape(-1)[:4].sin()
    return y


def _transposed_memory(x: Tensor) -> Tensor:
    y = x.t().clone()
    y[1:].mul_(2)
    y += x.t()
    return y


def _overwritten(x: Tensor) -> Tensor:
    y = x * x
    y.copy_(x.sin())
    return y


def _zeroed(x: Tensor) -> Tensor:
    y = x * x
    y[1].zero_()
    y[:, 0].fill_(2.0)
    return y


def _windows(x: Tensor) -> Tensor:
    return torch.stack([x[1:4], x[2:5], x[3:6]]).sin()


def _written_by_strides(x: Tensor) -> Tensor:
    y = x.clone()
    y.as_strided((2, 2), (3, 1), 1).mul_(x[:, :2])
    return y * x


def _written_by_slices(x: Tensor) -> Tensor:
    return torch.cat([x[:, :1], x[:, 1:] * x[:, :2]], 1) * x


def _read_after_writing(x: Tensor) -> Tensor:
    y = x.clone()
    y[1:3].mul_(x[:2])
    return y.as_strided((2, 2), (1, 1), 1)


def _read_by_slices(x: Tensor) -> Tensor:
    y = torch.cat([x[:1], x[1:3] * x[:2], x[3:]])
    return torch.stack([y[1:3], y[2:4]])


CASES: list[OpCase] = [
    use("a row is written", _row, (2, 3), reference=lambda x: torch.stack([x[1] * x[0], x[1]])),
    use("every second element is scaled", _steps, (4,)),
    use("every third element, of which there is a part", _thirds, (5,)),
    use("a column of a transpose", _column_of_a_transpose, (3, 2)),
    use("a diagonal", _diagonal, (2, 2)),
    use("blocks that overlap", _block, (2, 2)),
    use("a view that merges axes", _flat_view, (2, 3)),
    use("memory in the order of a transpose", _transposed_memory, (2, 3)),
    use("all is overwritten", _overwritten, (2, 2)),
    use("constants are written", _zeroed, (2, 2)),
    use("windows by strides", lambda x: x.sin().as_strided((3, 3), (1, 1), 1), (6,), reference=_windows),
    use(
        "a part by strides of a transpose",
        lambda x: x.sin().t().as_strided((2, 2), (1, 3)),
        (2, 3),
        reference=lambda x: x[:, :2].sin().t(),
    ),
    use("a product by strides", lambda x: x.as_strided((2, 2), (2, 1)) * x.as_strided((2, 1), (1, 1), 2), (4,)),
    use("a view by strides is written", _written_by_strides, (2, 3), reference=_written_by_slices),
    use("by strides from what was written", _read_after_writing, (4,), reference=_read_by_slices),
]


@every_row(CASES)
def test_in_place(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


def test_strides_beyond_a_tensor_are_refused(device: torch.device) -> None:
    """What lies between the elements of a slice is no part of it."""
    with pytest.raises(hofunc.UnsupportedOpError, match=r"as_strided"):
        hofunc.jacobian(lambda x: x.sin()[::2].as_strided((2,), (2,)))(rand(device, 4))


def test_one_shape_in_two_memories(device: torch.device) -> None:
    """The plan of the one is not that of the other."""
    x = rand(device, 3, 3)
    for memory in (x, x.t()):
        got = hofunc.hod(lambda y: y.as_strided((3,), (1,)).exp(), 1)(memory)
        expected = torch.zeros(3, 3, 3, dtype=x.dtype, device=device)
        for place in range(3):
            expected[(place, 0, place) if memory is x else (place, place, 0)] = x[0, place].exp()
        assert relative_error(got, expected) < 1e-12


def test_writing_keeps_the_batch(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        y = x.clone()
        y[:, 0] = x[:, 1] * x[:, 0]
        return y.sum(1)

    assert hofunc.hod(f, 2, layout="compact")(rand(device, 3, 2)).dense(keep_batch=True).shape == (3, 2, 2)


# Buffers that are filled part by part, in which the first axis of (4, 3) is a batch.


def _step(y: Tensor) -> Tensor:
    return (y @ rand(y.device, 3, 3, seed=1)).tanh()


def _rows_of_a_buffer(y: Tensor) -> Tensor:
    s = torch.empty(3, *y.shape, dtype=y.dtype, device=y.device)
    s[0] = y
    s[1] = _step(y)
    s[2] = _step(s[1].clone()) * s[0].clone()
    return s[-1]


def _a_solution(y: Tensor) -> Tensor:
    """A solver of fixed steps, of Runge and Kutta's rule of three eighths."""
    solution = torch.empty(3, *y.shape, dtype=y.dtype, device=y.device)
    solution[0] = y
    for step in range(2):
        k1 = _step(y)
        k2 = _step(y + k1 / 3)
        k3 = _step(y + k2 - k1 / 3)
        k4 = _step(y + k1 - k2 + k3)
        y = y + (k1 + 3 * (k2 + k3) + k4) / 8
        solution[step + 1] = y
    return solution


def _from_row_to_row(y: Tensor) -> Tensor:
    s = y.new_zeros(3, *y.shape)
    s[0].copy_(y)
    for row in range(2):
        s[row + 1] = _step(s[row].clone())
    return s.mean(0)


def _inner_axis(y: Tensor) -> Tensor:
    s = y.new_zeros(len(y), 3, 3)
    s[:, 0] = y
    for place in range(2):
        s[:, place + 1] = _step(s[:, place].clone())
    return s.sum(1)


def _last_axis(y: Tensor) -> Tensor:
    """The stages of a solver, with the number of the stage behind."""
    k = y.new_empty(*y.shape, 3)
    for stage in range(3):
        k[..., stage] = _step(y + k[..., stage - 1].clone()) if stage else _step(y)
    return y + k @ y.new_ones(3)


def _memory_in_another_order(y: Tensor) -> Tensor:
    s = y.new_empty(3, 3, len(y)).permute(1, 2, 0)
    s[0] = y
    s[1:] = torch.stack([_step(s[0].clone()), y.sin()])
    return s.sum(0)


def _single_columns(y: Tensor) -> Tensor:
    s = y.new_zeros(len(y), 2, 2)
    s[:, 0, 0] = y[:, 0].sin()
    s[:, 0, 1] = y[:, 1] * y[:, 0]
    s[:, 1] = s[:, 0].clone() * y[:, 1:]
    return s.flatten(1)


def _a_view_of_a_view(y: Tensor) -> Tensor:
    s = y.new_zeros(len(y), 2, 3)
    flat = s.view(len(y), 6)
    flat[:, 2:5] = y.sin()
    s[:, 1] *= _step(s[:, 0].clone())
    return flat


def _blocks_of_a_long_axis(y: Tensor) -> Tensor:
    s = y.new_zeros(8, 3)
    s[4:] = y.exp()
    s[:4] = s[4:].clone() * y
    return s.view(2, 4, 3).prod(0)


def _every_second_of_an_odd_number(y: Tensor) -> Tensor:
    s = y.new_zeros(5, *y.shape)
    s[::2] = y.sin()
    s[1::2] = _step(s[2::2].clone())
    return s.sum(0)


def _every_second_column(y: Tensor) -> Tensor:
    s = y.new_zeros(len(y), 5)
    s[:, ::2] = y
    s[:, 1::2] = y[:, :2] * s[:, ::2].clone()[:, 1:]
    return s.sin()


def _diagonals(y: Tensor) -> Tensor:
    s = y.new_zeros(len(y), 3, 3)
    s.diagonal(dim1=1, dim2=2).copy_(y.exp())
    s[:, 1, 0] = y[:, 0] * y[:, 1]
    return (s @ s.transpose(1, 2)).flatten(1)


def _broadcast_reads(y: Tensor) -> Tensor:
    s = y.new_zeros(2, *y.shape)
    s[0] = y.sin()
    wide = s[0].unsqueeze(1).expand(-1, 2, -1)
    s[0] *= y
    return wide.flatten(1)


def _out_arguments(y: Tensor) -> Tensor:
    s = y.new_empty(2, *y.shape)
    torch.sin(y, out=s[0])
    torch.mul(s[0], y, out=s[1])
    return s.prod(0)


BUFFERS = [
    (_rows_of_a_buffer, lambda y: _step(_step(y)) * y),
    (_a_solution, None),
    (_from_row_to_row, None),
    (_inner_axis, None),
    (_last_axis, None),
    (_memory_in_another_order, None),
    (_single_columns, None),
    (_a_view_of_a_view, None),
    (_blocks_of_a_long_axis, None),
    (_every_second_of_an_odd_number, None),
    (_every_second_column, None),
    (_diagonals, None),
    (_broadcast_reads, lambda y: (y.sin() * y).unsqueeze(1).expand(-1, 2, -1).flatten(1)),
    (_out_arguments, lambda y: y.sin() ** 2 * y),
]


@pytest.mark.parametrize(("f", "reference"), BUFFERS, ids=lambda f: getattr(f, "__name__", ""))
def test_buffers_keep_the_batch(f: Function, reference: Function | None, device: torch.device) -> None:
    y = rand(device, 4, 3)
    for order in (1, 2):
        got = hofunc.hod(f, order, layout="compact")(y)
        expected = nested_reverse(reference or f, order)(y)
        assert relative_error(got.dense(), expected) < 1e-12
        assert got.dense(keep_batch=True).numel() <= expected.numel() // 4**order


def test_a_buffer_costs_what_the_rows_do(device: torch.device) -> None:
    def written_out(y: Tensor) -> Tensor:
        return torch.stack([y, _step(y), _step(_step(y)) * y])[-1]

    y = rand(device, 50, 3)
    plan, other = hofunc.hod(_rows_of_a_buffer, 2).plan(y), hofunc.hod(written_out, 2).plan(y)
    assert plan.flops <= 1.1 * other.flops
    assert plan.peak_bytes <= 1.1 * other.peak_bytes


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.sin().as_strided((4, 3, 1, 1), (3, 1, 3, 7)).flatten(1),
        lambda x: x.sin().as_strided((3, 4), (1, 3)).t(),
        lambda x: x.sin().as_strided((4, 3), (3, 1)),
        lambda x: x.sin().as_strided((2, 2, 3), (6, 3, 1)).flatten(0, 1),
        lambda x: (x[:, None] * x[..., None]).as_strided((4, 9), (9, 1)),
        lambda x: (x[:, None] * x[..., None]).as_strided((4, 3), (9, 4)),
        lambda x: x.sin().as_strided((4, 2, 2), (3, 1, 1)).flatten(1),
    ],
)
def test_as_strided_of_whole_rows_keeps_the_batch(f: Function, device: torch.device) -> None:
    x = rand(device, 4, 3)
    got = hofunc.hod(f, 2, layout="compact")(x)
    assert relative_error(got.dense(), nested_reverse(f, 2)(x)) < 1e-12
    assert got.dense(keep_batch=True).numel() <= got.dense().numel() // 16


@pytest.mark.parametrize("dims", [2, 3])
def test_pooling_of_all_places_keeps_the_batch_in_any_memory_format(dims: int, device: torch.device) -> None:
    """Where channels come last torch sets the strides of the average in place."""
    pool = [torch.nn.functional.adaptive_avg_pool2d, torch.nn.functional.adaptive_avg_pool3d][dims - 2]
    x = rand(device, 2, 3, *[2] * dims)
    last = x.contiguous(memory_format=torch.channels_last if dims == 2 else torch.channels_last_3d)

    def f(x: Tensor) -> Tensor:
        return pool(x.sin() * x, 1).flatten(1).exp().sum(1)

    plain, strided = hofunc.hod(f, 2).plan(x), hofunc.hod(f, 2).plan(last)
    assert strided.flops <= 1.1 * plain.flops
    assert hofunc.hod(f, 2, layout="compact")(last).pattern == hofunc.hod(f, 2, layout="compact")(x).pattern
    assert relative_error(strided(last), nested_reverse(f, 2)(x)) < 1e-12


def test_what_is_written_in_rows_is_run_in_chunks_of_them(device: torch.device) -> None:
    y = rand(device, 4, 3)
    for f in (_rows_of_a_buffer, _a_solution, _inner_axis, _memory_in_another_order, _a_view_of_a_view, _diagonals):
        got = hofunc.hod(f, 2, chunk_size=2, layout="compact")(y).dense()
        assert relative_error(got, hofunc.hod(f, 2)(y)) < 1e-12, f


def test_a_batch_of_one_stays_a_batch(device: torch.device) -> None:
    got = hofunc.hod(_rows_of_a_buffer, 2, layout="compact")(rand(device, 1, 3))
    assert got.dense(keep_batch=True).shape == (1, 3, 3, 3)


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
def test_scattering_by_strides_is_refused_and_in_place_code_is_right(device: torch.device) -> None:
    source = torch.zeros(2, dtype=torch.float64, device=device)

    def in_place(x: Tensor) -> Tensor:
        y = x.clone()
        y.as_strided((2,), (1,), 1).copy_(source)
        return y

    x = rand(device, 4)
    with pytest.raises(hofunc.UnsupportedOpError, match=r"torch's own gradient is wrong.*y\.as_strided"):
        hofunc.jacobian(lambda x: torch.as_strided_scatter(x, source, (2,), (1,), 1))(x)
    kept = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64, device=device)
    assert torch.equal(hofunc.jacobian(in_place)(x), kept.diag())
