"""Later recordings of functions that write in place: they go along the one before, as long as calls are the same."""

from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import hofunc
from hofunc.graph.route import Route
from hofunc.graph.tape import Tape
from hofunc.graph.trail import Trail
from hofunc.graph.walk import Walk
from tests.cases import rand
from verification.oracles import relative_error

MET = 2  # calls until a recording goes along


class Ways(list[str]):
    """What recordings did: went along, or left."""


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    found, arrives, leave = Ways(), Walk.arrives, Tape._leave

    def noted(self: Walk, outputs: Any) -> bool:
        arrived = arrives(self, outputs)
        if arrived:
            found.append("along")
        return arrived

    def left(self: Tape) -> None:
        if self._walk is not None:
            found.append("left")
        leave(self)

    monkeypatch.setattr(Trail, "may_tell_calls", lambda _: False)
    monkeypatch.setattr(Walk, "arrives", noted)
    monkeypatch.setattr(Tape, "_leave", left)
    return found


def second(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return a Hessian by nested forward mode, which takes writes as they are."""
    units = torch.eye(x.numel(), dtype=x.dtype, device=x.device).reshape(-1, *x.shape)

    def slope(u: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: torch.func.jvp(f, (x,), (u,))[1]

    rows = [torch.func.jvp(slope(u), (x,), (v,))[1] for u in units for v in units]
    return torch.stack(rows).reshape(*x.shape, *x.shape)


def rows_of(x: Tensor, scale: float = 1.0, weight: Tensor | None = None) -> Tensor:
    y = torch.zeros(4, *x.shape, dtype=x.dtype, device=x.device)
    y[0] = x
    for row in range(3):
        y[row + 1] = (y[row].clone() * x * scale).sin()
    return (y.square() if weight is None else y * weight).sum()


def in_vectors(x: Tensor) -> Tensor:
    """Products of vectors and matrices change shapes in place."""
    out = torch.empty(2, 3, 3, dtype=x.dtype, device=x.device)
    h = x
    for step in range(3):
        h = torch.tanh(h @ torch.outer(x, x) + x)
        out[:, step] = h
    return out.square().sum()


def gates(x: Tensor) -> Tensor:
    one, other = (x * x).repeat(2).chunk(2)
    one.sigmoid_()
    return (one * other.tanh_()).sum() + (x.expand(3, -1).clone().t_().exp_()).sum()


FUNCTIONS = {"rows": rows_of, "vectors": in_vectors, "gates": gates}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_later_calls_go_along_and_are_right(name: str, ways: Ways, device: torch.device) -> None:
    f = FUNCTIONS[name]
    hessian = hofunc.hessian(f)
    for seed in range(MET + 3):
        x = rand(device, 3, seed=seed)
        assert relative_error(hessian(x), second(f, x)) < 1e-12
    assert ways == ["along"] * 3


def test_a_network_of_torch_goes_along(ways: Ways, device: torch.device) -> None:
    net = nn.LSTM(2, 2, dtype=torch.float64).to(device).requires_grad_(False)
    hessian, x = hofunc.hessian(lambda x: net(x)[0].square().sum()), rand(device, 3, 1, 2)
    expected = hessian(x)
    for _ in range(MET + 1):
        assert relative_error(hessian(x), expected) < 1e-14
    assert ways == ["along"] * 2


def test_constants_of_its_own_that_are_written(ways: Ways, device: torch.device) -> None:
    """As the loss of torch does with variances, and tells of numbers that it has seen."""
    mean, variance = rand(device, 3, seed=8), rand(device, 3, seed=9).square()
    hessian = hofunc.hessian(lambda x: nn.functional.gaussian_nll_loss(mean, x, variance))
    x = rand(device, 3)
    for scale in (1.0, 1e-3, 2.0):  # within the limits, and not
        variance.mul_(scale)
        for _ in range(MET + 1):
            assert relative_error(hessian(x), (1 / variance / 3).diag()) < 1e-12
    assert ways == ["along"] * (3 * MET + 1)
    variance.neg_()
    with pytest.raises(ValueError, match="var has negative"):
        hessian(x)


def test_what_is_captured_may_change(ways: Ways, device: torch.device) -> None:
    weight = rand(device, 4, 3, seed=9)
    kept = {"weight": weight}
    hessian = hofunc.hessian(lambda x: rows_of(x, weight=kept["weight"]))
    x = rand(device, 3)
    for _ in range(MET + 1):
        hessian(x)
    weight.mul_(2)
    assert relative_error(hessian(x), second(lambda x: rows_of(x, weight=weight), x)) < 1e-12
    kept["weight"] = weight.exp()
    assert relative_error(hessian(x), second(lambda x: rows_of(x, weight=kept["weight"]), x)) < 1e-12
    assert ways == ["along"] * 3
    kept["weight"] = weight.t().contiguous().t()
    assert relative_error(hessian(x), second(lambda x: rows_of(x, weight=weight), x)) < 1e-12
    assert ways[3:] == ["left"]


@pytest.mark.parametrize(
    "twice",
    [
        lambda c, x: c * c * x,
        lambda c, x: torch.addcmul(x, c, c),
        lambda c, x: torch.stack([c, c]) * x,
        lambda c, x: torch.where(c > 0, c, c * x),
        lambda c, x: torch.index_put(x, (torch.tensor([0], device=c.device),), c[:1]) * c,
    ],
)
def test_one_call_may_take_twice_what_is_captured(
    twice: Callable[[Tensor, Tensor], Tensor], ways: Ways, device: torch.device
) -> None:
    """It came along for the first time with that very call, which was an IndexError."""
    kept = {"c": rand(device, 3, seed=5)}

    def f(x: Tensor) -> Tensor:
        y = x.clone()
        y[0].sin_()
        return (twice(kept["c"], y) ** 2).sum()

    hessian, x = hofunc.hessian(f), rand(device, 3)
    for _ in range(MET + 1):
        assert relative_error(hessian(x), second(f, x)) < 1e-12
    kept["c"] = rand(device, 3, seed=6)
    assert relative_error(hessian(x), second(f, x)) < 1e-12
    assert ways[-2:] == ["along"] * 2


@pytest.mark.parametrize("other", [2.0, -0.0, float("nan"), 1])
def test_another_number_is_another_way(other: float, ways: Ways, device: torch.device) -> None:
    scale = 0.5

    def f(x: Tensor) -> Tensor:
        return rows_of(x, scale)

    hessian, x = hofunc.hessian(f), rand(device, 3)
    for _ in range(MET + 2):  # one more where the code was met with another number
        hessian(x)
    scale = other
    got, expected = hessian(x).diag(), second(f, x).diag()
    assert got.isnan().equal(expected.isnan())
    assert relative_error(got.nan_to_num(), expected.nan_to_num()) < 1e-12
    assert ways[-2:] == ["along", "left"]


def test_a_branch_after_writes(ways: Ways, device: torch.device) -> None:
    """What was written over by then, and is kept no longer, is computed again."""

    def f(x: Tensor) -> Tensor:
        y = x.exp()
        z = y * 2
        y.mul_(z).sin_()
        y[:2] *= x[1:]
        z.add_(y)
        return (z.tanh_() if z[0] > limit else z.cos_().mul_(y)).sum() + (y * z).sum()

    limit = -10.0
    hessian = hofunc.hessian(f)
    for seed in range(MET + 2):
        x = rand(device, 3, seed=seed)
        assert relative_error(hessian(x), second(f, x)) < 1e-12
    limit = 10.0
    for seed in range(MET + 2):
        x = rand(device, 3, seed=seed)
        assert relative_error(hessian(x), second(f, x)) < 1e-12
    assert ways == ["along"] * 2 + ["left"] + ["along"] * 2  # a new plan had it recorded twice


def test_gradients_are_on_or_off_where_it_writes(ways: Ways, device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        y = x.exp()
        with torch.set_grad_enabled(is_on):
            y.mul_(x)
        return (y * x).sin().sum()

    def without_writes(x: Tensor) -> Tensor:
        y = x.exp()
        return ((y * x if is_on else y + (y * x - y).detach()) * x).sin().sum()

    hessian = hofunc.hessian(f)
    for is_on in (False, True, False):  # noqa: B007 - f takes it
        for seed in range(MET + 2):
            x = rand(device, 3, seed=seed)
            assert relative_error(hessian(x), second(without_writes, x)) < 1e-12
    assert ways.count("left") == 2
    assert ways[0] == ways[-1] == "along"


def test_a_constant_that_is_written_over_only_after_it_was_left(ways: Ways, device: torch.device) -> None:
    """It was still held by the tensor that was written to, and is to keep what it was."""
    weight, is_other = rand(device, 2, 3, seed=9), False

    def f(x: Tensor) -> Tensor:
        y = weight.clone()
        y[1] = (x * y[0]).sin()
        y = y.mul_(3) if is_other else y.add_(2)
        return (y * x).sum()

    hessian = hofunc.hessian(f)
    for is_other in (False, True):  # noqa: B007 - f takes it
        for seed in range(MET + 2):
            x = rand(device, 3, seed=seed)
            assert relative_error(hessian(x), second(f, x)) < 1e-12
    assert ways[:3] == ["along"] * 2 + ["left"]


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(w: Tensor) -> Tensor:
        return w.square()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:  # noqa: ARG004 - as torch calls it
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return 2 * slope * ctx.saved_tensors[0]


def test_what_was_written_with_gradients_off_before_a_function(ways: Ways, device: torch.device) -> None:
    """What a walk is left for is not where what was done before ran."""
    weight, is_other = rand(device, 3, seed=9), False

    def f(x: Tensor) -> Tensor:
        y = x.exp()
        with torch.no_grad():
            y.clamp_(max=1.1)
        return (y * x * (Squared.apply(weight) if is_other else weight)).sum()

    hessian, x = hofunc.hessian(f), rand(device, 3)
    for is_other in (False, True):
        for _ in range(MET + 2):
            expected = (2 + x) * x.exp() * (weight.square() if is_other else weight)
            assert relative_error(hessian(x), expected.diag()) < 1e-12
    assert ways == ["along"] * 2 + ["left"]


def test_what_was_written_with_gradients_off_before_a_backward_pass(ways: Ways, device: torch.device) -> None:
    weight, is_other = rand(device, 3, seed=9).requires_grad_(), False
    one = torch.ones((), dtype=weight.dtype, device=device)

    def f(x: Tensor) -> Tensor:
        y = x.exp()
        with torch.no_grad():
            y.clamp_(max=1.1)
        total = weight.square().sum()
        scale = torch.autograd.grad(total, weight, one)[0] if is_other else weight.detach()
        return (y * x * scale).sum()

    hessian, x = hofunc.hessian(f), rand(device, 3)
    for is_other in (False, True):
        for _ in range(MET + 2):
            expected = (2 + x) * x.exp() * weight * (2 if is_other else 1)
            assert relative_error(hessian(x), expected.diag()) < 1e-12
    assert ways == ["along"] * 2 + ["left"]


def test_other_strides_are_seen_where_they_arise(ways: Ways, device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        for row in y.unbind(0):
            row.sin_()
        return (y * x).sum()

    hessian, x = hofunc.hessian(f), rand(device, 3, 2)
    for _ in range(MET + 1):
        hessian(x)
    turned = x.t().contiguous().t()
    assert relative_error(hessian(turned), second(f, x)) < 1e-12
    assert ways == ["along"]


def test_as_many_elements_as_values_say(ways: Ways, device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        y[x > 0] = x[x > 0].exp()
        return (y.square() * x).sum()

    hessian, x = hofunc.hessian(f), torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64, device=device)
    for _ in range(MET + 1):
        assert relative_error(hessian(x), second(f, x)) < 1e-12
    assert relative_error(hessian(-x), second(f, -x)) < 1e-12
    assert ways == ["along", "left"]


def test_an_error_that_the_function_catches(ways: Ways, device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        y = torch.outer(x, x) + shift * torch.eye(3, dtype=x.dtype, device=device)
        y[0].mul_(1.5).div_(1.5)
        try:
            return torch.linalg.cholesky(y).diagonal().log().sum()
        except RuntimeError:
            return (y.sin_() * 2).sum()

    shift = 4.0
    hessian, x = hofunc.hessian(f), rand(device, 3)
    for _ in range(MET + 1):
        hessian(x)
    shift = -4.0
    assert (
        relative_error(
            hessian(x), second(lambda x: (torch.outer(x, x)).sub(4 * torch.eye(3).to(x)).sin().mul(2).sum(), x)
        )
        < 1e-12
    )
    assert ways == ["along", "left"]


def test_a_write_to_what_was_captured_is_refused_later_too(ways: Ways, device: torch.device) -> None:
    captured = rand(device, 3)
    written: list[Tensor] = []

    def f(x: Tensor) -> Tensor:
        y = x * 2
        for tensor in (y, *written):
            tensor.mul_(2.0)
        return (y * x).sum()

    hessian, x = hofunc.hessian(f), rand(device, 3)
    for _ in range(MET + 1):
        hessian(x)
    written.append(captured)
    before = captured.clone()
    with pytest.raises(hofunc.MutationError, match="writing to an input or to a captured tensor"):
        hessian(x)
    assert torch.equal(captured, before)
    assert ways == ["along", "left"]


def test_a_parameter_that_is_made_of_what_is_written(device: torch.device) -> None:
    """It reads the memory of what f made, past all ops; before, one from outside was taken."""
    outside = nn.Parameter(rand(device, 3), requires_grad=False)
    is_inside = False

    def f(x: Tensor) -> Tensor:
        y = x.detach() * 2
        y.mul_(2)
        taken = nn.Parameter(y, requires_grad=False) if is_inside else outside
        z = x * taken
        y.mul_(3)
        return (z * x * taken).sum()

    hessian, x = hofunc.hessian(f), rand(device, 3)
    for _ in range(MET + 2):
        assert relative_error(hessian(x), (2 * outside**2).diag()) < 1e-12
    is_inside = True
    assert relative_error(hessian(x), (2 * 4 * 12 * x * x).diag()) < 1e-12


def test_where_it_is_followed_or_looked_at(device: torch.device) -> None:
    hessian, x = hofunc.hessian(rows_of), rand(device, 3)
    for _ in range(MET + 1):
        expected = hessian(x)
    assert relative_error(torch.func.vmap(hessian)(torch.stack([x, x]))[1], expected) < 1e-12
    assert relative_error(torch.func.grad(lambda x: hessian(x).sum())(x), hofunc.hod(rows_of, 3)(x).sum((0, 1))) < 1e-12
    assert relative_error(hofunc.jacobian(lambda x: hofunc.hessian(rows_of)(x))(x), hofunc.hod(rows_of, 3)(x)) < 1e-12
    followed = x.clone().requires_grad_()
    (got,) = torch.autograd.grad(hessian(followed).sum(), followed)
    assert relative_error(got, hofunc.hod(rows_of, 3)(x).sum((0, 1))) < 1e-12
    with torch.no_grad():
        assert relative_error(hessian(x), expected) == 0
    with torch.inference_mode():
        assert relative_error(hessian(x), expected) == 0
    assert relative_error(hessian(x.float()).double(), expected) < 1e-5


def slope(result: Tensor, captured: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(result.sin().sum(), captured, retain_graph=True)
    return found


Pair = tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]


def filled(x: Tensor, w: Tensor) -> Tensor:
    y = torch.zeros(2, 3, dtype=x.dtype, device=x.device)
    y[0] = w.tanh()
    y[1] = x.exp() * w
    return (y.square().sum(0) * x).sin().sum()


def overwritten(x: Tensor, w: Tensor) -> Tensor:
    y = (x * w).add_(w.sin())
    z = y * 2
    y.mul_(z).mul_(w)
    z.t_()
    return (y * z * x).sum()


def mixed(x: Tensor, w: Tensor) -> Tensor:
    y = w.sin()  # a constant that is written over
    y[1:] *= x[1:]
    return ((w * x).sigmoid() * x).sum() + y.square().sum() * (x.exp() * y.detach()).sum()


def mixed_without_writes(x: Tensor, w: Tensor) -> Tensor:
    y = w.sin() * torch.cat([torch.ones_like(x[:1]), x[1:]])
    return ((w * x).sigmoid() * x).sum() + y.square().sum() * (x.exp() * y.detach()).sum()


def limited(x: Tensor, w: Tensor) -> Tensor:
    """Of what is written where gradients are off, the values are those written, and the derivatives as if not."""
    y, z = (x * w).exp(), w.sin() + x.detach()
    with torch.no_grad():
        y.clamp_(max=1.1).mul_(w)
        z *= 2 * y.max()
        y[1:] -= z[1:]
    y.mul_(x)
    return (y.square() * z).sum()


def limited_without_writes(x: Tensor, w: Tensor) -> Tensor:
    y, z = (x * w).exp(), w.sin() + x.detach()
    values = (y.clamp(max=1.1) * w).detach()
    z = z + (z * 2 * values.max() - z).detach()
    values = torch.cat([values[:1], (values - z)[1:]])
    y = (y + (values - y).detach()) * x
    return (y.square() * z).sum()


FOLLOWED: dict[str, Pair] = {  # and the same without writes, some of which torch cannot differentiate
    "filled": (filled, lambda x, w: ((w.tanh().square() + (x.exp() * w).square()) * x).sin().sum()),
    "overwritten": (overwritten, lambda x, w: ((x * w + w.sin()).pow(3) * 4 * w * x).sum()),
    "mixed": (mixed, mixed_without_writes),
    "limited": (limited, limited_without_writes),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_autograd_follows_goes_along(name: str, ways: Ways, device: torch.device) -> None:
    """Results have their derivatives by what is captured, through what is written over and through what is not."""
    weight, (f, g) = rand(device, 3, seed=9).requires_grad_(), FOLLOWED[name]
    hessian = hofunc.hessian(lambda x: f(x, weight))

    def expected(x: Tensor) -> Tensor:
        return second(lambda x: g(x, weight), x)

    for seed in range(MET + 3):
        x = rand(device, 3, seed=seed)
        assert relative_error(hessian(x), expected(x)) < 1e-12
        assert relative_error(slope(hessian(x), weight), slope(expected(x), weight)) < 1e-11
    with torch.no_grad():
        assert not hessian(x).requires_grad
    followed = x.clone().requires_grad_()
    for _ in range(MET):
        assert relative_error(slope(hessian(followed), weight), slope(expected(x), weight)) < 1e-11
        assert relative_error(slope(hessian(followed), followed), slope(expected(followed), followed)) < 1e-11
    assert ways.count("along") > MET
    assert ways.count("left") <= 2  # what was left by another function of the same code, for inputs of either kind


def test_a_branch_after_writes_that_autograd_follows(ways: Ways, device: torch.device) -> None:
    weight, limit = rand(device, 3, seed=9).requires_grad_(), -10.0

    def f(x: Tensor) -> Tensor:
        y = weight.sin()
        z = x.exp() * weight
        y.mul_(z)
        z.mul_(y).add_(y)
        y[:2] *= x[1:]
        return (z.tanh() if z.detach()[0] > limit else z.cos().mul_(y)).sum() + (y * z).sum()

    def without_writes(x: Tensor) -> Tensor:
        first = weight.sin() * x.exp() * weight
        z = x.exp() * weight * first + first
        y = first * torch.cat([x[1:], torch.ones_like(x[:1])])
        return (z.tanh() if limit < 0 else z.cos() * y).sum() + (y * z).sum()

    hessian = hofunc.hessian(f)
    for limit in (-10.0, 1e6):  # noqa: B007 - f takes it
        for seed in range(MET + 2):
            x = rand(device, 3, seed=seed)
            got, expected = hessian(x), second(without_writes, x)
            assert relative_error(got, expected) < 1e-12
            assert relative_error(slope(got, weight), slope(expected, weight)) < 1e-11
    assert "left" in ways
    assert ways[0] == ways[-1] == "along"


def test_another_tensor_is_followed(ways: Ways, device: torch.device) -> None:
    first, other = rand(device, 3, seed=8).requires_grad_(), rand(device, 3, seed=9)

    def f(x: Tensor) -> Tensor:
        y = x * first
        y.mul_(other)
        return (y.sin() * y).sum()

    hessian, x = hofunc.hessian(f), rand(device, 3)
    for _ in range(MET + 1):
        hessian(x)
    assert {*ways} == {"along"}
    for followed in (other, first):
        first.requires_grad_(followed is first)
        other.requires_grad_(followed is other)
        for _ in range(MET + 1):
            got = hessian(x)
            assert relative_error(slope(got, followed), slope(second(f, x), followed)) < 1e-11


def test_an_intermediate_is_followed_from_now_on(device: torch.device) -> None:
    """It is a leaf of the function's own, which shows in no op."""
    weight, is_leaf = rand(device, 3, seed=8).requires_grad_(), False

    def f(x: Tensor) -> Tensor:
        y = (x * 2).detach()
        y.requires_grad_(is_leaf)
        z = x * y
        z.mul_(x)
        return (z * weight.exp()).sum()

    hessian, x = hofunc.hessian(f), rand(device, 3)
    for is_leaf in (False, True, False):  # noqa: B007 - f takes it
        for _ in range(MET + 2):
            got, expected = hessian(x), (4 * x * weight.exp()).diag()
            assert relative_error(got, expected) < 1e-12
            assert relative_error(slope(got, weight), slope(expected, weight)) < 1e-11


def test_what_is_gone_is_not_taken_for_what_comes(ways: Ways, device: torch.device) -> None:
    """Python gives the id of a tensor that nobody holds to the next."""

    def f(x: Tensor) -> Tensor:
        y = x * 2
        for _ in range(8):
            torch.zeros(3, dtype=x.dtype, device=device)
            y = y.sin()
            y.mul_(x)
        return y.sum()

    hessian, x = hofunc.hessian(f), rand(device, 3)
    for _ in range(MET + 2):
        assert relative_error(hessian(x), second(f, x)) < 1e-12
    assert {*ways} == {"along"}


def test_hooks_are_refused_along_a_route_too(device: torch.device) -> None:
    weight, is_hooked = rand(device, 3, seed=8).requires_grad_(), False

    def f(x: Tensor) -> Tensor:
        y = x * weight
        if is_hooked:
            y.register_hook(lambda slope: slope * 2)
        z = y.sin()
        z.mul_(x)
        return z.sum()

    hessian, x = hofunc.hessian(f), rand(device, 3)
    for _ in range(MET + 1):
        hessian(x)
    is_hooked = True
    with pytest.raises(hofunc.UntracedError, match="register_hook"):
        hessian(x)


def test_orders_and_plans_take_turns(ways: Ways, device: torch.device) -> None:
    """A plan may need values that another one did not."""
    x = rand(device, 3)
    transforms = [hofunc.hod(rows_of, order) for order in (1, 2, 3)]
    for turn in range(MET + 3):
        for transform in transforms[: 1 + turn % 3]:
            transform(x)
    assert relative_error(transforms[1](x), second(rows_of, x)) < 1e-12
    assert relative_error(transforms[2](x), hofunc.hod(rows_of, 3).plan(x)(x)) < 1e-12
    assert ways.count("left") == 0
    assert ways.count("along") > 3


def test_another_thread_leaves_meanwhile(monkeypatch: pytest.MonkeyPatch, ways: Ways, device: torch.device) -> None:
    scale, starts_from, waiting = 1.0, Route.starts_from, [2.0]

    def f(x: Tensor) -> Tensor:
        return rows_of(x, scale)

    def meanwhile(self: Route, inputs: Sequence[Tensor]) -> bool:
        nonlocal scale
        starts = starts_from(self, inputs)
        if waiting:
            scale = waiting.pop()
            thread = Thread(target=hessian, args=(x,))
            thread.start()
            thread.join()
            scale = 1.0
        return starts

    hessian, x = hofunc.hessian(f), rand(device, 3)
    for _ in range(MET):
        expected = hessian(x)
    monkeypatch.setattr(Route, "starts_from", meanwhile)
    assert torch.equal(hessian(x), expected)
    assert ways == ["left", "along"]


def test_shapes_take_turns(ways: Ways, device: torch.device) -> None:
    """A call goes along the one before of the same shape, as training and validation take turns."""
    hessian = hofunc.hessian(rows_of)
    for turn in range(2 * MET + 4):
        x = rand(device, 3 + turn % 2, seed=turn)
        assert relative_error(hessian(x), second(rows_of, x)) < 1e-12
    assert {*ways} == {"along"}
    assert len(ways) >= 4


def test_a_mode_of_the_caller_sees_all_ops(ways: Ways, device: torch.device) -> None:
    hessian, x = hofunc.hessian(in_vectors), rand(device, 3)
    for _ in range(MET + 1):
        expected = hessian(x)
    ways.clear()
    with FlopCounterMode(display=False) as counter:
        assert relative_error(hessian(x), expected) < 1e-12
    assert counter.get_total_flops() > 0
    assert ways == []
