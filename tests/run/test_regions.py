"""Regions of graphs: where they are cut, which are equal, and that together they do what the graph does."""

import weakref
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from operator import getitem
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import hofunc
from hofunc.run.fx import traced
from hofunc.run.piecewise import RegionCompiler, compiled_piecewise
from hofunc.run.regions import Region, regions
from tests.cases import CASES, Case, rand
from tests.checks import assert_equal

aten = torch.ops.aten
CPU = torch.device("cpu")
X, Y, Z = (rand(CPU, 4, 3, seed=seed) for seed in range(3))


def graph_of(f: Callable[..., Any], *args: Tensor) -> GraphModule:
    """Return f as a graph of ops that write nowhere."""
    module = make_fx(torch.func.functionalize(f), tracing_mode="fake")(*args)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def as_it_is(module: GraphModule, _: Any) -> GraphModule:
    return module


def cut(f: Callable[..., Any], *args: Tensor, least: int = 1, most: int = 1) -> list[Region]:
    return regions(graph_of(f, *args), least, most)


def ops(region: Region) -> list[str]:
    """Return the names of the ops of a region."""
    return [node.target.__name__ for node in region.module.graph.nodes if node.op == "call_function"]


def check(f: Callable[..., Any], *args: Tensor, least: int = 1, most: int = 1, repeated: int = 1000) -> list[Region]:
    """Check that regions do what f does, at the tensors they are compiled for, and at others; returns them."""
    module = graph_of(f, *args)
    parts = regions(module, least, most, repeated)
    if not parts:
        return []
    run, first = compiled_piecewise(module, parts, RegionCompiler(as_it_is), args, lambda _: None)
    _, ahead = compiled_piecewise(module, parts, RegionCompiler(as_it_is, is_ahead=True), args, lambda _: None)
    others = [arg + arg if arg.is_floating_point() else arg for arg in args]
    for got, expected in ((first, f(*args)), (run(others), f(*others)), (ahead, f(*args))):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
            assert one.stride() == other.stride()
    return parts


# Where they are cut.


def layers(x: Tensor, *weights: Tensor) -> tuple[Tensor]:
    """Return what layers of residual connections make of x."""
    for weight in weights:
        x = x + (x @ weight).tanh().t().exp().t() * 2
    return (x,)


WEIGHTS = [rand(CPU, 3, 3, seed=seed) for seed in range(12)]


@pytest.mark.parametrize(("least", "most"), [(1, 5), (2, 8), (4, 9), (5, 10), (6, 13)])
def test_equal_layers_are_equal_regions(least: int, most: int) -> None:
    parts = check(layers, X, *WEIGHTS, least=least, most=most)
    sizes = [len([name for name in ops(part) if name != "t.default"]) for part in parts]
    assert all(least <= size <= most for size in sizes[:-1])
    assert sizes[-1] <= most
    assert len({part.key for part in parts[1:-1]}) == 1
    assert all(len(part.outputs) == 1 for part in parts)  # where layers meet: the cheapest place


def there_and_back(x: Tensor, *weights: Tensor) -> tuple[Tensor]:
    """Return what layers make of x, and then others, in which each takes what one of the first have left."""
    left = []
    for weight in weights:
        left.append(x.sin().t().cos().t())
        x = x + (x @ weight).tanh()
    for each in reversed(left):
        x = (x * each).exp().t().sin().t() + each.t().tanh().t()
    return (x,)


@pytest.mark.parametrize(("repeated", "most_often"), [(5, 12), (8, 5)])
def test_what_repeats_is_compiled_once(repeated: int, most_often: int) -> None:
    plain, alike = (check(there_and_back, X, *WEIGHTS, least=13, most=20, repeated=each) for each in (1000, repeated))
    keys = [part.key for part in alike]
    assert max(map(keys.count, keys)) == most_often
    assert to_compile(alike) < to_compile(plain)


def to_compile(parts: list[Region]) -> int:
    """Return how many ops there are in regions that differ."""
    return sum({part.key: len(ops(part)) for part in parts}.values())


def test_a_cut_is_where_few_bytes_pass() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor]:
        wide = x[:, None] * y[None]
        wide = wide.sin().exp()
        return ((wide.sum(0).cos() @ y.t()).sin().exp(),)

    first, *_ = cut(f, X, Y, least=2, most=5)
    assert "sum.dim_IntList" in ops(first)


def test_a_small_graph_is_not_cut() -> None:
    module = graph_of(layers, X, *WEIGHTS)
    assert regions(module) == []
    assert regions(module, 1, 60) == []
    assert regions(module, 1, 59) != []


def test_a_graph_that_goes_by_memory_is_not_cut() -> None:
    assert cut(lambda x: (x.sin().as_strided((2,), (1,), 3).exp().cos(),), X) == []


def test_cuts_depend_on_nothing_but_the_graph() -> None:
    """Keys hold no addresses or the like, or the compiler's caches on disk would not know regions again."""
    keys = [[part.key for part in cut(layers, X, *WEIGHTS, least=2, most=8)] for _ in range(2)]
    assert keys[0] == keys[1]
    assert not any("0x" in key for key in map(str, keys[0]))


# What passes a cut.


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: (x.sin().t().exp().t() * y,),
        lambda x, y: ((x * y).view(12).sin().view(3, 4).exp()[1:].cos(),),
        lambda x, y: ((x * y).t().sin().view_as(x.t()).expand(2, 3, 4).exp(),),
        lambda x, y: (x, y, x),
        lambda x, y: (x.sin(), x.sin().t(), x.t(), y[0]),
        lambda x, y: (torch.zeros(2), x.sin() + torch.ones(3), torch.full((3,), 2.0) * y.exp()),
        lambda x, y: (torch.zeros(2),),
        lambda x, y: (y.sin().exp(), x.cos()),
        lambda x, y: (x.sin(), x.sin().exp(), x.sin().exp().cos() * y),
        lambda x, y: [part.sin() for part in (x * y).split(2)] + [part.exp() for part in x.unbind(1)],
        lambda x, y: (*x.sin().topk(2), *y.sort(1)),
        lambda x, y: (x.cos().sort(0)[0].sin(), y.cos().max(1)[1]),
        lambda x, y: (torch.nn.functional.layer_norm(x.sin(), (3,)).exp() * y,),
        lambda x, y: ((x.sin() > 0).to(torch.float32) * y.double().float(), (x.exp() * 3).long() + 1),
        lambda x, y: (torch.where(x.sin() > 0, x.exp(), y.cos()).cumsum(0),),
        lambda x, y: (x.sin().add_(1).mul_(y),),
        lambda x, y: (x.new_zeros(5, 3).index_put((torch.arange(4),), x.sin()).exp() @ y.t(),),
        lambda x, y: (torch.view_as_real(torch.complex(x.sin(), y.cos()).exp()),),
        lambda x, y: (x.sin().t().contiguous().t().exp(), x.t().sin().t()),
        lambda x, y: (x[:0].sin().exp() + 1, y.sum().sin().exp()),
    ],
)
@pytest.mark.parametrize(("least", "most"), [(1, 1), (1, 2), (2, 3)])
def test_all_that_passes_a_cut(f: Callable[..., Any], least: int, most: int) -> None:
    check(f, X, Y, least=least, most=most)


def test_views_do_not_pass_a_cut() -> None:
    def f(x: Tensor) -> tuple[Tensor]:
        view = x.sin().t()[1:].reshape(-1)
        return (view.exp() * view.cos(),)

    parts = check(f, X)
    returned = [node for part in parts for node in part.outputs]
    assert all(node.target not in (aten.t.default, aten.slice.Tensor) for node in returned)


def test_tensors_that_come_together_stay_together() -> None:
    parts = check(lambda x, y: (x.sin().sort(0)[1] + 1, y.exp() + 2), X, Y)
    for part in parts:
        nodes = [*part.module.graph.nodes]
        assert all(
            node.args[0] in nodes and node.args[0].op == "call_function" for node in nodes if node.target is getitem
        )


def test_random_numbers_are_drawn_in_order_and_once() -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        a, b = torch.rand_like(x), torch.rand_like(x).sin()
        return a * x, b, a.exp(), torch.randn(3) + b

    module = graph_of(f, X)
    run, _ = compiled_piecewise(module, regions(module, 1, 1), RegionCompiler(as_it_is), [X], lambda _: None)
    torch.manual_seed(0)
    expected = f(X)
    torch.manual_seed(0)
    for got, wanted in zip(run([X]), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def test_gradients_pass_cuts() -> None:
    leaves = [tensor.clone().requires_grad_() for tensor in (X, *WEIGHTS[:3])]
    module = graph_of(layers, X, *WEIGHTS[:3])
    run, first = compiled_piecewise(module, regions(module, 1, 2), RegionCompiler(as_it_is), leaves, lambda _: None)
    expected = torch.autograd.grad(layers(*leaves)[0].sin().sum(), leaves)
    for result in (first, run(leaves)):
        for got, wanted in zip(torch.autograd.grad(result[0].sin().sum(), leaves), expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-13, atol=0)


READING = {"a branch that is taken", "a branch that is not taken", "a loop of as many steps as the values say"}


@pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")
@pytest.mark.parametrize("case", [case for case in CASES if case.name not in READING], ids=lambda case: case.name)
def test_plans_in_regions_of_a_few_ops(case: Case) -> None:
    f, args = case.build(CPU)
    plan = hofunc.hod(f, 2, case.argnums).plan(*args)
    try:
        module, own = traced(plan._steps.program, plan._signature.facts)
    except hofunc.UnsupportedOpError:
        return
    parts, tensors = regions(module, 1, 3), [*plan._signature.tensors(args, {}), *own]
    if parts:
        run, first = compiled_piecewise(module, parts, RegionCompiler(as_it_is), tensors, lambda _: None)
        for result in (first, run(tensors)):
            assert_equal(list(result), list(module(*tensors)))


# Compiling.


def compiled_graphs(f: Callable[..., Any], *args: Tensor, least: int = 1, most: int = 1) -> int:
    """Return how many graphs are compiled, for regions and then for their second call.

    As many are where all are compiled before the first of them runs.
    """
    module = graph_of(f, *args)
    parts = regions(module, least, most)
    counts = [_compiled_graphs(module, parts, args, is_ahead=is_ahead) for is_ahead in (False, True)]
    assert counts[0] == counts[1]
    return counts[0]


def _compiled_graphs(module: GraphModule, parts: list[Region], args: tuple[Tensor, ...], *, is_ahead: bool) -> int:
    graphs: list[GraphModule] = []
    runs: list[int] = []

    def compiler(graph: GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(graph)

        def run(*tensors: Tensor) -> Any:
            runs.append(len(graphs))
            return graph(*tensors)

        return run

    compiler_of = RegionCompiler(compiler, is_ahead=is_ahead)
    run, _ = compiled_piecewise(module, parts, compiler_of, args, lambda _: None)
    count = len(graphs)
    run(args)
    assert len(graphs) == count
    assert runs[0] == (count if is_ahead else 1)
    return count


def test_equal_regions_are_compiled_once() -> None:
    assert compiled_graphs(layers, X, *WEIGHTS, least=4, most=9) == 1


def test_equal_regions_that_torch_compiles() -> None:
    def compiler(graph: GraphModule, _: Any) -> Any:
        return torch.compile(graph, backend="eager")  # a module that has no length, nor whether it is empty

    module = graph_of(layers, X, *WEIGHTS)
    args = [X, *WEIGHTS]
    _, results = compiled_piecewise(module, regions(module, 4, 9), RegionCompiler(compiler), args, lambda _: None)
    torch.testing.assert_close(list(results), list(layers(*args)))


@pytest.mark.parametrize(
    ("f", "number"),
    [
        (lambda x: (x.sin().sin().sin(),), 1),
        (lambda x: (x.mul(1.0).mul(2.0).mul(1.0),), 2),
        (lambda x: (x.add(1).add(1.0).add(True),), 3),
        (lambda x: (x.mul(0.0).mul(-0.0),), 2),
        (lambda x: (x.float().sin(), x.double().sin()), 3),
        (lambda x: (x.sum(0).sin(), x.sum(1).sin()), 4),
        (lambda x: (x.t().sin(), x.sin()), 2),
        (lambda x: (x.t().contiguous().sin().add(1), x.view(3, 4).sin().add(1)), 4),
        (lambda x: (x.sin().add(x), x.cos().add(x), x.cos().add(x)), 3),
        (lambda x: ((y := x.sin()).add(y), x.cos().add(x)), 4),
    ],
)
def test_what_is_equal(f: Callable[..., Any], number: int) -> None:
    assert compiled_graphs(f, X) == number


def test_the_largest_region_is_compiled_first() -> None:
    sizes: list[int] = []

    def compiler(graph: GraphModule, _: Any) -> GraphModule:
        sizes.append(len(graph.graph.nodes))
        return graph

    module = graph_of(lambda x: (x.sin().cos().exp().tanh().add(x).mul(x).neg().sum(),), X)
    parts = regions(module, 2, 3)
    compiled_piecewise(module, parts, RegionCompiler(compiler, is_ahead=True), [X], lambda _: None)
    assert sizes == sorted(sizes, reverse=True) != [len(part.module.graph.nodes) for part in parts]


def test_what_needs_gradients_is_compiled_apart() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), y.sin()

    def half(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x.sin(), y.sin().detach().sin(), (y > 0).to(y.dtype).sin(), y.exp().sin()

    y = Y.clone().requires_grad_()
    assert compiled_graphs(f, X, Y) == 1
    assert compiled_graphs(f, X, y) == 2
    assert compiled_graphs(half, X, y) == 6
    with torch.no_grad():
        assert compiled_graphs(f, X, y) == 1
        assert compiled_graphs(half, X, y) == 5


@pytest.mark.parametrize("is_ahead", [False, True])
def test_other_strides_of_a_compiler_are_put_right(is_ahead: bool) -> None:
    """Views of the regions after it go by strides."""

    def compiler(module: GraphModule, _: Any) -> Callable[..., Any]:
        return lambda *tensors: [
            result.t().contiguous().t() if result.dim() == 2 else result for result in module(*tensors)
        ]

    module = graph_of(lambda x: (x.sin().view(12).exp(), x.cos()), X)
    once = RegionCompiler(compiler, is_ahead=is_ahead)
    run, first = compiled_piecewise(module, regions(module, 1, 1), once, [X], lambda _: None)
    for got in (first, run([X])):
        torch.testing.assert_close(got[0], X.sin().view(12).exp())
        assert got[1].stride() == (3, 1)


def test_a_tensor_is_given_up_after_the_last_region_that_takes_it() -> None:
    held: list[int] = []
    results: list[Any] = []

    def compiler(module: GraphModule, _: Any) -> Callable[..., Any]:
        def run(*tensors: Tensor) -> Any:
            held.append(sum(result() is not None for result in results))
            (result,) = module(*tensors)
            results.append(weakref.ref(result))
            return (result,)

        return run

    module = graph_of(lambda x: (x.sin().cos().exp().tanh().neg().sum(),), X)
    run, _ = compiled_piecewise(module, regions(module, 1, 1), RegionCompiler(compiler), [X], lambda _: None)
    results.clear()
    held.clear()
    run([X])
    assert held == [0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("is_ahead", [False, True])
def test_an_interrupted_call_goes_on_where_it_ended(is_ahead: bool) -> None:
    left = [3]

    def compiler(module: GraphModule, _: Any) -> GraphModule:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return module

    module = graph_of(lambda x: (x.sin().cos().exp().tanh().neg(),), X)
    once, done = RegionCompiler(compiler, is_ahead=is_ahead), list[int]()
    call = partial(compiled_piecewise, module, regions(module, 1, 1), once, [X], done.append)
    with pytest.raises(KeyboardInterrupt):
        call()
    left[0] = 2
    _, (result,) = call()
    torch.testing.assert_close(result, X.sin().cos().exp().tanh().neg())
    assert done == [1, 2, 3, 1, 2, 3, 4, 5]
    assert all(one <= other or other == 1 for one, other in pairwise(done))
