"""Calls that repeat an earlier one, and those that differ from it in anything: results are those of a first call."""

import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten

import hofunc
from hofunc import repeat
from hofunc.graph import asking
from hofunc.transform import Transform
from tests.cases import rand
from verification.oracles import relative_error

CPU = torch.device("cpu")
MET = 3  # calls until one repeats another


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Note of every call whether it went the way of a first one, with nothing met before."""
    found: list[bool] = []
    called, repeated = Transform._called, Transform._repeated

    def noting(self: Transform, args: tuple, kwargs: dict) -> Any:
        found[-1] = True
        return called(self, args, kwargs)

    def noting_again(self: Transform, args: tuple, kwargs: dict) -> Any:
        found.append(False)
        return repeated(self, args, kwargs)

    monkeypatch.setattr(Transform, "_called", noting)
    monkeypatch.setattr(Transform, "_repeated", noting_again)
    asking._met.clear()
    repeat._repeats.clear()
    return found


def agree(got: Any, want: Any) -> None:
    """Compare results, and how they are nested."""
    (found, form), (expected, other) = tree_flatten(got), tree_flatten(want)
    assert form == other
    for one, two in zip(found, expected, strict=True):
        assert one.dtype == two.dtype
        assert relative_error(one, two) < 1e-12


def cubes(x: Tensor) -> Tensor:
    """Return a function of which all derivatives are known: the slope is 3 x², and so on."""
    return (x**3).sum()


def _after(transform: Callable[..., Any], then: Callable[[Any], Any]) -> Callable[[Tensor], Any]:
    return lambda x: then(transform(x))


def _times_cosine(product: Callable[..., Any]) -> Callable[[Tensor], Any]:
    return lambda x: product(x, vector=x.cos())


TRANSFORMS: dict[str, tuple[Callable[[Any], Any], Callable[[Tensor], Any]]] = {
    "hod": (lambda f: hofunc.hod(f, 1), lambda x: 3 * x**2),
    "hessian": (hofunc.hessian, lambda x: torch.diag(6 * x)),
    "derivatives": (lambda f: hofunc.derivatives(f, 2), lambda x: (cubes(x), 3 * x**2, torch.diag(6 * x))),
    "compact": (lambda f: _after(hofunc.hod(f, 2, layout="compact"), lambda y: y.dense()), lambda x: torch.diag(6 * x)),
    "einsum": (lambda f: hofunc.einsum(f, ", i, i -> i"), lambda x: 6 * x),
    "several": (
        lambda f: hofunc.einsum(f, {"slope": ", i -> i", "trace": ", i, i ->"}),
        lambda x: {"slope": 3 * x**2, "trace": 6 * x.sum()},
    ),
    "hvp": (lambda f: _times_cosine(hofunc.hvp(f)), lambda x: 6 * x * x.cos()),
    "chunks": (lambda f: hofunc.hessian(f, chunk_size=2), lambda x: torch.diag(6 * x)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("is_new", [False, True], ids=["kept", "made for every call"])
def test_calls_that_repeat_one_are_right(name: str, is_new: bool, first: list[bool]) -> None:
    make, expected = TRANSFORMS[name]
    transform = make(cubes)
    for seed in range(MET + 2):
        x = rand(CPU, 4, seed=seed)
        agree((make(cubes) if is_new else transform)(x), expected(x))
    assert first[MET:] == [False, False]


def test_transforms_of_one_function_are_told_apart(first: list[bool]) -> None:
    x = rand(CPU, 4)
    transforms = [(make(cubes), expected) for make, expected in TRANSFORMS.values()]
    for _ in range(MET + 2):
        for transform, expected in transforms:
            agree(transform(x), expected(x))
    assert not any(first[-len(TRANSFORMS) :])


def test_functions_of_one_code_are_told_apart() -> None:
    def times(factor: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: (factor * x**3).sum()

    x, factors = rand(CPU, 4), rand(CPU, 6, 4)
    for _ in range(MET + 1):
        for factor in factors:
            agree(hofunc.hessian(times(factor))(x), torch.diag(6 * factor * x))


def test_arguments_of_other_forms_are_told_apart(first: list[bool]) -> None:
    """Whatever differs is compared with what torch says of these arguments."""

    def f(x: Any, y: Any = 1.0) -> Tensor:
        leaves = [leaf.to(torch.float64) for leaf in tree_flatten(x)[0]]
        return sum((leaf.cos() * leaf.exp()).sum() for leaf in leaves) * y

    one, two = rand(CPU, 4, seed=1), rand(CPU, 4, seed=2)
    square = rand(CPU, 3, 3)
    transposed = square.T
    calls: list[tuple] = [
        (one,),
        (one, 2.0),
        (one, two.sum()),
        (rand(CPU, 5),),
        (square,),
        (transposed,),
        (square[:, 1],),
        ((one, two),),
        ([one, two],),
        ({"a": one, "b": two},),
        ({"b": one, "a": two},),
        (one.clone().requires_grad_(),),
        (torch.nn.Parameter(one),),
    ]
    hessian = hofunc.hessian(f)
    for _ in range(MET + 2):
        for args in calls:
            agree(hessian(*args), torch.func.hessian(f)(*args))
    for args in calls:
        for _ in range(MET + 1):
            got = hessian(*args)
        agree(got, torch.func.hessian(f)(*args))
        comes_to_several = (
            len(args) > 1 or args[0] is square
        )  # graphs, or to one from a layout that was met after another
        assert comes_to_several or not first[-1], args


def test_operands_that_come_or_go_or_are_others() -> None:
    contraction, x, v = hofunc.einsum(cubes, ", i, j, j -> i"), rand(CPU, 4), rand(CPU, 4, seed=1)
    for _ in range(MET + 1):
        agree(contraction(x, operands=(v,)), 6 * x * v)
    agree(contraction(x), 6 * torch.ones(4, dtype=torch.float64))
    agree(contraction(x, operands=(v, v)), 3 * x**2 * (v * v).sum())
    agree(contraction(x, operands=[v]), 6 * x * v)
    for bad in ((torch.arange(4),), (v[:3],), (v, v, v, v), v):
        with pytest.raises(hofunc.ArgumentError):
            contraction(x, operands=bad)
    with pytest.raises(TypeError):
        contraction(x, operands=(v,), other=1)
    for _ in range(MET + 1):
        agree(contraction(x), 6 * torch.ones(4, dtype=torch.float64))
        agree(contraction(x, operands=(v,)), 6 * x * v)


def test_an_operand_that_is_the_argument_itself(first: list[bool]) -> None:
    product, x, v = hofunc.hvp(cubes), rand(CPU, 4), rand(CPU, 4, seed=1)
    for _ in range(MET + 1):
        agree(product(x, vector=x), 6 * x * x)
    assert not repeat._repeats.get(asking.source_of(cubes))
    for vector in (v, x, v, x, v):
        agree(product(x, vector=vector), 6 * x * vector)
    assert first[-5:] == [True, True, False, True, False]


def test_bad_arguments_are_refused_as_ever() -> None:
    hessian, x = hofunc.hessian(lambda x, y: (x**3).sum() * y, argnums=1), rand(CPU, 4)
    for _ in range(MET + 1):
        hessian(x, x.sum())
    for args in ((), (x,), (x, 1), (x, "one"), (x, torch.tensor(1))):
        with pytest.raises(hofunc.ArgumentError):
            hessian(*args)
    agree(hessian(x, x.sum()), torch.tensor(0.0, dtype=torch.float64))


def test_what_is_returned_in_another_structure(first: list[bool]) -> None:
    """The calls of torch are the same, and what is differentiated of what is returned, and how it is nested, is not."""
    ways: list[Callable[[Tensor, Tensor], Any]] = [
        lambda y, z: ((y,), z),
        lambda y, z: ([y], z),
        lambda y, z: ((y, z), "text"),
        lambda y, z: ({"y": y}, [z, 1]),
    ]
    kind = ways[0]

    def f(x: Tensor) -> Any:
        return kind((x**3).sum(), (x**2).sum())

    hessian, x = hofunc.hessian(f, has_aux=True), rand(CPU, 4)
    for _ in range(3):
        for way in ways:
            kind = way
            for _ in range(2):
                got, aux = hessian(x)
                agree(got, way(torch.diag(6 * x), 2 * torch.eye(4, dtype=torch.float64))[0])
                assert repr(aux) == repr(f(x)[1])
    assert not first[-1]


def test_other_tensors_that_are_returned() -> None:
    ways: list[Callable[[Tensor, Tensor], Any]] = [
        lambda y, z: (y, z),
        lambda y, z: [z, y],
        lambda y, z: y,
        lambda y, z: z,
    ]
    kind = ways[0]

    def f(x: Tensor) -> Any:
        return kind((x**3).sum(), (x**2).sum())

    hessian, x = hofunc.hessian(f), rand(CPU, 4)
    for way in 3 * ways:
        kind = way
        for _ in range(MET):
            agree(hessian(x), way(torch.diag(6 * x), 2 * torch.eye(4, dtype=torch.float64)))


class _Looking(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _LookingBelow(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


WORLDS: dict[str, Callable[[], Any]] = {
    "gradients off": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "a mode of functions": _Looking,
    "a mode of ops": _LookingBelow,
    "hooks": lambda: saved_tensors_hooks(lambda x: x, lambda x: x),
    "looking for what is not finite": hofunc.detect_anomaly,
    "another fallback": lambda: hofunc.options(fallback="error"),
    "other functions": lambda: hofunc.options(functions="forward"),
    "other planning": lambda: hofunc.options(planning="quick"),
}


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_what_is_around_a_call_may_change(name: str, requires_grad: bool) -> None:
    weight = rand(CPU, 4, 4)

    def f(x: Tensor) -> Tensor:
        return ((x @ weight).double() ** 3).sum()

    hessian = hofunc.hessian(f)
    for world in [nullcontext, WORLDS[name]] * (MET + 1):
        x = rand(CPU, 4)
        with world():
            x = x.clone().requires_grad_(requires_grad and not torch.is_inference_mode_enabled())
            got = hessian(x)
        tolerance = 0.05 if name == "autocast" else 1e-12
        want = torch.func.hessian(f)(x)
        assert relative_error(got, want) < tolerance
        if world is nullcontext and requires_grad:
            slopes = [torch.autograd.grad(each.sin().sum(), x)[0] for each in (got, torch.func.hessian(f)(x))]
            agree(*slopes)


def test_what_is_read_elsewhere_may_change(first: list[bool]) -> None:
    weight, power, branch = rand(CPU, 4), 3, True

    def f(x: Tensor) -> Tensor:
        return (weight * x**power).sum() if branch else (weight * x).sin().sum()

    hessian, x = hofunc.hessian(f), rand(CPU, 4) + 1

    def check() -> None:
        agree(hessian(x), torch.func.hessian(f)(x))

    for _ in range(MET + 1):
        check()
    assert not first[-1]
    weight = rand(CPU, 4, seed=1)
    check()
    power = 4
    check()
    weight.mul_(2)
    check()
    branch = False
    for _ in range(MET + 1):
        check()
    branch = True
    check()


def test_a_function_is_called_at_every_call_and_its_errors_are_raised() -> None:
    calls, fails = [], False

    def f(x: Tensor) -> Tensor:
        calls.append(x)
        if fails:
            raise KeyError("as it does")
        return (x**3).sum()

    hessian = hofunc.hessian(f)
    for number in range(1, MET + 3):
        hessian(rand(CPU, 4))
        assert len(calls) == number
    fails = True
    with pytest.raises(KeyError, match="as it does"):
        hessian(rand(CPU, 4))
    fails = False
    agree(hessian(rand(CPU, 4)), torch.diag(6 * rand(CPU, 4)))


def test_a_write_is_refused_as_ever() -> None:
    state, writes = rand(CPU, 4), False

    def f(x: Tensor) -> Tensor:
        y = x**3
        if writes:
            state.add_(1)
        return (y * state).sum()

    hessian = hofunc.hessian(f)
    for _ in range(MET + 1):
        hessian(rand(CPU, 4))
    writes = True
    with pytest.raises(hofunc.MutationError):
        hessian(rand(CPU, 4))


def test_calls_under_transforms_and_inside_others(first: list[bool]) -> None:
    hessian, x = hofunc.hessian(cubes), rand(CPU, 3, 4)
    for _ in range(MET + 1):
        agree(hessian(x[0]), torch.diag(6 * x[0]))
        agree(torch.func.vmap(hessian)(x), torch.diag_embed(6 * x))
        agree(torch.func.jacrev(lambda x: hessian(x).diagonal())(x[0]), 6 * torch.eye(4, dtype=torch.float64))
        agree(hofunc.hod(lambda x: hessian(x).diagonal(), 1)(x[0]), 6 * torch.eye(4, dtype=torch.float64))
    assert False in first


def test_a_tap_inside_is_another_function() -> None:
    def f(x: Tensor) -> Tensor:
        return (hofunc.tap("squares", x**2) * x).sum()

    plain, tapped, x = hofunc.hessian(f), hofunc.hod(f, 1, wrt="squares"), rand(CPU, 4)
    for _ in range(MET + 2):
        agree(plain(x), torch.diag(6 * x))
        agree(tapped(x), x)


def test_several_threads() -> None:
    hessian, wrong = hofunc.hessian(cubes), []

    def run(seed: int) -> None:
        for each in range(40):
            x = rand(CPU, 3 + (seed + each) % 3, seed=seed * 100 + each)
            if relative_error(hessian(x), torch.diag(6 * x)) > 1e-12:
                wrong.append(x)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_what_is_kept_is_bounded_and_holds_neither_functions_nor_tensors() -> None:
    hessian = hofunc.hessian(cubes)
    for size in range(1, 3 * repeat.MOST):
        for _ in range(MET):
            hessian(rand(CPU, size))
    assert len(repeat._repeats[asking.source_of(cubes)]) == repeat.MOST

    def made() -> tuple[weakref.ref, weakref.ref, int]:
        scope: dict[str, Any] = {}
        exec("def f(x): return (weight * x**3).sum()", scope)  # of which the code goes with it
        scope["weight"], x = rand(CPU, 4), rand(CPU, 4)
        for _ in range(MET + 1):
            hofunc.hessian(scope["f"])(x)
        assert repeat._repeats[scope["f"].__code__]
        return weakref.ref(scope["f"].__code__), weakref.ref(scope["weight"]), len(repeat._repeats)

    code, weight, count = made()
    gc.collect()
    assert weight() is None
    assert code() is None
    assert len(repeat._repeats) < count
