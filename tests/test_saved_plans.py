"""Plans that are saved and loaded: the same numbers, the same refusals, and nothing of the function itself."""

import copy
import math
import pickle
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves

import hofunc
from hofunc.releases import RELEASE
from tests.cases import rand
from tests.checks import refused
from tests.travel.kept import SAVED, layer, weight

pytestmark = pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.plan"


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return rand(device, 4, 3)


def through(path: Path, plan: hofunc.Plan) -> hofunc.Plan:
    """Save a plan, and load it."""
    plan.save(path)
    return hofunc.load_plan(path)


def assert_same(got: Any, expected: Any) -> None:
    """Compare two results to the last bit, and their structure."""
    (leaves, spec), (others, other) = tree_flatten(got), tree_flatten(expected)
    assert len(leaves) == len(others)
    assert spec.type is other.type
    for leaf, each in zip(leaves, others, strict=True):
        assert type(leaf) is type(each)
        if isinstance(leaf, Tensor):
            assert leaf.dtype == each.dtype
            assert torch.equal(leaf.isnan(), each.isnan())
            assert torch.equal(leaf.nan_to_num(), each.nan_to_num())
        else:
            assert repr(leaf) == repr(each)


# What it is.


@pytest.mark.parametrize("name", SAVED)
def test_a_loaded_plan_is_the_plan(name: str, path: Path) -> None:
    saved = SAVED[name]()
    plan = saved.plan()
    loaded = through(path, plan)
    for scale in (1, 1.01):
        if name != "a number" or scale == 1:
            assert_same(saved.called(loaded, scale), saved.called(plan, scale))
    assert repr(loaded) == repr(plan)
    assert (loaded.orders, loaded.strategy) == (plan.orders, plan.strategy)
    assert loaded.explain().partition("\n\n")[0] == plan.explain().partition("\n\n")[0]
    again = pickle.loads(pickle.dumps(loaded))  # noqa: S301 - what was pickled here
    assert_same(saved.called(again), saved.called(plan))
    assert again.explain() == loaded.explain()


def test_it_says_what_was_known_when_it_was_saved(x: Tensor, path: Path) -> None:
    plan = hofunc.hessian(lambda x: layer(layer(x)).sum(), strategy="reverse").plan(x)
    parts, told = plan.explain().split("\n\n"), through(path, plan).explain().split("\n\n")
    assert [parts[0], *parts[2:]] == [told[0], *told[2:]]
    assert f"* {plan.strategy}" in " ".join(told[1].split())
    assert any("was not planned so far" in line for line in told[1].splitlines())


@pytest.mark.parametrize("name", ["MLP", "indices"])
def test_it_becomes_a_graph_and_compiles(name: str, path: Path) -> None:
    saved = SAVED[name]()
    plan = saved.plan()
    loaded = through(path, plan)
    graph, expected = loaded.to_fx(), plan.to_fx()
    assert graph.code == expected.code
    assert graph.__doc__ == expected.__doc__
    compiled = loaded.compile(backend="eager")
    assert compiled.is_compiled
    assert_same(saved.called(compiled), saved.called(plan))


def test_what_is_compiled_is_saved_as_it_was_before(path: Path) -> None:
    saved = SAVED["MLP"]()
    plan = saved.plan()
    loaded = through(path, plan.compile(backend="eager"))
    assert not loaded.is_compiled
    assert repr(loaded) == repr(plan)
    assert_same(saved.called(loaded), saved.called(plan))


def test_autograd_and_vmap_go_through_it(x: Tensor, path: Path) -> None:
    plan = hofunc.hessian(lambda x: (x.sin() * x).sum()).plan(x)
    loaded = through(path, plan)
    got, expected = (torch.func.grad(lambda x, p=p: (p(x) ** 2).sum())(x) for p in (loaded, plan))
    assert_same(got, expected)
    xs = torch.stack([x, 2 * x])
    assert_same(torch.func.vmap(loaded)(xs), torch.func.vmap(plan)(xs))


def test_a_copy_is_the_plan_itself(x: Tensor) -> None:
    plan = hofunc.hessian(lambda x: (x**3).sum()).plan(x)
    assert copy.copy(plan) is plan
    assert copy.deepcopy([plan])[0] is plan


def test_it_is_in_what_torch_saves(x: Tensor) -> None:
    plan = hofunc.hessian(lambda x: (x**3).sum()).plan(x)
    buffer = BytesIO()
    torch.save({"plan": plan, "x": x}, buffer)
    buffer.seek(0)
    found = torch.load(buffer, weights_only=True)
    assert_same(found["plan"](found["x"]), plan(x))


# What it captured.


def test_captured_tensors_travel_by_value(x: Tensor, path: Path) -> None:
    scale = torch.full((3,), 2.0, dtype=x.dtype, device=x.device)
    plan = hofunc.hessian(lambda x: (x**3 * scale).sum()).plan(x)
    expected = plan(x)
    loaded = through(path, plan)
    scale.mul_(2)
    assert_same(loaded(x), expected)
    assert_same(plan(x), 2 * expected)
    assert_same(through(path, plan)(x), 2 * expected)


def test_tensors_that_share_memory_do_so_again(x: Tensor, path: Path) -> None:
    base = rand(x.device, 6, 6)
    parts = base[:3, :3], base.t()[1:4, ::2], nn.Parameter(rand(x.device, 3, 3))
    plan = hofunc.hessian(lambda x: (x @ parts[0] @ parts[1] @ parts[2] @ parts[0]).sin().sum()).plan(x)
    captured = through(path, plan).to_fx()
    tensors = [*captured.parameters(), *captured.buffers()]
    assert {tensor.stride() for tensor in tensors} == {part.stride() for part in parts}
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 2
    assert [each.requires_grad for each in captured.parameters()] == [True]
    assert_same(through(path, plan)(x), plan(x))


def test_a_history_is_left_behind(x: Tensor, path: Path) -> None:
    slope = torch.ones(3, dtype=x.dtype, device=x.device, requires_grad=True) * 2
    loaded = through(path, hofunc.hessian(lambda x: (x**3 * slope).sum()).plan(x))
    assert loaded(x).requires_grad
    (captured,) = loaded.to_fx().buffers()
    assert captured.is_leaf


def test_what_is_conjugated_lazily_is_so_again(device: torch.device, path: Path) -> None:
    z = torch.complex(rand(device, 3), rand(device, 3, seed=1)).conj()
    plan = hofunc.hessian(lambda x: (x * z).abs().pow(4).sum()).plan(rand(device, 3))
    assert_same(through(path, plan)(rand(device, 3)), plan(rand(device, 3)))


def test_it_does_not_look_at_the_function_again(x: Tensor, path: Path) -> None:
    held = [2]
    plan = hofunc.hessian(lambda x: (x ** held[0]).sum()).plan(x)
    loaded = through(path, plan)
    expected = plan(x)
    held[0] = 3
    refused(lambda: plan(x), hofunc.ArgumentError, "as planned")
    assert_same(loaded(x), expected)


# What it still refuses.


def test_it_refuses_what_the_plan_refused(x: Tensor, path: Path) -> None:
    loaded = through(path, hofunc.hessian(lambda x, n=2: x.sum() ** n if x.sum() > -100 else x.sum()).plan(x, n=3))
    refused(lambda: loaded(x[:2], n=3), hofunc.ArgumentError, "shape (2, 3)", "shape (4, 3)")
    refused(lambda: loaded(x, n=2), hofunc.ArgumentError, "kwargs['n']", "got 2")
    refused(lambda: loaded(x - 100, n=3), hofunc.ArgumentError, "reads values")
    with torch.autocast(x.device.type, torch.bfloat16):
        refused(lambda: loaded(x, n=3), hofunc.ArgumentError, "the state of torch", "autocast")


def test_it_finds_what_is_not_finite(path: Path) -> None:
    x = torch.tensor([0.0, 1.0])
    with hofunc.detect_anomaly():
        loaded = through(path, hofunc.jacobian(lambda x: x.sqrt().sum()).plan(x + 1))
        refused(lambda: loaded(x), hofunc.AnomalyError, "aten.sqrt.default", "test_saved_plans.py")


# What cannot be saved.


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:  # noqa: ARG004 - torch passes it
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad * ctx.saved_tensors[0]


class _Wrapped(Tensor):
    pass


def _in_python(x: Tensor) -> Tensor:
    return x * x


_held: Tensor = torch.ones(3).as_subclass(_Wrapped)

UNSAVED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "a Function": (lambda x: _Square.apply(x).sum(), (), "_Square, a custom torch.autograd.Function, in its steps"),
    "a function": (lambda x, g: g(x).sum(), (_in_python,), "in its arguments"),
    "an object": (lambda x, _: x.sum(), (object(),), "of type object, in its arguments"),
    "a subclass": (lambda x: (x * _held).sum(), (), "a tensor of the class _Wrapped"),
}


@pytest.mark.parametrize("name", UNSAVED)
def test_what_is_known_here_alone_is_not_saved(name: str, path: Path) -> None:
    f, others, part = UNSAVED[name]
    plan = hofunc.jacobian(f).plan(torch.ones(3), *others)
    for call in (lambda: plan.save(path), lambda: pickle.dumps(plan)):
        refused(call, hofunc.PlanFileError, "jacobian(<lambda>): a plan that is to be saved", part)
    assert not path.exists()


# What is no plan.


@pytest.fixture
def data(path: Path) -> bytes:
    hofunc.hessian(lambda x: (x @ weight).tanh().sum()).plan(torch.ones(2, 3, dtype=torch.float64)).save(path)
    return path.read_bytes()


def unread(path: Path, data: bytes, *parts: str) -> None:
    """Check that data are no plan, in a file or pickled."""
    path.write_bytes(data)
    refused(lambda: hofunc.load_plan(path), hofunc.PlanFileError, str(path), *parts)


def test_a_file_that_is_cut_off(path: Path, data: bytes) -> None:
    for count in (*range(0, len(data), 199), len(data) - 1):
        unread(path, data[:count])
    unread(path, data + b"\0", "other bytes than were written", "cut off, or was changed")


def test_a_file_in_which_a_byte_is_another(path: Path, data: bytes) -> None:
    for place in (*range(0, 160, 7), *range(160, len(data), 211)):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        unread(path, bytes(changed))


def test_other_files(path: Path, data: bytes) -> None:
    zipped = BytesIO()
    torch.save({"text": "[]", "tensors": []}, zipped)
    ran: list[int] = []
    _RAN.append(ran)
    for other in (b"", b"\n", zipped.getvalue(), pickle.dumps(_Runs()), b"hofunc plan of something", data[12:]):
        unread(path, other, "something else" if not other.startswith(b"hofunc plan") else "")
    pickled = pickle.dumps(_Bytes(data[:99]))
    refused(lambda: pickle.loads(pickled), hofunc.PlanFileError, "a pickled plan")  # noqa: S301 - as above
    assert not ran
    with pytest.raises(FileNotFoundError):
        hofunc.load_plan(path.with_name("none"))


_RAN: list[list[int]] = []


class _Runs:
    """What says so when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _run, ()


class _Bytes:
    """What is pickled as a plan of some bytes."""

    def __init__(self, data: bytes):
        self.data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return hofunc.callable_plan.unpickled, (self.data,)


def _run() -> None:
    _RAN[-1].append(1)


@pytest.mark.parametrize(
    ("name", "there", "here"),
    [("format", "2", "3"), ("hofunc", '"99.1"', hofunc.__version__), ("torch", '"99.1"', ".".join(map(str, RELEASE)))],
)
def test_a_plan_of_another_version(name: str, there: str, here: str, path: Path, data: bytes) -> None:
    line, _, rest = data.partition(b"\n")
    now = f'"{name}": ' + (here if name == "format" else f'"{here}"')
    assert now.encode() in line
    changed = line.replace(now.encode(), f'"{name}": {there}'.encode())
    unread(path, changed + b"\n" + rest, f"{name} {there.replace(chr(34), chr(39))}", here, "Make the plan anew")


def test_a_file_is_written_whole_or_not_at_all(path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = hofunc.hessian(lambda x: math.pi * (x**3).sum()).plan(torch.ones(2))

    def failing(*_: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(OSError, match="no room"):
        plan.save(path)
    assert path.read_bytes() == data
    assert [*path.parent.iterdir()] == [path]
    assert len(tree_leaves(hofunc.load_plan(path)(torch.ones(2, 3, dtype=torch.float64)))) == 1
