"""In-place ops, which become reads and writes of memory, against nested torch.func."""

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.algebra.labels import shape_of
from hofunc.graph.layout import Layout
from hofunc.rules.ops.strided import digits
from tests.cases import rand
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, use
from verification.oracles import relative_error

pytestmark = ORACLE_WARNINGS


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


def test_digits_of_nested_strides() -> None:
    found = digits(Layout((3, 2), (4, 1), 1), 12)
    assert found is not None
    vector, axes = found
    assert shape_of((vector,)) == (12,)
    assert [(segment.start, segment.extent) for segment in vector] == [(0, 3), (1, 4)]
    assert [segment.label for segment in vector] == [axis[0].label for axis in axes]


@pytest.mark.parametrize(
    ("layout", "length"),
    [
        (Layout((2, 2), (0, 1), 0), 4),
        (Layout((2, 2), (3, 2), 0), 6),
        (Layout((3,), (2,), 0), 5),
        (Layout((2, 2), (2, 1), 1), 4),
    ],
)
def test_digits_of_strides_that_do_not_nest(layout: Layout, length: int) -> None:
    assert digits(layout, length) is None


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
