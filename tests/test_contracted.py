"""Contractions of derivatives: that they are torch.einsum of the dense derivative, and what is refused."""

import copy
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import hofunc
from hofunc import UntracedError, contracted, einsum
from hofunc.contracted import STRATEGIES
from hofunc.pattern import Bound, bound
from tests import checks
from tests.cases import rand
from tests.checks import assert_equal
from verification.oracles import contraction, nested_slots, relative_error

vmap, grad, jvp = torch.func.vmap, torch.func.grad, torch.func.jvp
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
ROWS = 4


def field(x: Tensor) -> Tensor:
    """A number for every row, by a layer."""
    return (x @ _weights(x.shape[-1], 4, x)).tanh().sum(-1) * x.sum(-1).cos()


def flow(x: Tensor) -> Tensor:
    """As many numbers for every row as it has coordinates."""
    return field(x).unsqueeze(-1) * x.sin() + x.flip(-1) ** 3


def tailed(x: Tensor) -> Tensor:
    """As many numbers for every row as it has coordinates, by linear ops of what is not, some of it passed by."""
    h = (x @ _weights(x.shape[-1], 4, x)).tanh()
    y = h @ _weights(4, x.shape[-1], x) + 2 * x - x * h.sum(-1, keepdim=True)
    return torch.cat([y.flip(-1)[..., :1], h[..., 1 : x.shape[-1]]], -1) / 3 + y.cumsum(-1)


def mixing(x: Tensor) -> Tensor:
    """Numbers of all rows together."""
    return field(x) * x.sin().sum()


def of_two(x: Tensor, y: Tensor) -> Tensor:
    """A number for every pair of rows."""
    return (field(x) * y.sum(-1)).sin()


def scalar(x: Tensor) -> Tensor:
    """One number."""
    return flow(x).sin().sum()


def _weights(rows: int, columns: int, like: Tensor) -> Tensor:
    return torch.arange(1.0, rows * columns + 1, dtype=like.dtype, device=like.device).cos().reshape(rows, columns)


def check(
    f: Callable[..., Any],
    pattern: str,
    *args: Tensor,
    argnums: Sequence[int],
    operands: Sequence[Tensor] = (),
    strategies: Sequence[str] = STRATEGIES,
) -> None:
    """Compare with torch.einsum of the derivative by nested torch.func, by every strategy."""
    expected = contraction(nested_slots(f, argnums)(*args), pattern, operands)
    for strategy in strategies:
        got = einsum(f, pattern, tuple(argnums) or 0, strategy=strategy)(*args, operands=tuple(operands))
        assert relative_error(got, expected) < checks.TOLERANCE, strategy


# What it computes.

TABLE = [
    # f, pattern, shapes of the operands
    (field, "b -> b", ()),
    (field, "b, b i -> b i", ()),
    (field, "b, b i, b i -> b", ()),
    (field, "b, b i, b i, b j, b j -> b", ()),
    (field, "b, b 0, b 0, b 1 -> b", ()),
    (field, "b, b i, b j, b j -> b i", ((ROWS, 3),)),
    (field, "b, b i, b j, i j -> b", ((3, 3),)),
    (field, "b, b i, b j, b i j -> b", ((ROWS, 3, 3),)),
    (flow, "b o, b o -> b", ()),
    (flow, "b o, b i, i o j -> b j", ((3, 3, 3),)),
    (tailed, "b o, b o -> b", ()),
    (tailed, "b o, b o -> b o", ()),
    (tailed, "b o, b o, b i, b i -> b", ()),
    (tailed, "b o, b o, b o, o -> b", ((3,),)),
    (tailed, "b o, b i, b i, i o -> b", ((3, 3),)),
    (tailed, "b o, c o -> b c", ()),
    (tailed, "b o, b o, b i, b o -> b i", ((ROWS, 3),)),
    (tailed, "b o, b o, b o, b i -> b i", ()),
    (flow, "b o, b i, b j, o i -> b j", ((3, 3),)),
    (flow, "b o, b o, b j, o j -> b j", ((3, 3),)),
    (flow, "b o, b o, b o, b j, o -> b j", ((3,),)),
    (flow, "b o, b i, b o, b o, b j -> b i j", ()),
    (flow, "b o, c o, d i -> d i", ()),
    (flow, "b o, b o, c i -> b c i", ()),
    (field, "b, b i, b j, b -> i j", ((ROWS,),)),
    (field, "b, b i, b i -> b i", ()),
    (field, "b, b i, b j -> b j i", ()),
    (field, "b, b i, b i, b i -> b i", ()),
    (mixing, "b, b i, c i, c j -> b j", ()),
    (field, "b, b i, b j, i, j -> b", ((3,), (3,))),
    (flow, "b o, b o, b i -> b i", ()),
    (flow, "b 0, b 1 -> b", ()),
    (flow, "b o, b i, b j, b o, i j -> b", ((ROWS, 3), (3, 3))),
    (mixing, "b, b i, b i -> b", ()),
    (mixing, "b, c i, c i -> b c", ()),
    (mixing, "b, c i, d i, b -> c d", ((ROWS,),)),
    (mixing, "b, 0 i, c i -> b c", ()),
    (mixing, "2, 0 i, 1 i -> i", ()),
    (scalar, ", b i -> b i", ()),
    (scalar, ", b i, c j, c j -> b i", ((ROWS, 3),)),
    (scalar, ", b i, b i -> ", ()),
    (scalar, ", b i, c j, b i, c j -> ", ((ROWS, 3), (ROWS, 3))),
    (scalar, ", b i, b j, k i -> b j k", ((2, 3),)),
    (flow, "b o, b i, k o, k i -> b k", ((2, 3), (2, 3))),
    (flow, "b o, c i -> ", ()),
    (flow, "b b, b b -> b", ()),  # of squares, below
    (field, "b, b i, b i, i, i -> b", ((3,), (3,))),
    (field, "b, b i, b j, b, b i, i, i j -> b j", ((ROWS,), (ROWS, 3), (3,), (3, 3))),
    (field, "b, b i, -> b i", ((),)),
    (field, "b, b i, k k -> b i k", ((2, 2),)),
    (field, "b, b i, k -> b i", ((2,),)),
    (scalar, ", b i, b i, c j, c j -> b", ()),
]


@pytest.mark.parametrize(("f", "pattern", "shapes"), TABLE)
def test_it_is_einsum_of_the_dense_derivative(
    f: Callable, pattern: str, shapes: Sequence, device: torch.device
) -> None:
    order = pattern.count(",") - len(shapes)
    x = rand(device, 3 if "b b" in pattern else 2 if order > 2 else ROWS, 3)
    operands = [rand(device, *shape, seed=number) for number, shape in enumerate(shapes, 1)]
    check(f, pattern, x, argnums=[0] * order, operands=operands)


@pytest.mark.parametrize(
    ("pattern", "argnums"),
    [
        ("b, b i, b j -> b i j", (0, 1)),
        ("b, b i, b i -> b", (0, 1)),
        ("b, b i, b i, b j -> b j", (0, 1, 0)),
        ("b, b 0, c j -> c", (1, 0)),
        ("b, b j -> j", (1,)),
    ],
)
def test_slots_by_several_arguments(pattern: str, argnums: tuple[int, ...], device: torch.device) -> None:
    check(of_two, pattern, rand(device, ROWS, 3), rand(device, ROWS, 3, seed=1), argnums=argnums)
    negative = tuple(number - 2 for number in argnums)
    x, y = rand(device, ROWS, 3), rand(device, ROWS, 3, seed=1)
    assert_equal(einsum(of_two, pattern, negative)(x, y), einsum(of_two, pattern, argnums)(x, y))


def test_a_pattern_without_slots_has_no_argnums(device: torch.device) -> None:
    x, y, w = rand(device, ROWS, 3), rand(device, ROWS, 3, seed=1), rand(device, ROWS, seed=2)
    assert_equal(einsum(of_two, "b -> b", ())(x, y), of_two(x, y))
    assert_equal(einsum(of_two, "b, b -> ", ())(x, y, operands=(w,)), of_two(x, y) @ w)
    found = einsum(of_two, {"value": "b -> b", "mixed": "b, b i, b i -> b"}, {"value": (), "mixed": (0, 1)})(x, y)
    assert_equal(found["value"], of_two(x, y))
    mapped = torch.func.vmap(einsum(of_two, "b -> b", ()))(x[None], y[None])
    assert_equal(mapped[0], of_two(x, y))


@pytest.mark.parametrize("pattern", ["b -> b", "b, b -> b", "b, b, b -> b"])
def test_an_output_of_wider_dtype_that_depends_on_no_slot_keeps_its_digits(pattern: str, device: torch.device) -> None:
    x, y = rand(device, ROWS).float(), rand(device, ROWS, seed=1)
    found = einsum(lambda x, y: {"narrow": x.sin(), "wide": y.sin()}, pattern)(x, y)["wide"]
    assert found.dtype == torch.float64
    assert_equal(found, y.sin() if pattern == "b -> b" else torch.zeros_like(y))


def test_argnums_from_the_end_of_more_arguments(device: torch.device) -> None:
    def product(*factors: Tensor) -> Tensor:
        return torch.stack(factors).pow(3).prod()

    factors = rand(device, 4).unbind()
    transform = einsum(product, ", , , -> ", (1, 2, -2))
    transform(*factors[:3])
    assert_equal(transform(*factors), einsum(product, ", , , -> ", (1, 2, 2))(*factors))


@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
def test_an_ellipsis_stands_for_any_rows(shape: tuple[int, ...], device: torch.device) -> None:
    x = rand(device, *shape, 3)
    flat = einsum(field, "b, b i, b i -> b")(x.reshape(-1, 3)).reshape(shape)
    assert_equal(einsum(field, "..., ... i, ... i -> ...")(x), flat)
    weight = rand(device, *shape, 3, 3, seed=1)
    expected = einsum(field, "b, b i, b j, b i j -> b")(x.reshape(-1, 3), operands=(weight.reshape(-1, 3, 3),))
    assert_equal(einsum(field, "..., ... i, ... j, ... i j -> ...")(x, operands=(weight,)), expected.reshape(shape))
    assert_equal(einsum(flow, "... *o, ... i, ... i -> ... *o")(x).sum(), einsum(flow, "*o, *p, *p -> ")(x))


@each_strategy
@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("size", [0, 1, 2])
def test_axes_of_any_size(rows: int, size: int, strategy: str, device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return (x**4).sum(-1).exp()

    x = rand(device, rows, size)
    patterns = ("b -> b", "b, b i -> b i", "b, b i, b i -> b", "b, b i, b i, b j, b j -> ", "b, c i, d j -> b c d")
    orders = (0, 1, 2, 4, 2)
    found = einsum(f, patterns, strategy=strategy)(x)
    for got, pattern, order in zip(found, patterns, orders, strict=True):
        dense = hofunc.hod(f, order)(x) if order else f(x)
        assert_equal(got, contraction(dense, pattern))


@each_strategy
def test_derivatives_that_vanish(strategy: str, device: torch.device) -> None:
    x, y = rand(device, ROWS, 3), rand(device, ROWS, 2, seed=1)
    assert_equal(einsum(lambda x: x.sum(-1), "b, b i, b i -> b", strategy=strategy)(x), torch.zeros_like(x[:, 0]))
    unused = einsum(lambda x, y: field(x), "b, b i, b j -> b i j", (0, 1), strategy=strategy)(x, y)
    assert_equal(unused, x.new_zeros(ROWS, 3, 2))
    constant = einsum(lambda x: torch.ones_like(y), "b o, b i -> o i", strategy=strategy)(x)
    assert_equal(constant, x.new_zeros(2, 3))


@each_strategy
@pytest.mark.parametrize("singular", [torch.sqrt, torch.log, lambda x: x**0.7])
def test_masks_before_infinite_slopes(singular: Callable, strategy: str, device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.where(x > 0, singular(torch.where(x > 0, x, 1)), 0).sum(-1) + singular(x.relu() + 1).sum(-1)

    x = torch.cat([rand(device, 2, 3), -rand(device, 2, 3).abs()])
    check(f, "b, b i, b i -> b", x, argnums=(0, 0), strategies=(strategy,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_dtype_is_that_of_the_output(dtype: torch.dtype, device: torch.device) -> None:
    x, v = rand(device, ROWS, 3), rand(device, 3, seed=1)
    product = einsum(lambda x: (x**3).sum(-1), "b, b i, b j, j -> b i")
    expected = product(x, operands=(v,))
    assert expected.dtype == torch.float64
    for operand in (v, v.to(dtype)):
        got = product(x.to(dtype), operands=(operand,))
        assert got.dtype == dtype
        assert relative_error(got.double(), expected) < 10 * torch.finfo(dtype).eps
    assert product(x, operands=(v.to(dtype),)).dtype == torch.float64


# Several patterns, pytrees, aux.


def test_several_patterns_are_one_program(device: torch.device) -> None:
    x, v = rand(device, ROWS, 3), rand(device, 3, seed=1)
    patterns = {"value": "b -> b", "laplacian": "b, b i, b i -> b", "hvp": "b, b i, b j, j -> b i"}
    found = einsum(field, patterns)(x, operands={"hvp": (v,)})
    assert list(found) == list(patterns)
    assert_equal(found["value"], field(x))
    assert_equal(found["laplacian"], einsum(field, patterns["laplacian"])(x))
    assert_equal(found["hvp"], einsum(field, patterns["hvp"])(x, operands=(v,)))
    listed = einsum(field, tuple(patterns.values()))(x, operands=((), (), (v,)))
    assert isinstance(listed, tuple)
    assert_equal(listed, tuple(found.values()))
    together = einsum(field, ("b, b i, b i -> b", "b, b i, b i, b j, b j -> b")).plan(x).flops
    assert together < sum(
        einsum(field, text).plan(x).flops for text in ("b, b i, b i -> b", "b, b i, b i, b j, b j -> b")
    )


def test_argnums_of_several_patterns(device: torch.device) -> None:
    x, y = rand(device, ROWS, 3), rand(device, ROWS, 3, seed=1)
    patterns = {"by_x": "b, b i -> b i", "mixed": "b, b i, b i -> b"}
    found = einsum(of_two, patterns, {"by_x": 0, "mixed": (0, 1)})(x, y)
    assert_equal(found["by_x"], einsum(of_two, patterns["by_x"])(x, y))
    assert_equal(found["mixed"], einsum(of_two, patterns["mixed"], (0, 1))(x, y))


def test_operands_are_matched_by_key(device: torch.device) -> None:
    x, v, w = rand(device, ROWS, 3), rand(device, 3, seed=1), rand(device, 3, seed=2)
    both = einsum(field, {"a": "b, b i, i -> b", "b": "b, b i, i -> b"})
    expected = {"a": einsum(field, "b, b i, i -> b")(x, operands=(v,))}
    expected["b"] = einsum(field, "b, b i, i -> b")(x, operands=(w,))
    assert_equal(both(x, operands={"b": (w,), "a": (v,)}), expected)
    plan = both.plan(x, operands={"b": (v,), "a": (w,)})
    assert_equal(plan(x, operands={"b": (w,), "a": (v,)}), expected)
    assert_equal(plan(x, operands={"a": (v,), "b": (w,)}), expected)


def network(parameters: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    hidden = (x @ parameters["w"] + parameters["b"]).tanh()
    return {"y": hidden.sum(-1), "z": (parameters["b"] ** 2).sum() * parameters["w"].exp()}


@pytest.fixture
def parameters(device: torch.device) -> dict[str, Tensor]:
    return {"w": rand(device, 3, 2), "b": rand(device, 2, seed=1)}


@pytest.fixture
def direction(device: torch.device) -> dict[str, Tensor]:
    """A vector like the parameters, with its keys in another order."""
    return {"b": rand(device, 2, seed=2), "w": rand(device, 3, 2, seed=3)}


@each_strategy
def test_pytrees(strategy: str, parameters: dict, direction: dict, device: torch.device) -> None:
    x, vector = rand(device, ROWS, 3), {name: direction[name] for name in parameters}

    def einsum_of(pattern: str, *operands: Any) -> Any:
        count = pattern.count(",") - len(operands)
        return einsum(network, pattern, (0,) * count, strategy=strategy)(parameters, x, operands=operands)

    def along(f: Callable) -> Callable:
        return lambda p: jvp(f, (p,), (vector,))[1]

    def of_parameters(p: dict[str, Tensor]) -> dict[str, Tensor]:
        return network(p, x)

    output = of_parameters(parameters)
    (pulled,) = torch.func.vjp(of_parameters, parameters)[1](output)
    assert_equal(einsum_of("*o, *p, *p -> *o", direction), along(of_parameters)(parameters))
    assert_equal(einsum_of("*o, *p, *o -> *p", output), pulled)
    assert_equal(einsum_of("*o, *p, *q, *p, *q -> *o", direction, direction), along(along(of_parameters))(parameters))
    hessian_times = along(torch.func.jacrev(of_parameters))(parameters)
    assert_equal(einsum_of("*o, *p, *q, *q -> *o *p", direction), hessian_times)
    hessian = hofunc.hessian(network)(parameters, x)
    diagonals = {
        name: {
            "w": torch.einsum("...ijij->...ij", of_one["w"]["w"]),
            "b": torch.einsum("...ii->...i", of_one["b"]["b"]),
        }
        for name, of_one in hessian.items()
    }
    assert_equal(einsum_of("*o, *p, *p -> *o *p"), diagonals)
    traces = {name: of_one["w"].sum((-1, -2)) + of_one["b"].sum(-1) for name, of_one in diagonals.items()}
    assert_equal(einsum_of("*o, *p, *p -> *o"), traces)
    stacked = {name: torch.stack([leaf, 2 * leaf]) for name, leaf in direction.items()}
    found = einsum_of("*o, *p, k *p -> *o k", stacked)
    assert_equal({name: leaf[..., 1] / 2 for name, leaf in found.items()}, along(of_parameters)(parameters))


def test_a_slot_by_several_arguments_at_once(parameters: dict, direction: dict, device: torch.device) -> None:
    x, v = rand(device, ROWS, 3), rand(device, ROWS, 3, seed=5)
    vector = {name: direction[name] for name in parameters}
    both = einsum(network, "*o, *p, *p -> *o", ((0, 1),))(parameters, x, operands=((direction, v),))
    assert_equal(both, jvp(network, (parameters, x), (vector, v))[1])
    nested = einsum(network, "*o, *p -> *o *p", ((1, 0),))(parameters, x)
    by_x, by_parameters = nested["y"]
    assert_equal(by_x, hofunc.jacobian(network, 1)(parameters, x)["y"])
    assert_equal(by_parameters, hofunc.jacobian(network)(parameters, x)["y"])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_operand_that_joins_a_slot_by_several_arguments_and_another(strategy: str, device: torch.device) -> None:
    """What multiplies one leaf multiplies no other, also where it can only when another slot is there."""

    def f(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return (a.sum() * b).sin().sum() * c.prod() + a.square().sum() * c.sum() ** 2

    a, b, c = rand(device, 2), rand(device, 3, seed=1), rand(device, 4, seed=2)
    one, other = rand(device, 2, 4, seed=3), rand(device, 3, 4, seed=4)
    hessian = torch.func.hessian(f, (0, 1, 2))(a, b, c)
    got = einsum(f, ", *p, k, *p k ->", ((0, 1), 2), strategy=strategy)(a, b, c, operands=((one, other),))
    assert_equal(got, (hessian[0][2] * one).sum() + (hessian[1][2] * other).sum())


@each_strategy
def test_aux_is_returned_beside(strategy: str, device: torch.device) -> None:
    x = rand(device, ROWS, 3)
    transform = einsum(lambda x: (field(x), {"norm": x.norm()}), "b, b i, b i -> b", has_aux=True, strategy=strategy)
    for found in (transform(2 * x), transform.plan(x)(2 * x)):
        assert_equal(found, (einsum(field, "b, b i, b i -> b")(2 * x), {"norm": (2 * x).norm()}))


# Under transforms and autograd.


def dense_product(x: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bij,bj->bi", vmap(torch.func.jacrev(torch.func.jacrev(field)))(x), v)


@each_strategy
def test_vmap(strategy: str, device: torch.device) -> None:
    xs, vs = rand(device, 2, ROWS, 3), rand(device, 2, ROWS, 3, seed=1)
    product = einsum(field, "b, b i, b j, b j -> b i", strategy=strategy)
    expected = vmap(dense_product)(xs, vs)
    assert_equal(vmap(lambda x, v: product(x, operands=(v,)))(xs, vs), expected)
    assert_equal(vmap(lambda x: product(x, operands=(vs[1],)))(xs)[1], expected[1])
    assert_equal(vmap(lambda v: product(xs[1], operands=(v,)), in_dims=1)(vs.transpose(0, 1))[1], expected[1])
    plan = product.plan(xs[0], operands=(vs[0],))
    assert_equal(vmap(lambda x, v: plan(x, operands=(v,)))(xs, vs), expected)


@each_strategy
def test_gradients_by_inputs_operands_and_captured_weights(strategy: str, device: torch.device) -> None:
    x, v, w = rand(device, ROWS, 3), rand(device, ROWS, 3, seed=1), rand(device, 3, 2, seed=2)

    def results(transform: Callable, x: Tensor, v: Tensor, w: Tensor) -> Tensor:
        return transform(lambda x: (x @ w).sin().sum(-1) ** 2, x, v).sin().sum()

    def ours(f: Callable, x: Tensor, v: Tensor) -> Tensor:
        return einsum(f, "b, b i, b j, b j -> b i", strategy=strategy)(x, operands=(v,))

    def by_plan(f: Callable, x: Tensor, v: Tensor) -> Tensor:
        plan = einsum(f, "b, b i, b j, b j -> b i", strategy=strategy).plan(x, operands=(v,))
        return plan(x, operands=(v,))

    def dense(f: Callable, x: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bij,bj->bi", vmap(torch.func.jacrev(torch.func.jacrev(f)))(x), v)

    expected = grad(lambda *args: results(dense, *args), (0, 1, 2))(x, v, w)
    assert_equal(grad(lambda *args: results(ours, *args), (0, 1, 2))(x, v, w), expected)
    for way in (ours, by_plan):
        leaves = tuple(leaf.clone().requires_grad_() for leaf in (x, v, w))
        assert_equal(torch.autograd.grad(results(way, *leaves), leaves), expected)
    pushed = jvp(lambda *args: results(ours, *args), (x, v, w), (x, v, w))[1]
    assert_equal(pushed, sum((leaf * of_leaf).sum() for leaf, of_leaf in zip((x, v, w), expected, strict=True)))


@each_strategy
def test_nesting_with_other_derivatives(strategy: str, device: torch.device) -> None:
    x = rand(device, 2, 3)
    laplacian = einsum(field, "b, b i, b i -> b", strategy=strategy)
    biharmonic = einsum(field, "b, b i, b i, b j, b j -> b")(x)
    assert_equal(einsum(laplacian, "b, b i, b i -> b", strategy=strategy)(x), biharmonic)
    assert_equal(contraction(hofunc.hod(laplacian, 2)(x), "b, b i, b i -> b"), biharmonic)
    assert_equal(einsum(hofunc.hod(lambda x: field(x).sum(), 2), "b i b i, b j, b j -> b")(x), biharmonic)


def test_operands_may_be_the_input(device: torch.device) -> None:
    x = rand(device, ROWS, 3)
    radial = einsum(field, "b, b i, b i -> b")

    def loss(x: Tensor) -> Tensor:
        return radial(x, operands=(x,)).sum()

    assert_equal(grad(loss)(x), grad(lambda x: (grad(lambda y: field(y).sum())(x) * x).sum())(x))


# Plans and limits.


@each_strategy
def test_plans(strategy: str, device: torch.device) -> None:
    x, v = rand(device, ROWS, 3), rand(device, ROWS, 3, seed=1)
    transform = einsum(field, "b, b i, b j, b j -> b i", (0, 0), strategy=strategy)
    plan = transform.plan(x, operands=(v,))
    expected = transform(2 * x, operands=(3 * v,))
    assert_equal(plan(2 * x, operands=(3 * v,)), expected)
    assert_equal(copy.deepcopy(plan)(2 * x, operands=(3 * v,)), expected)
    assert_equal(plan.to_fx()(2 * x, 3 * v)[0], expected)
    assert plan.strategy in ({strategy} if strategy != "auto" else {*STRATEGIES})
    with pytest.raises(hofunc.ArgumentError, match=r"operands"):
        plan(x, operands=(v[0],))


@each_strategy
@pytest.mark.parametrize("chunk_size", [1, 3, ROWS, 9])
def test_chunks_of_rows(strategy: str, chunk_size: int, device: torch.device) -> None:
    x, v, w = rand(device, ROWS, 3), rand(device, ROWS, 3, seed=1), rand(device, 3, seed=2)
    patterns = ("b, b i, b j, b j -> b i", "b, b i, b j, j -> b i", "b, b i, b i -> b", "b -> b")
    operands = ((v,), (w,), (), ())
    whole = einsum(field, patterns, strategy=strategy)(x, operands=operands)
    chunked = einsum(field, patterns, strategy=strategy, chunk_size=chunk_size)
    assert_equal(chunked(x, operands=operands), whole)
    assert_equal(chunked.plan(2 * x, operands=operands)(x, operands=operands), whole)


ACROSS_ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "running sums": lambda x: x.cumsum(0),
    "the other way round": lambda x: x.flip(0),
    "shifted": lambda x: x.roll(2, 0),
    "at indices": lambda x: x.index_select(0, torch.arange(ROWS - 1, -1, -1, device=x.device)),
    "added at indices": lambda x: x.index_add(0, torch.arange(ROWS, device=x.device) // 2, x),
    "every other": lambda x: torch.cat([x[::2], x[1::2]]),
    "normalised": lambda x: x.softmax(0),
    "transformed": lambda x: torch.fft.fft(x, dim=0).real,
}


@pytest.mark.parametrize("chunk_size", [2, 3])
@pytest.mark.parametrize("name", ACROSS_ROWS)
def test_rows_that_a_map_mixes_are_not_taken_apart(name: str, chunk_size: int, device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return ACROSS_ROWS[name](x.sin()).square().sum()

    x, v = rand(device, ROWS, 3), rand(device, ROWS, 3, seed=1)
    expected = torch.func.jvp(torch.func.grad(f), (x,), (v,))[1]
    assert_equal(hofunc.hvp(f, chunk_size=chunk_size)(x, vector=v), expected)


def test_max_bytes(device: torch.device) -> None:
    x, pattern = rand(device, 64, 3), "b, b i, b j -> b i j"
    plan = einsum(field, pattern).plan(x)
    limited = einsum(field, pattern, max_bytes=9 * plan.peak_bytes // 10)
    assert limited.plan(x).peak_bytes <= 9 * plan.peak_bytes // 10
    assert_equal(limited(x), plan(x))
    with pytest.raises(hofunc.ArgumentError, match="max_bytes"):
        einsum(field, pattern, max_bytes=100)(x)


MIXING: dict[str, tuple[Any, int]] = {
    "a derivative": (", i j, k l -> i j k l", 0),
    "with its axes in another order": (", i j, k l -> k j l i", 0),
    "a diagonal": (", i j, i j -> j i", 0),
    "by a vector": (", i j, k l, k l -> i j", 1),
    "along one axis": (", i j, i l -> j l", 0),
    "at a place": (", 1 j, k 0 -> j k", 0),
    "of order 3": (", i j, k l, m n, m n -> i j k l", 1),
    "several": (("->", ", i j -> i j", ", i j, i j ->", ", i j, k l -> i k"), 0),
    "named as others are inside": (", row j, k l -> row j k l", 0),
}


@pytest.mark.parametrize("name", MIXING)
def test_chunks_of_coordinates(name: str, device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return (x.flatten()[:, None] * x.flatten()).tanh().sum() ** 2

    x, v = rand(device, 2, 2), rand(device, 2, 2, seed=1)
    pattern, count = MIXING[name]
    operands: Any = (v,) * count
    whole = einsum(f, pattern)(x, operands=operands)
    plan = einsum(f, pattern, chunk_size=2).plan(2 * x, operands=operands)
    assert_equal(plan(x, operands=operands), whole)
    assert " of 2 coordinates" in plan.explain()


def test_chunks_of_coordinates_of_several_tensors_and_outputs(device: torch.device) -> None:
    def f(p: dict[str, Tensor]) -> Tensor:
        return torch.outer(p["a"].sin() * p["b"].sum(), p["b"][0]).exp().sum(1)

    p = {"a": rand(device, 4), "b": rand(device, 2, 3, seed=1)}
    for pattern, operands in (("o, *p, *q -> o *p *q", ()), ("o, *p, *q, *q -> *p o", (p,)), ("o, *p, *p -> o", ())):
        whole, chunked = (einsum(f, pattern, chunk_size=size)(p, operands=operands) for size in (None, 2))
        assert_equal(chunked, whole)
    whole, chunked = (einsum(lambda p: f(p).sum(), ", *p, *p ->", chunk_size=size)(p) for size in (None, 2))
    assert_equal(chunked, whole)
    with pytest.raises(hofunc.ArgumentError, match="chunk_size"):
        einsum(lambda p: f(p).sum(), ", *p ->", chunk_size=2)(p)


def test_memory_of_a_function_that_mixes_rows_is_kept_to(device: torch.device) -> None:
    a, x, v = rand(device, 200, 20), rand(device, 20, seed=1), rand(device, 20, seed=2)
    pattern = ", i, j, k, k -> i j"
    third = einsum(lambda x: (a @ x).sin().square().sum() ** 2, pattern)
    plan = third.plan(x, operands=(v,))
    limit = plan.peak_bytes // 3
    limited = einsum(lambda x: (a @ x).sin().square().sum() ** 2, pattern, max_bytes=limit).plan(x, operands=(v,))
    assert limited.peak_bytes <= limit
    assert_equal(limited(x, operands=(v,)), plan(x, operands=(v,)))


# What is refused.


def marked(call: Callable[[], Any]) -> tuple[str, str]:
    """Return the part of the pattern that an error marks, and its message."""
    with pytest.raises(hofunc.ArgumentError) as caught:
        call()
    message = str(caught.value)
    _, pattern, mark, *_ = message.split("\n")
    assert set(mark.strip()) == {"^"}, message
    return pattern[mark.index("^") : mark.rindex("^") + 1], message


@pytest.mark.parametrize(
    ("pattern", "place", "got", "expected"),
    [
        ("b, b i, b b -> i", "b", "size 3 in args[0]", "4, the size of b"),
        ("b, b i -> b k", "k", "'k'", "['b', 'i']"),
        ("b, b i -> b i i", "i", "'i'", "once at most"),
        ("b, b 0 -> b 0", "0", "'0'", "once at most"),
        ("b, b 3 -> b", "3", "3", "a place from 0 to 2"),
        ("4, b i -> b", "4", "4", "a place from 0 to 3 of that axis of the output of f"),
        ("b c, b i -> b", "b c", "the output of f of shape (4,)", "2 axes"),
        ("b, i -> b", "i", "args[0] of shape (4, 3)", "1 axis "),
        ("b, b i j -> b", "b i j", "which has 2 axes", "3 axes"),
        ("..., ... i j k -> ...", "... i j k", "which has 2 axes", "4 axes"),
        ("b, ... *p -> b", "... *p", "several names may take any axes", "one such name"),
        ("b, *p *p -> b", "*p *p", "args[0]", ""),
        ("b, b i", "", "0 arrows", "one"),
        ("b -> b -> b", "", "2 arrows", "one"),
        ("b, b -1 -> b", "-1", "'-1'", "a name, a number"),
        ("b, b * -> b", "*", "'*'", "a name, a number"),
        ("b,(b i)->b", "(b", "'(b'", "a name, a number"),
        ("b,bi->bi", "bi", "which has 2 axes", "1 axis for 'bi'"),
        ("b, b i, b j, j -> b i", "j", "args[0]", "1 axis for 'j'"),
    ],
)
def test_patterns_that_do_not_fit(pattern: str, place: str, got: str, expected: str, device: torch.device) -> None:
    if pattern == "b, *p *p -> b":
        x = rand(device, 4, 3, 2)
        place_found, message = marked(lambda: einsum(lambda x: field(x[..., 0]), pattern)(x))
    else:
        place_found, message = marked(lambda: einsum(field, pattern)(rand(device, ROWS, 3)))
    assert place_found.strip() == place, message
    assert got in message.split("expected")[0], message
    assert expected in message, message


def test_of_an_operand_that_is_not_given_it_says_how_to_give_it(device: torch.device) -> None:
    """Its group is taken for that of one slot more."""
    place, message = marked(lambda: einsum(field, "b, b i, b j, j -> b i")(rand(device, ROWS, 3)))
    assert place.strip() == "j"
    assert "The last groups are of the operands, as many as are given by operands=(...)." in message


def test_of_names_without_spaces_it_says_how_they_are_written(device: torch.device) -> None:
    _, message = marked(lambda: einsum(field, "b, bi, bi -> b")(rand(device, ROWS, 3)))
    assert "Names are words, with spaces between: 'b i'." in message
    _, message = marked(lambda: einsum(field, "row, row, row -> row")(rand(device, ROWS, 3)))
    assert "Names are words" not in message


@pytest.mark.parametrize(
    ("pattern", "argnums", "operands", "got"),
    [
        ("b, b i, b j, j -> b i", 0, [torch.ones(4)], "size 4 in operands[0]"),
        ("b, b i, b j, j -> b i", (0, 0), [], "0 operands, expected 1"),
        ("b, b i, b j -> b i", (0, 0), [torch.ones(3)], "1 operands, expected 0"),
        ("b, b i -> b i", 0, [torch.ones(3)] * 3, "3 operands, expected at most 1"),
        ("b, b i -> b i", (), [], "0 operands, expected 1, as argnums=() has one a slot"),
        ("b, b i -> b i", (0, 0), [], "2 slots, by argnums=(0, 0), expected at most 1"),
        ("b, b i, b 0 -> b i", 0, [torch.ones(4, 3)], "a number in an operand"),
        ("b, b i, i -> b", 0, [{"v": torch.ones(3), "w": torch.ones(3)}], "operands[0] of 2 leaves"),
        (
            "*o, *p, *p -> *o",
            0,
            [{"v": torch.ones(4, 3), "w": torch.ones(3)}],
            "{'v': '*', 'w': '*'}, expected a pytree",
        ),
    ],
)
def test_operands_that_do_not_fit(pattern: str, argnums: Any, operands: list, got: str, device: torch.device) -> None:
    x, given = rand(device, ROWS, 3), tuple(torch.utils._pytree.tree_map(lambda leaf: leaf.to(device), operands))
    _, message = marked(lambda: einsum(field, pattern, argnums)(x, operands=given))
    assert got in message, message


@pytest.mark.parametrize(
    ("operands", "got"),
    [
        ((torch.ones(3, dtype=torch.int64),), r"operands\[0\]: got dtype torch.int64(.*)Convert it with .to"),
        ((2.0,), r"operands\[0\]: got float(.*)Write torch.as_tensor\(v, dtype=x.dtype\)"),
        ((None,), r"operands\[0\]: got NoneType"),
        (torch.ones(3), "got one, expected a tuple of operands"),
    ],
)
def test_operands_that_are_none(operands: Any, got: str, device: torch.device) -> None:
    with pytest.raises(hofunc.ArgumentError, match=got):
        einsum(field, "b, b i, i -> b")(rand(device, ROWS, 3), operands=operands)


def test_pytrees_that_do_not_fit(parameters: dict, device: torch.device) -> None:
    x, w = rand(device, ROWS, 3), parameters["w"]

    def refuses(pattern: str, operand: Any, place: str, part: str) -> None:
        found, message = marked(lambda: einsum(network, pattern, (0,))(parameters, x, operands=(operand,)))
        assert found == place
        assert part in message, message

    refuses("*o, *p, *p -> *o", [w, w], "*p", "['*', '*'], expected a pytree like args[0], {'w': '*', 'b': '*'}")
    refuses("*o, *p, *p -> *o", w, "*p", "expected a pytree like args[0]")
    refuses("*o, *p, *o -> *p", w, "*o", "expected a pytree like the output of f")
    refuses("*o, *p, *p *o -> ", {"w": w, "b": w}, "*p *o", "2 names with a star")
    refuses("*o, *p, *p -> *o", {"w": w, "b": w}, "*p", "which has 2 axes, expected 1 axis")
    found, message = marked(lambda: einsum(lambda p, x: x.sum(), "*o, *p -> *o", (0,))({}, x))
    assert found == "*p"
    assert "args[0] of 0 leaves" in message


@pytest.mark.parametrize(
    ("call", "got"),
    [
        (lambda x: einsum(lambda x, operands: x, "b, b i -> b")(x), "a parameter called operands"),
        (lambda x: einsum(lambda x, *operands: x, "b, b i -> b")(x), "a parameter called operands"),
        (lambda x: einsum(lambda x, *, operands=1: x, "b, b i -> b")(x), "a parameter called operands"),
        (lambda x: einsum(lambda *x, **operands: x, "b, b i -> b")(x), "a parameter called operands"),
        (lambda x: einsum(wraps(lambda operands: 1)(lambda *x: x), "b, b i -> b")(x), "a parameter called operands"),
        (lambda x: einsum(partial(lambda x, operands: x, x), "b, b i -> b")(x), "a parameter called operands"),
        (lambda x: einsum(3, "b, b i -> b")(x), "f: got int"),  # type: ignore[call-overload]
        (lambda x: einsum(field, 3)(x), "pattern: got int"),
        (lambda x: einsum(field, ())(x), r"pattern: got \(\)"),
        (lambda x: einsum(field, "b, b i -> b", "a")(x), "argnums: got 'a'"),
        (lambda x: einsum(field, "b, b i -> b", ((),))(x), r"argnums: got \(\)"),
        (lambda x: einsum(field, "b, b i -> b", 1)(x), "got 1 for 1 positional argument, expected 0 or -1"),
        (lambda x: einsum(field, "*o, *p -> *o", ((0, -1),))(x), "every argument once"),
        (lambda x: einsum(field, "b, b i -> b", strategy="best")(x), "strategy: got 'best'"),
        (lambda x: einsum(field, "b, b i -> b", chunk_size=0)(x), "chunk_size: got 0"),
        (lambda x: einsum(field, "b, b i -> b")(), "no positional argument"),
        (lambda x: einsum(lambda x: (field(x) + 0j, field(x)), "*o, b i -> b i")(x), "a sum of real and complex terms"),
        (lambda x: einsum(field, "b, b i -> b")(x.long()), "dtype torch.int64"),
        (lambda x: einsum(field, {"a": "b, b i -> b"})(x, operands={"c": (x,)}), "operands: got dict of 1 entries"),
        (lambda x: einsum(field, ("b, b i -> b",), (0, (0,), (0,)))(x), "argnums: got tuple of 3 entries"),
        (lambda x: einsum(field, "b, b i -> b", has_aux=True)(x), "a pair"),
    ],
)
def test_calls_that_are_refused(call: Callable, got: str, device: torch.device) -> None:
    with pytest.raises(hofunc.ArgumentError, match=got):
        call(rand(device, ROWS, 3))


def test_what_a_function_has_of_the_name_inside_is_its_own(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        operands = x**3
        return operands.sum(-1)

    x = rand(device, ROWS, 3)
    assert relative_error(einsum(f, "b, b i, b i -> b")(x), 6 * x.sum(-1)) < checks.TOLERANCE


def test_a_trace_for_any_shape_takes_no_shape_for_that_of_the_call_before(device: torch.device) -> None:
    x, laplacian = rand(device, 4, 3), hofunc.laplacian(lambda x: (x**3).sum(-1))
    for _ in range(3):
        laplacian(x)
    with pytest.raises(UntracedError, match=r"a tensor of symbolic shape \(s\d+, s\d+\), .*\. Make a plan"):
        make_fx(laplacian, tracing_mode="symbolic")(x)
    plan = laplacian.plan(x)
    assert torch.equal(make_fx(lambda x: plan(x), tracing_mode="symbolic")(x)(2 * x), laplacian(2 * x))


def test_a_pattern_is_read_once_for_functions_that_are_made_anew(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    """A loss that takes the Laplacian of a field which it makes of its parameters makes both at every call."""
    read: list[Any] = []

    def noted(*args: Any) -> Bound:
        read.append(args)
        return bound(*args)

    monkeypatch.setattr(contracted, "bound", noted)
    x = rand(device, 5, 7)
    for place in range(3):
        found = hofunc.laplacian(lambda x, place=place: (x ** (place + 2)).sum(-1))(x)
        expected = (place + 2) * (place + 1) * (x**place).sum(-1)
        assert_equal(found, expected)
    assert len(read) == 1


def test_what_a_pattern_means_is_told_apart_by_all_that_it_depends_on(device: torch.device) -> None:
    """Calls alike of the same pattern, with other arguments to differentiate by, operands and checks."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        return (x**2 * y**3).sum()

    x, y, v = rand(device, 3), rand(device, 3, seed=1), rand(device, 3, seed=2)
    by_x, by_y = 2 * x * y**3, 3 * x**2 * y**2
    assert_equal(einsum(f, ", i -> i", 0)(x, y), by_x)
    assert_equal(einsum(f, ", i -> i", 1)(x, y), by_y)
    assert_equal(einsum(f, ", i -> i", wrt="y")(x, y), by_y)
    assert_equal(einsum(lambda y, x: f(x, y), ", i -> i", wrt="y")(y, x), by_y)
    with pytest.raises(hofunc.ArgumentError):
        einsum(f, ", i -> i", True)
    square = torch.func.hessian(f)(x, y) @ v
    assert_equal(hofunc.hvp(f)(x, y, vector=v), square)
    assert_equal(hofunc.vhp(f)(x, y, vector=v), square)
    assert_equal(hofunc.directional(f, 1)(x, y, vector=v), by_x @ v)
    assert_equal(hofunc.jvp(f)(x, y, vector=v), by_x @ v)
    assert_equal(hofunc.vjp(f)(x, y, cotangent=v.sum()), by_x * v.sum())
    for number in (1, 2):
        found = einsum(f, {"a": ", i -> i", "b": ", i, j, j -> i"}, 0)(x, y, operands={"b": (number * v,)})
        assert_equal(found["b"], square * number)
    with pytest.raises(hofunc.ArgumentError, match="hvp"):
        hofunc.hvp(f)(x, y, vector=v[:2])
    with pytest.raises(hofunc.ArgumentError, match="vhp"):
        hofunc.vhp(f)(x, y, vector=v[:2])


def test_a_turned_weight_turns_nothing_else(device: torch.device) -> None:
    """Directions lie as their axes are, whose products with the next weight then copy nothing."""

    class Copies(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            if op in {torch.ops.aten.clone.default, torch.ops.aten.copy_.default}:
                copied.append(args[0].numel())
            return op(*args, **(kwargs or {}))

    first, second = (torch.nn.Linear(size, 6, device=device, dtype=torch.float64) for size in (3, 6))
    plan = hofunc.laplacian(lambda x: second(first(x).tanh()).tanh().sum(-1)).plan(rand(device, 20, 3))
    copied: list[int] = []
    with torch.no_grad(), Copies():
        plan(rand(device, 20, 3))
    assert copied == [first.weight.numel()]
