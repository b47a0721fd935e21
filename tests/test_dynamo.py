"""Transforms inside functions that torch compiles: one graph, equal to what is not compiled, and never stale.

More of these, and code by inductor, are in verification/test_compiled.py.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounter
from torch.nn.functional import interpolate
from torch.utils._pytree import tree_leaves

import hofunc
from tests.checks import assert_equal
from verification.compiled import CASES, OPAQUE, W, X, f, in_one_graph, same, u

# torch's own, where it compiles, and where it makes specs of trees of what is compiled
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


SOME = ["made inside", "of grad", "several patterns", "pytrees", "both passed and captured", "under vmap"]
VIEWS = ["a view of what is passed", "views, nested", "a constant without axes", "conjugates"]


@pytest.mark.parametrize("name", [*SOME, *VIEWS])
def test_one_graph(name: str) -> None:
    call, args, kwargs = CASES[name]
    in_one_graph(call, *args, **kwargs)


def test_the_graph_is_the_program_of_the_plan() -> None:
    plan = hofunc.hessian(f).plan(X)
    ops = [node for node in plan.to_fx().graph.nodes if node.op == "call_function"]
    assert in_one_graph(hofunc.hessian(f), X) == len(ops)


def test_gradients_off_and_autocast() -> None:
    single, weight = X.float(), W.detach().float()

    def cast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return hofunc.hessian(lambda x: (x @ weight).tanh().sum())(x)

    compiled = torch.compile(cast, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(single), cast(single))
    in_one_graph(torch.no_grad()(lambda x: hofunc.hessian(f)(x)), X)


def test_its_backward_is_compiled() -> None:
    graphs: list[Any] = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    backend = torch._dynamo.backends.common.aot_autograd(fw_compiler=keep, bw_compiler=keep)
    compiled = torch.compile(lambda x: hofunc.laplacian(u)(x).square().mean(), backend=backend, fullgraph=True)
    (got,) = torch.autograd.grad(compiled(X), W)
    (expected,) = torch.autograd.grad(hofunc.laplacian(u)(X).square().mean(), W)
    assert len(graphs) == 2  # forward and backward
    assert_equal(got, expected)


class Weighted(nn.Module):
    """A derivative with a parameter in it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.tensor(0.7, dtype=torch.float64)), 2.0
        self.derivative = hofunc.hessian(self.scalar)

    def scalar(self, x: Tensor) -> Tensor:
        """Return a scalar."""
        return (x**3).sum() * self.weight * self.scale

    def forward(self, x: Tensor) -> Tensor:
        """Return its Hessian."""
        return self.derivative(x)


CHANGES: list[Callable[[Weighted], Any]] = [
    lambda module: None,
    lambda module: setattr(module, "scale", 3.0),
    lambda module: setattr(module, "weight", nn.Parameter(torch.tensor(-0.4, dtype=torch.float64))),
    lambda module: module.weight.data.mul_(2),
    lambda module: module.weight.requires_grad_(False),
    lambda module: setattr(module, "derivative", hofunc.hessian(lambda x: module.scalar(x) * 2)),
]


def test_what_changes_between_calls() -> None:
    module = Weighted()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    for change in CHANGES:
        change(module)
        got, expected = compiled(X[0]), module(X[0])
        assert_equal(got.detach(), expected.detach())
        assert got.requires_grad == expected.requires_grad


LINEAR_ALGEBRA: dict[str, Callable[[Tensor], Tensor]] = {
    "cholesky": lambda a: torch.linalg.cholesky(a).sin().sum(),
    "eigh": lambda a: torch.linalg.eigh(a)[0][0],
    "inv": lambda a: torch.linalg.inv(a).sin().sum(),
    "logdet": torch.logdet,
    "matrix_exp": lambda a: torch.linalg.matrix_exp(-a).sum(),
    "solve": lambda a: torch.linalg.solve(a, a.sin()).sum(),
}


@pytest.mark.parametrize("name", LINEAR_ALGEBRA)
def test_rules_that_look_for_zeros_do_without_elements(name: str) -> None:
    in_one_graph(hofunc.hessian(lambda x: LINEAR_ALGEBRA[name](x.mT @ x + torch.eye(3, dtype=x.dtype))), X)


def test_what_a_graph_holds_is_repeated_as_it_was() -> None:
    """By its strides, which tell what may be viewed how: here they are zero, along rows that all have one matrix."""

    up = nn.Upsample(size=(4, 4), mode="bicubic")
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.GELU(), up, nn.Conv2d(4, 1, 3, padding=1)]
    network = nn.Sequential(*layers).double().requires_grad_(False)
    in_one_graph(hofunc.hessian(lambda x: network(x).square().mean()), X[:2, :2].expand(2, 1, 2, 2).cumsum(0))


@torch.library.custom_op("hofunc_tests::cubes_compiled", mutates_args=())
def cubes_by_an_op(x: Tensor) -> Tensor:
    """Return cubes, by an op of a library, of which the compiler knows shapes, and torch a backward pass."""
    return x**3


cubes_by_an_op.register_fake(torch.empty_like)
cubes_by_an_op.register_autograd(
    lambda ctx, slope: 3 * slope * ctx.saved_tensors[0] ** 2,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


def linear_in_tangents(x: Tensor) -> Tensor:
    """Return a product with a tangent, of what was linearised."""
    y, linear = torch.func.linearize(lambda x: (x**3).sum(-1), x)
    return (linear(x.sin()) * y).sum()


LAYERS = {
    name: layer(3, 2, batch_first=True).double()
    for name, layer in {"gru": nn.GRU, "lstm": nn.LSTM, "rnn": nn.RNN}.items()
}
INSIDE: dict[str, Callable[[Tensor], Tensor]] = {
    "a custom op": lambda x: cubes_by_an_op(x.sin()).sum(),
    "a gradient": lambda x: torch.autograd.grad((x**3).sum() * W.sum(), x, create_graph=True)[0].sin().sum(),
    "linearize": linear_in_tangents,
    "gru": lambda x: LAYERS["gru"](x)[0].square().sum(),
    "lstm": lambda x: LAYERS["lstm"](x)[0].square().sum(),
    "rnn": lambda x: LAYERS["rnn"](x)[0].square().sum(),
}


@pytest.mark.parametrize("name", INSIDE)
def test_what_a_function_may_call(name: str) -> None:
    in_one_graph(hofunc.hessian(INSIDE[name]), X)


def test_gradients_by_the_weights_of_a_layer_with_states() -> None:
    call, parameters = hofunc.hessian(INSIDE["gru"]), [*LAYERS["gru"].parameters()]
    compiled = torch.compile(lambda x: call(x), backend="aot_eager", fullgraph=True)
    expected = torch.autograd.functional.hessian(INSIDE["gru"], X, create_graph=True)
    gradients = [torch.autograd.grad(each.sin().sum(), parameters) for each in (compiled(X), expected)]
    for one, other in zip(*gradients, strict=True):
        assert_equal(one, other)


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
def test_a_backward_pass_that_is_no_derivative_ends_the_graph() -> None:
    """Whether it is one is found by numbers of its own, as there are none of the function's.

    Its own derivatives were silently zero in graphs of plans.
    """

    @torch.library.custom_op("hofunc_tests::no_derivative", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return x**3

    op.register_fake(torch.empty_like)
    op.register_autograd(
        lambda ctx, slope: slope * (ctx.saved_tensors[0] * torch.arange(3).to(slope)).sum(-1, keepdim=True),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    hessian = hofunc.hessian(lambda x: op(x).sum())
    with pytest.raises(Unsupported):
        torch.compile(hessian, backend="eager", fullgraph=True)(X)
    for graph in (hofunc.Plan.to_fx, hofunc.Plan.compile):
        with pytest.raises(hofunc.UnsupportedOpError, match=r"no_derivative.*by torch.autograd, which graphs"):
            graph(hessian.plan(X))


def test_closures_and_options() -> None:
    power = 2.0
    cubed = torch.compile(hofunc.hessian(lambda x: (x**power).sum()), backend="eager", fullgraph=True)
    ordered = torch.compile(lambda x, n: hofunc.hod(lambda x: (x**5).sum(), n)(x), backend="eager", fullgraph=True)
    for number in (2, 3):
        power = float(number)
        assert_equal(cubed(X), hofunc.hessian(lambda x, n=number: (x**n).sum())(X))
        assert_equal(ordered(X[0], number - 1), hofunc.hod(lambda x: (x**5).sum(), number - 1)(X[0]))


# Graphs for all sizes.


def rows(count: int) -> Tensor:
    """Return so many rows, of which none is like another one."""
    return X[:1].expand(count, 3).cumsum(0).sin()


@pytest.mark.parametrize(("dynamic", "graphs"), [(None, 2), (True, 1), (False, 6)])
def test_other_shapes(dynamic: bool | None, graphs: int) -> None:
    counter: Any = CompileCounter()
    compiled = torch.compile(hofunc.hessian(f), backend=counter, fullgraph=True, dynamic=dynamic)
    for count in (2, 4, 3, 7, 2, 20, 5):
        assert_equal(compiled(rows(count)), hofunc.hessian(f)(rows(count)))
    assert counter.frame_count == graphs  # the first for one shape, unless asked


def test_sizes_that_have_to_be_equal() -> None:
    counter: Any = CompileCounter()
    compiled = torch.compile(hofunc.hvp(f), backend=counter, fullgraph=True)
    for count in (4, 2, 9):
        x, vector = rows(count), rows(count).cos()
        for tensor in (x, vector):
            torch._dynamo.mark_dynamic(tensor, 0)
        assert_equal(compiled(x, vector=vector), hofunc.hvp(f)(x, vector=vector))
    assert counter.frame_count == 1


def of_two_sets(x: Tensor, y: Tensor) -> Tensor:
    """Return a mean over two sets of rows."""
    return (hofunc.laplacian(u)(torch.cat([x, y, x])) * hofunc.laplacian(lambda x: u(x) / len(x))(x).mean()).sum()


def means(x: Tensor, y: Tensor) -> Tensor:
    """Return a gradient of means and variances over rows."""
    return hofunc.jacobian(lambda x, y: u(x).mean() * u(y).var() + torch.cat([x, y]).pow(3).mean(), (0, 1))(x, y)[1]


@pytest.mark.parametrize("call", [of_two_sets, means])
def test_two_sizes(call: Callable[..., Tensor]) -> None:
    counter: Any = CompileCounter()
    compiled = torch.compile(call, backend=counter, fullgraph=True)
    for one, other in ((4, 6), (3, 3), (2, 9), (11, 2)):
        x, y = rows(one), rows(other).cos()
        for tensor in (x, y):
            torch._dynamo.mark_dynamic(tensor, 0)
        same(compiled(x, y), call(x, y))
    assert counter.frame_count == 1


def test_squares_of_one_size_are_not_taken_for_sums_of_another() -> None:
    """As they were where one of the sizes that a graph was made for was a polynomial in the other."""

    def normed(x: Tensor) -> Tensor:
        return ((x - x.mean(0)) / (x.var(0) + 1).sqrt()).sin().sum()

    compiled = torch.compile(hofunc.hessian(normed), backend="eager", fullgraph=True, dynamic=True)
    for count in (9, 4, 16):
        assert_equal(compiled(rows(count)), hofunc.hessian(normed)(rows(count)))


@pytest.mark.parametrize(
    "call",
    [
        hofunc.hessian(lambda x: (x.sum(1) * torch.arange(len(x))).sin().sum()),
        hofunc.hessian(lambda x: torch.nn.functional.adaptive_avg_pool1d(x.T[None], 3).sin().sum()),
        hofunc.hessian(f, max_bytes=10**6),
        hofunc.jacobian(lambda x: ((x**3).sum(), len(x)), has_aux=True),
    ],
)
def test_what_is_for_one_size(call: Callable[..., Any]) -> None:
    """As values of tensors depend on sizes, or a memory is kept to."""
    compiled = torch.compile(call, backend="eager", fullgraph=True, dynamic=True)
    for count in (6, 4, 3, 7):
        same(compiled(rows(count)), call(rows(count)))


def test_tensors_of_other_shapes_in_every_graph() -> None:
    """Their sizes were symbols in later graphs, and guarded, which ended in an error of the compiler."""
    held: list[torch.Size] = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        nodes = graph.graph.find_nodes(op="get_attr")
        held.extend(node.meta["example_value"].shape for node in nodes)
        return graph.forward

    call = hofunc.hessian(lambda x: (interpolate(x.T[None], 10, mode="linear") ** 3).sum())
    compiled = torch.compile(call, backend=backend, fullgraph=True, dynamic=True)
    for count in (6, 12, 3):
        assert_equal(compiled(rows(count)), call(rows(count)))
    assert held
    assert all(type(size) is int for shape in held for size in shape)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: (x**3).sum() * min(len(x), 20),
        lambda x: (x**3).sum() * (1 + len(x) // 20),
        lambda x: (x[::20] ** 3).mean(),
        lambda x: (torch.nn.functional.pad(x, (0, -len(x) % 40), value=1.0).mean() * x).square().sum(),
    ],
    ids=["least", "quotient", "steps", "padding"],
)
def test_what_is_another_form_of_large_sizes(f: Callable[[Tensor], Tensor]) -> None:
    """It looks like one form of all where every size that a graph is made or checked for is small."""
    compiled = torch.compile(lambda x: hofunc.hessian(f)(x), backend="eager", fullgraph=True, dynamic=True)
    for count in (3, 50):
        x = torch.linspace(0.5, 1, count, dtype=torch.float64)
        assert_equal(compiled(x), torch.func.hessian(f)(x))


def test_a_captured_number_that_is_another_form_of_large_sizes() -> None:
    def call(x: Tensor) -> Tensor:
        factor = min(len(x), 20)
        return hofunc.hessian(lambda x: (x**3).sum() * factor)(x)

    compiled = torch.compile(call, backend="eager", fullgraph=True, dynamic=True)
    for count in (3, 50):
        x = torch.linspace(0.5, 1, count, dtype=torch.float64)
        assert_equal(compiled(x), torch.diag(6 * x * min(count, 20)))


# What is no graph runs as it is.


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
@pytest.mark.parametrize("name", ["item", "a Function", "a tap", "a plan"])
def test_what_is_no_graph(name: str) -> None:
    def call(x: Tensor) -> Any:
        return x.sin() + 1, OPAQUE[name](x), x.cos()

    with pytest.raises(Unsupported):
        torch.compile(call, backend="eager", fullgraph=True)(X)
    torch.compiler.reset()
    compiled: Any = torch.compile(call, backend="eager")
    for x in (X, -X):
        same(compiled(x), call(x))


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
def test_a_function_is_a_graph_around_a_transform_or_as_an_op() -> None:
    def around(x: Tensor) -> Tensor:
        return hofunc.jacobian(lambda x: (x**3).sum())(Rounded.apply(x))

    def within(x: Tensor) -> Tensor:
        return hofunc.hessian(lambda x: (rounded(x) ** 2).sum())(x)

    for call in (around, within):
        assert_equal(torch.compile(call, backend="eager", fullgraph=True)(X), call(X))
    inside = hofunc.hessian(lambda x: (Rounded.apply(x) ** 2).sum())
    with pytest.raises(Unsupported, match=r"no op that runs the one and is differentiated by the other.*custom_op"):
        torch.compile(inside, backend="eager", fullgraph=True)(X)


class Rounded(torch.autograd.Function):
    """Numbers that are rounded, of which the backward pass knows nothing."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient


@torch.library.custom_op("hofunc_tests::rounded", mutates_args=())
def rounded(x: Tensor) -> Tensor:
    """Return the same by an op."""
    return x.round()


rounded.register_fake(torch.empty_like)
rounded.register_autograd(lambda _, gradient: gradient)


def test_errors_are_those_of_the_transform() -> None:
    with pytest.raises(hofunc.ArgumentError, match="order"):
        torch.compile(lambda x: hofunc.hod(f, 0)(x), backend="eager")(X)
    with pytest.raises(hofunc.MutationError):
        torch.compile(hofunc.hessian(lambda x: x.mul_(2).sum()), backend="eager")(X.clone())


def test_a_transform_that_leaves_what_is_compiled() -> None:
    made = torch.compile(lambda: hofunc.hessian(f), backend="eager")()
    assert_equal(made(X), hofunc.hessian(f)(X))
    assert made.plan(X).strategy == hofunc.hessian(f).plan(X).strategy


# torch.export.


class Physics(nn.Module):
    """A network, and the Laplacian of what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        self.laplacian = hofunc.laplacian(lambda x: self.net(x)[:, 0])

    def forward(self, x: Tensor) -> Tensor:
        """Return what an equation leaves."""
        return self.net(x)[:, 0] + self.laplacian(x) * hofunc.laplacian(lambda x: self.net(x)[:, 0])(x)


@pytest.mark.parametrize("strict", [True, False])
def test_a_module_is_exported(strict: bool) -> None:
    module = Physics()
    exported = torch.export.export(module, (X,), strict=strict)
    assert {*exported.state_dict} == {*module.state_dict()}
    again: Any = exported.module()
    assert_equal(again(X.cos()), module(X.cos()))
    gradients = [torch.autograd.grad(each(X).sum(), [*each.parameters()]) for each in (again, module)]
    for one, other in zip(*gradients, strict=True):
        assert_equal(one, other)


@pytest.mark.parametrize("strict", [True, False])
def test_a_module_is_exported_for_all_sizes(strict: bool) -> None:
    module = Physics()
    dims = ({0: torch.export.Dim("rows")},)
    exported: Any = torch.export.export(module, (X,), dynamic_shapes=dims, strict=strict)
    for count in (2, 3, 4, 50):
        assert_equal(exported.module()(rows(count)), module(rows(count)))


class Calls(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        """Call it."""
        return self.function(*args)


@pytest.mark.parametrize("name", ["made inside", "of grad", "pytrees", "derivatives"])
def test_what_is_exported_without_strict(name: str) -> None:
    call, args, kwargs = CASES[name]
    module = Calls(partial(call, **kwargs))
    exported: Any = torch.export.export(module, args, strict=False).module()
    for one, other in zip(tree_leaves(exported(*args)), tree_leaves(module(*args)), strict=True):
        assert_equal(one, other.detach())  # a parameter that is not the module's is a constant


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (torch.vmap(hofunc.hessian(torch.prod)), hofunc.UntracedError, "strict=False.*under torch.func.*strict=True"),
        (hofunc.hessian(lambda x: x.sum() * x[0, 0].item()), hofunc.UntracedError, "strict=False.*outside"),
        (hofunc.hessian(f, layout="compact"), hofunc.ArgumentError, "compact.*outside"),
        (hofunc.hessian(f, argnums=3), hofunc.ArgumentError, "argnums: got 3"),
    ],
    ids=["vmap", "item", "compact", "argnums"],
)
def test_what_is_not_exported_without_strict(
    function: Callable[[Tensor], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        torch.export.export(Calls(function), (X,), strict=False)


def test_a_compiler_that_is_not_known_ends_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a later release of torch may have other names for what is read of it."""
    monkeypatch.setitem(sys.modules, "hofunc.internals_compiler", None)
    x, laplacian = torch.tensor([1.0, 2.0]), hofunc.laplacian(cubes)
    with pytest.raises(Unsupported):
        torch.compile(laplacian, backend="eager", fullgraph=True)(x)
    assert torch.equal(torch.compile(laplacian, backend="eager")(x), laplacian(x))
    with pytest.raises(hofunc.UntracedError, match="release of torch"):
        torch.export.export(Calls(laplacian), (x,), strict=False)
    compiled = torch.compile(lambda x: hofunc.hessian(lambda x: (x**3).sum())(x + 1) * 2, backend="eager")
    assert torch.equal(compiled(x), 2 * torch.diag(6 * (x + 1)))


def cubes(x: Tensor) -> Tensor:
    """Return the sum of cubes along the last axis."""
    return (x**3).sum(-1)


ASKED_FOR_WITHIN = """import sys, torch, hofunc
assert not {"hofunc.operators", "hofunc.traced_call"} & sys.modules.keys()
@torch.compile(fullgraph=True, backend="eager")
def diagonal(x):
    return hofunc.hessian_diagonal(lambda x: (x**3).sum())(x)
print(diagonal(torch.ones(2)), "hofunc.traced_call" in sys.modules)
"""


def test_names_are_asked_for_first_in_what_is_compiled() -> None:
    done = subprocess.run([sys.executable, "-c", ASKED_FOR_WITHIN], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout.strip() == "tensor([6., 6.]) True"
