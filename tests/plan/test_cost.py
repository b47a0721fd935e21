"""Costs: counted by hand on programs of a few steps, and measured on whole ones."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that everyone gives it
from torch.utils._python_dispatch import TorchDispatchMode

from hofunc import views
from hofunc.graph.layout import select_scatter
from hofunc.graph.node import Ref
from hofunc.plan.builder import Builder
from hofunc.plan.cost import Cost, cost_of, seconds_of_loop
from hofunc.plan.looped import VIEW, Part, Work
from hofunc.plan.packing import collected, scaled_rows
from hofunc.plan.program import Register
from hofunc.plan.rates import CACHE, RATES
from hofunc.plan.reuse import with_reuse
from hofunc.plan.strategies import STRATEGIES
from hofunc.plan.tracing import traced
from hofunc.rules.ops.convolution import Kernel, convolved, convolved_back
from hofunc.rules.ops.windows import Windows
from hofunc.run.executor import compiled
from tests.cases import rand
from tests.graph.recordings import recorded
from tests.plan.plans import builder_of, lowered_plan

CPU = torch.device("cpu")
FLOAT = 8  # bytes


@pytest.fixture
def builder() -> Builder:
    """Over values of shapes (2, 3), (3, 5), (4, 2, 3) and (4, 3, 5)."""

    def f(*inputs: Tensor) -> list[Tensor]:
        return [x.sin() for x in inputs]

    return builder_of(recorded(f, rand(CPU, 2, 3), rand(CPU, 3, 5), rand(CPU, 4, 2, 3), rand(CPU, 4, 3, 5)))


def given(builder: Builder, *shape: int) -> Register:
    """Return the register of the value of a shape."""
    (number,) = [node.number for node in builder.lowered.graph.nodes if node.is_given and tuple(node.shape) == shape]
    return builder.value(number)


def cost(builder: Builder, *outputs: Register) -> Cost:
    return cost_of(builder.program(outputs), CPU)


@pytest.fixture
def x() -> Builder:
    """Over one value of shape (4, 4), which is x and node 0."""
    return builder_of(recorded(torch.sin, rand(CPU, 4, 4)))


# One step.


def test_a_matrix_product_takes_two_operations_for_each_product(builder: Builder) -> None:
    got = cost(builder, builder.emit(torch.mm, given(builder, 2, 3), given(builder, 3, 5)))
    assert got.flops == 2 * 2 * 3 * 5
    assert got.bytes == FLOAT * (2 * 3 + 3 * 5 + 2 * 5)
    assert got.peak_bytes == FLOAT * 2 * 5
    assert [step.shape for step in got.steps] == [(2, 5)]


def test_a_batch_of_products_takes_as_many_as_it_has_items(builder: Builder) -> None:
    got = cost(builder, builder.emit(torch.bmm, given(builder, 4, 2, 3), given(builder, 4, 3, 5)))
    assert got.flops == 4 * 2 * 2 * 3 * 5
    assert got.bytes == FLOAT * 4 * (2 * 3 + 3 * 5 + 2 * 5)
    assert got.peak_bytes == FLOAT * 4 * 2 * 5
    rates = RATES["cpu"].of(torch.float64)
    assert got.seconds == pytest.approx(rates.call + rates.batch(4, 2 * 3 * 5))


@pytest.mark.parametrize("transposed", [False, True])
def test_a_convolution_takes_two_operations_for_each_product(transposed: bool) -> None:
    f = F.conv_transpose1d if transposed else F.conv1d
    channels, length = (3, 6) if transposed else (2, 7)
    weight = rand(CPU, 3, 2, 2)
    builder = builder_of(recorded(lambda x: f(x, weight, stride=2), rand(CPU, 5, channels, length)))
    products = 5 * 3 * 2 * (6 if transposed else 3) * 2  # of what is on the shorter side, with its part of the weight
    (node,) = [node for node in builder.lowered.graph.nodes if node.number in builder.lowered.rules]
    value = builder.value(builder.lowered.graph.inputs[0])
    assert cost(builder, builder.apply(node.op, value, node.args[1:], node.shape)).flops == 2 * products
    kernel = Kernel((Windows(6, 2, 12, 2, 0, 1) if transposed else Windows(3, 2, 7, 2, 0, 1),), transposed, 1)
    applied = builder.apply(convolved, value, (Ref(node.operands[1]), kernel), node.shape)
    assert cost(builder, applied).flops == 2 * products
    back = builder.apply(convolved_back, applied, (Ref(node.operands[1]), kernel), (5, channels, length))
    assert cost(builder, back).flops == 2 * 2 * products


@pytest.mark.parametrize("length", [7, 2_000_000])
def test_the_windows_of_a_convolution_are_written_and_read(length: int) -> None:
    """Some at a time, to memory that is kept, and what is made of them, where that is large, to memory that is new."""
    weight, rates = rand(CPU, 3, 2, 2), RATES["cpu"].of(torch.float64)
    builder = builder_of(recorded(lambda x: F.conv1d(x, weight), rand(CPU, 1, 2, length)))
    value, (_, number) = builder.value(0), builder.lowered.graph.nodes[-1].operands
    places = length - 1
    args = (Ref(number), Kernel((Windows(places, 2, length, 1, 0, 1),), False, 1))
    (step,) = cost(builder, builder.apply(convolved, value, args, (1, 3, places))).steps
    windows, result = FLOAT * 4 * places, FLOAT * 3 * places
    fresh = rates.renewed(result)
    assert (fresh > 0) == (length > 7)
    assert step.renewing == fresh
    assert step.seconds == pytest.approx(rates.call + windows / rates.bytes + fresh + step.flops / rates.flops)


def test_a_convolution_in_double_precision_holds_its_windows_too() -> None:
    weight = rand(CPU, 3, 2, 2)
    builder = builder_of(recorded(lambda x: F.conv1d(x, weight), rand(CPU, 5, 2, 7)))
    value, (_, number) = builder.value(0), builder.lowered.graph.nodes[-1].operands
    args = (Ref(number), Kernel((Windows(6, 2, 7, 1, 0, 1),), False, 1))
    windows = 5 * 6 * 2 * 2
    assert cost(builder, builder.apply(convolved, value, args, (5, 3, 6))).peak_bytes == FLOAT * (5 * 3 * 6 + windows)
    half = Builder(builder.lowered, torch.float32)
    applied = half.apply(convolved, half.value(0), args, (5, 3, 6))
    blocks = 5 * 16 * 6  # oneDNN's layout of the result
    expected = FLOAT // 2 * (5 * 3 * 6 + 5 * 2 * 7 + 2 * weight.numel() + blocks)
    assert cost(half, applied).peak_bytes == expected, "and in single precision what oneDNN lays out"


def test_other_ops_take_one_operation_for_each_element_of_the_result(builder: Builder) -> None:
    x = given(builder, 4, 2, 3)
    assert cost(builder, builder.emit(torch.mul, x, x)).flops == 24
    assert cost(builder, builder.emit(torch.neg, x)).bytes == 2 * FLOAT * 24
    assert cost(builder, builder.emit(torch.mul, x, 2.0)).bytes == 2 * FLOAT * 24
    got = cost(builder, builder.emit(torch.sum, x, (0,)))
    assert (got.flops, got.bytes, got.peak_bytes) == (6, FLOAT * (24 + 6), FLOAT * 6)
    rates = RATES["cpu"]
    assert got.seconds == pytest.approx(rates.call + got.bytes / rates.bytes)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (torch.permute, (2, 0, 1)),
        (torch.reshape, (8, 3)),
        (torch.Tensor.expand, (5, 4, 2, 3)),
        (torch.select, None),
    ],
)
def test_views_cost_a_call_and_nothing_else(function: Callable[..., Any], args: Any, builder: Builder) -> None:
    x = given(builder, 4, 2, 3)
    view = builder.emit(function, x, *((0, 1) if args is None else (args,)))
    got = cost(builder, view)
    assert (got.flops, got.bytes, got.peak_bytes, got.seconds) == (0, 0, 0, RATES["cpu"].view)


def test_a_reshape_that_cannot_be_a_view_is_a_copy(builder: Builder) -> None:
    turned = builder.emit(torch.permute, given(builder, 4, 2, 3), (2, 1, 0))
    got = cost(builder, builder.emit(torch.reshape, turned, (6, 4)))
    assert (got.bytes, got.peak_bytes) == (2 * FLOAT * 24, FLOAT * 24)


def test_the_dtype_that_is_computed_in_counts(x: Builder) -> None:
    half = Builder(x.lowered, torch.float32)
    got = cost(half, half.emit(torch.neg, half.value(0)))
    assert [step.bytes for step in got.steps] == [16 * (8 + 4), 16 * (4 + 4)], "the conversion, and the step"


# What is held.


def test_the_peak_is_what_is_alive_at_once(x: Builder) -> None:
    value, size = x.value(0), FLOAT * 16
    one = x.emit(torch.exp, value)
    two = x.emit(torch.mul, one, value)
    assert cost(x, x.emit(torch.exp, two)).peak_bytes == 2 * size, "a chain holds what it reads and what it writes"
    assert cost(x, x.emit(torch.mul, one, two)).peak_bytes == 3 * size
    assert cost(x, one, x.emit(torch.exp, two)).peak_bytes == 3 * size, "results are held to the end"


def test_a_view_holds_what_it_is_a_view_of(x: Builder) -> None:
    value, size = x.value(0), FLOAT * 16
    made = x.emit(torch.exp, value)
    row = x.emit(torch.select, made, 0, 1)
    assert cost(x, x.emit(torch.exp, row)).peak_bytes == size + FLOAT * 4
    assert cost(x, x.emit(torch.select, value, 0, 1)).peak_bytes == 0, "nor is what is given allocated"
    assert cost(x, made, row).peak_bytes == size, "memory counts once"


def test_what_is_collected_is_merged_and_added_to_zeros(x: Builder) -> None:
    places = x.constant(tuple(place // 2 for place in range(16)))
    got = cost(x, x.emit(collected, x.value(0), places, 8))
    assert got.peak_bytes == FLOAT * (8 + 8), "there is nothing to copy"
    turned = x.emit(torch.transpose, x.value(0), 0, 1)
    assert cost(x, x.emit(collected, turned, places, 8)).peak_bytes == FLOAT * (16 + 8 + 8)


def test_a_scatter_copies_the_memory_that_it_writes_to_a_view_of(x: Builder) -> None:
    value = x.emit(torch.exp, x.value(0))
    row, part = x.emit(torch.select, value, 0, 1), x.emit(torch.select, x.value(0), 1, 0)
    got = cost(x, x.emit(views.narrow_scatter, row, x.emit(torch.narrow, part, 0, 0, 2), 0, 0, 2))
    assert got.peak_bytes == 2 * FLOAT * 16
    spread = x.emit(torch.Tensor.expand, x.emit(torch.select, row, 0, 0), (4,))
    got = cost(x, x.emit(select_scatter, spread, x.emit(torch.select, part, 0, 0), 0, 0))
    assert got.peak_bytes == FLOAT * (16 + 4), "unless its elements share memory"


# The model of shapes against torch, and of memory against what is allocated.


def _networks() -> list[Callable[[Tensor], Tensor]]:
    first, second, last = rand(CPU, 2, 6, seed=1), rand(CPU, 6, 6, seed=2), rand(CPU, 6, seed=3)
    return [
        lambda x: ((x @ first).tanh() @ second).sin() @ last,
        lambda x: (((x @ first).tanh() @ second).sin() @ last).exp().sum(),
        lambda x: ((x @ first).tanh() @ second) * x.sum(),
        lambda x: (x[1:] * x[:-1] * x.flip(0)[1:]).exp().sum(),
    ]


class Held(TorchDispatchMode):
    """Notes the most that is held at once in tensors made inside."""

    def __init__(self, outside: Sequence[Tensor]):
        super().__init__()
        self.peak_bytes = 0
        self._outside = {tensor.untyped_storage().data_ptr() for tensor in outside}
        self._seen: list[weakref.ref[Tensor]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self._seen.append(weakref.ref(out))
        alive = [tensor for tensor in (reference() for reference in self._seen) if tensor is not None]
        self._seen = [weakref.ref(tensor) for tensor in alive]
        sizes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in alive}
        held = sum(size for place, size in sizes.items() if place not in self._outside)
        self.peak_bytes = max(self.peak_bytes, held)
        return out


@pytest.mark.parametrize("f", _networks())
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_more_is_held_than_is_claimed(f: Callable[..., Any], order: int, compact: bool, strategy: str) -> None:
    x = rand(CPU, 5, 2)
    values = recorded(f, x).values
    plan = lowered_plan(f, x, orders=(order,), compact=compact, strategy=strategy)
    constants = [given.origin for given in plan.program.given.values() if isinstance(given.origin, Tensor)]
    with Held([*values, *constants]) as mode:
        compiled(plan.program)(values)
    assert mode.peak_bytes <= plan.cost.peak_bytes <= 1.5 * mode.peak_bytes


@pytest.mark.parametrize("f", _networks())
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_shapes_of_steps_are_those_that_they_have(f: Callable[..., Any], strategy: str) -> None:
    x = rand(CPU, 5, 2)
    plan = lowered_plan(f, x, orders=(2, 3), strategy=strategy)
    every = plan.program._replace(
        outputs=tuple(step.target for step in plan.program.steps), frees=((),) * len(plan.program.steps), joined=()
    )
    results = compiled(every)(recorded(f, x).values)
    assert [tuple(result.shape) for result in results] == [step.shape for step in plan.cost.steps]


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.mm, ((2, 3), (2, 3))),
        (torch.bmm, ((4, 2, 3), (4, 2, 3))),
        (torch.mul, ((2, 3), (3, 5))),
        (torch.add, ((4, 2, 3), (3, 5))),
        (scaled_rows, ((2, 3), (7,))),
    ],
)
def test_shapes_that_do_not_fit_are_refused_as_by_torch(
    function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], builder: Builder
) -> None:
    """Which is how it is seen that a program cannot be run on fewer rows."""
    operands = [builder.constant((1.0,) * 7) if shape == (7,) else given(builder, *shape) for shape in shapes]
    with pytest.raises(RuntimeError, match="do not fit"):
        cost(builder, builder.emit(function, *operands))


# Whole plans.


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("f", _networks())
def test_two_plans_of_one_graph_cost_the_same(strategy: str, f: Callable[..., Any]) -> None:
    one, other = (lowered_plan(f, rand(CPU, 5, 2, seed=s), orders=(3,), strategy=strategy).cost for s in range(2))
    assert one == other
    assert one.seconds > 0
    assert one.flops == sum(step.flops for step in one.steps)
    assert one.bytes == sum(step.bytes for step in one.steps)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_costs_are_linear_in_the_batch(strategy: str, order: int) -> None:
    """They grow by the same amount for every row: what does not depend on rows is constant."""
    f = _networks()[0]
    costs = [
        lowered_plan(f, rand(CPU, n, 2), orders=(order,), compact=True, strategy=strategy).cost
        for n in (512, 1024, 1536)
    ]
    for amount in ("flops", "bytes", "peak_bytes"):
        small, middle, large = (getattr(one, amount) for one in costs)
        assert large - middle == middle - small > 0


def test_another_kind_of_device_has_other_rates() -> None:
    program = lowered_plan(_networks()[0], rand(CPU, 5, 2)).program
    cpu, cuda, other = (cost_of(program, torch.device(name)) for name in ("cpu", "cuda", "meta"))
    assert cpu.seconds != cuda.seconds == other.seconds
    assert (cpu.flops, cpu.bytes, cpu.peak_bytes) == (cuda.flops, cuda.bytes, cuda.peak_bytes)


@pytest.mark.parametrize("size", [2047, 2048])
def test_memory_that_allocators_give_back_takes_time_to_be_had(size: int) -> None:
    x = builder_of(recorded(torch.sin, rand(CPU, size, size)))
    (got,), rates = cost(x, x.emit(torch.neg, x.value(0))).steps, RATES["cpu"]
    assert (FLOAT * size**2 >= rates.large) == (size == 2048)
    assert got.renewing == (FLOAT * size**2 / rates.fresh if size == 2048 else 0)
    assert got.seconds == pytest.approx(rates.call + got.renewing + got.bytes / rates.bytes)


@pytest.mark.parametrize(("size", "count"), [(100, 1), (100, 3), (600, 2), (600, 3), (2048, 1), (2048, 2)])
def test_of_several_tensors_all_memory_is_given_back_every_other_time(size: int, count: int) -> None:
    """What is little is kept in any case, and what is never kept comes beside."""
    x = builder_of(recorded(torch.sin, rand(CPU, size, size)))
    got = cost(x, *[x.emit(torch.mul, x.value(0), factor) for factor in range(2, 2 + count)])
    rates, each = RATES["cpu"], FLOAT * size**2
    never_kept = each if size == 2048 else 0
    others = count * each - never_kept
    assert (others >= rates.kept) == ((size, count) in [(600, 3), (2048, 2)])
    again = others / 2 if others >= rates.kept else 0
    assert got.renewing == pytest.approx((count * never_kept + again) / rates.fresh)


def test_what_is_written_over_takes_no_new_memory() -> None:
    x = builder_of(recorded(torch.sin, rand(CPU, 2048, 2048)))
    program = x.program([x.emit(torch.mul, x.emit(torch.mul, x.value(0), x.value(0)), 2.0)])
    reused = with_reuse(program, traced(program))
    assert reused.over
    assert cost_of(program, CPU).steps[1].renewing == FLOAT * 2048**2 / RATES["cpu"].fresh
    assert cost_of(reused, CPU).steps[1].renewing == 0


@pytest.mark.parametrize("rows", [300, 10_000])
def test_a_product_takes_time_to_read_and_write_what_no_cache_holds(rows: int) -> None:
    """Which is most of it where one of the matrices is narrow."""
    builder = builder_of(recorded(lambda *given: [x.sin() for x in given], rand(CPU, rows, 20), rand(CPU, 20, 2)))
    got = cost(builder, builder.emit(torch.mm, given(builder, rows, 20), given(builder, 20, 2)))
    rates = RATES["cpu"].of(torch.float64)
    uncached = got.bytes - CACHE if rows == 10_000 else 0
    assert (got.bytes > CACHE) == (rows == 10_000)
    expected = rates.call + rates.item + got.flops / rates.flops + uncached / rates.bytes
    assert got.seconds == pytest.approx(expected)


@pytest.mark.parametrize("groups", [1, 2])
def test_the_windows_of_a_convolution_take_time_to_be_written(groups: int) -> None:
    weight, channels = rand(CPU, 6, 4 // groups, 2), () if groups == 1 else (groups,)
    x = rand(CPU, 5, *channels, 4 // groups, 7)
    builder = builder_of(recorded(lambda x: F.conv1d(x.reshape(5, 4, 7), weight, groups=groups), x))
    args = (Ref(builder.lowered.graph.nodes[-1].operands[1]), Kernel((Windows(6, 2, 7, 1, 0, 1),), False, groups))
    got = cost(builder, builder.apply(convolved, builder.value(0), args, (5, *channels, 6 // groups, 6)))
    windows, rates = FLOAT * F.unfold(x.reshape(5, 4, 1, 7), (1, 2)).numel(), RATES["cpu"].of(torch.float64)
    assert got.flops == 2 * 5 * 6 * 6 * (4 // groups) * 2
    assert got.seconds == pytest.approx(rates.call + windows / rates.bytes + got.flops / rates.flops)


def test_a_loop_takes_a_call_more_for_each_of_its_steps() -> None:
    rates = RATES["cpu"]
    product, sums = Part(2_000_000, 48_000, 1), Part(1000, 8000, 0)
    computing = rates.item + 2_000_000 / rates.flops + 56_000 / rates.bytes
    expected = 5 * (3 * rates.call + 2 * rates.call + rates.view + computing)
    assert seconds_of_loop(Work((product, sums, VIEW), 5, 0), rates) == pytest.approx(expected)


def test_rates_are_such_as_devices_have() -> None:
    for rates in RATES.values():
        assert 0 < rates.view <= rates.call < 1e-4
        assert rates.flops > rates.bytes >= rates.fresh > 1e9
        assert rates.large >= 1 << 20


def test_scaled_rows_cost_a_product(builder: Builder) -> None:
    got = cost(builder, builder.emit(scaled_rows, given(builder, 2, 3), builder.constant((1.0, 2.0))))
    assert (got.flops, got.bytes, got.peak_bytes) == (6, FLOAT * (6 + 2 + 6), FLOAT * 6)


# What is kept.


def test_a_result_in_terms_leaves_its_entries_to_be_read() -> None:
    """Of x -> sum((x[i] * x[j]).sin()) by a vector: a diagonal of three at i, as many at j, and three each way."""
    i, j, rates = torch.tensor([0, 1, 5]), torch.tensor([2, 3, 5]), RATES["cpu"]

    def f(x: Tensor) -> Tensor:
        return (x[i] * x[j]).sin().sum()

    compact = lowered_plan(f, rand(CPU, 9), compact=True).run_cost
    assert compact.reading == pytest.approx(4 * rates.term + 12 * rates.place)
    assert compact.price == compact.seconds + compact.reading
    assert lowered_plan(f, rand(CPU, 9)).run_cost.reading == 0


def test_entries_that_have_their_places_are_only_read() -> None:
    """Of sum(sin(x)) + sum(y)^3: a diagonal of nine, and a number that stands for all entries of a block."""
    rates = RATES["cpu"]

    def f(x: Tensor, y: Tensor) -> Tensor:
        return x.sin().sum() + y.sum() ** 3

    compact = lowered_plan(f, rand(CPU, 9), rand(CPU, 7), compact=True).run_cost
    assert compact.reading == pytest.approx(2 * rates.term + (9 + 1) * (FLOAT / rates.bytes + rates.place / 2))


def test_products_in_double_precision_take_twice_as_long() -> None:
    rates = RATES["cpu"]
    assert rates.of(torch.float64).flops == rates.flops / 2
    assert rates.of(torch.float32) is rates.of(torch.bfloat16) is rates
    builder = builder_of(recorded(torch.sin, rand(CPU, 64, 64)))
    (product,) = cost(builder, builder.emit(torch.mm, builder.value(0), builder.value(0))).steps
    assert product.seconds == pytest.approx(rates.call + rates.item + 2 * product.flops / rates.flops)
