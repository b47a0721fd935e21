"""Taps: derivatives by values inside a function, against torch.func on the function with a tensor of zeros added."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import hofunc
from hofunc.internals import tree_leaves
from tests.checks import refused

torch.manual_seed(0)
WEIGHT, OTHER = torch.randn(4, 3).double(), torch.randn(5, 4).double()
X, ROWS, NONE = torch.randn(3).double(), torch.randn(6, 3).double(), torch.zeros(4).double()


def hidden(x: Tensor) -> Tensor:
    return (WEIGHT @ x).sin()


def rest(x: Tensor, h: Tensor) -> Tensor:
    return ((OTHER @ h).tanh() * x.sum()).sum() + (h * h * h).sum()


def f(x: Tensor) -> Tensor:
    """Tap what is between, while x goes around it as well."""
    return rest(x, hofunc.tap("h", hidden(x)))


def moved(x: Tensor, change: Tensor) -> Tensor:
    """Return what f does, of a hidden value that is changed."""
    return rest(x, hidden(x) + change)


def chained(x: Tensor) -> Tensor:
    first = hofunc.tap("first", (WEIGHT @ x).exp())
    return (hofunc.tap("second", (OTHER @ first).sin()) ** 3).sum()


def chained_moved(x: Tensor, one: Tensor, two: Tensor) -> Tensor:
    return (((OTHER @ ((WEIGHT @ x).exp() + one)).sin() + two) ** 3).sum()


def nest(g: Callable, argnums: Any, order: int) -> Callable:
    for _ in range(order):
        g = torch.func.jacrev(g, argnums)
    return g


def same(got: Any, want: Any) -> None:
    for one, other in zip(tree_leaves(got), tree_leaves(want), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_derivative_by_a_tap_is_that_by_an_input_of_what_follows(order: int) -> None:
    same(hofunc.hod(f, order, wrt="h")(X), nest(lambda h: rest(X, h), 0, order)(hidden(X)))


@pytest.mark.parametrize("strategy", ["auto", "reverse", "forward", "mixed"])
def test_an_argument_and_a_tap_are_independent_and_the_argument_moves_the_tap(strategy: str) -> None:
    same(hofunc.hod(f, 3, wrt=("x", "h"), strategy=strategy)(X), nest(moved, (0, 1), 3)(X, NONE))
    swapped = hofunc.hessian(f, wrt=("h", "x"), strategy=strategy)(X)
    same(swapped, [row[::-1] for row in nest(moved, (0, 1), 2)(X, NONE)[::-1]])


def test_an_earlier_tap_moves_a_later_one() -> None:
    changes = NONE, torch.zeros(5).double()
    want = nest(chained_moved, (1, 2), 2)(X, *changes)
    same(hofunc.hessian(chained, wrt=("first", "second"))(X), want)
    same(hofunc.hessian(chained, wrt=["second"])(X), [[want[1][1]]])


def test_first_derivatives_are_those_of_autograd_by_values_that_are_no_leaves() -> None:
    x = X.clone().requires_grad_()
    h = hidden(x)
    same(hofunc.jacobian(f, wrt=("x", "h"))(X), torch.autograd.grad(rest(x, h), (x, h)))


def test_what_is_not_asked_for_changes_nothing() -> None:
    assert hofunc.tap("h", X) is X
    assert torch.equal(f(X), rest(X, hidden(X)))
    same(hofunc.hessian(f)(X), torch.func.hessian(lambda x: rest(x, hidden(x)))(X))
    assert hofunc.hessian(f).plan(X).steps == hofunc.hessian(lambda x: rest(x, hidden(x))).plan(X).steps
    same(torch.compile(f, fullgraph=True, backend="eager")(X), f(X))


def test_the_value_is_the_same_to_the_sign_of_zero() -> None:
    value, _ = hofunc.derivatives(lambda x: 1 / hofunc.tap("h", x), 1, wrt="h")(torch.tensor([0.0, -0.0]))
    assert value.tolist() == [float("inf"), -float("inf")]


def test_all_orders_aux_compact_and_strict() -> None:
    got, aux = hofunc.derivatives(lambda x: (f(x), x.sum()), 2, wrt="h", has_aux=True)(X)
    same(got, [f(X), *(nest(moved, 1, order)(X, NONE) for order in (1, 2))])
    assert aux == X.sum()
    compact = hofunc.hessian(lambda x: hofunc.tap("h", x.sin()).exp().sum(), wrt="h", layout="compact")(X)
    same(compact.dense(), X.sin().exp().diag())
    same(hofunc.hessian(f, wrt="h", chunk_size=2)(X), nest(moved, 1, 2)(X, NONE))


def test_strict_names_the_tap() -> None:
    unused = lambda x: (hofunc.tap("unused", x * 2), x.sum())[1]  # noqa: E731
    refused(lambda: hofunc.jacobian(unused, wrt="unused", strict=True)(X), ValueError, "tap 'unused'")
    assert not hofunc.jacobian(unused, wrt="unused")(X).any()


def test_plans_compute_what_is_tapped_at_every_call() -> None:
    transform = hofunc.hod(f, 2, wrt=("h", "x"))
    plan, other = transform.plan(X), X.cos()
    same(plan(other), transform(other))
    assert "tap 'h'" in plan.explain()
    same(plan.to_fx()(other), tree_leaves(transform(other)))
    same(torch.vmap(plan)(ROWS), torch.vmap(transform)(ROWS))


def test_under_transforms_of_torch() -> None:
    rows = torch.vmap(hofunc.hessian(f, wrt="h"))(ROWS)
    same(rows, torch.stack([nest(moved, 1, 2)(row, NONE) for row in ROWS]))
    same(torch.func.jacfwd(hofunc.jacobian(f, wrt="h"))(X), torch.func.jacfwd(nest(moved, 1, 1))(X, NONE))
    x = X.clone().requires_grad_()
    (slope,) = torch.autograd.grad(hofunc.jacobian(f, wrt="h")(x).square().sum(), x)
    same(slope, torch.func.grad(lambda x: nest(moved, 1, 1)(x, NONE).square().sum())(X))


@pytest.mark.parametrize("dim", [0, 1])
def test_a_tap_under_vmap_inside_f_is_all_rows_of_which_the_axis_comes_first(dim: int) -> None:
    got = hofunc.jacobian(lambda rows: torch.vmap(f, in_dims=dim)(rows), wrt="h")(ROWS.T if dim else ROWS)
    want = [nest(moved, 1, 1)(row, NONE) for row in ROWS]
    same(got, torch.stack(want)[:, None] * torch.eye(6)[..., None])


def test_a_tap_under_two_vmaps_and_beside_one() -> None:
    a, b = torch.randn(2, 3).double(), torch.randn(4, 3).double()

    def table(a: Tensor, b: Tensor) -> Tensor:
        def entry(p: Tensor, q: Tensor) -> Tensor:
            return (hofunc.tap("both", p * q) * hofunc.tap("one", p.sin())).sum() ** 2

        return torch.vmap(lambda p: torch.vmap(lambda q: entry(p, q))(b))(a).sum()

    def want(both: Tensor, one: Tensor) -> Tensor:
        return (((a[:, None] * b + both) * (a.sin() + one)[:, None]).sum(-1) ** 2).sum()

    changes = torch.zeros(2, 4, 3).double(), torch.zeros(2, 3).double()
    same(hofunc.hessian(table, wrt=("both", "one"))(a, b), nest(want, (0, 1), 2)(*changes))


@pytest.mark.parametrize("inner", [hofunc.jacobian, torch.func.grad, lambda g: hofunc.jacobian(g, wrt="h")])
def test_a_tap_inside_of_a_derivative_that_f_takes(inner: Callable) -> None:
    by = 1 if inner not in (hofunc.jacobian, torch.func.grad) else 0
    got = hofunc.jacobian(lambda x: inner(f)(x).sum(), wrt="h")(X)
    same(got, torch.func.grad(lambda change: torch.func.grad(moved, by)(X, change).sum())(NONE))


def test_a_derivative_by_a_tap_differentiated_again_by_it() -> None:
    same(hofunc.jacobian(hofunc.jacobian(f, wrt="h"), wrt="h")(X), nest(moved, 1, 2)(X, NONE))


def test_contractions_and_named_transforms_by_taps() -> None:
    (_, _), (hx, hh) = nest(moved, (0, 1), 2)(X, NONE)
    vector = torch.randn(4).double()
    same(hofunc.hvp(f, wrt="h")(X, vector=vector), hh @ vector)
    same(hofunc.hvp(f, wrt=("h", "x"))(X, vector=(vector, X))[0], hh @ vector + hx @ X)
    same(hofunc.jvp(f, wrt="h")(X, vector=vector), nest(moved, 1, 1)(X, NONE) @ vector)
    laplacian = hofunc.laplacian(f, wrt="h")
    same([laplacian(X), laplacian.plan(X.cos())(X)], [hh.trace(), hh.trace()])
    same(torch.vmap(laplacian)(ROWS), torch.stack([nest(moved, 1, 2)(row, NONE).trace() for row in ROWS]))
    same(hofunc.einsum(f, ", i, a -> a i", wrt=("x", "h"))(X), hx)
    got = hofunc.einsum(f, {"x": ", i -> i", "h": ", a -> a"}, wrt={"x": "x", "h": "h"})(X)
    same([got["x"], got["h"]], nest(moved, (0, 1), 1)(X, NONE))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4).double(), nn.Linear(4, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(hofunc.tap("hidden", self.first(x).tanh()))


def test_taps_in_modules() -> None:
    net = Net()
    same(hofunc.jacobian(net, wrt="hidden")(X), net.second.weight)
    assert hofunc.jacobian(net, wrt="x")(X).shape == (2, 3)

    def loss(params: dict, x: Tensor) -> Tensor:
        return torch.func.functional_call(net, params, (x,)).square().sum()

    params = dict(net.named_parameters())
    got = hofunc.hessian(loss, wrt=("params", "hidden"))(params, X)

    def change(params: dict, e: Tensor) -> Tensor:
        h = (X @ params["first.weight"].T + params["first.bias"]).tanh() + e
        return (h @ params["second.weight"].T + params["second.bias"]).square().sum()

    same(got, nest(change, (0, 1), 2)({name: each.detach() for name, each in params.items()}, NONE))


def test_a_tap_of_a_pytree_nests_derivatives_by_it() -> None:
    def g(x: Tensor) -> Tensor:
        state: Any = hofunc.tap("state", {"h": x.sin(), "c": (x.cos(),)})
        return (state["h"] * state["c"][0] ** 2).sum()

    got = hofunc.hessian(g, wrt="state")(X)
    want = torch.func.hessian(lambda s: (s["h"] * s["c"][0] ** 2).sum())({"h": X.sin(), "c": (X.cos(),)})
    assert got["c"][0]["h"].shape == (3, 3)
    same(got, want)


def test_a_complex_tap_is_one_by_parts() -> None:
    def g(x: Tensor) -> Tensor:
        z = hofunc.tap("z", torch.complex(x, x.sin()))
        return (z**3).abs().sum()

    want = nest(lambda pairs: (torch.view_as_complex(pairs) ** 3).abs().sum(), 0, 2)
    pairs = torch.view_as_real(torch.complex(X, X.sin()))
    same(hofunc.hessian(g, wrt="z")(X), want(pairs))
    same(hofunc.hessian(g, wrt="z").plan(X)(X), want(pairs))


def test_a_tap_of_a_number_and_one_without_elements() -> None:
    assert hofunc.hod(lambda x: hofunc.tap("h", x.sum()) ** 3, 3, wrt="h")(X).item() == 6
    assert hofunc.hessian(lambda x: hofunc.tap("h", x[:0]).sum(), wrt="h")(X).shape == (0, 0)


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_a_tap_where_f_turns_gradients_off(off: Callable) -> None:
    def g(x: Tensor) -> Tensor:
        with off():
            h = hofunc.tap("h", x.sin())
        return (h.clone() ** 2 * x).sum()

    same(hofunc.jacobian(g, wrt=("x", "h"))(X), (X.sin() ** 2, 2 * X * X.sin()))


def test_taps_of_captured_weights_and_in_branches_of_torch() -> None:
    weight = WEIGHT.clone().requires_grad_()
    same(hofunc.jacobian(lambda x: (hofunc.tap("w", weight) @ x).sum(), wrt="w")(X), X.expand(4, 3))

    def branch(x: Tensor) -> Tensor:
        square, total = lambda x: hofunc.tap("h", x).square().sum(), lambda x: x.sum()
        return torch.cond(x.sum() < 100, square, total, (x,))

    same(hofunc.hessian(branch, wrt="h")(X), 2 * torch.eye(3).double())


def test_shapes_of_taps_that_follow_from_values() -> None:
    def g(x: Tensor) -> Tensor:
        return hofunc.tap("positive", x[x > 0]).square().sum()

    transform = hofunc.hessian(g, wrt="positive")
    for count in (1, 3, 2, 3):
        x = torch.cat([torch.ones(count), -torch.ones(4 - count)]).double()
        same(transform(x), 2 * torch.eye(count).double())


def test_shapes_that_change_at_every_call_are_refused() -> None:
    sizes = iter(range(1, 99))
    transform = hofunc.hessian(lambda x: hofunc.tap("h", x.expand(next(sizes))).sum(), wrt="h")
    refused(lambda: transform(torch.tensor(1.0)), ValueError, "other shapes or dtypes at every call")


def test_random_numbers_are_those_of_one_call() -> None:
    def noisy(x: Tensor) -> Tensor:
        return (hofunc.tap("h", x.sin()) * torch.randn(3).double()).sum()

    transform, found = hofunc.jacobian(noisy, wrt="h"), []
    for _ in range(2):  # the first learns what is tapped
        torch.manual_seed(3)
        found.append(transform(X))
    torch.manual_seed(3)
    same(found, [torch.randn(3).double()] * 2)


def test_what_is_named() -> None:
    args = {"h": X.sin()}
    assert (
        hofunc.jacobian(lambda w: hofunc.tap("w.h", w["h"]).sum(), wrt=("w", "w.h"))(args)[0]["h"].tolist() == [1] * 3
    )
    partial = hofunc.jacobian(lambda a, /, b, *, c=1.0: a.sum() * b.prod() * c, wrt="b")(X, X, c=2.0)
    same(partial, 2 * X.sum() * X.prod() / X)


BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a name that nothing has": (lambda: hofunc.hessian(f, wrt="q")(X), ValueError, "are here: 'h'"),
    "no taps at all": (lambda: hofunc.hessian(torch.sum, wrt="q")(X), ValueError, "are here: none"),
    "no names": (lambda: hofunc.hessian(f, wrt=()), ValueError, "different ones"),
    "a name twice": (lambda: hofunc.hessian(f, wrt=("h", "h")), ValueError, "different ones"),
    "numbers": (lambda: hofunc.hessian(f, wrt=cast(Any, (0,))), ValueError, "a str or a tuple"),
    "argnums as well": (lambda: hofunc.hessian(f, 1, wrt="h"), ValueError, "one of both"),
    "argnums of a product": (lambda: hofunc.hvp(f, 1, wrt="h"), ValueError, "one of both"),
    "several for a field": (lambda: hofunc.laplacian(f, wrt=("x", "h")), ValueError, "the one argument"),
    "numbers in einsum": (lambda: hofunc.einsum(f, ", i -> i", wrt=0), ValueError, "expected names"),
    "a number": (lambda: hofunc.tap("h", 1.0), ValueError, "got float"),
    "integers": (lambda: hofunc.tap("h", torch.arange(3)), ValueError, "got dtype torch.int64"),
    "a name that is none": (lambda: hofunc.tap(cast(Any, 1), X), ValueError, "got int"),
    "a name in a loop": (
        lambda: hofunc.hessian(lambda x: sum(hofunc.tap("h", x * i).sum() for i in range(2)), wrt="h")(X),
        ValueError,
        'f"{name}{step}" in a loop',
    ),
    "a parameter's name": (lambda: hofunc.hessian(lambda x: hofunc.tap("x", x).sum(), wrt="x")(X), ValueError, "'x'"),
    "keyword only": (lambda: hofunc.hessian(lambda *, y: y.sum(), wrt="y"), ValueError, "by keyword"),
    "passed by keyword": (lambda: hofunc.hessian(f, wrt="x")(x=X), ValueError, "Pass it by position"),
    "a write to it": (
        lambda: hofunc.hessian(lambda x: hofunc.tap("h", x * 2).relu_().sum(), wrt="h")(X),
        hofunc.MutationError,
        "'h'",
    ),
    "a write to what it was": (
        lambda: hofunc.hessian(lambda x: _written_after(x * 2), wrt="h")(X),
        hofunc.MutationError,
        "'h'",
    ),
    "stand-ins": (
        lambda: hofunc.jacobian(lambda x: torch.vmap(hofunc.jacobian(f))(x).sum(), wrt="h")(ROWS),
        hofunc.UntracedError,
        "Tap what the derivative is taken at",
    ),
}


def _written_after(given: Tensor) -> Tensor:
    h = hofunc.tap("h", given)
    given.mul_(2)
    return (h * given).sum()


@pytest.mark.parametrize(("call", "kind", "text"), BAD.values(), ids=[*BAD])
def test_bad_input(call: Callable[[], Any], kind: type[Exception], text: str) -> None:
    refused(call, kind, text, "test_taps.py")
