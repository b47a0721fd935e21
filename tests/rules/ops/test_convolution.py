"""Convolutions against nested torch.func, the labels that they keep, and what their derivatives hold in memory."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that everyone gives it

import hofunc
from hofunc.rules.kinds import Opaque
from hofunc.rules.ops import convolution
from hofunc.rules.ops.convolution import Kernel, convolved, convolved_back, convolved_weight
from hofunc.rules.ops.windows import Windows
from tests.cases import rand
from tests.checks import check_hod
from tests.graph.recordings import recorded
from tests.plan.plans import lowered_plan
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, between, every_row, use
from verification.oracles import nested_reverse

pytestmark = ORACLE_WARNINGS


def related(length: int, width: int, step: int, pad: Any, apart: int, more: int, *, transposed: bool) -> Tensor:
    """Return one where a place of the result and one of the kernel meet a place of the input, by place."""
    reach = (width - 1) * apart
    before, both = (reach // 2, reach) if pad == "same" else (0, 0) if pad == "valid" else (pad, 2 * pad)
    result = (length - 1) * step - both + reach + more + 1 if transposed else (length + both - reach - 1) // step + 1
    small, large = (length, result) if transposed else (result, length)
    places = torch.arange(small)[:, None] * step + torch.arange(width) * apart - before
    meets = places[..., None] == torch.arange(large)
    return meets.movedim(2, 0).transpose(1, 2) if transposed else meets


def written_out(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    output_padding: Any = 0,
    groups: int = 1,
    transposed: bool = False,
) -> Tensor:
    """Convolve in one einsum. Three derivatives of torch's own take gigabytes."""
    rank = weight.dim() - 2
    batch = x if x.dim() > rank + 1 else x[None]
    options = [p if isinstance(p, tuple) else (p,) * rank for p in (stride, padding, dilation, output_padding)]
    sizes = zip(batch.shape[2:], weight.shape[2:], *options, strict=True)
    relations = [related(*numbers, transposed=transposed).to(x) for numbers in sizes]
    ins, places, outs = "pqr"[:rank], "stu"[:rank], "xyz"[:rank]
    meets = ",".join(map("".join, zip(outs, places, ins, strict=True)))
    kernel = "gcd" if transposed else "gdc"
    operands = batch.unflatten(1, (groups, -1)), weight.unflatten(0, (groups, -1)), *relations
    y = torch.einsum(f"ngc{ins},{kernel}{places},{meets}->ngd{outs}", *operands).flatten(1, 2)
    y = y if bias is None else y + bias.reshape(-1, *[1] * rank)
    return y if x.dim() > rank + 1 else y[0]


class Row(NamedTuple):
    """A convolution of tensors of these shapes, with options of the call."""

    name: str
    f: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    options: dict[str, Any]

    def native(self, *args: Tensor) -> Tensor:
        """Call torch's own."""
        return self.f(*args, **self.options)

    def reference(self, *args: Tensor) -> Tensor:
        """Return the same, written out."""
        return written_out(*args, **self.options, transposed="transpose" in self.f.__name__)

    def arguments(self, device: torch.device) -> tuple[Tensor, ...]:
        """Return arguments of the shapes."""
        return tuple(rand(device, *shape, seed=seed) for seed, shape in enumerate(self.shapes))


def conv(name: str, f: Callable[..., Tensor], *shapes: tuple[int, ...], **options: Any) -> Row:
    """Return a row of a table."""
    return Row(name, f, shapes, options)


PLAIN = [
    conv("conv1d", F.conv1d, (2, 2, 4), (2, 2, 2)),
    conv("conv1d with a bias", F.conv1d, (1, 2, 3), (2, 2, 2), (2,)),
    conv("conv1d with a stride", F.conv1d, (1, 2, 5), (1, 2, 2), stride=2),
    conv("conv1d with a stride that leaves a rest", F.conv1d, (1, 1, 6), (2, 1, 3), stride=2),
    conv("conv1d with a stride beyond the kernel", F.conv1d, (1, 1, 6), (2, 1, 1), stride=3),
    conv("conv1d with padding", F.conv1d, (1, 2, 2), (1, 2, 3), padding=1),
    conv("conv1d with more padding than kernel", F.conv1d, (1, 1, 2), (1, 1, 2), padding=3),
    conv("conv1d with dilation", F.conv1d, (1, 2, 5), (1, 2, 2), dilation=3),
    conv("conv1d with all of them", F.conv1d, (1, 1, 6), (2, 1, 3), stride=3, padding=2, dilation=2),
    conv("conv1d in groups", F.conv1d, (1, 4, 3), (2, 2, 2), groups=2),
    conv("conv1d of each channel", F.conv1d, (1, 2, 3), (4, 1, 2), groups=2),
    conv("conv1d of the same length", F.conv1d, (1, 1, 4), (1, 1, 3), padding="same"),
    conv("conv1d without padding", F.conv1d, (1, 1, 3), (1, 1, 2), padding="valid"),
    conv("conv1d without a batch", F.conv1d, (2, 4), (1, 2, 2)),
    conv("conv2d", F.conv2d, (1, 2, 3, 3), (1, 2, 2, 2)),
    conv("conv2d with all of them", F.conv2d, (1, 2, 3, 4), (2, 1, 2, 2), stride=(2, 1), padding=(1, 0), groups=2),
    conv("conv2d with dilation", F.conv2d, (1, 1, 3, 4), (1, 1, 2, 2), dilation=(1, 2)),
    conv("conv2d of the same size", F.conv2d, (1, 1, 2, 3), (1, 1, 1, 3), padding="same"),
    conv("conv2d without a batch", F.conv2d, (1, 3, 3), (1, 1, 2, 2)),
    conv("conv3d", F.conv3d, (1, 1, 2, 3, 2), (1, 1, 2, 2, 1)),
    conv("conv3d with padding and stride", F.conv3d, (1, 1, 2, 2, 3), (1, 1, 1, 2, 2), padding=(0, 1, 0), stride=2),
]

TRANSPOSED = [
    conv("conv_transpose1d", F.conv_transpose1d, (2, 2, 2), (2, 1, 2)),
    conv("conv_transpose1d with a bias", F.conv_transpose1d, (1, 1, 2), (1, 2, 2), (2,)),
    conv("conv_transpose1d with a stride", F.conv_transpose1d, (1, 1, 3), (1, 2, 2), stride=3),
    conv("conv_transpose1d with padding", F.conv_transpose1d, (1, 2, 3), (2, 1, 3), padding=1),
    conv("conv_transpose1d with more at the end", F.conv_transpose1d, (1, 1, 2), (1, 1, 2), stride=2, output_padding=1),
    conv("conv_transpose1d with dilation", F.conv_transpose1d, (1, 1, 2), (1, 1, 2), dilation=3, output_padding=2),
    conv("conv_transpose1d in groups", F.conv_transpose1d, (1, 4, 2), (4, 1, 2), groups=2),
    conv("conv_transpose1d without a batch", F.conv_transpose1d, (1, 2), (1, 1, 2)),
    conv("conv_transpose2d", F.conv_transpose2d, (1, 2, 2, 2), (2, 1, 2, 1)),
    conv(
        "conv_transpose2d with all of them",
        F.conv_transpose2d,
        (1, 2, 2, 2),
        (2, 1, 3, 2),
        stride=(2, 3),
        padding=1,
        output_padding=(0, 1),
        groups=2,
    ),
    conv("conv_transpose3d", F.conv_transpose3d, (1, 1, 2, 1, 2), (1, 1, 1, 2, 2), stride=(1, 2, 1)),
]


def gradients(f: Callable[..., Tensor], **options: Any) -> Callable[..., tuple[Tensor, ...]]:
    """Return the function that returns the gradients of a convolution, cubed and summed, by all that it takes."""

    def loss(*args: Tensor) -> Tensor:
        return (f(*args, **options) ** 3).sum()

    return lambda *args: torch.func.grad(loss, tuple(range(len(args))))(*args)


CASES = [
    use(
        "gradients of a convolution",
        gradients(F.conv1d, stride=2, padding=1),
        (1, 1, 3),
        (1, 1, 2),
        (1,),
        orders=(1, 2),
        reference=gradients(written_out, stride=2, padding=1),
    ),
    use(
        "gradients of a convolution in groups",
        gradients(F.conv1d, groups=2),
        (1, 2, 2),
        (2, 1, 2),
        reference=gradients(written_out, groups=2),
    ),
    use(
        "gradients of a transposed convolution",
        gradients(F.conv_transpose1d, stride=2),
        (1, 1, 2),
        (1, 1, 2),
        (1,),
        orders=(1, 2),
        reference=gradients(written_out, stride=2, transposed=True),
    ),
    use("a convolution of an empty batch", F.conv1d, (0, 2, 3), (1, 2, 2), orders=(1, 2), reference=written_out),
    use("a convolution that is not taken apart", F.conv2d, (1, 1, 2, 3), (1, 1, 1, 2), inference=True),
    use("a convolution with itself", lambda x: F.conv1d(x, x), (2, 2, 2)),
    use("a transposed convolution with itself", lambda x: F.conv_transpose1d(x, x), (1, 1, 3)),
    use("a convolution beside its input", lambda x: F.conv1d(x, x[:, :1, :2], padding=1)[..., :3] * x, (1, 1, 3)),
    use("a weight made from the input", lambda x: F.conv1d(x, x[:, :1, :2].sin()), (1, 1, 3)),
]


def every(rows: Sequence[Row]) -> pytest.MarkDecorator:
    """Parametrise a test by rows."""
    return pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in rows])


@pytest.mark.parametrize("order", [1, 2])
@every([*PLAIN, *TRANSPOSED])
def test_first_and_second_derivatives_against_those_of_torch(row: Row, order: int, device: torch.device) -> None:
    args = row.arguments(device)
    check_hod(between(row.native), args, order, argnums=tuple(range(len(args))))


@every([*PLAIN, *TRANSPOSED])
def test_third_derivatives_against_those_of_a_written_out_one(row: Row, device: torch.device) -> None:
    def number(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *args: between(f)(*args).cos().sum()

    args = row.arguments(device)
    argnums = tuple(range(len(args)))
    check_hod(number(row.native), args, 3, argnums=argnums, reference=number(row.reference))


@every_row(CASES)
def test_uses(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


STRATEGIES = ("reverse", "forward", "mixed")
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"padding": 1, "stride": 2},
    "grouped": {"groups": 2},
    "transposed": {"padding": 1, "stride": 2, "transposed": True},
    "transposed and grouped": {"groups": 2, "transposed": True},
}


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_every_strategy_takes_convolutions(kind: str, order: int, device: torch.device) -> None:
    options = dict(KINDS[kind])
    native = F.conv_transpose1d if options.pop("transposed", False) else F.conv1d

    def loss(first: Tensor, second: Tensor) -> Tensor:
        return first.exp().sum((1, 2)) + (second * second.sin()).sum((1, 2))

    def f(x: Tensor, weight: Tensor) -> Tensor:
        y = native(x.sin(), weight, **options)
        return loss(y, native(y.tanh(), weight, **options))

    def reference(x: Tensor, weight: Tensor) -> Tensor:
        y = written_out(x.sin(), weight, **KINDS[kind])
        return loss(y, written_out(y.tanh(), weight, **KINDS[kind]))

    args = rand(device, 1, 2, 3), rand(device, 2, 2 // options.get("groups", 1), 2, seed=1)
    check_hod(f, args, order, argnums=(0, 1), strategies=STRATEGIES, reference=reference)


def network(x: Tensor) -> Tensor:
    """Return a number for each image, by a small convolutional network."""
    first, second = rand(x.device, 2, 1, 2, 2, seed=1), rand(x.device, 2, 1, 2, 2, seed=2)
    hidden = F.conv2d(x, first, padding=1, stride=2).tanh()
    return F.conv2d(hidden, second, groups=2).tanh().sum((1, 2, 3))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_batch_is_kept(order: int, strategy: str, device: torch.device) -> None:
    x = rand(device, 3, 1, 3, 2)
    derivative = hofunc.hod(network, order, layout="compact", strategy=strategy)(x)
    slots = ["b c d e"] if order == 1 else ["b i j k", "b l m n", "b o p q"]
    assert derivative.pattern == ", ".join(["b", *slots[:order]])
    expected = torch.stack([hofunc.hod(lambda row: network(row[None])[0], order)(row) for row in x])
    torch.testing.assert_close(derivative.dense(keep_batch=True), expected)


def test_groups_are_kept(device: torch.device) -> None:
    weight = rand(device, 4, 1, 2)
    x = rand(device, 1, 4, 3)
    compact = hofunc.hod(lambda x: F.conv1d(x, weight, groups=4).sin().sum(2)[0], 2, layout="compact")(x)
    assert compact.nbytes == 4 * 3 * 3 * x.element_size()
    check_hod(lambda x: F.conv1d(x, weight, groups=4).sin().sum(2)[0], (x,), 2)


def test_rows_of_a_batch_are_taken_apart(device: torch.device) -> None:
    x = rand(device, 5, 1, 3, 2)
    whole = hofunc.hod(network, 2, layout="compact")(x).dense(keep_batch=True)
    parts = hofunc.hod(network, 2, layout="compact", chunk_size=2)(x).dense(keep_batch=True)
    torch.testing.assert_close(parts, whole)


def test_under_transforms(device: torch.device) -> None:
    x, weight = rand(device, 3, 1, 4), rand(device, 2, 1, 2, seed=1)

    def f(row: Tensor, weight: Tensor) -> Tensor:
        return F.conv1d(row, weight, padding=1).tanh().sum()

    mapped = torch.func.vmap(hofunc.hod(f, 2, (0, 1)), in_dims=(0, None))(x, weight)
    expected = torch.func.vmap(nested_reverse(f, 2, (0, 1)), in_dims=(0, None))(x, weight)
    torch.testing.assert_close(mapped, expected)
    third = torch.func.jacrev(hofunc.hod(f, 2))(x[0], weight)
    torch.testing.assert_close(third, nested_reverse(f, 3)(x[0], weight))
    again = hofunc.hod(hofunc.hod(f, 1), 2)(x[0], weight)
    torch.testing.assert_close(again, nested_reverse(f, 3)(x[0], weight))
    inner = hofunc.hod(torch.func.grad(f, 1), 2, 1)(x[0], weight)
    torch.testing.assert_close(inner, nested_reverse(f, 3, 1)(x[0], weight))


def test_the_matrix_of_a_convolution_is_not_built(device: torch.device) -> None:
    """Of 64 x 64 pixels it would take 16.7 million numbers, and the second derivative by input and weight more."""
    x, weight = rand(device, 1, 1, 64, 64), rand(device, 2, 1, 3, 3, seed=1)

    def loss(x: Tensor, weight: Tensor) -> Tensor:
        return (F.conv2d(x, weight, padding=1).tanh() * F.conv2d(x, weight.flip(2), padding=1)).sum()

    peak = hofunc.hod(loss, 2, (1,)).plan(x, weight).peak_bytes
    assert peak < 100 * x.nbytes
    number = hofunc.hod(lambda t, weight: loss(x * t, weight), 2, (0, 1)).plan(rand(device), weight)
    assert number.peak_bytes < 100 * x.nbytes


def test_convolutions_are_not_opaque(device: torch.device) -> None:
    plan = lowered_plan(network, rand(device, 1, 1, 3, 2))
    assert not any(isinstance(rule, Opaque) for rule in plan.lowered.rules.values())
    assert recorded(network, rand(device, 1, 1, 3, 2)).graph.outputs


def two_axes(*, transposed: bool = False, groups: int = 1) -> Kernel:
    """Return a kernel of two axes with a stride, padding and dilation along one of them each."""
    return Kernel((Windows(4, 3, 8, 2, 1, 1), Windows(5, 2, 7, 1, 0, 2)), transposed, groups)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", [two_axes(), two_axes(transposed=True), two_axes(groups=2)])
def test_images_are_convolved_some_at_a_time(
    kernel: Kernel, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels = () if kernel.groups == 1 else (kernel.groups,)
    made_of = ((11, *channels, 4, 4, 5), (11, *channels, 3, 8, 7), (4 * kernel.groups, 3, 3, 2))
    small, large, weight = (rand(torch.device("cpu"), *shape, seed=len(shape)).to(dtype) for shape in made_of)
    first, second = (small, large) if kernel.transposed else (large, small)

    def made() -> list[Tensor]:
        return [
            convolved(first, weight, kernel),
            convolved_back(second, weight, kernel),
            convolved_weight(small, large, kernel),
        ]

    whole, of = made(), convolution._at_once
    counts: list[int | None] = []

    def counted(*args: Any) -> int | None:
        counts.append(of(*args))
        return counts[-1]

    monkeypatch.setattr(convolution, "_at_once", counted)
    monkeypatch.setattr(convolution, "LAID_OUT", 4 * small[0, ..., 0, :, :].numel() * 18 * dtype.itemsize)
    for one, other in zip(made(), whole, strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()
    assert all(count is not None and 1 < count < 11 for count in counts)
    with torch.enable_grad():
        assert of(large, weight.requires_grad_(), kernel) is None
    assert of(large.to("meta"), weight.to("meta"), kernel) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("inner", [1, 5])
def test_the_way_back_from_windows_beside_each_other_is_a_convolution(
    inner: int, groups: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In single precision, and where windows of fewer channels are laid out for it."""
    kernel = Kernel((Windows(7, 3, 7, 1, 1, 1), Windows(5, 2, 7, 1, 0, 2)), transposed=False, groups=groups)
    channels = () if groups == 1 else (groups,)
    shapes = (3, *channels, 4 // groups, 7, 5), (4, inner, 3, 2)
    small, weight = (rand(torch.device("cpu"), *shape, seed=len(shape)).to(dtype) for shape in shapes)
    called: list[tuple[int, ...]] = []
    of = convolution._to_small

    def noted(tensor: Tensor, weight: Tensor, kernel: Kernel) -> Tensor:
        called.append(tuple(weight.shape))
        return of(tensor, weight, kernel)

    monkeypatch.setattr(convolution, "_to_small", noted)
    got = convolved_back(small, weight, kernel)
    large = torch.zeros(3, inner * groups, 7, 7, dtype=dtype, requires_grad=True)
    result = F.conv2d(large, weight, padding=(1, 0), dilation=(1, 2), groups=groups)
    (expected,) = torch.autograd.grad(result, large, small.reshape(result.shape))
    torch.testing.assert_close(got.reshape(expected.shape), expected)
    is_turned = dtype == torch.float32 or inner * groups > 4
    assert called == ([(inner * groups, 4 // groups, 3, 2)] if is_turned else [])


@pytest.mark.parametrize("windows", [Windows(4, 3, 8, 2, 1, 1), Windows(7, 3, 3, 1, 3, 1), Windows(4, 3, 7, 1, 0, 1)])
def test_windows_that_leave_places_out_or_go_beyond_them_are_not_turned(windows: Windows) -> None:
    assert not windows.is_turnable
    assert Windows(7, 3, 7, 1, 1, 1).turned == Windows(7, 3, 7, 1, 1, 1)
