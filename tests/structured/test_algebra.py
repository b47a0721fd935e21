"""What is done with structured derivatives, against the dense tensors that they stand for."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

import hofunc
from hofunc import ArgumentError, Derivative, hod
from tests.cases import rand
from tests.checks import Largest, assert_equal, refused
from verification.oracles import nested_reverse
from verification.structures import Structure, written_out

vmap = torch.func.vmap
FIRST, SECOND = torch.tensor([0, 1, 2, 3, 0]), torch.tensor([1, 2, 3, 3, 2])


def row(x: Tensor) -> Tensor:
    return x.prod(-1).sin() + (x**3).sum(-1)


def edges(x: Tensor) -> Tensor:
    return (1 + (x[FIRST.to(x.device)] - x[SECOND.to(x.device)]).square().sum(-1)).log().sum()


# Functions of a tensor of shape (4, 3).
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "a scalar for every row": row,
    "a scalar over rows": lambda x: row(x).sum(),
    "elementwise": lambda x: x.sin(),
    "of a transpose": lambda x: x.t().sin() * x.exp().sum(),
    "all in all": lambda x: x.sum().sin(),
    "two structures": lambda x: x.sin().sum() + x.sum() ** 3,
    "a slice": lambda x: x[1:].sin(),
    "one row": lambda x: x[2].sin(),
    "a cat": lambda x: torch.cat([row(x), x.sin()[0]]),
    "merged axes": lambda x: x.sin().reshape(-1) * x.prod(),
    "other merged axes": lambda x: (x.sin().reshape(6, 2).prod(1) * x.exp().reshape(2, 6).sum()).sum(),
    "edges": edges,
    "what vanishes": lambda x: x.new_ones(2),
}
each = pytest.mark.parametrize("name", FUNCTIONS)


def compact(name: str, order: int, x: Tensor) -> Any:
    return hod(FUNCTIONS[name], order, layout="compact")(x)


def expected_of(name: str, order: int, x: Tensor) -> Tensor:
    """Return a derivative as torch has it, or at order 3, where that takes seconds, as hofunc's dense layout has it."""
    f = FUNCTIONS[name]
    expected: Tensor = nested_reverse(f, order)(x) if order < 3 else hod(f, order)(x)
    return expected


def at(flat: Tensor, index: Sequence[Tensor]) -> Tensor:
    """Return the entries at indices along all axes but the first."""
    whole: tuple[Any, ...] = (slice(None), *index)
    return flat[whole]


def dense(value: Any) -> Tensor:
    return value.dense() if isinstance(value, Derivative) else value


@each
@pytest.mark.parametrize("order", [1, 2, 3])
def test_contract(name: str, order: int, device: torch.device) -> None:
    x, vectors = rand(device, 4, 3), [rand(device, 4, 3, seed=seed) for seed in range(1, order + 1)]
    got, expected = compact(name, order, x), expected_of(name, order, x)
    for filled in range(2**order):
        some = [vector if filled >> slot & 1 else None for slot, vector in enumerate(vectors)]
        whole = expected
        for slot in reversed(range(order)):
            if some[slot] is not None:
                first = expected.dim() - 2 * order + 2 * slot
                whole = torch.tensordot(whole, vectors[slot], ([first, first + 1], [0, 1]))
        assert_equal(dense(got.contract(*some)), whole)
        assert isinstance(got.contract(*some), Tensor) == (filled == 2**order - 1)
    assert_equal(dense(got.contract(vectors[0])), dense(got.contract(vectors[0], *[None] * (order - 1))))


@each
@pytest.mark.parametrize("order", [1, 2, 3])
def test_diagonal_trace_and_packed(name: str, order: int, device: torch.device) -> None:
    x = rand(device, 4, 3)
    got, expected = compact(name, order, x), expected_of(name, order, x)
    flat = expected.reshape(-1, *[12] * order)
    every, out = torch.arange(12, device=device), expected.shape[: expected.dim() - 2 * order]
    assert_equal(got.diagonal().dense(), at(flat, [every] * order).reshape(*out, 4, 3))
    sets = torch.combinations(every, order, with_replacement=True).reshape(-1, order).unbind(1)
    assert_equal(got.packed(), at(flat, sets).reshape(*out, -1))
    assert_equal(hofunc.unpack(got.packed(), (4, 3), order), expected)
    if order > 1:
        trace = flat.diagonal(0, order - 1, order).sum(-1)
        assert_equal(dense(got.trace((order - 2, order - 1))), trace.reshape([*out, *[4, 3] * (order - 2)]))
        assert_equal(dense(got.trace()), dense(got.trace((0, 1))))


def test_the_trace_of_all_pairs(device: torch.device) -> None:
    x = rand(device, 2, 2)
    got, expected = hod(row, 4, layout="compact")(x), nested_reverse(row, 4)(x).reshape(2, 4, 4, 4, 4)
    assert_equal(got.trace(), torch.einsum("aiijj->a", expected))
    assert_equal(got.trace((0, -1), (2, 1)), torch.einsum("aijji->a", expected))


@each
@pytest.mark.parametrize("order", [1, 2])
def test_sums_and_multiples(name: str, order: int, device: torch.device) -> None:
    x = rand(device, 4, 3)
    one, other = compact(name, order, x), compact(name, order, 2 * x)
    expected, others = one.dense(), other.dense()
    scalar = torch.tensor(3.0, device=device)
    got = sum([one, -other * 0.5, scalar * one, other / 4, +one - other / scalar])
    assert isinstance(got, Derivative)
    assert_equal(got.dense(), expected * 5 - others / 4 - others / 3)
    assert len(got.terms) == len(one.terms) or name == "edges"  # whose indices are tensors of each call


def test_numbers_of_numpy() -> None:
    d = compact("elementwise", 2, torch.ones(4, 3))
    for number in (numpy.float64(3), numpy.float32(3), numpy.int64(3)):
        for got in (number * d, d * number):
            assert isinstance(got, Derivative)
            assert_equal(got.dense(), 3 * d.dense())


def test_sums_of_other_structures(device: torch.device) -> None:
    x = rand(device, 4, 3)
    one, other = compact("elementwise", 2, x), compact("of a transpose", 2, x.t().reshape(4, 3))
    with pytest.raises(ArgumentError, match="a sum"):
        _ = one + other
    mixed = compact("a scalar over rows", 2, x) + compact("all in all", 2, x)
    assert_equal(mixed.dense(), nested_reverse(lambda x: row(x).sum() + x.sum().sin(), 2)(x))


def test_random_structures() -> None:
    """A few of those of verification/test_structures.py."""
    for seed in range(40):
        structure = Structure(seed)
        got = structure.derivative
        vector = structure.tensor(got.shapes[1])
        output, (slot, *others) = got.shapes[0], got.shapes[1:]
        expected = written_out(got).movedim([*range(len(output), len(output) + len(slot))], [*range(len(slot))])
        assert_equal(dense(got.contract(vector)), torch.tensordot(vector, expected, len(slot)))
        if {*others} <= {slot}:
            assert_equal(got.packed(), got.packed(keep_batch=False))
            assert_equal(got.diagonal().contract(vector), dense(got.diagonal()).flatten(len(output)) @ vector.flatten())


# Which slots may be exchanged.


def test_symmetric_in(device: torch.device) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return (x * w).sin().sum()

    third = hod(f, 3, argnums=(0, 1), layout="compact")(rand(device, 2), rand(device, 2, seed=1))
    assert third[0][0][0].symmetric_in == ((0, 1, 2),)
    block = third[0][1][0]
    assert block.symmetric_in == ((0, 2), (1,))
    assert_equal(block.dense(), block.dense().transpose(0, 2))
    left = block.contract(None, rand(device, 2))
    assert left.symmetric_in == ((0, 1),)
    assert (left + block.contract(rand(device, 2))).symmetric_in == ((0,), (1,))
    refused(block.packed, ArgumentError, "of which ((0, 2), (1,)) may be exchanged", "by one input in all slots")


# Moving.


def test_to(device: torch.device) -> None:
    got = compact("edges", 2, rand(device, 4, 3))
    half = got.to(torch.float32)
    assert (half.dtype, half.dense().dtype) == (torch.float32, torch.float32)
    assert half.to(device).device.type == device.type
    assert_equal(half.to(torch.float64).dense(), half.dense().double())
    assert got.to("meta").device.type == "meta"
    assert_equal(got.to(torch.zeros(1, dtype=torch.float64, device=device)).dense(), got.dense())
    refused(lambda: got.to(torch.int64), ArgumentError, "torch.int64", "a floating-point dtype")


@pytest.mark.parametrize("name", [*FUNCTIONS])
def test_detach(name: str, device: torch.device) -> None:
    got = compact(name, 2, rand(device, 4, 3).requires_grad_())
    kept = got.detach()
    assert not kept.dense().requires_grad
    assert_equal(kept.dense(), got.dense())
    assert (kept.pattern, kept.symmetric_in) == (got.pattern, got.symmetric_in)


# Under transforms, autograd and compilers.


@pytest.mark.parametrize("name", ["a scalar for every row", "elementwise", "edges", "two structures", "what vanishes"])
def test_what_vmap_returned(name: str, device: torch.device) -> None:
    x, v = rand(device, 2, 4, 3), rand(device, 4, 3, seed=1)
    got = vmap(hod(FUNCTIONS[name], 2, layout="compact"))(x)
    rows = [compact(name, 2, each) for each in x]
    operations: list[Callable[[Any], Any]] = [
        lambda d: d.contract(v, v),
        lambda d: d.contract(None, v),
        lambda d: d.diagonal(),
        lambda d: d.trace(),
        lambda d: d.packed(),
        lambda d: d * 2 + d / torch.tensor(3.0),
        lambda d: d.to(torch.float32),
        lambda d: d.detach(),
    ]
    for operation in operations:
        expected = torch.stack([dense(operation(each)) for each in rows])
        assert_equal(dense(operation(got)), expected)
        assert_equal(vmap(lambda d, operation=operation: dense(operation(d)))(got), expected)
    assert_equal(dense(got.contract(x)), torch.stack([dense(d.contract(u)) for d, u in zip(rows, x, strict=True)]))
    assert_equal(got[1].dense(), rows[1].dense())
    assert_equal(got[[1, 0]].dense(), torch.stack([rows[1].dense(), rows[0].dense()]))


def test_vectors_that_vmap_maps(device: torch.device) -> None:
    got, vectors = compact("edges", 2, rand(device, 4, 3)), rand(device, 5, 4, 3)
    expected = torch.einsum("abcd,ncd->nab", got.dense(), vectors)
    assert_equal(vmap(got.contract)(vectors).dense(), expected)
    assert_equal(vmap(lambda v: got.contract(v, v))(vectors), torch.einsum("nab,nab->n", expected, vectors))


@pytest.mark.parametrize("name", ["a scalar over rows", "edges", "two structures"])
def test_gradients_flow(name: str, device: torch.device) -> None:
    x, v = rand(device, 4, 3), rand(device, 4, 3, seed=1)

    def by_hofunc(x: Tensor) -> Tensor:
        d = compact(name, 2, x)
        return d.contract(v, x) + (d.diagonal().dense() ** 2).sum() + d.trace() + (d * x.sum()).packed().sin().sum()

    def by_torch(x: Tensor) -> Tensor:
        flat = nested_reverse(FUNCTIONS[name], 2)(x).reshape(12, 12)
        upper = flat[*torch.triu_indices(12, 12, device=device)]
        product = v.reshape(-1) @ flat @ x.reshape(-1)
        return product + (flat.diagonal() ** 2).sum() + flat.trace() + (x.sum() * upper).sin().sum()

    expected = torch.func.grad(by_torch)(x)
    assert_equal(torch.func.grad(by_hofunc)(x), expected)
    leaf = x.clone().requires_grad_()
    by_hofunc(leaf).backward()
    assert_equal(leaf.grad, expected)


def test_it_compiles(device: torch.device) -> None:
    x, v = rand(device, 4, 3), rand(device, 4, 3, seed=1)

    @torch.compile(backend="eager")
    def product(d: Derivative, v: Tensor) -> Any:
        return d.contract(v, v) * 2

    for name in ("a scalar over rows", "two structures", "edges"):
        d = compact(name, 2, x)
        assert_equal(product(d, v), 2 * torch.einsum("abcd,ab,cd->", d.dense(), v, v))


# Memory: nothing dense is made where there is structure.

ROWS = 20_000


def test_operations_take_no_more_than_the_structure() -> None:
    x = torch.ones(ROWS, 3)
    d = hod(lambda x: x.sum(-1).sin() * (x * x).sum(-1), 2, layout="compact")(x)
    largest = Largest()
    with largest:
        d.contract(x)
        d.contract(None, x)
        d.diagonal().contract(x)
        d.trace()
        d.packed(keep_batch=True)
        (d + d * 2)[5:].contract(x[5:])
        d[17].dense()
        d[torch.arange(0, ROWS, 2)]
    assert 0 < largest.numel <= 9 * ROWS  # of 3.6e9 elements


def test_operations_on_edges_take_no_more_than_these() -> None:
    points, count = 20_000, 50_000
    i, j = (torch.randint(0, points, (count,), generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    x = torch.ones(points, 3)
    d = hod(lambda x: (x[i] - x[j]).square().sum(-1).log1p().sum(), 2, layout="compact")(x)
    largest = Largest()
    with largest:
        for got in (d.contract(x), d.contract(None, x), d.diagonal()):
            got.dense()
        d.contract(x, x)
        d.trace()
        d * 2 + d
    assert 0 < largest.numel <= 2 * 9 * 4 * count  # of 3.6e9 elements


def test_operations_on_meshes_take_no_more_than_the_elements() -> None:
    """Slots are read at other corners of an element each."""
    points, count = 20_000, 10_000
    corners = torch.randint(0, points, (count, 3), generator=torch.Generator().manual_seed(0))
    x, v = torch.randn(points, 2, dtype=torch.float64), torch.randn(points, 2, dtype=torch.float64)

    def energy(x: Tensor) -> Tensor:
        p = x[corners]
        return ((p[:, 1] - p[:, 0]).square().sum(-1) * (p[:, 2] - p[:, 0]).square().sum(-1)).log1p().sum()

    d = hod(energy, 2, layout="compact")(x)
    largest = Largest()
    with largest:
        product, diagonal, trace = d.contract(v).dense(), d.diagonal().dense(), d.trace()
    assert 0 < largest.numel <= 4 * 36 * count  # of 1.6e9 elements
    slope = torch.func.grad(energy)
    assert_equal(product, torch.func.jvp(slope, (x,), (v,))[1])
    for place in corners[0]:
        unit = torch.zeros_like(x)
        unit[place, 1] = 1
        assert_equal(diagonal[place, 1], torch.func.jvp(slope, (x,), (unit,))[1][place, 1])
    assert_equal(trace, diagonal.sum())


# The only block.


def test_a_single_block() -> None:
    d = compact("elementwise", 2, torch.ones(4, 3))
    assert d.block(0, 0) is d
    refused(lambda: d.block("w", "b"), ArgumentError, "got 'w', 'b', expected 0 for each of 2 slots", "hofunc.Blocks")
    refused(lambda: d.block(0), ArgumentError, "got 0, expected 0 for each of 2 slots")


# Wrong use.

WRONG: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "too many vectors": (lambda d: d.contract(None, None, None), ("3 vectors", "at most 2")),
    "a vector of another shape": (
        lambda d: d.contract(None, torch.ones(3, dtype=torch.float64)),
        ("the vector of slot 1", "shape (3,)", "a tensor of shape (4, 3)", "torch.func.vmap"),
    ),
    "a vector of another dtype": (lambda d: d.contract(torch.ones(4, 3)), ("torch.float32", "torch.float64")),
    "a vector that is none": (lambda d: d.contract([1.0]), ("got list",)),
    "a pair that is none": (lambda d: d.trace((0,)), ("pairs ((0,),) of 2 slots", "each slot in one at most")),
    "a slot that is not there": (lambda d: d.trace((0, 2)), ("pairs ((0, 2),) of 2 slots",)),
    "a slot twice": (lambda d: d.trace((0, 0)), ("pairs ((0, 0),)",)),
    "what is no pair": (lambda d: d.trace(0), ("pairs (0,) of 2 slots",)),
    "a number": (lambda d: d + 1, ("a sum: got 1, expected a Derivative",)),
    "a tensor": (lambda d: d - d.dense(), ("a sum: got a tensor of shape",)),
    "another dtype": (lambda d: d + d.to(torch.float32), ("torch.float32", "torch.float64", ".to(...)")),
    "a vector as a multiple": (
        lambda d: d * torch.ones(3),
        ("a multiple: got a tensor of shape (3,)",),
    ),
    "a complex multiple": (lambda d: 2j * d, ("a multiple: got 2j",)),
    "a name": (lambda d: d["w"], ("got 'w'", "for rows")),
    "a float": (lambda d: d[0.5], ("got 0.5",)),
    "a row that is not there": (lambda d: d[4], ("row 4", "one from -4 to 3")),
    "rows that are not there": (lambda d: d[torch.tensor([0, -5])], ("rows from -5 to 0",)),
    "a mask of another size": (lambda d: d[torch.ones(3) > 0], ("a mask of shape (3,)", "(4,)")),
    "more labels than there are": (lambda d: d[0, 0], ("2 indices, and 1 labels that all slots share",)),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use(name: str) -> None:
    call, parts = WRONG[name]
    d = compact("a scalar over rows", 2, rand(torch.device("cpu"), 4, 3))
    refused(lambda: call(d), ArgumentError, "hofunc.Derivative", *parts)


def test_slots_of_other_shapes() -> None:
    d = hod(lambda x, w: (x @ w).sin(), 2, (0, 1), layout="compact")(torch.ones(2), torch.ones(2, 3))[0][1]
    refused(d.diagonal, ArgumentError, "Derivative.diagonal: got slots of shapes (2,), (2, 3)", "slots of one shape")
    refused(d.trace, ArgumentError, "Derivative.trace: got slots of shapes (2,), (2, 3)")
    first = hod(torch.sin, 1, layout="compact")(torch.ones(2))
    refused(first.trace, ArgumentError, "got pairs () of 1 slots")
    refused(lambda: first[0, 0], ArgumentError, "labels that all slots share")
