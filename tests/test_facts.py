"""Plans against the world: whatever a recording depended on is changed underneath, and none may go stale.

After every change a plan returns what the transform returns then, or raises an error that says what has changed.
"""

import copy
import cProfile
import importlib
import math
import random
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import hofunc
import hofunc.run.cache
import tests.settings
from hofunc import hod
from tests.cases import rand
from tests.checks import assert_equal, refused

Change = Callable[[], Any]
Made = tuple[Callable[[Tensor], Tensor], Change, str]  # a function, what changes its world, and what an error names


def stale_or_right(f: Callable[..., Tensor], change: Change, named: str, x: Tensor, *args: Any) -> None:
    """Change the world under a plan, and check that it is not stale."""
    transform = hod(f, 2)
    plan = transform.plan(x, *args)
    before = plan(x, *args)
    assert_equal(before, transform(x, *args))
    change()
    after = transform(x, *args)
    assert not torch.equal(after, before), "the change makes no difference"
    if named:
        refused(lambda: plan(x, *args), hofunc.ArgumentError, named, "as planned")
    else:
        assert_equal(plan(x, *args), after)


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return rand(device, 3, seed=1)


# What is read of tensors past the ops.

READS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda s: s[1].item(),
    "float": lambda s: float(s[1]),
    "tolist": lambda s: s.tolist()[1],
    "numpy": lambda s: float(s.detach().numpy()[1]),
    "asarray": lambda s: float(np.asarray(s.detach())[1]),
    "an array of numbers": lambda s: float(np.array([s[0], s[1]])[1]),
    "dlpack": lambda s: float(np.from_dlpack(s.detach())[1]),
    "torch.tensor": lambda s: torch.tensor([s[0], s[1]])[1],
    "torch.as_tensor": lambda s: torch.as_tensor([s[1]])[0],
    "torch.asarray": lambda s: torch.asarray([s[1]])[0],
    "new_tensor": lambda s: s.new_tensor([s[1], 2.0])[0],
    "scalar_tensor": lambda s: torch.scalar_tensor(s[1]),  # type: ignore[arg-type]
    "full": lambda s: torch.full((2,), s[1])[0],  # type: ignore[call-overload]
    "from_numpy": lambda s: torch.from_numpy(s.detach().numpy())[1],
    "storage": lambda s: s.untyped_storage()[8],
    "deepcopy": lambda s: copy.deepcopy(s.detach())[1],
    "math": lambda s: math.exp(s[1]),
    "format": lambda s: float(f"{s[1]:.6f}"),
    "iteration": lambda s: [float(v) for v in s][1],
    "index": lambda s: [1.0, 2.0, 3.0, 4.0][s[1].mul(3).abs().long()],
    "a power": lambda s: 2.0 ** float(s[1]),
    "a default of add": lambda s: torch.add(torch.ones(()), torch.ones(()), alpha=s[1].item()),
    "map": lambda s: list(map(float, s))[1],
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("of", ["an argument", "a captured tensor", "what is computed from it"])
def test_numbers_that_leave_torch(read: Callable[[Tensor], Any], of: str, x: Tensor) -> None:
    s = rand(x.device, 3, seed=2)

    def f(x: Tensor, *given: Tensor) -> Tensor:
        taken = given[0] if given else s
        taken = taken * 2 if of == "what is computed from it" else taken
        return (x**3).sum() * read(taken)

    args = () if of == "a captured tensor" else (s,)
    transform = hod(f, 2)
    plan = transform.plan(x, *args)
    assert_equal(plan(x, *args), transform(x, *args))
    with torch.no_grad():
        s.mul_(-1.25).sub_(0.5)
    try:
        got = plan(x, *args)
    except hofunc.HofuncError as error:
        assert "as planned" in str(error)  # noqa: PT017 - either is right
    else:
        assert_equal(got, transform(x, *args))


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_numbers_that_leave_torch_have_no_single_value_under_vmap(read: Callable[[Tensor], Any], x: Tensor) -> None:
    rows = torch.stack([x, 2 * x])
    with pytest.raises(hofunc.HofuncError):
        torch.func.vmap(hod(lambda x: (x**3).sum() * read(x), 2))(rows)


def test_numbers_that_are_as_they_were_are_no_change(x: Tensor) -> None:
    s = torch.tensor([math.nan, -0.0, 2.0], dtype=x.dtype, device=x.device)
    plan = hod(lambda x, s: (x**3).sum() * s.tolist()[2], 2).plan(x, s)
    assert_equal(plan(x, s.clone()), plan(x, s))
    refused(lambda: plan(x, s.nan_to_num()), hofunc.ArgumentError, "[0.0, -0.0, 2.0] from torch.Tensor.tolist")


@pytest.mark.parametrize("made", [nn.Parameter, lambda y: nn.Parameter(y.sin()), lambda y: y.clone().data])
def test_a_parameter_that_is_made_of_what_is_computed(made: Callable[[Tensor], Tensor], x: Tensor) -> None:
    transform = hod(lambda x: (x**3 * made(x)).sum(), 2)
    plan = transform.plan(x)
    assert_equal(plan(x.clone()).detach(), transform(x).detach())
    try:
        got = plan(2 * x)
    except hofunc.ArgumentError as error:
        assert "from _make_subclass, expected" in str(error)  # noqa: PT017 - either is right
    else:
        assert_equal(got.detach(), transform(2 * x).detach())


@pytest.mark.parametrize("cls", [Tensor, type("Sub", (Tensor,), {})])
def test_other_data_of_what_has_an_alias(cls: type[Tensor], x: Tensor) -> None:
    """The alias that f makes at every call would be of the new data, but the plan has that of the old."""
    w = nn.Parameter(torch.ones(3).to(x), requires_grad=False)
    plan = hod(lambda x: (x**3 * w.as_subclass(cls)).sum(), 2).plan(x)
    w.mul_(2)
    assert_equal(plan(x), (12 * x).diag())
    w.data = torch.ones(3).to(x)
    refused(lambda: plan(x), hofunc.ArgumentError, "the data of a captured tensor: got another UntypedStorage")


def test_a_parameter_that_is_captured_is_no_reading(x: Tensor) -> None:
    net = nn.Linear(3, 1, dtype=x.dtype).to(x.device)

    def f(x: Tensor) -> Tensor:
        return net(x).sin().sum() * nn.Parameter(torch.ones(()).to(x))

    plan = hod(f, 2).plan(x)
    with torch.no_grad():
        net.weight.mul_(2)
    assert_equal(plan(2 * x).detach(), hod(f, 2)(2 * x).detach())


def test_what_makes_a_tensor_like_another_reads_no_numbers(x: Tensor) -> None:
    plan = hod(lambda x: (x**3 * x.new_tensor([1.0, 2.0, 3.0])).sum() + x.new_zeros(()), 2).plan(x)
    assert_equal(plan(2 * x), hod(lambda x: (x**3 * torch.arange(1, 4)).sum(), 2)(2 * x))


# The state of torch.


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


class Halving(TorchFunctionMode):
    """Lets exponents be halved, as nothing but a mode does."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = (args[0], 2) if func is Tensor.pow else args
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("world", "named"),
    [
        (lambda: torch.autocast("cpu", torch.bfloat16), "autocast"),
        (lambda: torch.autocast("cpu", torch.float16), "autocast"),
        (lambda: default_dtype(torch.float64), "the default dtype"),
        (lambda: torch.device("meta"), "the default device"),
        (deterministic, "deterministic algorithms"),
        (Halving, "the modes of torch functions"),
    ],
)
def test_a_plan_is_of_the_state_of_torch(world: Callable[[], Any], named: str) -> None:
    weight, x = torch.randn(3, 3), torch.randn(3)
    transform = hod(lambda x: ((weight @ x) ** 3).sum(), 2)
    plan, outside = transform.plan(x), transform(x)
    with world():
        refused(lambda: plan(x), hofunc.ArgumentError, f"the state of torch: got {named} as")
    if named not in {"the default device"}:
        with world():
            inside = transform.plan(x)
            assert_equal(inside(x), transform(x))
        refused(lambda: inside(x), hofunc.ArgumentError, named)
    assert torch.equal(plan(x), outside)


def test_autocast_keeps_no_copy_of_a_weight_that_is_trained() -> None:
    net = nn.Linear(3, 2)
    x = torch.randn(3)
    transform = hod(lambda x: (net(x) ** 3).sum(), 2)
    with torch.autocast("cpu", torch.bfloat16):
        net(x)  # autocast has a copy now
        plan = transform.plan(x)
        before = plan(x)
        with torch.no_grad():
            net.weight.mul_(2)
        torch.clear_autocast_cache()
        assert_equal(plan(x).detach(), transform(x).detach())
        assert not torch.equal(plan(x), before)
        assert torch.is_autocast_cache_enabled()


def test_derivatives_are_not_rounded_by_autocast() -> None:
    x, weight = torch.randn(4), torch.randn(4, 4)

    def f(x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return (((x @ weight).softmax(-1) @ weight).sin() / x.norm()).sum()

    exact = hod(f, 2)(x)
    with torch.autocast("cpu", torch.bfloat16):
        hofunc.run.cache.forget()
        assert torch.equal(hod(f, 2)(x), exact)
        plan = hod(f, 2).plan(x)
        assert torch.allclose(plan(x), exact, atol=1e-6)
        assert torch.allclose(plan.compile(backend="eager")(x), exact, atol=1e-6)
        graph = plan.to_fx()
        assert torch.allclose(torch.func.vmap(hod(f, 2))(x[None])[0], exact, atol=1e-6)
    assert torch.allclose(graph(x)[0], exact, atol=1e-6)


# Captured tensors.


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda w: setattr(w, "data", w.data[:1]), "captured tensor 0: got shape (1, 3)"),
        (lambda w: setattr(w, "data", w.data.float()), "got dtype torch.float32, expected dtype torch.float64"),
        (lambda w: setattr(w, "data", 2 * w.data.t().contiguous().t()), "got strides (1, 3)"),
        (lambda w: setattr(w, "data", w.data * 2), ""),
        (lambda w: w.mul_(2), ""),
    ],
)
def test_captured_tensors_change_only_their_values(change: Callable[[Tensor], Any], named: str, x: Tensor) -> None:
    w = rand(x.device, 3, 3, seed=4)
    stale_or_right(lambda x: ((w.to(x.dtype) @ x) ** 3).sum() + w.sum(), lambda: change(w), named, x) if named else (
        stale_or_right(lambda x: ((w @ x) ** 3).sum(), lambda: change(w), named, x)
    )


def test_whether_autograd_follows_a_tensor_matters_to_who_asks(x: Tensor) -> None:
    w = rand(x.device, 3, seed=5)
    named = "requires_grad of a captured tensor: got True, expected False"
    used = lambda x: (x**3 * w).sum() * (2 if w.requires_grad else 1)  # noqa: E731
    stale_or_right(used, partial(w.requires_grad_), named, x)
    unused = lambda x: (x**3).sum() * (2 if w.requires_grad else 1)  # noqa: E731
    stale_or_right(unused, partial(w.requires_grad_, False), "got False, expected True", x)
    of_result = lambda x: (x**3).sum() * (2 if (w * 2).grad_fn else 1)  # noqa: E731
    stale_or_right(of_result, partial(w.requires_grad_), named, x)


def test_what_is_differentiated_by_is_followed_for_whoever_asks(x: Tensor) -> None:
    plan = hod(lambda x: (x**3 * (2 if x.requires_grad else 1)).sum(), 2).plan(x.detach())
    assert_equal(plan(x), (12 * x).diag())
    refused(lambda: plan(x.clone().requires_grad_()), hofunc.ArgumentError, "got requires_grad True")


def test_whether_autograd_follows_a_tensor_does_not_matter_to_others(x: Tensor) -> None:
    w = rand(x.device, 3, seed=5)
    plan = hod(lambda x: (x**3 * w).sum(), 2).plan(x)
    expected = plan(x)
    w.requires_grad_()
    assert_equal(plan(x).detach(), expected)
    assert plan(x).requires_grad
    assert_equal(plan(x.clone().requires_grad_()).detach(), expected)


def test_gradients_that_a_function_reads(x: Tensor) -> None:
    w = rand(x.device, 3, seed=5).requires_grad_()
    (w * w).sum().backward()
    stale_or_right(
        lambda x: (x**3 * w.grad).sum(), partial(setattr, w, "grad", w.detach() * 3), "grad of a captured", x
    )


# Python objects.

SCALE = 2.0
TABLE = {"scale": 2.0}


class Owner:
    """An object with all that may change."""

    shared = 2.0

    def __init__(self, device: torch.device):
        self.scale, self.more, self.weight = 2.0, [2.0, 3.0], rand(device, 3, seed=6)
        self.inner = SimpleNamespace(scale=2.0)
        self.unread = 1

    def __call__(self, x: Tensor) -> Tensor:
        return (x**3 * self.weight).sum() * self.scale * self.more[0] * self.inner.scale * self.shared

    def method(self, x: Tensor) -> Tensor:
        return self(x) * 2


class Slotted:
    __slots__ = ("scale",)


def _of_owner(change: Callable[[Owner], Any], named: str) -> Callable[[Tensor], Made]:
    def made(x: Tensor) -> Made:
        owner = Owner(x.device)
        return owner.method, lambda: change(owner), named

    return made


def _closure(x: Tensor) -> Made:  # noqa: ARG001
    scale = 2.0

    def change() -> None:
        nonlocal scale
        scale = 3.0

    return lambda x: (x**3).sum() * scale, change, "scale of the closure of <lambda>"


def _nested_closure(x: Tensor) -> Made:
    f, change, _ = _closure(x)
    return torch.func.vmap(lambda row: f(row) ** 2), change, "scale of the closure"


def _global(_: Tensor) -> Made:
    return lambda x: (x**3).sum() * SCALE, lambda: globals().update(SCALE=SCALE + 1), "SCALE of the globals of"


def _global_by_its_module(_: Tensor) -> Made:
    change = partial(globals().update, SCALE=SCALE + 1)
    return lambda x: (x**3).sum() * sys.modules[__name__].SCALE, change, "SCALE of "


def _constant_of_a_module(_: Tensor) -> Made:
    change = partial(setattr, tests.settings, "SCALE", 3.0)
    return lambda x: (x**3).sum() * tests.settings.SCALE, change, "SCALE of module tests.settings"


def _table(_: Tensor) -> Made:
    return lambda x: (x**3).sum() * TABLE["scale"], lambda: TABLE.update(scale=TABLE["scale"] + 1), "['scale'] of TABLE"


def _slots(_: Tensor) -> Made:
    held = Slotted()
    held.scale = 2.0  # type: ignore[attr-defined]
    return lambda x: (x**3).sum() * held.scale, partial(setattr, held, "scale", 3.0), "scale of a Slotted"  # type: ignore[attr-defined]


def _array(_: Tensor) -> Made:
    numbers = np.array([1.0, 2.0])
    return lambda x: (x**3).sum() * float(numbers[1]), lambda: numbers.__imul__(2), "the contents of a ndarray"


def _by_name(x: Tensor) -> Made:
    owner = Owner(x.device)
    return lambda x: (x**3).sum() * getattr(owner, "scale"), partial(setattr, owner, "scale", 3.0), "scale of a Owner"  # noqa: B009


def _partial(x: Tensor) -> Made:
    owner = Owner(x.device)
    f = partial(lambda x, owner: (x**3).sum() * owner.scale, owner=owner)
    return f, partial(setattr, owner, "scale", 3.0), "scale of a Owner"


def _module(change: Callable[[Any], Any], named: str) -> Callable[[Tensor], Made]:
    def made(x: Tensor) -> Made:
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.5), nn.LayerNorm(4), nn.Linear(4, 1))
        net = net.to(x.device, x.dtype).eval().requires_grad_(False)
        return lambda x: net(x).sum(), lambda: change(net), named

    return made


def _hooked(net: nn.Sequential) -> None:
    net[1].register_forward_hook(lambda module, args, out: out * 2)


OBJECTS: dict[str, Callable[[Tensor], Made]] = {
    "a closure": _closure,
    "a closure of a function in a closure": _nested_closure,
    "a global": _global,
    "a global by its module": _global_by_its_module,
    "a constant of a module": _constant_of_a_module,
    "a table": _table,
    "slots": _slots,
    "an array": _array,
    "an attribute by its name": _by_name,
    "a partial": _partial,
    "an attribute": _of_owner(lambda owner: setattr(owner, "scale", 3.0), "scale of a Owner"),
    "an attribute of an attribute": _of_owner(lambda owner: setattr(owner.inner, "scale", 3.0), "of a SimpleNamespace"),
    "an item of an attribute": _of_owner(lambda owner: owner.more.__setitem__(0, 3.0), "an item of more of a Owner"),
    "a longer list": _of_owner(lambda owner: owner.more.insert(0, 3.0), "more of a Owner"),
    "another tensor": _of_owner(lambda owner: setattr(owner, "weight", owner.weight * 2), "weight of a Owner"),
    "an attribute over one of the class": _of_owner(lambda owner: setattr(owner, "shared", 3.0), "shared of a Owner"),
    "another parameter": _module(
        lambda net: setattr(net[0], "weight", nn.Parameter(net[0].weight * 2)), "['weight'] of _parameters of a Linear"
    ),
    "another layer": _module(lambda net: net.__setitem__(1, nn.Sigmoid()), "['1'] of _modules of a Sequential"),
    "a layer less": _module(lambda net: net.__delitem__(3), "_modules of a Sequential"),
    "a number of a layer": _module(lambda net: setattr(net[3], "eps", 0.5), "eps of a LayerNorm"),
    "a hook": _module(_hooked, "_forward_hooks of a Tanh"),
    "a parameter in place": _module(lambda net: net[0].weight.mul_(2), ""),
    "loaded weights": _module(lambda net: net.load_state_dict({k: v * 2 for k, v in net.state_dict().items()}), ""),
}


def test_a_global_of_the_name_of_a_method_is_none_of_a_functions_business(x: Tensor) -> None:
    space: dict[str, Any] = {"exp": 1.0, "T": x}
    exec("def f(x):\n    return (x.exp() * x[None].T.sum()).sum()", space)
    plan = hod(space["f"], 2).plan(x)
    space |= {"exp": 2.0, "T": x + 1}
    assert_equal(plan(x), hod(space["f"], 2)(x))


@pytest.mark.parametrize("made", OBJECTS.values(), ids=OBJECTS)
def test_python_objects(made: Callable[[Tensor], Made], x: Tensor) -> None:
    f, change, named = made(x)
    stale_or_right(f, change, named, x)


class Base:
    def scaled(self, x: Tensor) -> Tensor:
        return x * 2

    def __call__(self, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def static(x: Tensor) -> Tensor:
        return x * 2

    @property
    def factor(self) -> float:
        return 2.0


class Derived(Base):
    pass


OVERRIDES: dict[str, tuple[Callable[[Derived, Tensor], Tensor], str, Any]] = {
    "method": (lambda owner, x: owner.scaled(x), "scaled", lambda self, x: x * 3),
    "call": (lambda owner, x: owner(x), "__call__", lambda self, x: x * 3),
    "static method": (lambda owner, x: owner.static(x), "static", staticmethod(lambda x: x * 3)),
    "property": (lambda owner, x: x * owner.factor, "factor", property(lambda self: 3.0)),
}


@pytest.mark.parametrize("name", OVERRIDES)
@pytest.mark.parametrize("kind", [Base, Derived])
def test_what_classes_define(name: str, kind: type, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    use, label, other = OVERRIDES[name]
    owner = Derived()
    stale_or_right(
        lambda x: use(owner, x**3).sum(), lambda: monkeypatch.setattr(kind, label, other, raising=False), label, x
    )


def test_a_method_that_an_object_has_of_its_own(x: Tensor) -> None:
    net = nn.Linear(3, 3).to(x)
    stale_or_right(lambda x: net(x**3).sum(), lambda: setattr(net, "forward", lambda x: x * 3), "forward", x)


@pytest.mark.parametrize("of_its_own", [{}, {"default": 2.0}])
def test_a_context_variable(of_its_own: dict[str, float], x: Tensor) -> None:
    variable: ContextVar[float] = ContextVar("scale", **of_its_own)

    def f(x: Tensor) -> Tensor:
        return (x**3).sum() * variable.get(2.0)

    stale_or_right(f, lambda: variable.set(3.0), "the value of the context variable scale", x)


def test_closures_of_properties_and_static_methods(x: Tensor) -> None:
    held = [2.0]

    class Owner:
        @property
        def factor(self) -> float:
            return held[0]

        @staticmethod
        def static(x: Tensor) -> Tensor:
            return x * held[0]

    owner = Owner()
    for f in (lambda x: (x**3).sum() * owner.factor, lambda x: owner.static(x**3).sum()):
        stale_or_right(f, lambda: held.__setitem__(0, held[0] + 1), "held", x)


def test_hooks_of_all_layers(x: Tensor) -> None:
    net, handles = nn.Linear(3, 3).to(x), []

    def change() -> None:
        handles.append(nn.modules.module.register_module_forward_hook(lambda *args: args[2] * 3))

    try:
        stale_or_right(lambda x: net(x**3).sum(), change, "_global_forward_hooks", x)
    finally:
        handles.pop().remove()


def test_callables_of_a_module_that_is_imported(x: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hofunc_test_callables.py").write_text(
        "import functools, torch\n"
        "net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()).double()\n"
        "scaled = functools.partial(torch.mul, other=2.0)\n"
        "def helper(x, factors=[2.0]):\n    return x * factors[0]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module: Any = importlib.import_module("hofunc_test_callables")
    module.net.to(x)
    changes: list[tuple[Callable[[Tensor], Tensor], Change, str]] = [
        (lambda x: module.net(x**3), lambda: module.net.__setitem__(1, nn.Sigmoid()), "Tanh"),
        (lambda x: module.scaled(x**3), lambda: module.scaled.keywords.update(other=3.0), "other"),
        (
            lambda x: module.helper(x**3),
            lambda: module.helper.__defaults__[0].append(module.helper.__defaults__[0].pop() + 1),
            "__defaults__",
        ),
        (lambda x: module.helper(x**3), lambda: setattr(module.helper, "__defaults__", ([7.0],)), "__defaults__"),
        (lambda x: module.helper(x**3), lambda: setattr(module, "helper", lambda x: x * 5), "helper"),
    ]
    for f, change, named in changes:
        stale_or_right(lambda x, f=f: f(x).sum(), change, named, x)


def test_a_long_chain_of_objects(x: Tensor) -> None:
    head = last = SimpleNamespace(scale=2.0, then=None)
    for _ in range(2000):
        last.then = last = SimpleNamespace(scale=2.0, then=None)

    def f(x: Tensor) -> Tensor:
        return (x**3).sum() * head.then.then.scale

    stale_or_right(f, partial(setattr, head.then.then, "scale", 3.0), "scale of a SimpleNamespace", x)


class Switch:
    """A setting of a library, which is kept in a class."""

    on = False


def test_a_setting_in_a_class_of_a_module(x: Tensor) -> None:
    library = types.ModuleType("library")
    library.__file__ = __file__
    library.Switch = Switch  # type: ignore[attr-defined]

    def f(x: Tensor) -> Tensor:
        return (x**3).sum() * (2 if library.Switch.on else 1)

    stale_or_right(f, partial(setattr, Switch, "on", True), "on of class Switch", x)


def test_an_object_that_is_an_argument(x: Tensor) -> None:
    owner = Owner(x.device)
    stale_or_right(lambda x, owner: owner(x), partial(setattr, owner, "scale", 3.0), "scale of a Owner", x, owner)
    net = nn.Linear(3, 1, dtype=x.dtype).to(x.device).requires_grad_(False)
    replace = lambda: setattr(net, "weight", nn.Parameter(net.weight * 2))  # noqa: E731
    stale_or_right(lambda x, net: net(x).sum() ** 3, replace, "['weight'] of _parameters of a Linear", x, net)


def test_training_and_evaluation(x: Tensor) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5)).to(x.device, x.dtype).eval()
    plan = hod(lambda x: (net(x) ** 3).sum(), 2).plan(x)
    net.train()
    refused(lambda: plan(x), hofunc.ArgumentError, "training of a", "got True, expected False, as planned")
    net.eval()
    plan(x)
    net.float()
    refused(lambda: plan(x), hofunc.ArgumentError, "captured tensor 0", "got dtype torch.float32")


def test_what_is_not_read_may_change(x: Tensor) -> None:
    owner = Owner(x.device)
    plan = hod(owner.method, 2).plan(x)
    owner.unread = 2
    owner.scale = float("2.0")
    assert_equal(plan(x), hod(owner.method, 2)(x))


# Random generators, profilers and copies.


def test_a_seed_inside_a_function_is_refused(x: Tensor) -> None:
    def f(x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return (x**3 * torch.rand_like(x)).sum()

    refused(lambda: hod(f, 2).plan(x), hofunc.UntracedError, "sets the state of a random generator", "aten.rand_like")
    assert_equal(hod(f, 2)(x), hod(f, 2)(x))
    own = torch.Generator(x.device)
    drawn = lambda x: (x**3 * torch.bernoulli(x.sigmoid(), generator=own.manual_seed(1))).sum()  # noqa: E731
    refused(lambda: hod(drawn, 2).plan(x), hofunc.UntracedError, "aten.bernoulli")
    constant = lambda x: (x**3 * torch.rand(3, generator=torch.Generator().manual_seed(1))).sum()  # noqa: E731
    assert_equal(hod(constant, 2).plan(x)(x), hod(constant, 2)(x))


def test_a_profiler_goes_on() -> None:
    seen: list[str] = []

    def profile(_: Any, event: str, __: Any) -> None:
        seen.append(event)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        hod(torch.sin, 2).plan(torch.ones(()))
        assert sys.getprofile() is profile
        with pytest.raises(hofunc.HofuncError):
            hod(lambda x: x.add_(1), 2).plan(torch.ones(()))
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(before)
    profiler = cProfile.Profile()
    profiler.enable()
    hod(torch.sin, 2).plan(torch.ones(()))
    random.random()  # noqa: S311
    profiler.disable()
    assert any("random" in str(entry.code) for entry in profiler.getstats())


def test_a_profiler_of_torch_that_sees_stacks_is_in_nobodys_way() -> None:
    """It watches lines by an object that is neither called nor enabled, so that plans ended in an AttributeError."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True):
        plan = hod(torch.sin, 2).plan(torch.ones(()))
    assert_equal(plan(torch.ones(())), -torch.ones(()).sin())


def test_a_copy_of_a_plan_is_the_plan(x: Tensor) -> None:
    w = rand(x.device, 3, seed=7)
    plan = hod(lambda x: {"y": (x**3 * w).sum()}, 2).plan(x)
    for copied in (copy.copy(plan), copy.deepcopy(plan), copy.deepcopy({"plan": plan})["plan"]):
        assert_equal(copied(x)["y"], plan(x)["y"])
        w.mul_(2)
        (result,) = copied.to_fx()(x)
        assert_equal(copied(x)["y"], result)


def test_modules_that_the_function_imports(x: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_late.py").write_text("import settings_of_late\nscale = settings_of_late.scale\n")
    (tmp_path / "settings_of_late.py").write_text("scale = 3.0\n")
    monkeypatch.syspath_prepend(tmp_path)

    def f(x: Tensor) -> Tensor:
        import imported_late  # type: ignore[import-not-found]  # noqa: PLC0415

        result: Tensor = (x * imported_late.scale).sin()
        return result

    def g(x: Tensor) -> Tensor:
        from imported_late import scale  # noqa: PLC0415

        result: Tensor = (x * scale).sin()
        return result

    plans = [hod(f, 1).plan(x), hod(g, 1).plan(x)]
    vars(sys.modules["settings_of_late"])["scale"] = 5.0  # read once, by the code that the first import ran
    for plan in plans:
        assert_equal(plan(x), hod(f, 1)(x))
    vars(sys.modules["imported_late"])["scale"] = 5.0
    for plan in plans:
        refused(partial(plan, x), hofunc.errors.ArgumentError, "scale of module imported_late: got 5.0")


def test_what_makes_tensors_of_numbers_passes_tensors_on(x: Tensor) -> None:
    plan = hod(lambda x: (torch.as_tensor(x) ** 3 + torch.asarray(x) ** 2).sum(), 2).plan(x * 2)
    assert_equal(plan(x), (6 * x + 2).diag())


@pytest.mark.parametrize(
    "use", [Tensor.detach, lambda p: p.data, lambda p: p.view_as(p), lambda p: p.reshape(1), lambda p: p * 1]
)
def test_views_captured_beside_what_they_are_views_of(use: Callable[[Tensor], Tensor], x: Tensor) -> None:
    weight = nn.Parameter(torch.tensor(0.5).to(x), requires_grad=False)
    repeated = weight.unsqueeze(-1).expand(3)
    transform = hod(lambda x: (use(weight) * x**3).sum() + (repeated * x**2).sum(), 2)
    plan = transform.plan(x * 2)
    assert_equal(plan(x), (3 * x + 1).diag())
    weight.mul_(2)
    assert_equal(plan(x), (6 * x + 2).diag())


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Parameter(torch.full((3,), 2.0)),
        lambda: nn.Parameter(torch.tensor([2.0, 2.0, 2.0])),
        lambda: nn.Parameter(torch.ones(3) + 1),
        lambda: nn.Parameter(torch.ones(1)).expand(3) * 2,
        lambda: nn.ParameterList([torch.full((3,), 2.0)])[0],
        lambda: torch.full((3,), 2.0, requires_grad=True),
        lambda: torch.full((3,), 1.0).requires_grad_() * 2,
    ],
)
def test_parameters_that_f_makes_leave_no_graph(make: Callable[[], Tensor], x: Tensor) -> None:
    plan = hod(lambda x: (make().to(x) * x**3).sum(), 2).plan(x * 2)
    assert_equal(plan(x), (12 * x).diag())
    assert not plan(x).requires_grad


def test_a_parameter_of_captured_memory_is_no_constant(x: Tensor) -> None:
    weight = torch.ones(3).to(x)
    plan = hod(lambda x: (nn.Parameter(weight[:]) * x**3).sum(), 2).plan(x * 2)
    assert_equal(plan(x).detach(), (6 * x).diag())
    weight.mul_(2)
    refused(partial(plan, x), hofunc.errors.ArgumentError, "from _make_subclass")
