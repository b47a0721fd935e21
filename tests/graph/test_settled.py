"""What functions keep from call to call: plans of those whose calls find what they need as they left it, and no others.

Every plan is compared with the transform itself, call after call, with others of the transform and of f in between.
"""

import contextlib
import copy
import functools
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import transforms

import hofunc
from hofunc import hod
from tests.cases import rand
from tests.checks import assert_equal, refused

Pair = namedtuple("Pair", "one other")


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return rand(device, 3, seed=1)


class Keeper:
    """Keeps what it is told to in attributes."""

    shared = 2.0

    def __init__(self, device: torch.device):
        self.weight = rand(device, 3, seed=2)
        self.scale = 2.0
        self.inputs: Any = (self.weight, [self.weight, 2.0])
        self.table: dict[Any, Any] = {"weight": self.weight, "power": 3}
        self.cache: Any = None
        self.last: Any = None
        self.count, self.log = 0, [0.0]
        self.memo: dict[Any, Any] = {}


# What may change from call to call, since it decides nothing.


def rebuilt_tuple(self: Keeper, x: Tensor) -> Tensor:
    self.inputs = tuple(self.inputs)
    return (x**3 * self.inputs[0]).sum()


def rebuilt_list_in_a_tuple(self: Keeper, x: Tensor) -> Tensor:
    self.inputs = self.inputs[0], list(self.inputs[1])
    return (x**3 * self.inputs[1][0]).sum() * self.inputs[1][1]


def rebuilt_dict(self: Keeper, x: Tensor) -> Tensor:
    self.table = dict(self.table)
    return (x ** self.table["power"] * self.table["weight"]).sum()


def rebuilt_namedtuple(self: Keeper, x: Tensor) -> Tensor:
    self.last = Pair(self.weight, 2.0) if self.last is None else Pair(*self.last)
    return (x**3 * self.last.one).sum() * self.last.other


def rebuilt_ordered_dict(self: Keeper, x: Tensor) -> Tensor:
    self.table = OrderedDict(self.table)
    return (x ** self.table["power"] * self.table["weight"]).sum()


def rebuilt_set(self: Keeper, x: Tensor) -> Tensor:
    self.last = set(self.last or (2.0, 3.0))
    return (x**3).sum() * sum(self.last)


def bound_first(self: Keeper, x: Tensor) -> Tensor:
    self.last = x.sin()
    return (self.last**3 * self.weight).sum()


def bound_first_in_another_function(self: Keeper, x: Tensor) -> Tensor:
    bound_first(self, x)
    return (self.last**3 * x).sum()


def a_new_object(self: Keeper, x: Tensor) -> Tensor:
    self.last = SimpleNamespace(x=x, scale=2.0)
    return (self.last.x**3).sum() * self.last.scale


def a_new_dict_of_objects(self: Keeper, x: Tensor) -> Tensor:
    self.last = {}
    self.last[x] = SimpleNamespace(scale=2.0)
    return (x**3).sum() * self.last[x].scale


def bound_by_its_name(self: Keeper, x: Tensor) -> Tensor:
    setattr(self, "last", x.sin())  # noqa: B010
    return (getattr(self, "last") ** 3).sum()  # noqa: B009


def a_number_of_the_input(self: Keeper, x: Tensor) -> Tensor:
    self.last = len(x) + 0.5
    return (x**3).sum() * self.last


def only_bound(self: Keeper, x: Tensor) -> Tensor:
    self.last = (x**3).sum()
    return (x**3).sum()


def counted(self: Keeper, x: Tensor) -> Tensor:
    self.count += 1
    return (x**3).sum()


def counted_in_a_dict(self: Keeper, x: Tensor) -> Tensor:
    self.memo["last"] = x
    return (x**3).sum()


def logged(self: Keeper, x: Tensor) -> Tensor:
    self.log.append(float(len(x)))
    return (x**3).sum()


def a_lazy_cache(self: Keeper, x: Tensor) -> Tensor:
    if self.cache is None:
        self.cache = self.weight.exp()
    return (x**3 * self.cache).sum()


def a_lazy_cache_of_the_first_input(self: Any, x: Tensor) -> Tensor:
    if not hasattr(self, "first"):
        self.first = x.detach().clone()
    return (x**3 * self.first).sum()


def a_memo_by_shape(self: Keeper, x: Tensor) -> Tensor:
    if x.shape not in self.memo:
        self.memo[x.shape] = self.weight.sin()
    return (x**3 * self.memo[x.shape]).sum()


def the_input_of_the_last_call(self: Any, x: Tensor) -> Any:
    """Compare it with this one, as transforms of distributions do."""
    if self.last is None or self.last[0] is not x:
        self.last = x, (x**3).sum()
    return self.last[1]


def a_reference_to_the_last_input(self: Any, x: Tensor) -> Any:
    if self.last is None or self.last[0]() is not x:
        self.last = weakref.ref(x), (x**3).sum(), x
    return self.last[1]


class Properties(Keeper):
    """Computes some attributes when they are asked for."""

    @functools.cached_property
    def table_of_weights(self) -> Tensor:
        return self.weight.exp()

    @property
    def current(self) -> float:
        return self.scale

    @current.setter
    def current(self, value: float) -> None:
        self.scale = value


def a_cached_property(self: Properties, x: Tensor) -> Tensor:
    return (x**3 * self.table_of_weights).sum()


def a_property_that_is_bound_first(self: Properties, x: Tensor) -> Tensor:
    self.current = 3.0
    return (x**3).sum() * self.current


@functools.lru_cache
def of_length(length: int) -> float:
    return length + 0.5


def a_cached_function(_: Keeper, x: Tensor) -> Tensor:
    return (x**3).sum() * of_length(len(x))


def a_count_up_to_two(self: Keeper, x: Tensor) -> Tensor:
    if self.count < 2:
        self.count = self.count + 1
    return (x ** (self.count + 1)).sum()


def what_vmap_leaves(self: Keeper, x: Tensor) -> Tensor:
    def of_row(row: Tensor) -> Tensor:
        self.cache = self.last is row
        self.last = row * 2
        return row**3

    result: Tensor = torch.func.vmap(of_row)(x).sum()
    return result


class Slotted:
    __slots__ = ("kept", "last")


SLOTTED: Any = Slotted()


def bound_first_in_a_slot(_: Keeper, x: Tensor) -> Tensor:
    SLOTTED.last = SimpleNamespace(x=x)
    return (SLOTTED.last.x**3).sum()


def a_default(self: Keeper, x: Tensor) -> Tensor:
    return (x**3).sum() * getattr(self, "extra", 2.0) * (3.0 if hasattr(self, "more") else 1.0)


HARMLESS = [
    a_default,
    *(what_vmap_leaves, bound_first_in_a_slot),
    *(a_cached_property, a_property_that_is_bound_first, a_cached_function, a_count_up_to_two),
    *(rebuilt_tuple, rebuilt_list_in_a_tuple, rebuilt_dict, rebuilt_namedtuple, rebuilt_ordered_dict, rebuilt_set),
    *(bound_first, bound_first_in_another_function, a_new_object, a_new_dict_of_objects, bound_by_its_name),
    *(a_number_of_the_input, only_bound, counted, counted_in_a_dict, logged),
    *(a_lazy_cache, a_lazy_cache_of_the_first_input, a_memo_by_shape),
    *(the_input_of_the_last_call, a_reference_to_the_last_input),
]


@pytest.mark.parametrize("method", HARMLESS, ids=lambda method: method.__name__)
def test_plans_of_what_settles(method: Callable[[Keeper, Tensor], Tensor], x: Tensor) -> None:
    f = functools.partial(method, Properties(x.device))
    transform = hod(f, 2)
    plan = transform.plan(x)
    for number in range(3):
        at = x.cos() * number
        assert_equal(plan(at), transform(at))
        f(at)
        transform(at.sin())
        torch.func.hessian(f)(x)
        assert_equal(plan(at), transform(at))


def test_what_is_found_changes_no_more(x: Tensor) -> None:
    """The first call makes what the second finds, and later ones only find."""
    keeper = Keeper(x.device)
    calls: list[int] = []

    def f(x: Tensor) -> Tensor:
        calls.append(1)
        return a_lazy_cache(keeper, x)

    plan = hod(f, 2).plan(x)
    assert len(calls) == 2
    plan(x)
    assert len(calls) == 2
    pure = Keeper(x.device)
    plan = hod(lambda x: (x**3).sum(), 2).plan(x)
    pure.weight.mul_(2)
    assert_equal(plan(x), (6 * x).diag())


def test_a_plan_that_is_made_inside(x: Tensor) -> None:
    keeper = Keeper(x.device)

    def f(x: Tensor) -> Tensor:
        keeper.last = x
        slope = hod(functools.partial(bound_first, keeper), 1).plan(x.detach())(x.detach())
        return (keeper.last**3 * slope).sum()

    transform = hod(f, 2)
    plan = transform.plan(x)
    assert_equal(plan(x), transform(x))


# What a user changes.


@pytest.mark.parametrize(
    ("method", "change", "named"),
    [
        (rebuilt_tuple, {"inputs": (torch.ones(3), 1.0)}, "an item of inputs of a Keeper: got another Tensor"),
        (rebuilt_tuple, {"inputs": (torch.ones(3),)}, "inputs of a Keeper: got 1 things, expected 2"),
        (rebuilt_tuple, {"inputs": [torch.ones(3)]}, "inputs of a Keeper: got another list, expected the tuple"),
        (rebuilt_dict, {"table": {"weight": torch.ones(3), "power": 3}}, "['weight'] of table of a Keeper"),
        (rebuilt_namedtuple, {"last": Pair(torch.ones(3), 2.0)}, "an item of last of a Keeper"),
        (a_lazy_cache, {"cache": torch.ones(3)}, "cache of a Keeper: got another Tensor, expected the Tensor"),
        (a_memo_by_shape, {"memo": {torch.Size([3]): torch.ones(3)}}, "memo of a Keeper: got another Tensor"),
        (a_count_up_to_two, {"count": 3}, "count of a Keeper: got 3, expected 2"),
        (the_input_of_the_last_call, {"last": None}, "last of a Keeper: got None, expected the tuple"),
        (a_default, {"extra": 3.0}, "extra of a Keeper: got 3.0, expected nothing"),
        (a_default, {"more": None}, "more of a Keeper: got None, expected nothing"),
        (a_cached_property, {"table_of_weights": torch.ones(3)}, "table_of_weights of a Properties: got another"),
    ],
)
def test_what_a_user_changes(
    method: Callable[[Keeper, Tensor], Tensor], change: dict[str, Any], named: str, x: Tensor
) -> None:
    keeper = Properties(x.device) if "Properties" in named else Keeper(x.device)
    transform = hod(functools.partial(method, keeper), 2)
    plan = transform.plan(x)
    for _ in range(2):
        assert_equal(plan(x), transform(x))
    vars(keeper).update(change)
    refused(lambda: plan(x), hofunc.ArgumentError, named, "as planned")


@pytest.mark.parametrize("method", [bound_first, a_new_object, a_number_of_the_input, only_bound, counted, logged])
def test_what_a_user_changes_that_is_not_looked_at(method: Callable[[Keeper, Tensor], Tensor], x: Tensor) -> None:
    keeper = Keeper(x.device)
    transform = hod(functools.partial(method, keeper), 2)
    plan = transform.plan(x)
    keeper.last, keeper.count, keeper.log = torch.ones(5), 7, []
    assert_equal(plan(x), transform(x))


def test_an_attribute_that_a_class_is_given(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = hod(functools.partial(a_default, Properties(x.device)), 2).plan(x)
    plan(x)
    monkeypatch.setattr(Keeper, "extra", 3.0, raising=False)
    refused(lambda: plan(x), hofunc.ArgumentError, "extra of class Keeper: got 3.0, expected nothing")


def test_a_tensor_that_is_used_in_the_place_of_one_that_is_not(x: Tensor) -> None:
    """Which tensor f finds matters where it may be one that f has by another name."""
    keeper = Keeper(x.device)

    def f(x: Tensor) -> Tensor:
        y = (x**3 * keeper.weight).sum() * (2 if keeper.last is keeper.weight else 1)
        keeper.last = x * 2
        return y

    plan = hod(f, 2).plan(x)
    hod(f, 2)(x)
    assert_equal(plan(x), hod(f, 2)(x))
    keeper.last = keeper.weight
    refused(lambda: plan(x), hofunc.ArgumentError, "last of a Keeper: got another Tensor")


def test_tensors_that_were_two_and_are_one(x: Tensor) -> None:
    keeper = Keeper(x.device)

    def f(x: Tensor) -> Tensor:
        y = (x**3).sum() * (2 if keeper.last is keeper.cache else 1)
        keeper.last, keeper.cache = x * 2, x * 2
        return y

    f(x)
    plan = hod(f, 2).plan(x)
    hod(f, 2)(x)
    assert_equal(plan(x), hod(f, 2)(x))
    f(x)
    keeper.last = keeper.cache
    refused(lambda: plan(x), hofunc.ArgumentError, "of a Keeper: got another Tensor")


# What never settles.


def a_hidden_state(self: Keeper, x: Tensor) -> Tensor:
    self.last = x if self.last is None else (x + self.last).tanh()
    return (self.last**3).sum()


def a_hidden_state_in_a_list(self: Keeper, x: Tensor) -> Tensor:
    self.inputs[1][0] = (x + self.inputs[1][0]).tanh()
    return (self.inputs[1][0] ** 3).sum()


def a_count(self: Keeper, x: Tensor) -> Tensor:
    self.count += 1
    return (x**3).sum() * self.count


def a_count_with_a_limit(self: Keeper, x: Tensor) -> Tensor:
    self.count += 1
    return (x**3).sum() if self.count < 7 else (x**2).sum()


def a_flag(self: Keeper, x: Tensor) -> Tensor:
    self.last = not self.last
    return (x**3).sum() * (2 if self.last else 1)


def a_memo_by_id(self: Any, x: Tensor) -> Any:
    if id(x) not in self.memo:
        self.memo[id(x)] = x, (x**3).sum()
    return self.memo[id(x)][1]


def a_log_that_is_read(self: Keeper, x: Tensor) -> Tensor:
    self.log.append(1.0)
    return (x**3).sum() * sum(self.log)


def an_object_before_the_last(self: Keeper, x: Tensor) -> Tensor:
    last, self.last = self.last, SimpleNamespace(scale=len(self.log))
    self.log = [*self.log, 1.0]
    return (x**3).sum() * (1 if last is None else last.scale)


def past_its_name(self: Keeper, x: Tensor) -> Tensor:
    before = self.__dict__["last"]
    self.last = x * 2
    return (x**3 * (1 if before is None else before)).sum()


def in_a_copy(self: Keeper, x: Tensor) -> Tensor:
    before = copy.copy(self)
    self.last = x * 2
    return (x**3 * (1 if before.last is None else before.last)).sum()


def of_another_object(self: Keeper, x: Tensor) -> Tensor:
    """Bind it in one object before it is looked at, but not in another of the same class."""
    self.last, other = x, self.memo.setdefault("other", Keeper(x.device))
    other.last = x if other.last is None else other.last + x
    return (self.last * other.last**2).sum()


def deleted(self: Any, x: Tensor) -> Tensor:
    if hasattr(self, "extra"):
        del self.extra
        return (x**3).sum()
    self.extra = 1.0
    return (x**2).sum()


def a_generator(self: Keeper, x: Tensor) -> Tensor:
    self.table = self.table if "numbers" in self.table else {"numbers": (n for n in range(1, 100))}
    return (x**3).sum() * next(self.table["numbers"])


def of_its_class(self: Keeper, x: Tensor) -> Tensor:
    type(self).shared = self.shared + 1
    return (x**3).sum() * self.shared


UNSETTLED = [
    *(a_hidden_state, a_hidden_state_in_a_list, a_count, a_count_with_a_limit, a_flag, a_memo_by_id),
    *(a_log_that_is_read, an_object_before_the_last, past_its_name, in_a_copy, of_another_object, deleted),
    *(a_generator, of_its_class),
]


@pytest.mark.parametrize("method", UNSETTLED, ids=lambda method: method.__name__)
def test_no_plans_of_what_never_settles(method: Callable[[Keeper, Tensor], Tensor], x: Tensor) -> None:
    f = functools.partial(method, Keeper(x.device))
    error = "a plan of a function that looks at what its calls change"
    refused(lambda: hod(f, 2).plan(x), hofunc.UntracedError, error, "calls")


COUNT = 0


def test_no_plans_of_variables_that_change(x: Tensor) -> None:
    count = 0

    def f(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return (x**3).sum() * count

    def g(x: Tensor) -> Tensor:
        global COUNT  # noqa: PLW0603
        COUNT = COUNT + 1
        return (x**3).sum() * COUNT

    refused(lambda: hod(f, 2).plan(x), hofunc.UntracedError, "count of the closure of f: got 4", "expected 3")
    refused(lambda: hod(g, 2).plan(x), hofunc.UntracedError, "COUNT of the globals of")


def test_classes_are_left_as_they_were(x: Tensor) -> None:
    before = dict(vars(Keeper))
    for method in (bound_first, a_hidden_state):
        with contextlib.suppress(hofunc.UntracedError):
            hod(functools.partial(method, Keeper(x.device)), 2).plan(x)
    assert dict(vars(Keeper)) | {"shared": 0} == before | {"shared": 0}


# Of torch.


def test_a_network_with_kept_weights_that_is_called_with_others(x: Tensor) -> None:
    net = nn.LSTM(3, 2, dtype=x.dtype).to(x.device)
    weights = {name: rand(x.device, *value.shape, seed=3) for name, value in net.named_parameters()}

    def f(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(net, weights, (x[None],))[0]
        return (result**2).sum()

    transform = hod(f, 1)
    plan = transform.plan(weights, x)
    for number in range(3):
        other = {name: value * 0.9**number for name, value in weights.items()}
        assert_equal(plan(other, x * number), transform(other, x * number))


@pytest.mark.parametrize("size", [0, 1])
def test_transforms_of_distributions_that_keep_the_last_call(size: int, x: Tensor) -> None:
    maps = [transforms.SigmoidTransform(size), transforms.AffineTransform(1.0, 2.0, cache_size=size)]
    chain = transforms.ComposeTransform(maps, cache_size=size)

    def f(x: Tensor) -> Tensor:
        y = chain(x)
        return y + chain.log_abs_det_jacobian(x, y) + chain.inv(y * 0.9)

    transform = hod(f, 2)
    plan = transform.plan(x)
    for number in range(3):
        f(x)
        assert_equal(plan(x * number), transform(x * number))
