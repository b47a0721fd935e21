"""Functions that take gradients by autograd themselves, or ask whether autograd follows what they are given."""

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F  # noqa: N812 - the name that everyone gives it
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

import hofunc
from hofunc.graph.asking import source_of
from tests.cases import rand
from verification.oracles import nested_reverse, relative_error

Function = Callable[[Tensor], Tensor]
CPU = torch.device("cpu")
WEIGHT, KERNEL = rand(CPU, 3, 3, seed=3), rand(CPU, 2, 1, 2, seed=5)
WEIGHTS = [rand(CPU, *shape, seed=seed) for seed, shape in enumerate([(16, 3), (16, 4), (16,), (16,)])]
SENDERS, RECEIVERS = torch.tensor([0, 1, 1, 0, 2]), torch.tensor([1, 0, 2, 2, 1])


def gradient(energy: Tensor, x: Any, **options: Any) -> Any:
    """Return the gradient of the sum of a tensor, of which the graph is kept."""
    found = torch.autograd.grad(energy.sum(), x, create_graph=True, **options)
    return found if isinstance(x, list) else found[0]


def linear(x: Tensor) -> Tensor:
    return F.linear(x, WEIGHT.to(x.device))


def forces(x: Tensor) -> Tensor:
    """Return the forces of a network over the edges of a graph, as interatomic potentials have them."""
    distance = (x[SENDERS] - x[RECEIVERS]).norm(dim=-1)
    messages = F.softplus(-((distance[:, None] - torch.linspace(0, 2, 4).to(x)) ** 2))
    nodes = torch.zeros(3, 4).to(x).index_add(0, SENDERS.to(x.device), messages)
    return -gradient(nodes.tanh() ** 2, x)


def forces_again(x: Tensor) -> Tensor:
    return gradient(forces(x).exp(), x)


def recurrent(x: Tensor) -> Tensor:
    weights = [weight.to(x.device) for weight in WEIGHTS]
    state = x.new_zeros(1, 1, 4)
    result, *_ = torch.lstm(x[None], (state, state), weights, True, 1, 0.0, False, False, True)
    return gradient(result**2, x)


def of_a_clone(x: Tensor) -> Tensor:
    y = x.clone().requires_grad_()
    return gradient(y.sin() * y.exp(), y)


def of_what_is_between(x: Tensor) -> Tensor:
    y = x.sin()
    by_y, by_x = gradient(y**3 + y.exp() * x, [y, x])
    return by_y * by_x


def by_rows(x: Tensor) -> Tensor:
    """Return a second derivative by rows, as solvers of differential equations have it."""
    first = gradient(linear(x).tanh() * x, x)
    return torch.stack([gradient(first[:, k], x)[:, k] for k in range(3)], 1)


def mapped(x: Tensor) -> Tensor:
    rows = torch.eye(x.numel()).to(x).reshape(-1, *x.shape)
    return torch.autograd.grad(x.sin() * x, x, rows, create_graph=True, is_grads_batched=True)[0]


def written_through_a_view(x: Tensor) -> Tensor:
    y = x * 2
    y.view(-1).sigmoid_()
    return gradient(y**3, x)


IDIOMS: dict[str, Function] = {
    "forces": forces,
    "forces again": forces_again,
    "a recurrent network": recurrent,
    "a clone": of_a_clone,
    "what is between": of_what_is_between,
    "second derivatives by rows": by_rows,
    "many at once": mapped,
    "an activation in place": lambda x: gradient(F.relu_(linear(x)) ** 3, x),
    "an exponential in place": lambda x: gradient(linear(x).exp_() ** 2, x),
    "a view written in place": written_through_a_view,
    "softmax": lambda x: gradient((x.softmax(-1) @ x.mT) ** 2, x),
    "a convolution": lambda x: gradient(F.conv1d(x[:, None], KERNEL.to(x)).tanh() ** 2, x),
    "attention": lambda x: gradient(F.scaled_dot_product_attention(x[None], x[None], x[None]) ** 2, x),
    "a gradient that is detached": lambda x: x * gradient(x**3, x).detach(),
    "a cotangent": lambda x: torch.autograd.grad(x.sin() * x, x, x.cos(), create_graph=True)[0],
    "what does not matter": lambda x: gradient(x.exp(), [x, x * 2], allow_unused=True)[0],
    "torch.autograd.functional.jacobian": lambda x: torch.autograd.functional.jacobian(
        lambda y: (y.sin() * y).sum(0), x, create_graph=True
    ),
    "torch.autograd.functional.hvp": lambda x: torch.autograd.functional.hvp(
        lambda y: (y.sin() ** 2).sum(), x, x.cos(), create_graph=True
    )[1],
}


def _by_autograd(f: Function, order: int) -> Function:
    for _ in range(order):
        f = partial(torch.autograd.functional.jacobian, f, create_graph=True)
    return f


LONG = {"forces again", "a recurrent network", "many at once", "torch.autograd.functional.jacobian"}


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of fused attention under vmap
@pytest.mark.parametrize(
    ("name", "order"), [(name, order) for name in IDIOMS for order in (1, 2) if order == 1 or name not in LONG]
)
def test_gradients_by_autograd_inside_f(name: str, order: int, device: torch.device) -> None:
    f, x = IDIOMS[name], rand(device, 3, 3)
    with sdpa_kernel(SDPBackend.MATH):  # of which torch has higher derivatives itself
        expected = _by_autograd(lambda x: f(x * 1), order)(x).detach()
    transform = hofunc.hod(f, order)
    assert relative_error(transform(x), expected) < 1e-10
    assert relative_error(transform(x), expected) < 1e-10, "again"
    assert not transform(x).requires_grad
    assert relative_error(transform.plan(x.cos())(x), expected) < 1e-10
    assert relative_error(vmap(transform)(torch.stack([x.cos(), x]))[1], expected) < 1e-10
    assert relative_error(transform(x.clone().requires_grad_()).detach(), expected) < 1e-10


def test_gradients_of_a_normalised_layer(device: torch.device) -> None:
    """It is written out, as torch's third derivative of layer_norm is wrong (docs/explanations/torch-errors.md)."""

    def written_out(x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    def of(normalised: Function) -> Function:
        return lambda x: gradient(normalised(x).exp(), x)

    x = rand(device, 2, 3)
    expected = _by_autograd(lambda x: of(written_out)(x * 1), 2)(x).detach()
    assert relative_error(hofunc.hod(of(lambda x: F.layer_norm(x, (3,))), 2)(x), expected) < 1e-10


def test_training_through_gradients_inside_f(device: torch.device) -> None:
    weight, x = rand(device, 3, 3, seed=1).requires_grad_(), rand(device, 2, 3)

    def f(x: Tensor, weight: Tensor) -> Tensor:
        return gradient((x @ weight).tanh() ** 2, x)

    def loss(derivative: Tensor) -> Tensor:
        return derivative.sin().sum()

    (expected,) = torch.autograd.grad(loss(_by_autograd(lambda x: f(x * 1, weight), 1)(x)), weight)
    transform = hofunc.jacobian(lambda x: f(x, weight))
    for got in (transform(x), transform.plan(x)(x)):
        assert relative_error(torch.autograd.grad(loss(got), weight)[0], expected) < 1e-10


def test_an_accumulated_gradient(device: torch.device) -> None:
    def f(x: Any) -> Tensor:
        x.grad = None
        (x.sin() * x).sum().backward(create_graph=True, inputs=[x])
        return x.grad

    x = rand(device, 3)
    with pytest.warns(UserWarning, match="reference cycle"):
        got = hofunc.jacobian(f)(x)
    assert relative_error(got, nested_reverse(lambda x: (x.sin() * x).sum(), 2)(x)) < 1e-10


def _without_a_graph(x: Tensor) -> Tensor:
    return torch.autograd.grad((x**3).sum(), x)[0]


class Once(torch.autograd.Function):
    """A cube of which the backward pass cannot be differentiated again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * cotangent


@pytest.mark.parametrize("f", [_without_a_graph, lambda x: gradient(Once.apply(x), x)])
def test_what_autograd_does_not_record_is_refused(f: Function, device: torch.device) -> None:
    x = rand(device, 3)
    for call in (hofunc.jacobian(f), hofunc.jacobian(f).plan):
        with pytest.raises(hofunc.UntracedError):
            call(x)
    with pytest.raises(hofunc.UntracedError):
        vmap(hofunc.jacobian(_without_a_graph))(x[None])


# Functions that ask.


def _on_the_input(x: Tensor) -> Tensor:
    return (x.exp() if x.requires_grad else x.sin()).sum()


def _on_a_result(x: Tensor) -> Tensor:
    y = x * 1
    return (y.sin() if y.grad_fn is None else y.exp()).sum()


@pytest.mark.parametrize("f", [_on_the_input, _on_a_result])
def test_a_function_sees_that_its_input_is_followed(f: Function, device: torch.device) -> None:
    """As it does under torch.func, also where the plan of the other branch is known."""
    x = rand(device, 3)
    hofunc.hessian(lambda x: x.sin().sum())(x)
    hofunc.hessian(lambda x: (x * 1).sin().sum())(x)
    transform = hofunc.hessian(f)
    for got in (transform(x), transform(x), transform.plan(x.cos())(x), vmap(transform)(x[None])[0]):
        assert torch.equal(got, x.exp().diag())


def _with_a_check(x: Tensor) -> Tensor:
    if not x.requires_grad:
        message = "x has to be followed"
        raise ValueError(message)
    return x.exp().sum()


def _with_a_check_of_a_result(x: Tensor) -> Tensor:
    y = x.exp()
    assert y.grad_fn is not None
    return y.sum()


@pytest.mark.parametrize("f", [_with_a_check, _with_a_check_of_a_result])
def test_a_function_may_refuse_inputs_that_are_not_followed(f: Function, device: torch.device) -> None:
    """Whichever way it is recorded first."""
    x = rand(device, 3)
    for name, first in (("call", hofunc.hessian), ("map", _mapped), ("plan", _planned), ("jit", _jitted)):
        fresh = FunctionType(f.__code__.replace(co_name=name), f.__globals__)
        assert torch.equal(first(fresh)(x), x.exp().diag())


def _mapped(f: Function) -> Function:
    return lambda x: vmap(hofunc.hessian(f))(x[None])[0]


def _planned(f: Function) -> Function:
    return lambda x: hofunc.hessian(f).plan(x)(x)


def _jitted(f: Function) -> Function:
    return hofunc.jit(hofunc.hessian(f))


def test_what_a_function_raises_that_asked_is_as_it_is(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        raise ValueError(str(x.requires_grad))

    for call in (hofunc.hessian(f), hofunc.hessian(f).plan, vmap(hofunc.hessian(f))):
        with pytest.raises(ValueError, match="True") as caught:
            call(rand(device, 3, 3))
        assert caught.value.__context__ is None


def test_code_that_did_not_ask_may_ask_where_it_calls_other_code(device: torch.device) -> None:
    def call(f: Function) -> Callable[..., Any]:
        return hofunc.hessian(lambda x: f(x))

    x = rand(device, 3)
    assert torch.equal(call(lambda x: x.exp().sum())(x), x.exp().diag())
    assert torch.equal(call(_on_the_input)(x), x.exp().diag())
    assert torch.equal(call(lambda x: x.exp().sum())(x), x.exp().diag())


def test_a_function_that_asks_is_called_as_often_as_it_is_recorded(device: torch.device) -> None:
    calls: list[bool] = []

    def f(x: Tensor) -> Tensor:
        calls.append(x.requires_grad)
        return x.exp().sum()

    x, transform = rand(device, 3), hofunc.hessian(f)
    transform(x)
    assert calls == [False, True]
    transform(x)
    assert calls == [False, True, True]


def test_functions_with_the_same_code_have_one_source() -> None:
    def make(number: int) -> Callable[..., Any]:
        return lambda x: x * number

    assert source_of(make(1)) is source_of(make(2)) is source_of(partial(partial(make(3), 1), 2))
    assert source_of(nn.Tanh()) is nn.Tanh
    assert source_of("".join) is type("".join)
    assert source_of(nn.Tanh().forward) is nn.Tanh.forward.__code__


def test_pytrees_are_followed_too(device: torch.device) -> None:
    def f(tree: dict[str, Tensor]) -> Tensor:
        return gradient(tree["a"].sin() * tree["b"], tree["a"])

    tree = {"a": rand(device, 2), "b": rand(device, 2, seed=1)}
    got = hofunc.jacobian(f)(tree)
    expected = {"a": (-tree["a"].sin() * tree["b"]).diag(), "b": tree["a"].cos().diag()}
    tree_map(torch.testing.assert_close, got, expected)


def test_a_graph_is_kept_where_f_asks_whether_it_is_needed(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        x = x * 2
        keeps = torch.is_grad_enabled() and x.requires_grad
        z = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad((z**3).sum(), z, create_graph=keeps)
        return slope.log().sum()

    x = rand(device, 3).abs()
    for got in (hofunc.hessian(f)(x), hofunc.hessian(f).plan(x * 2)(x), vmap(hofunc.hessian(f))(x[None])[0]):
        assert relative_error(got, (-2 / x**2).diag()) < 1e-12


def test_inputs_that_differ_from_those_before_are_recorded_by_what_they_are(device: torch.device) -> None:
    """Of calls alike it is told by one check of torch's, which has to say no for all others."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        factor = 2 if x.dtype is torch.float64 else 3
        return (x.reshape(-1) * y.reshape(-1)).sin().sum() * (factor + x.shape[0])

    x, y, z = rand(device, 3, 2), rand(device, 3, 2, seed=1), rand(device, 3, 2, seed=2) + 1j * rand(device, 3, 2)
    others = [
        (x.float(), y.float()),
        (rand(device, 2, 3).T, y),
        (rand(device, 2, 3), y),
        (x.clone().requires_grad_(), y),
        (x, x),
        (z.imag, y),
        (z.conj().imag, y),
        (nn.Parameter(x), y),
    ]
    derivative = hofunc.hod(f, order=2, argnums=(0, 1))
    for other in others:
        for inputs in (*[(x, y)] * 3, *[other] * 3, (x, y)):
            expected = torch.func.hessian(f, argnums=(0, 1))(*(tensor.detach().resolve_neg() for tensor in inputs))
            for got, right in zip(sum(derivative(*inputs), ()), sum(expected, ()), strict=True):
                torch.testing.assert_close(got, right)


def test_a_function_of_more_inputs_than_before_is_recorded(device: torch.device) -> None:
    def f(leaves: list[Tensor]) -> Tensor:
        return torch.stack(leaves).prod(0).sin().sum()

    gradient = hofunc.jacobian(f)
    for count in (2, 2, 2, 3, 3, 3, 1, 2):
        leaves = [rand(device, 3, seed=seed) for seed in range(count)]
        for got, right in zip(gradient(leaves), torch.func.grad(f)(leaves), strict=True):
            torch.testing.assert_close(got, right)
