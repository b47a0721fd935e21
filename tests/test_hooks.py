"""Hooks at taps: derivatives composed of what they return, against the rule of Faa di Bruno by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from tests.checks import refused
from tests.test_taps import NONE, OTHER, WEIGHT, Net, X, f, hidden, moved, nest, rest, same

H1, H2, H3 = (nest(hidden, 0, order)(X) for order in (1, 2, 3))


def deep(x: Tensor) -> Tensor:
    return (OTHER @ hofunc.tap("h", hidden(x))).exp().prod()


def top(h: Tensor) -> Tensor:
    return (OTHER @ h).exp().prod()


def scaled(derivative: Tensor, order: int) -> Tensor:
    """A hook whose result depends on the derivative and on the order, and is symmetric."""
    return derivative.tanh() * (order + 1) + order


def hooked_at(h: Tensor, order: int) -> Tensor:
    return scaled(nest(top, 0, order)(h), order)


def test_the_first_three_orders_are_those_composed_by_hand() -> None:
    h = hidden(X)
    one, two, three = (hooked_at(h, order) for order in (1, 2, 3))
    g = hofunc.hooked(deep, {"h": scaled}, order=3)
    same(g(X), top(h))
    same(hofunc.jacobian(g)(X), one @ H1)
    same(hofunc.hessian(g)(X), H1.T @ two @ H1 + torch.einsum("a,aij->ij", one, H2))
    mixed = torch.einsum("ab,aij,bk->ijk", two, H2, H1)
    want = torch.einsum("abc,ai,bj,ck->ijk", three, H1, H1, H1) + torch.einsum("a,aijk->ijk", one, H3)
    same(hofunc.hod(g, 3)(X), want + mixed + mixed.permute(0, 2, 1) + mixed.permute(2, 0, 1))


@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
def test_whatever_the_strategy_and_past_the_tap(strategy: str) -> None:
    g = hofunc.hooked(f, {"h": scaled}, order=2)
    one, two = (scaled(nest(moved, 1, order)(X, NONE), order) for order in (1, 2))
    (xx, xh), _ = nest(rest, (0, 1), 2)(X, hidden(X))
    want = xx + xh @ H1 + (xh @ H1).T + H1.T @ two @ H1 + torch.einsum("a,aij->ij", one, H2)
    same(hofunc.hessian(g, strategy=strategy)(X), want)


def test_an_earlier_hook_sees_what_a_later_one_returns() -> None:
    seen: dict[str, Tensor] = {}

    def chain(x: Tensor) -> Tensor:
        first = hofunc.tap("first", (WEIGHT @ x).sin())
        return hofunc.tap("second", (OTHER @ first).sin()).exp().sum()

    def first(derivative: Tensor, order: int) -> Tensor:
        seen[f"first {order}"] = derivative
        return 3 * derivative

    g = hofunc.hooked(chain, {"first": first, "second": lambda d, _: d.ceil()}, order=1)
    a = (WEIGHT @ X).sin()
    b = (OTHER @ a).sin()
    by_first = b.exp().ceil() @ ((OTHER @ a).cos()[:, None] * OTHER)
    same(hofunc.jacobian(g)(X), 3 * by_first @ ((WEIGHT @ X).cos()[:, None] * WEIGHT))
    same(seen["first 1"], by_first)


def test_a_hook_that_looks_sees_what_hod_returns_and_changes_nothing() -> None:
    seen: dict[int, Any] = {}
    looking = hofunc.hooked(f, {"h": lambda d, order: seen.update({order: d})}, order=2)
    same(hofunc.hessian(looking)(X), hofunc.hessian(f)(X))
    same([seen[1], seen[2]], [hofunc.hod(f, order, wrt="h")(X) for order in (1, 2)])
    same(hofunc.hod(looking, 3)(X), hofunc.hod(f, 3)(X))


def test_orders_above_stay() -> None:
    g = hofunc.hooked(f, {"h": lambda d, _: 0 * d}, order=1)
    gradient = nest(moved, 1, 1)(X, NONE)
    want = hofunc.hessian(f)(X) - torch.einsum("a,aij->ij", gradient, H2)
    same(hofunc.hessian(g)(X), want)


def test_all_transforms_take_it() -> None:
    g = hofunc.hooked(f, {"h": scaled}, order=2)
    want = hofunc.hessian(g)(X)
    same(torch.func.hessian(g)(X), want)
    same(hofunc.laplacian(g)(X), want.trace())
    same(hofunc.hessian(g, layout="compact")(X).dense(), want)
    same(torch.vmap(hofunc.hessian(g))(torch.stack([X, 2 * X])), torch.stack([want, hofunc.hessian(g)(2 * X)]))
    same(hofunc.hessian(g).plan(2 * X)(X), want)
    same(hofunc.jacobian(hofunc.jacobian(g))(X), want)


def test_pytrees_vmap_inside_modules_and_complex_values() -> None:
    def g(x: Tensor) -> dict[str, Tensor]:
        a, b = hofunc.tap("pair", (x.sin(), x.cos()))
        return {"sum": a @ b, "each": torch.vmap(lambda v: hofunc.tap("row", v.exp()))(b[:, None])}

    def both(derivative: Any, _: int) -> Any:
        (by_a, by_b), each = derivative["sum"], derivative["each"]
        return {"sum": (2 * by_a, 3 * by_b), "each": each}

    got = hofunc.jacobian(hofunc.hooked(g, {"pair": both, "row": lambda d, _: d}, order=1))(X)
    same(got["sum"], 2 * X.cos().square() - 3 * X.sin().square())
    same(got["each"][:, 0], (-X.sin() * X.cos().exp()).diag())
    net = Net()
    double = hofunc.hooked(net, {"hidden": lambda d, _: 2 * d}, order=1)
    same(hofunc.jacobian(double)(X), 2 * hofunc.jacobian(net)(X))
    turned = hofunc.hooked(lambda x: hofunc.tap("z", x * 1j).abs().sum(), {"z": lambda d, _: -d}, order=1)
    same(hofunc.jacobian(turned)(X), -X.sign())


def test_beside_taps_that_are_differentiated_by() -> None:
    g = hofunc.hooked(f, {"h": lambda d, _: 2 * d}, order=1)
    same(hofunc.jacobian(g, wrt=("x", "h"))(X)[1], 2 * nest(moved, 1, 1)(X, NONE))


def test_values_that_are_not_finite_leave_others_alone() -> None:
    g = hofunc.hooked(lambda x: hofunc.tap("h", x.log()).exp(), {"h": lambda d, _: d}, order=1)
    same(g(torch.tensor([0.0, 1.0])), torch.tensor([0.0, 1.0]))


BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no hooks": (lambda: hofunc.hooked(f, {}, order=1), ValueError, "a dict of functions"),
    "no functions": (lambda: hofunc.hooked(f, {"h": 1}, order=1), ValueError, "a dict of functions"),  # type: ignore[dict-item]
    "order": (lambda: hofunc.hooked(f, {"h": scaled}, order=0), ValueError, "at least 1"),
    "a parameter": (lambda: hofunc.hooked(f, {"x": scaled}, order=1), ValueError, "a parameter of f"),
    "a name that is not tapped": (lambda: hofunc.hooked(f, {"q": scaled}, order=1)(X), ValueError, "are here: 'h'"),
    "another shape": (lambda: hofunc.hooked(f, {"h": lambda d, _: d.sum()}, order=1)(X), ValueError, "order 1"),
    "no tensor": (lambda: hofunc.hooked(f, {"h": lambda _, __: 1.0}, order=1)(X), ValueError, "float"),
    "random numbers": (
        lambda: hofunc.hooked(lambda x: (hofunc.tap("h", x) * torch.rand(3)).sum(), {"h": scaled}, order=1)(X),
        hofunc.UntracedError,
        "draws random numbers",
    ),
}


@pytest.mark.parametrize(("call", "kind", "text"), BAD.values(), ids=[*BAD])
def test_bad_input(call: Callable[[], Any], kind: type[Exception], text: str) -> None:
    refused(call, kind, text)
