"""Custom autograd Functions: recorded whole once they have a rule, and refused before."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

import hofunc
from hofunc.graph.functions import as_op
from hofunc.rules import define_composite, define_elementwise
from hofunc.rules.registry import RULES
from tests.cases import rand
from tests.graph.recordings import recorded
from verification.oracles import nested_reverse, relative_error


class Cube(torch.autograd.Function):
    """The third power, whose own backward is twice too large, so that it is seen who uses it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], _: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 6 * ctx.saved_tensors[0] ** 2 * grads[0]


class Halves(torch.autograd.Function):
    """Both halves of a vector."""

    @staticmethod
    def forward(_: Any, x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        return factor * x[: len(x) // 2], factor * x[len(x) // 2 :]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        raise NotImplementedError


def cubes(x: Tensor) -> Tensor:
    return (Cube.apply(x.sin()) * x).sum()


def sum_of_cubes(x: Tensor) -> Tensor:
    total: Tensor = Cube.apply(x).sum()
    return total


def written_out(x: Tensor) -> Tensor:
    return (x.sin() ** 3 * x).sum()


@pytest.fixture
def _with_rules() -> Iterator[None]:
    """Enter rules, and take them out again: without one a Function is as it was."""
    define_elementwise(Cube, lambda x, y, r: [y, 3 * x * x, 6 * x, torch.full_like(x, 6)][r], degree=3)
    define_composite(Halves, lambda x, factor: (factor * x[: len(x) // 2], factor * x[len(x) // 2 :]))
    yield
    for function in (Cube, Halves):
        del RULES[as_op(function)]


@pytest.mark.usefixtures("_with_rules")
@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("strategy", ["reverse", "forward", "mixed"])
def test_its_rule_is_used(order: int, strategy: str, device: torch.device) -> None:
    x = rand(device, 3)
    got = hofunc.hod(cubes, order, strategy=strategy)(x)
    assert relative_error(got, nested_reverse(written_out, order)(x)) < 1e-12


@pytest.mark.usefixtures("_with_rules")
@pytest.mark.parametrize(
    "transform",
    [
        lambda f: hofunc.hod(lambda x: hofunc.hessian(f)(x).sin().sum(), 1),
        lambda f: lambda x: hofunc.hessian(f).plan(x)(x),
        lambda f: lambda x: torch.func.vmap(hofunc.hessian(f))(torch.stack([x, x.cos()])),
    ],
    ids=["twice", "plan", "vmap"],
)
def test_it_composes(transform: Callable[..., Any], device: torch.device) -> None:
    x = rand(device, 3)
    assert relative_error(transform(cubes)(x), transform(written_out)(x)) < 1e-12


@pytest.mark.usefixtures("_with_rules")
def test_several_results_and_other_arguments(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        one, other = Halves.apply(x, 2.0)
        return (one.sin() * other).sum()

    x = rand(device, 4)
    assert (
        relative_error(hofunc.hessian(f)(x), nested_reverse(lambda x: ((2 * x[:2]).sin() * 2 * x[2:]).sum(), 2)(x))
        < 1e-12
    )


@pytest.mark.usefixtures("_with_rules")
def test_without_gradients_it_is_a_constant(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            y = Cube.apply(x)
        return (x * y).sum()

    x = rand(device, 3)
    assert torch.equal(hofunc.jacobian(f)(x), torch.func.jacrev(f)(x))


@pytest.mark.usefixtures("_with_rules")
def test_it_is_one_node(device: torch.device) -> None:
    graph = recorded(cubes, rand(device, 3)).graph
    assert [str(node.op) for node in graph.nodes][1:] == [
        "aten.sin.default",
        "Cube",
        "aten.mul.Tensor",
        "aten.sum.default",
    ]


@pytest.mark.usefixtures("_with_rules")
def test_outside_a_recording_it_is_as_it_was(device: torch.device) -> None:
    x = rand(device, 3).requires_grad_()
    (slope,) = torch.autograd.grad(Cube.apply(x).sum(), x)
    assert torch.equal(slope, 6 * x.detach() ** 2)
    assert torch.equal(torch.func.grad(lambda x: Cube.apply(x).sum())(x.detach()), slope)


@pytest.mark.usefixtures("_with_rules")
def test_a_transform_of_torch_inside_f_takes_its_own_backward(device: torch.device) -> None:
    x = rand(device, 3)
    got = hofunc.jacobian(torch.func.grad(sum_of_cubes))(x)
    assert torch.equal(got, torch.diag(12 * x))


@pytest.mark.usefixtures("_with_rules")
def test_it_has_no_graph(device: torch.device) -> None:
    x = rand(device, 3)
    with pytest.raises(hofunc.UnsupportedOpError, match="a plan as a graph: got Cube, a custom Function"):
        hofunc.hessian(cubes).plan(x).to_fx()


# Without a rule: by its own backward, or by its forward.


class Exponential(torch.autograd.Function):
    """An exponential that saves its result, as torch.func takes it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.saved_tensors[0] * gradients[0]


class Product(torch.autograd.Function):
    """A product of a square, as code before torch.func has it: it detaches, writes in place, and saves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        x = x.detach()
        ctx.save_for_backward(x, w)
        result = torch.empty_like(x)
        result.copy_(x * w)
        return result.mul_(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return 2 * gradients[0] * x * w, gradients[0] * x * x


class Hidden(torch.autograd.Function):
    """A cube of which the backward pass hides what it depends on."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
        ctx.x = inputs[0].detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return 3 * ctx.x**2 * gradients[0]


WEIGHT = torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64)
WAYS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], str]] = {
    "its backward": (
        lambda x: (Exponential.apply(x.sin()) * x).sum(),
        lambda x: (x.sin().exp() * x).sum(),
        "backward",
    ),
    "its backward inside f": (
        lambda x: torch.autograd.grad((Exponential.apply(x) * x).sum(), x, create_graph=True)[0],
        lambda x: x.exp() * (1 + x),
        "backward",
    ),
    "its forward": (
        lambda x: (Product.apply(x.sin(), WEIGHT.to(x.device)) * x).sum(),
        lambda x: (x.sin() ** 2 * WEIGHT.to(x.device) * x).sum(),
        "forward",
    ),
    "its forward where it has a backward": (
        lambda x: (Exponential.apply(x.sin()) * x).sum(),
        lambda x: (x.sin().exp() * x).sum(),
        "forward",
    ),
}


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("way", WAYS)
def test_a_function_without_a_rule(way: str, order: int, device: torch.device) -> None:
    f, written, functions = WAYS[way]
    x = rand(device, 3)
    expected = nested_reverse(written, order)(x)
    with hofunc.options(functions=functions):
        transform = hofunc.hod(f, order)
        assert relative_error(transform(x), expected) < 1e-12
        assert relative_error(transform.plan(x.cos())(x), expected) < 1e-12
        assert relative_error(vmap(transform)(torch.stack([x.cos(), x]))[1], expected) < 1e-12


def test_of_which_the_forward_is_recorded_is_said_once(device: torch.device) -> None:
    class Again(Product):
        """Another class."""

    x = rand(device, 3)
    with hofunc.options(functions=[Again]):
        with pytest.warns(hofunc.FallbackWarning, match="of Again, a custom torch.autograd.Function, the forward"):
            got = hofunc.hessian(lambda x: Again.apply(x, x).sum())(x)
        assert relative_error(got, (6 * x).diag()) < 1e-12
        assert relative_error(hofunc.hessian(lambda x: Again.apply(x, x).sum())(x), got) == 0
        with pytest.warns(hofunc.FallbackWarning), pytest.raises(hofunc.UnsupportedOpError, match="for Product"):
            hofunc.hessian(lambda x: Product.apply(x, x).sum())(x)


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
def test_training_through_a_forward(device: torch.device) -> None:
    x, weight = rand(device, 3), rand(device, 3, seed=1).requires_grad_()

    def loss(f: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return hofunc.hessian(lambda x: (f(x.sin(), weight) * x).sum())(x).sin().sum()

    with hofunc.options(functions="forward"):
        (got,) = torch.autograd.grad(loss(Product.apply), weight)
    (expected,) = torch.autograd.grad(loss(lambda x, w: x * x * w), weight)
    assert relative_error(got, expected) < 1e-12


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
@pytest.mark.parametrize("order", [2, 3])
def test_a_backward_that_hides_what_it_depends_on_is_refused(order: int, device: torch.device) -> None:
    x = rand(device, 3)
    assert relative_error(hofunc.jacobian(lambda x: Hidden.apply(x).sum())(x), 3 * x**2) < 1e-12
    with pytest.raises(hofunc.UnsupportedOpError, match="a backward pass of which autograd does not see all"):
        hofunc.hod(lambda x: Hidden.apply(x).sum(), order)(x)


class HiddenInSlope(Cube):
    """A cube with a backward whose own backward does not depend on x as autograd sees it: right at order two."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,), (grad,) = ctx.saved_tensors, grads
        slope = 3 * x.detach() ** 2
        return grad * (slope + 6 * x.detach() * (x - x.detach()))


class HiddenPart(torch.autograd.Function):
    """A product of which the backward by the one factor hides that it depends on the other: asymmetric."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, _: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return grad * y.detach(), grad * x


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
def test_a_backward_that_hides_it_from_its_own_backward_is_refused(device: torch.device) -> None:
    x = rand(device, 3)
    assert relative_error(hofunc.hessian(lambda x: HiddenInSlope.apply(x).sum())(x), (6 * x).diag()) < 1e-12
    with pytest.raises(hofunc.UnsupportedOpError, match="autograd does not see all that it depends on, at order 3"):
        hofunc.hod(lambda x: HiddenInSlope.apply(x).sum(), 3)(x)


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
@pytest.mark.parametrize("argnums", [(0, 1), (1, 0)])
def test_a_backward_that_hides_it_by_one_argument_is_refused(argnums: tuple[int, int], device: torch.device) -> None:
    x, y = rand(device, 3), rand(device, 3, seed=1)
    with pytest.raises(hofunc.UnsupportedOpError, match="autograd does not see all that it depends on, at order 2"):
        hofunc.hessian(lambda x, y: HiddenPart.apply(x, y).sum(), argnums=argnums)(x, y)


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
def test_it_is_refused_by_some_elements_of_many(device: torch.device) -> None:
    """What is hidden where few elements lie shows as much as where all do."""

    class HiddenBelow(torch.autograd.Function):
        """A cube whose backward is constant near zero."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return grad * 3 * torch.where(x.abs() < 0.5, x.detach(), x) ** 2

    x = rand(device, 40).abs() + 1
    assert hofunc.hessian(lambda x: HiddenBelow.apply(x).sum())(x).diag().allclose(6 * x)
    x[7] = 0.4
    with pytest.raises(hofunc.UnsupportedOpError, match="autograd does not see all that it depends on, at order 2"):
        hofunc.hessian(lambda x: HiddenBelow.apply(x).sum())(x)


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
def test_what_a_function_hides_is_looked_for_by_few_backward_passes(device: torch.device) -> None:
    """A whole derivative of order three takes a pass for each of its rows; to check it takes a few."""
    passes = 0

    class Cube(torch.autograd.Function):
        """A cube."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            nonlocal passes
            passes += 1
            (x,) = ctx.saved_tensors
            return grad * 3 * x**2

    x, counts = rand(device, 4), []
    f = hofunc.hessian(lambda x: Cube.apply(x).sum())
    f(x)
    for transform in (f, f):
        passes = 0
        transform(x)
        counts.append(passes)
    assert counts == [counts[0]] * 2
    assert counts[0] <= 4 + 4 + 2 + 4  # rows of orders one and two, two ends, and what tells that it has a gradient


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
def test_under_vmap_one_of_the_old_form_is_named(device: torch.device) -> None:
    with pytest.raises(hofunc.UntracedError, match=r"Product\.apply without a setup_context"):
        vmap(hofunc.hessian(lambda x: Product.apply(x, x).sum()))(rand(device, 2, 3))


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
def test_an_heir_is_another_function(device: torch.device) -> None:
    class Heir(Exponential):
        """One with another forward."""

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return 2 * x.exp()

    x = rand(device, 3)
    assert relative_error(hofunc.hessian(lambda x: Exponential.apply(x).sum())(x), x.exp().diag()) < 1e-12
    assert torch.equal(Heir.apply(x), 2 * x.exp())
    assert relative_error(hofunc.hessian(lambda x: Heir.apply(x).sum())(x), 2 * x.exp().diag()) < 1e-12


class Inside(torch.autograd.Function):
    """One that turns gradients on in its forward, where they lead nowhere."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        with torch.enable_grad():
            return (x * 1).exp()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return 2 * ctx.saved_tensors[0].exp() * gradients[0]


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
def test_gradients_that_a_forward_turns_on_lead_nowhere(device: torch.device) -> None:
    x = rand(device, 3)
    hessian = hofunc.hessian(lambda x: Inside.apply(x).sum())
    assert relative_error(hessian(x), (2 * x.exp()).diag()) < 1e-12
    with pytest.raises(hofunc.UntracedError, match=r"Inside\.apply without a setup_context"):
        vmap(hessian)(x[None])
    with hofunc.options(functions="forward"):
        assert relative_error(hofunc.hessian(lambda x: Inside.apply(x).sum())(x), x.exp().diag()) < 1e-12


def test_a_forward_may_use_hofunc(device: torch.device) -> None:
    class Outer(torch.autograd.Function):
        """One whose forward takes a Hessian."""

        @staticmethod
        def forward(_: Any, x: Tensor) -> Tensor:
            return hofunc.hessian(lambda x: x.sin().sum())(x)

    x = rand(device, 3)
    assert torch.equal(Outer.apply(x), (-x.sin()).diag())


def _function(forward: Callable[..., Any]) -> Any:
    """Return a custom Function of the older form, with some forward and a backward that nobody asks."""
    body = {"forward": staticmethod(forward), "backward": staticmethod(lambda _, *gradients: gradients[0])}
    return type(forward.__name__, (torch.autograd.Function,), body)


def _writes_data(_: Any, buffer: Tensor, x: Tensor) -> Tensor:
    buffer.data[0] = x
    return buffer


def _writes_detached(_: Any, buffer: Tensor, x: Tensor) -> Tensor:
    buffer.detach()[0] = x
    return buffer


def _sets_data(_: Any, buffer: Tensor, x: Tensor) -> Tensor:
    result = torch.empty_like(buffer[0])
    result.data = x**3
    return result


def _by_numpy(_: Any, buffer: Tensor, x: Tensor) -> Tensor:
    return torch.from_numpy(x.detach().cpu().numpy() ** 3).to(buffer.device)


def _by_lists(_: Any, buffer: Tensor, x: Tensor) -> Tensor:
    return torch.tensor([number**3 for number in x.reshape(1).tolist()]).to(buffer)


def _by_a_number(_: Any, buffer: Tensor, x: Tensor) -> Tensor:
    return torch.tensor(x.item()).to(buffer) ** 3


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
@pytest.mark.parametrize(
    "forward",
    [_sets_data, _by_numpy, _by_lists, _by_a_number],
    ids=lambda f: f.__name__,
)
def test_a_forward_that_computes_out_of_sight_is_refused(forward: Any, device: torch.device) -> None:
    function, x = _function(forward), torch.tensor(2.0, dtype=torch.float64, device=device)
    transform = hofunc.jacobian(lambda x: function.apply(torch.zeros(2).to(x), x**2).sum())
    with hofunc.options(functions="forward"):
        for call in (transform, transform.plan):
            with pytest.raises(hofunc.UntracedError, match="computes out of sight"):
                call(x)


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
@pytest.mark.parametrize("forward", [_writes_data, _writes_detached], ids=lambda f: f.__name__)
@pytest.mark.parametrize("order", [1, 2])
def test_what_a_forward_detaches_is_the_same_place(forward: Any, order: int, device: torch.device) -> None:
    function, x = _function(forward), torch.tensor(2.0, dtype=torch.float64, device=device)

    def f(x: Tensor) -> Tensor:
        first = function.apply(torch.zeros(2).to(x), x**2)
        early = first[0] * x
        second = function.apply(first, x**3)
        return (second * second).sum() + early

    expected = nested_reverse(lambda x: x**6 + x**3, order)(x)
    with hofunc.options(functions="forward"):
        assert relative_error(hofunc.hod(f, order)(x), expected) < 1e-12
        assert relative_error(hofunc.hod(f, order).plan(x + 1)(x), expected) < 1e-12


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
def test_a_forward_knows_what_needs_a_gradient_and_may_branch(device: torch.device) -> None:
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        scale = 1 if ctx.needs_input_grad[0] and not ctx.needs_input_grad[1] else 0
        return x**3 * y * scale if x.sum() > 0 else x

    function, x = _function(forward), rand(device, 3).abs()
    with hofunc.options(functions="forward"):
        got = hofunc.hessian(lambda x: function.apply(x, torch.ones(3).to(x)).sum())(x)
    assert relative_error(got, (6 * x).diag()) < 1e-12


# Of the old form, by torch.autograd; and what a Function that is one node may not do.


class OldExponential(torch.autograd.Function):
    """An exponential of the old form."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = x.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.saved_tensors[0] * gradients[0]


KEPT = {function: function.apply for function in (Exponential, OldExponential)}


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
@pytest.mark.parametrize("function", KEPT, ids=lambda function: function.__name__)
@pytest.mark.parametrize("apply", [lambda function: function.apply, KEPT.get], ids=["called by name", "kept before"])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_its_backward_is_used(function: Any, apply: Callable[[Any], Any], order: int, device: torch.device) -> None:
    x, f = rand(device, 3), apply(function)
    expected = nested_reverse(lambda x: (x.sin().exp() * x).sum(), order)(x)
    transform = hofunc.hod(lambda x: (f(x.sin()) * x).sum(), order)
    assert relative_error(transform(x), expected) < 1e-12
    assert relative_error(transform.plan(x.cos())(x), expected) < 1e-12


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
@pytest.mark.parametrize("function", KEPT, ids=lambda function: function.__name__)
def test_a_derivative_of_a_derivative(function: Any, device: torch.device) -> None:
    def total(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: hofunc.hessian(lambda x: (f(x.sin()) * x).sum())(x).sin().sum()

    x = rand(device, 3)
    expected = hofunc.jacobian(total(torch.exp))(x)
    assert relative_error(hofunc.jacobian(total(function.apply))(x), expected) < 1e-12
    y = x.clone().requires_grad_()
    (got,) = torch.autograd.grad(total(function.apply)(y), y)
    assert relative_error(got, expected) < 1e-12


def _given(_: Any, x: Tensor, y: Tensor) -> Tensor:  # noqa: ARG001
    return y


def _same(_: Any, x: Tensor, y: Tensor) -> Tensor:  # noqa: ARG001
    return x


def _alien(_: Any, x: Tensor, y: Tensor) -> Tensor:  # noqa: ARG001
    return torch.ones(3, dtype=torch.float64, device=y.device)


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
@pytest.mark.parametrize("forward", [_given, _same, _alien], ids=lambda forward: forward.__name__)
def test_a_backward_counts_whatever_the_forward_returns(forward: Any, device: torch.device) -> None:
    body = {"forward": staticmethod(forward), "backward": staticmethod(lambda _, gradient: (-2 * gradient, None))}
    function: Any = type(forward.__name__, (torch.autograd.Function,), body)

    def f(x: Tensor) -> Tensor:
        return (function.apply(x.sin(), x.detach().round()) * x).sum()

    x = rand(device, 3)
    y = x.clone().requires_grad_()
    for order, plain in ((1, torch.autograd.functional.jacobian), (2, torch.autograd.functional.hessian)):
        assert relative_error(hofunc.hod(f, order)(x), plain(f, y)) < 1e-12


def _takes_more(x: Tensor) -> Callable[[Any, Tensor], Tensor]:
    y = x.sin()
    return lambda _, z: z * y


def _writes(x: Tensor) -> Callable[[Any, Tensor], Tensor]:
    y = torch.zeros(x.shape, dtype=x.dtype, device=x.device)

    def forward(_: Any, z: Tensor) -> Tensor:
        y.data.copy_(z)
        return z * 2

    return forward


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
@pytest.mark.parametrize(
    ("made", "message"),
    [(_takes_more, "takes what depends on an input from elsewhere"), (_writes, "writes to what it did not make")],
)
def test_what_a_function_takes_and_returns_has_to_be_all(made: Any, message: str, device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        result: Tensor = _function(made(x)).apply(x * 3)
        return result.sum()

    for call in (hofunc.jacobian(f), hofunc.jacobian(f).plan):
        with pytest.raises(hofunc.UntracedError, match=message):
            call(rand(device, 3))


class Scaled(torch.autograd.Function):
    """A multiple of the square, as options say."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, options: dict[str, float]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.options = options
        return x**2 * options["scale"]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return 2 * gradient * x * ctx.options["scale"], None


def test_arguments_that_cannot_be_compared_are_refused(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return Scaled.apply(x, {"scale": 2.0}).sum()

    x = rand(device, 3)
    with pytest.raises(hofunc.UntracedError, match=r"Scaled\.apply with a dict for an argument, .*functions='forward'"):
        hofunc.hessian(f)(x)
    with hofunc.options(functions=[Scaled]), pytest.warns(hofunc.FallbackWarning):
        assert relative_error(hofunc.hessian(f)(x), 4 * torch.eye(3).to(x)) < 1e-12
