"""What a function reads of Python: whatever a user binds anew, a plan of before is refused and jit makes another."""

import dataclasses
import operator
import os
import weakref
from collections import ChainMap, UserDict, UserList
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn, optim
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

import hofunc
from hofunc import hod, jit
from tests.cases import rand
from tests.checks import assert_equal, refused

GLOBAL: Any = torch.tanh


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return rand(device, 3, seed=1)


class Layers(nn.Module):
    """Reads functions of a library, as attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.activation: Callable[[Tensor], Tensor] = torch.tanh
        self.scale_0, self.scale_1 = 1.0, 2.0

    def forward(self, x: Tensor) -> Tensor:
        for number in range(2):
            x = self.activation(x) * getattr(self, f"scale_{number}")
        return x.sum()


class Others(Layers):
    """Does something else."""

    def forward(self, x: Tensor) -> Tensor:
        return x.exp().sum()


@dataclasses.dataclass
class Numbers:
    """Numbers that a function does not name."""

    one: float = 1.0
    other: float = 2.0


class WithActivation:
    """Has a function of a library in its class."""

    activation = staticmethod(torch.tanh)


def by_a_global(x: Tensor) -> Tensor:
    out: Tensor = GLOBAL(x)
    return out.sum()


def doubled(x: Tensor) -> Tensor:
    return (x * 2).exp().sum()


@pytest.fixture
def same(x: Tensor) -> Callable[[Callable[[Tensor], Tensor]], Callable[[Callable[[], object], str], None]]:
    """Return what makes a plan and a jit of a function, and checks them after something is bound anew."""

    def planned(f: Callable[[Tensor], Tensor]) -> Callable[[Callable[[], object], str], None]:
        transform = hod(f, 2)
        plan, jitted = transform.plan(x), jit(transform)
        assert_equal(plan(x), transform(x))
        assert_equal(jitted(x), transform(x))

        def check(change: Callable[[], object], named: str) -> None:
            before = transform(x)
            change()
            assert not torch.equal(transform(x), before)
            refused(lambda: plan(x), hofunc.ArgumentError, named, "as planned")
            assert_equal(jitted(x), transform(x))

        return check

    return planned


def test_functions_of_libraries(same: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layers, box = Layers(), SimpleNamespace(activation=torch.tanh)
    same(layers)(lambda: setattr(layers, "activation", torch.sin), "activation of a Layers")
    same(layers)(lambda: setattr(layers, "activation", nn.functional.softplus), "activation of a Layers")
    same(lambda x: box.activation(x).sum())(lambda: setattr(box, "activation", torch.sin), "activation of a Simple")
    of_class = same(lambda x: WithActivation.activation(x).sum())
    of_class(lambda: monkeypatch.setattr(WithActivation, "activation", staticmethod(torch.sin)), "activation of class")
    same(by_a_global)(lambda: monkeypatch.setitem(globals(), "GLOBAL", torch.sin), "GLOBAL of the globals")


def test_modules_in_the_place_of_others(same: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "GLOBAL", torch)
    check = same(lambda x: GLOBAL.square(x).sin().sum())
    stand_in = SimpleNamespace(square=torch.exp)
    check(lambda: monkeypatch.setitem(globals(), "GLOBAL", stand_in), "GLOBAL of the globals")


def test_methods_of_builtin_objects(same: Any) -> None:
    table, powers = {"scale": 2.0}, [2, 3]
    get, item = table.get, powers.__getitem__
    same(lambda x: (get("scale") * x**3).sum())(lambda: table.update(scale=3.0), "got 3.0, expected 2.0")
    same(lambda x: (x ** item(1)).sum())(lambda: powers.__setitem__(1, 4), "what is in it")


def test_names_that_are_computed(same: Any) -> None:
    layers, numbers, names = Layers(), Numbers(), ["one"]
    same(layers)(lambda: setattr(layers, "scale_1", 3.0), "scale_1 of a Layers")
    named: list[Callable[[], float]] = [
        lambda: sum(dataclasses.astuple(numbers)),
        lambda: sum(getattr(numbers, field.name) for field in dataclasses.fields(numbers)),
        lambda: sum(vars(numbers).values()),
        lambda: sum(getattr(numbers, name) for name in dir(numbers) if not name.startswith("_")),
        lambda: sum(map(numbers.__getattribute__, ("one", "other"))),
        lambda: sum(getattr(numbers, name) for name in names),
        lambda: operator.attrgetter(names[0])(numbers),
    ]
    for number in named:
        check = same(lambda x, number=number: (number() * x**3).sum())
        check(lambda: setattr(numbers, "one", numbers.one + 1), "one of a Numbers")
    same(lambda x: (sum(getattr(numbers, name) for name in names) * x**3).sum())(lambda: names.append("other"), "names")
    same(lambda x: (len(vars(numbers)) * x**3).sum())(lambda: setattr(numbers, "third", 0), "the attributes of a Num")


def test_code_and_classes_of_objects(same: Any) -> None:
    def inner(x: Tensor) -> Tensor:
        return x.sin().sum()

    layers = Layers()
    check = same(lambda x: inner(x) ** 2)
    assert isinstance(inner, FunctionType)
    check(lambda: setattr(inner, "__code__", doubled.__code__), "the code of the function inner")
    same(layers)(lambda: setattr(layers, "__class__", Others), "the class of a Layers")


def test_attributes_of_tensors(same: Any, x: Tensor) -> None:
    weight: Any = x.clone()
    weight.power = 3
    check = same(lambda x: (weight * x**weight.power).sum())
    check(lambda: setattr(weight, "power", 4), "power of a tensor")


def test_forms_of_tensors_that_no_op_takes(same: Any, x: Tensor) -> None:
    weight = nn.Parameter(x.detach().clone())
    check = same(lambda x: (x**3).sum() * len(weight))
    check(lambda: setattr(weight, "data", torch.zeros_like(x).repeat(2)), "a tensor that it looks at: got shape (6,)")
    held = [x.detach().clone()]
    same(lambda x: (x**3).sum() * held[0].dim())(lambda: held[0].unsqueeze_(0).unsqueeze_(0), "got shape (1, 1, 3)")
    other = [x.detach().clone()]
    check = same(lambda x: (x**3).sum() * other[0].element_size())
    check(lambda: setattr(other[0], "data", other[0].data.float()), "got shape (3,), dtype torch.float32, device")


def test_modules_that_torch_has_elsewhere(same: Any, x: Tensor) -> None:
    traced = fx.symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.Tanh()).to(x))
    by_graph = same(lambda x: traced(x).sum())
    by_graph(lambda: setattr(traced.get_submodule("0"), "weight", nn.Parameter(rand(x.device, 3, 3, seed=2))), "weight")
    same(lambda x: traced(x).sum())(lambda: traced.add_submodule("1", nn.Sigmoid()), "_modules of a Sequential")
    check, last = same(lambda x: traced(x).exp().sum()), [*traced.graph.nodes][-2]
    last.replace_all_uses_with(last.args[0])
    traced.graph.erase_node(last)
    check(traced.recompile, "forward of class Sequential")
    averaged = AveragedModel(nn.Bilinear(3, 3, 1).to(x))
    check = same(lambda x: averaged(x, x).sum())
    check(lambda: setattr(averaged, "module", nn.Bilinear(3, 3, 1).to(x)), "_modules of a AveragedModel")


def test_objects_that_train_networks(same: Any, x: Tensor) -> None:
    optimiser = optim.SGD([x.clone()], lr=0.5)
    schedule: Any = optim.lr_scheduler.ConstantLR(optimiser, 0.5)
    rates = [lambda: optimiser.param_groups[0]["lr"], lambda: schedule.get_last_lr()[0]]
    for rate in rates:
        check = same(lambda x, rate=rate: rate() * (x**3).sum())
        check(lambda: [optimiser.step(), *[schedule.step() for _ in range(5)]], "as planned")
        schedule.last_epoch = -1
        schedule.step()
    data: Any = TensorDataset(x.clone())
    same(lambda x: (data[0][0] * x**3).sum())(lambda: setattr(data, "tensors", (x * 2,)), "tensors of a TensorDataset")


def test_containers_that_are_written_in_python(same: Any) -> None:
    weights, other = UserDict(one=1.0), {"one": 1.0}
    first: dict[str, float] = {}
    chained, proxy, numbers = ChainMap(first, other), MappingProxyType(other), UserList([1.0])
    same(lambda x: weights["one"] * (x**3).sum())(lambda: weights.update(one=2.0), "got 2.0, expected 1.0")
    same(lambda x: numbers[0] * (x**3).sum())(lambda: numbers.__setitem__(0, 2.0), "got 2.0, expected 1.0")
    same(lambda x: chained["one"] * (x**3).sum())(lambda: other.update(one=3.0), "got 3.0, expected 1.0")
    same(lambda x: chained["one"] * (x**3).sum())(lambda: first.update(one=4.0), "got 1 things, expected 0")
    same(lambda x: proxy["one"] * (x**3).sum())(lambda: other.update(one=5.0), "got 5.0, expected 3.0")


def test_what_is_referred_to_weakly(same: Any) -> None:
    numbers, table = Numbers(), weakref.WeakKeyDictionary[Any, float]()
    reference: Any = weakref.ref(numbers)
    table[same] = 2.0
    same(lambda x: reference().one * (x**3).sum())(lambda: setattr(numbers, "one", 3.0), "one of a Numbers")
    same(lambda x: table[same] * (x**3).sum())(lambda: table.__setitem__(same, 3.0), "got 3.0, expected 2.0")


def test_modules_that_are_made(same: Any) -> None:
    settings: Any = ModuleType("settings")
    settings.power = 3
    same(lambda x: (x**settings.power).sum())(lambda: setattr(settings, "power", 4), "power of module settings")


def test_attributes_that_there_were_not(same: Any) -> None:
    class Box:
        """May have a power."""

    def tried(box: Any) -> int:
        try:
            return box.power
        except AttributeError:
            return 3

    for kind in (Box, SimpleNamespace):
        asking: list[Callable[[Any], int]] = [
            tried,
            lambda box: getattr(box, "power", 3),
            lambda box: box.power if hasattr(box, "power") else 3,
        ]
        for ask in asking:
            box: Any = kind()
            check = same(lambda x, ask=ask, box=box: (x ** ask(box)).sum())
            check(lambda box=box: setattr(box, "power", 4), "power of a ")


@contextmanager
def setting(set_to: Callable[[Any], object], now: Any) -> Iterator[None]:
    try:
        yield
    finally:
        set_to(now)


def test_settings_of_torch(same: Any) -> None:
    precision = torch.get_float32_matmul_precision()
    powers = {precision: 3}
    with setting(torch.set_float32_matmul_precision, precision):
        check = same(lambda x: (x ** powers.get(torch.get_float32_matmul_precision(), 5)).sum())
        check(
            lambda: torch.set_float32_matmul_precision("medium"), "matmul_precision of the settings of torch: got 'med"
        )
    threads = torch.get_num_threads()
    with setting(torch.set_num_threads, threads):
        check = same(lambda x: (x**3).sum() * torch.get_num_threads())
        check(lambda: torch.set_num_threads(threads + 1), f"got {threads + 1}, expected {threads}")
    enabled = torch.backends.cuda.flash_sdp_enabled()
    with setting(torch.backends.cuda.enable_flash_sdp, enabled):
        check = same(lambda x: (x ** (4 - torch.backends.cuda.flash_sdp_enabled())).sum())
        check(lambda: torch.backends.cuda.enable_flash_sdp(not enabled), "_get_flash_sdp_enabled")


def test_variables_of_the_environment(same: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOFUNC_POWER", raising=False)
    ways: list[Callable[[], str]] = [
        lambda: os.environ.get("HOFUNC_POWER", "3"),
        lambda: os.getenv("HOFUNC_POWER", "3"),
        lambda: os.environ["HOFUNC_POWER"] if "HOFUNC_POWER" in os.environ else "3",  # noqa: SIM401
    ]
    for way in ways:
        check = same(lambda x, way=way: (x ** int(way())).sum())
        check(lambda: monkeypatch.setenv("HOFUNC_POWER", "4"), "HOFUNC_POWER of the environment")
        check = same(lambda x, way=way: (x ** int(way())).sum())
        check(lambda: monkeypatch.delenv("HOFUNC_POWER"), "HOFUNC_POWER of the environment")


def test_classes_of_classes(same: Any) -> None:
    class Powers(type):
        power = 3

        @property
        def doubled(cls) -> int:
            return 2 * Powers.power

    class Power(metaclass=Powers):
        pass

    same(lambda x: (x**Power.doubled).sum())(lambda: setattr(Powers, "power", 2), "power of class Powers")
