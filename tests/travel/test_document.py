"""Documents: what is read is what was written, and what others wrote runs nothing and is refused."""

import json
import math
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

import hofunc
from hofunc.algebra.labels import Label, fresh_axes
from hofunc.errors import PlanFileError
from hofunc.graph.node import INPUT, Call, Exact, ExactComplex, Mask, Ref
from hofunc.internals import OpOverload
from hofunc.plan.program import Register
from hofunc.rules.registry import RULES
from hofunc.travel.document import _HOMES, _NO_HOMES, DAMAGE, Document, MissingError, read, written
from tests.checks import refused

aten = torch.ops.aten


class Pair(NamedTuple):
    """A pytree of a class of its own."""

    a: Any
    b: Any


def again(value: Any) -> Any:
    """Write a thing and read it."""
    return read(written("a test", {"thing": value}))["thing"]


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        2**70,
        0.1,
        math.inf,
        -math.inf,
        "a\nb\u00e9\ud800",
        (),
        (1, (2.0, (True, None))),
        [1, [2]],
        {1: "a", (2, 3): [4]},
        {1, 2},
        frozenset((1,)),
        1 + 2j,
        slice(1, None, 2),
        torch.float64,
        torch.strided,
        torch.channels_last,
        torch.device("cpu"),
        Ref(3),
        Call(aten.add.Tensor, (Ref(0), 1), (("alpha", 2),)),
        Mask(torch.exp, (Ref(0),)),
        aten.mm.default,
        torch.Tensor.expand,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_read_is_what_was_written(value: Any) -> None:
    got = again(value)
    assert got == value
    assert type(got) is type(value)
    assert repr(got) == repr(value)


def test_numbers_are_kept_to_the_last_bit() -> None:
    values = (0.0, -0.0, 5e-324, 1, 1.0, True)
    assert repr(again(values)) == repr(values)
    assert math.isnan(again(math.nan))
    assert repr(again(complex(-0.0, math.nan))) == repr(complex(-0.0, math.nan))
    got = again((Exact(-0.0), Exact(math.nan), ExactComplex(complex(0, -0.0))))
    assert got == (Exact(-0.0), Exact(math.nan), ExactComplex(complex(0, -0.0)))
    assert got[0] != Exact(0.0)


def test_texts_are_those_that_the_code_has() -> None:
    assert again("".join(["in", "put"])) is INPUT


def test_one_object_is_one_and_equal_ones_are_two() -> None:
    label, register, items = Label(2), Register(1), [1]
    one, two, other, first, second, third = again((label, label, Label(2), items, items, [1]))
    assert one is two is not other
    assert first is second is not third
    assert (one.size, first) == (2, [1])
    axes = fresh_axes((2, 2))
    got = again((axes, axes[0]))
    assert got[0][0][0].label is got[1][0].label is not got[0][1][0].label
    assert again(register).index == 1


def test_tensors_are_kept_with_their_memory_and_as_what_they_are() -> None:
    base = torch.arange(6.0)
    values = base[1:3], base[::2], nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True), base[1:3]
    first, second, parameter, followed, other = again(values)
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert [first.tolist(), second.tolist(), second.stride()] == [[1, 2], [0, 2, 4], (2,)]
    assert type(parameter) is nn.Parameter
    assert parameter.requires_grad
    assert followed.requires_grad
    assert followed.is_leaf
    assert type(followed) is Tensor
    assert first is not other
    assert again((base, base))[0] is not base


@pytest.mark.parametrize(
    "tree",
    [
        1,
        (1, [2, {"a": 3}]),
        Pair(1, Pair(2, 3)),
        OrderedDict(b=1, a=2),
        defaultdict(list, a=[1]),
        deque([1, 2], maxlen=3),
        torch.ones(2, 2).max(0),
    ],
    ids=lambda tree: type(tree).__name__,
)
def test_structures_of_pytrees(tree: Any) -> None:
    leaves, spec = tree_flatten(tree)
    assert again(spec) == spec
    assert type(torch.utils._pytree.tree_unflatten(leaves, again(spec))) is type(tree)


def test_functions_of_all_rules_have_names() -> None:
    """Those of elementwise rules, and the ops of hofunc itself that rules are of."""
    rules = {op: rule for op, rule in RULES.items() if hasattr(rule, "derivative")}
    assert len(rules) > 80
    for op, rule in rules.items():
        if isinstance(op, OpOverload) and op.namespace == "aten":
            assert again(rule.derivative) is rule.derivative
    own = [op for op in RULES if not isinstance(op, OpOverload) and getattr(op, "__module__", "").startswith("hofunc")]
    assert len(own) > 5
    for op in own:
        if not type(op).__module__.startswith("hofunc"):
            assert again(op) is op


def test_what_has_no_name_is_refused() -> None:
    local = namedtuple("local", "a")
    unnamed = [object(), torch.Generator(), hofunc.hod, open, local, _call, torch.einsum, hofunc.errors, lambda: 1]
    for value in unnamed:
        refused(partial(again, value), PlanFileError, "a test: a plan that is to be saved", "in its thing")


def _call() -> None:
    raise AssertionError


# What others wrote.


def entries(*made: Any, tensors: tuple[Any, ...] = ()) -> Any:
    """Read entries, of which the last is the thing."""
    text = json.dumps([*made, ["part", "thing", [len(made) - 1]]])
    return read(Document(text, [*tensors], []))["thing"]


def damaged(*made: Any, tensors: tuple[Any, ...] = ()) -> None:
    """Check that entries are refused."""
    with pytest.raises(DAMAGE):
        entries(*made, tensors=tensors)


def test_entries_that_are_none() -> None:
    assert entries(["tuple", 1, 2]) == (1, 2)
    for made in ([], ["unknown"], ["tuple", [0]], ["tuple", [1]], ["tuple", [-1]], ["tuple", ["a"]], ["tuple", [True]]):
        damaged(made)
    damaged(["tuple", {"a": 1}])
    damaged("tuple")
    damaged(["dict", 1])
    damaged(["tensor", 0, False, False])
    damaged(["tensor", 0, False, False], tensors=(1,))
    damaged(["tensor", 0, True, False], tensors=(torch.tensor(1),))
    damaged(["structure", "builtins:tuple", None, 1])
    for text in ("", "[", "{}", "1", "null", '["part"]'):
        with pytest.raises(DAMAGE):
            read(Document(text, [], []))["thing"]


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "builtins:eval",
        "builtins:exec",
        "operator:attrgetter",
        "hofunc.testing.golden_file:save",
        "hofunc.files:write_whole",
        "hofunc.rules.registry:define",
        "hofunc.run.executor:compiled",
        "hofunc.plan.builder:Builder",
        "hofunc.plan.program:torch.load",
        "hofunc.plan.builder:Builder.emit",
        "hofunc.plan.program:Register.__init__.__globals__",
        "hofunc.plan.tracing:Callable",
    ],
)
def test_no_other_functions_are_found(name: str) -> None:
    damaged(["function", name])


@pytest.mark.parametrize("name", ["load", "einsum", "from_file", "ops", "nn", "float65", "Tensor", "set_default_dtype"])
def test_no_other_names_of_torch_are_found(name: str) -> None:
    damaged(["torch", name])


@pytest.mark.parametrize("name", ["__class__", "__reduce_ex__", "register_hook", "storage", "grad", "unknown"])
def test_no_other_methods_are_found(name: str) -> None:
    damaged(["method", name])


@pytest.mark.parametrize("name", ["aten.from_file.default", "aten.mm", "load_library", "_dir", "aten", ""])
def test_no_other_ops_are_found(name: str) -> None:
    with pytest.raises((MissingError, *DAMAGE)):
        entries(["op", name])


@pytest.mark.parametrize("name", ["builtins:object", "subprocess:Popen", "torch.nn:Module", "builtins:type"])
def test_no_other_classes_are_found(name: str) -> None:
    damaged(["class", name])
    for kind in ("object", "fields", "number"):
        damaged([kind, name, 1.0])
    with pytest.raises(MissingError):
        entries(["structure", name, None])


def test_an_object_is_made_without_its_code() -> None:
    register = entries(["object", "hofunc.plan.program:Register", "index", 3])
    assert register.index == 3
    damaged(["object", "hofunc.plan.program:Register", "index"])
    damaged(["object", "hofunc.plan.program:Register", "other", 3])
    damaged(["class", "hofunc.plan.program:Step"], ["object", "hofunc.signature:_Star", "__class__", [0]])
    damaged(["fields", "hofunc.graph.node:Ref", 1, 2])


@pytest.mark.parametrize(
    "made",
    [
        ["op", "nobody.knows.default"],
        ["function", "hofunc.plan.program:unknown"],
        ["function", "hofunc.plan.unknown:unknown"],
        ["rule", "unknown"],
        ["class", "nobody:Knows"],
        ["structure", "nobody:Knows", None],
    ],
)
def test_what_is_not_there_is_missing(made: list[Any]) -> None:
    with pytest.raises(MissingError):
        entries(made)


def test_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("importlib.import_module", failing)
    with pytest.raises(MissingError):
        entries(["class", "antigravity:Knows"])


def test_where_functions_are() -> None:
    assert all(any(name.startswith(home) for home in _HOMES) for name in _NO_HOMES)
    function: Callable[..., Any] = hofunc.views.narrow_scatter
    assert again(function) is function
