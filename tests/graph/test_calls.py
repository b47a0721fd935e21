"""Later recordings of functions that make the calls of torch's functions which they made before."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

import hofunc
from hofunc.graph import asking, call_notes
from hofunc.graph.identity import storage_key
from hofunc.graph.reached import reached
from tests.cases import rand
from tests.graph.recordings import Ways, ways_of
from verification.oracles import relative_error

CPU = torch.device("cpu")
MET = 2  # calls until recordings go by calls


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Ways:
    return ways_of(monkeypatch, "recorded_by_calls")


def check(f: Callable[[Tensor], Tensor], hessian: Callable[[Tensor], Any], x: Tensor) -> None:
    """Compare with nested reverse mode of torch."""
    expected = torch.func.jacrev(torch.func.jacrev(f))(x)
    assert relative_error(hessian(x), expected) < 1e-12


def met(f: Callable[[Tensor], Tensor], ways: Ways, x: Tensor) -> Callable[[Tensor], Any]:
    """Return what computes Hessians of a function, which goes by calls from now on."""
    hessian = hofunc.hessian(f)
    for _ in range(MET + 1):
        check(f, hessian, x)
    assert ways[-1]
    return hessian


def several(x: Tensor) -> Tensor:
    low, high = x.chunk(2)
    top, places = (low * high).max(0)
    return torch.stack([top, low[places[None]].sum(), torch.cat((low, high))[1:].exp().sum()]).square().sum()


WEIGHT = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(6, 4)
CLASSES = torch.tensor([0, 2])
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "operators": lambda x: ((2 - x) ** 3 / (1 + x * x)).sum(),
    "vectors": lambda x: (x @ WEIGHT).tanh().norm(),
    "batches": lambda x: (x.reshape(1, 2, 3) @ WEIGHT[:3]).sigmoid().sum(),
    "a loss": lambda x: functional.cross_entropy(x.reshape(2, 3), CLASSES, label_smoothing=0.1),
    "another loss": lambda x: functional.cosine_embedding_loss(x.reshape(2, 3), WEIGHT[:2, :3], CLASSES - 1),
    "a norm": lambda x: functional.layer_norm(x, (6,)).pow(3).sum(),
    "several": several,
    "constants": lambda x: (torch.zeros(6, dtype=torch.float64).index_add(0, CLASSES, x[:2]) * x.sin()).sum(),
    "ones like an input": lambda x: torch.stack([torch.ones_like(x), x.sin(), x]).cumsum(0).prod(0).sum(),
    "einsum": lambda x: torch.einsum("i,ij,kj,k->", x, WEIGHT, WEIGHT, x.exp()),
    "numbers read": lambda x: (x**3).sum() if bool(x.sum() > 100) or x.detach().max().item() > 9 else x.sin().sum(),
    "lists of indices": lambda x: (
        (x.reshape(2, 3)[[0, 1, 0], [2, 0, 1]] ** 3).sum() * x[[0, 3]].sum() * x[None, [1, 2]].sin().sum()
    ),
    "attention": lambda x: functional.scaled_dot_product_attention(
        *(x.reshape(1, 3, 2) @ w for w in WEIGHT.reshape(3, 2, 4))
    ).sum(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_later_recordings_go_by_calls_and_are_right(name: str, ways: Ways) -> None:
    f = FUNCTIONS[name]
    hessian = hofunc.hessian(f)
    for seed in range(MET + 2):
        check(f, hessian, rand(CPU, 6, seed=seed) + 1)
    assert ways == [False] * (MET - 1) + [True] * 2


def test_places_that_are_read_as_numbers_are_not_gone_by(ways: Ways) -> None:
    """An index of no axes is read while the call is made, and decides which element that takes."""

    def f(x: Tensor) -> Tensor:
        return x[x.argmax()] ** 3

    hessian = hofunc.hessian(f)
    for seed in range(2 * MET):
        check(f, hessian, rand(CPU, 6, seed=seed))
    assert not any(ways)


def test_axes_in_a_tensor_are_read_past_the_ops(ways: Ways) -> None:
    axes = torch.tensor([[0], [0]])

    def f(x: Tensor) -> Tensor:
        return torch.tensordot(x, WEIGHT[:4], dims=axes).exp().sum()

    x = rand(CPU, 4, 4)
    hessian = hofunc.hessian(f)
    for _ in range(MET + 1):
        check(f, hessian, x)
    axes[0] = 1
    check(f, hessian, x)
    assert not any(ways)


def test_a_function_is_called_once(ways: Ways) -> None:
    calls = []

    def f(x: Tensor) -> Tensor:
        calls.append(x)
        return x.sin().sum()

    hessian, x = hofunc.hessian(f), rand(CPU, 3)
    for number in range(MET + 3):
        hessian(x)
        assert len(calls) == number + 1
    assert ways[-1]


@pytest.mark.parametrize(
    ("graphs", "expected"), [("abbbb", [3, 4]), ("aabbbbb", [5, 6]), ("aabbaabbaabb", []), ("abababab", [])]
)
def test_what_comes_to_another_graph_goes_by_calls_once_that_was_met_again(
    graphs: str, expected: list[int], ways: Ways
) -> None:
    """As what is set up at the first call does, or goes on to another branch; not what comes to one or the other."""
    kind = ["a"]

    def f(x: Tensor) -> Tensor:
        return (x.sin() if kind == ["a"] else x.exp() * x).sum()

    hessian = hofunc.hessian(f)
    for seed, each in enumerate(graphs):
        kind[:] = each
        check(f, hessian, rand(CPU, 6, seed=seed))
    assert [call for call, went in enumerate(ways, 1) if went] == expected


def test_products_with_gauss_newton_matrices(ways: Ways) -> None:
    product = hofunc.ggnvp(lambda w, x: (x @ w).tanh(), lambda y, t: (y - t).pow(4).sum())
    x, t, v = rand(CPU, 4, 3, seed=1), rand(CPU, 4, seed=2), rand(CPU, 3, seed=3)
    for seed in range(MET + 3):
        w = rand(CPU, 3, seed=seed)
        y = (x @ w).tanh()
        jacobian = (1 - y * y)[:, None] * x
        expected = jacobian.T @ (12 * (y - t) ** 2 * (jacobian @ v))
        assert relative_error(product(w, x, vector=v, targets=t), expected) < 1e-12
    assert ways[-2:] == [True] * 2


# Each is called with False until it goes by calls, and then with True.
def _branches(x: Tensor, other: bool) -> Tensor:
    return (x.cos() if other else x.sin()).sum() * x.sum()


def _lists(x: Tensor, other: bool) -> Tensor:
    return x[[2, 1] if other else [0, 1]].prod() * x


def _numbers(x: Tensor, other: bool) -> Tensor:
    return (x * (3.0 if other else 2.0)).sin().sum()


def _places(x: Tensor, other: bool) -> Tensor:
    return (x[1:] ** 3).sum() * x[0] if other else (x[:-1] ** 3).sum() * x[0]


def _names(x: Tensor, other: bool) -> Tensor:
    return (x.outer(x).exp().sum(dim=1 if other else 0) * x).sum()


def _more(x: Tensor, other: bool) -> Tensor:
    y = x.sin().sum()
    return y * x.prod() if other else y


def _less(x: Tensor, other: bool) -> Tensor:
    y = x.sin().sum()
    return y if other else y * x.prod()


def _other_result(x: Tensor, other: bool) -> Tensor:
    y, z = x.sin().sum(), x.exp().sum()
    return z if other else y


def _captured(x: Tensor, other: bool) -> Tensor:
    return (WEIGHT[:3, 0] * x if other else x * x).exp().sum()


def _written(x: Tensor, other: bool) -> Tensor:
    y = x * x
    return (y.exp_() if other else y.exp()).sum()


def _cut(x: Tensor, other: bool) -> Tensor:
    with torch.set_grad_enabled(not other):
        y = x * x
    return (y * x).sum()


def _detached(x: Tensor, other: bool) -> Tensor:
    return ((x.detach() if other else x.clone()) * x**2).sum()


def _drawn(x: Tensor, other: bool) -> Tensor:
    return (functional.dropout(x, 0.0, training=other) * x**2).sum()


_CONSTANT = torch.ones(3, dtype=torch.float64)


def _mapped(x: Tensor, other: bool) -> Tensor:
    """What `vmap` returns is an alias that no call of torch's functions has made."""
    y = torch.vmap(lambda each: each)(x) if other else _CONSTANT
    return (y * x**2).sum()


def _mapped_squares(x: Tensor, other: bool) -> Tensor:
    y = torch.vmap(lambda each: each * each)(x) if other else x * x
    return (y * x).sum()


def _differentiated(x: Tensor, other: bool) -> Tensor:
    y = torch.func.grad(lambda y: (y**3).sum())(x) if other else _CONSTANT
    return (y * x).sum()


def _derived(x: Tensor, other: bool) -> Tensor:
    y = hofunc.jacobian(lambda y: (y**3).sum())(x) if other else _CONSTANT
    return (y * x).sum()


@torch.jit.script
def _squared(x: Tensor) -> Tensor:
    return x * x


@torch.jit.script
def _squared_in_place(x: Tensor) -> Tensor:
    return x.mul_(x)


def _scripted(x: Tensor, other: bool) -> Tensor:
    return ((_squared(x) if other else _CONSTANT) * x).sum()


def _scripted_in_place(x: Tensor, other: bool) -> Tensor:
    y = x + 0
    if other:
        _squared_in_place(y)
    return (y * x).sum()


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004 - as torch calls it
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * slope


def _applied(x: Tensor, other: bool) -> Tensor:
    y = _Cube.apply(x) if other else x * x * x
    return (y * x).sum()


def _caught(x: Tensor, other: bool) -> Tensor:
    try:
        y = x.cos() if other else x.sin()
    except BaseException:
        y = x
    return (y * x).sum()


OTHERWISE = [
    *(
        _branches,
        _lists,
        _numbers,
        _places,
        _names,
        _more,
        _less,
        _other_result,
        _captured,
        _written,
        _cut,
        _detached,
        _drawn,
    ),
    *(_mapped, _mapped_squares, _differentiated, _derived, _scripted, _scripted_in_place, _applied, _caught),
]


@pytest.mark.parametrize("function", OTHERWISE)
def test_what_does_something_else_is_recorded_as_ever(function: Callable, ways: Ways) -> None:
    other, x = False, rand(CPU, 3) + 1
    hessian = met(lambda x: function(x, other), ways, x)
    other = True
    if function is _scripted_in_place:  # which torch refuses
        assert relative_error(hessian(x), (6 * x).diag()) < 1e-12
    else:
        check(lambda x: function(x, other), hessian, x)
    assert not ways[-1]
    other = False
    for _ in range(MET + 1):
        check(lambda x: function(x, other), hessian, x)


def test_numbers_of_other_types_and_signs(ways: Ways) -> None:
    number: Any = 0.0

    def f(x: Tensor) -> Tensor:
        return torch.copysign(x**2, number).sum() * x.sum()

    x = rand(CPU, 3)
    hessian = met(f, ways, x)
    for other in (-0.0, 0, False, 1, True):
        number = other
        check(f, hessian, x)
        assert not ways[-1]


def test_numbers_by_keyword(ways: Ways) -> None:
    number: Any = 0.5

    def f(x: Tensor) -> Tensor:
        return torch.clamp(x**3, min=number).sum() * x.sum()

    x = rand(CPU, 3)
    hessian = met(f, ways, x)
    for other in (0.25, -0.0, 0, False, 1, True, float("-inf")):
        number = other
        check(f, hessian, x)
        assert not ways[-1]


def test_nan_by_keyword_is_like_itself(ways: Ways) -> None:
    mask = torch.tensor([True, False, False])

    def f(x: Tensor) -> Tensor:
        return torch.where(mask, 0, torch.masked_fill(x, mask=mask, value=float("nan")) ** 3).sum()

    hessian, x = hofunc.hessian(f), rand(CPU, 3)
    for _ in range(MET + 1):
        assert relative_error(hessian(x), (6 * x * ~mask).diag()) < 1e-12
    assert ways[-1]


def test_what_is_captured_may_change(ways: Ways) -> None:
    weight = rand(CPU, 3, seed=9)

    def f(x: Tensor) -> Tensor:
        return (x**3 * weight).sum()

    x = rand(CPU, 3)
    hessian = met(f, ways, x)
    weight.mul_(2)
    check(f, hessian, x)
    assert ways[-1]
    weight = weight.exp()
    check(f, hessian, x)
    weight = torch.ones((), dtype=torch.float64)
    check(f, hessian, x)
    assert not ways[-1]


def test_an_input_that_is_captured_too_is_a_constant(ways: Ways) -> None:
    x = rand(CPU, 3)
    hessian = hofunc.hessian(lambda y: (y**2 * x * x.view(-1)).sum())
    for _ in range(MET + 1):
        assert relative_error(hessian(x), (2 * x * x).diag()) < 1e-12
    assert relative_error(hessian(x + 1), (2 * x * x).diag()) < 1e-12
    assert ways[-1]


def test_what_lies_in_the_same_memory_may_be_given_other_data(ways: Ways) -> None:
    x, weight = rand(CPU, 2, 2), rand(CPU, 2, 2, seed=1)
    other = weight.detach()

    def f(x: Tensor) -> Tensor:
        return (x @ weight).square().sum() + (x @ other.reshape(1, 2, 2)).exp().sum()

    hessian = met(f, ways, x)
    other.data = torch.ones(2, 2, dtype=torch.float64)
    check(f, hessian, x)
    assert ways[-1]


def test_arguments_beside_may_be_new_tensors(ways: Ways) -> None:
    hessian, x = hofunc.hessian(lambda x, data: (x * data["a"][0]).exp().sum()), rand(CPU, 3)
    for seed in range(MET + 3):
        a = rand(CPU, 3, seed=seed)
        assert relative_error(hessian(x, {"a": [a]}), (a**2 * (a * x).exp()).diag()) < 1e-12
    assert ways[-1]


def test_other_strides(ways: Ways) -> None:
    """A reshape of what is transposed is a copy, and another graph."""

    def f(x: Tensor) -> Tensor:
        return (x.reshape(-1).cumsum(0) ** 3).sum()

    x = rand(CPU, 3, 3)
    hessian = met(f, ways, x)
    check(f, hessian, x.T)
    check(f, hessian, x)


def test_what_autograd_follows_has_its_history(ways: Ways) -> None:
    weight = rand(CPU, 3, seed=9)

    def f(x: Tensor) -> Tensor:
        return (x**3 * weight).sum()

    x = rand(CPU, 3)
    hessian = met(f, ways, x)
    weight.requires_grad_()
    hessian(x).sum().backward()
    assert weight.grad is not None
    assert relative_error(weight.grad, 6 * x) < 1e-12
    y = x.clone().requires_grad_()
    hessian(y).sum().backward()
    assert y.grad is not None
    assert relative_error(y.grad, 6 * weight.detach()) < 1e-12
    with torch.no_grad():
        assert not hessian(y).requires_grad
    assert not hofunc.hessian(f)(x).detach().requires_grad


def test_parameters_of_modules(ways: Ways) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    x = rand(CPU, 5, 3)
    names, values = zip(*[(name, each.detach()) for name, each in net.named_parameters()], strict=True)

    def loss(*values: Tensor) -> Tensor:
        return functional_call(net, dict(zip(names, values, strict=True)), (x,)).square().mean()

    vector = [rand(CPU, *each.shape, seed=2) for each in values]
    product = hofunc.hvp(loss, tuple(range(len(values))))
    slopes = torch.func.vjp(torch.func.grad(loss, tuple(range(len(values)))), *values)[1](tuple(vector))
    for _ in range(MET + 2):
        found = product(*values, vector=tuple(vector))
        assert max(map(relative_error, found, slopes)) < 1e-12
    assert ways[-1]


def test_autocast(ways: Ways) -> None:
    def f(x: Tensor) -> Tensor:
        return (x.reshape(2, 3).float() @ WEIGHT[:3].float()).square().sum().double()

    x = rand(CPU, 6)
    hessian = hofunc.hessian(f)
    exact = [hessian(x) for _ in range(MET + 1)][-1]
    before = len(ways)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = hessian(x)
    assert ways[before - 1 :] == [True, False]
    assert 1e-4 < relative_error(rounded, exact) < 1e-1


def test_autocast_of_what_returns_the_same_dtype(ways: Ways) -> None:
    """What a call makes inside is rounded then, which its result does not tell."""
    weight, is_rounded = torch.tensor([[[1.0, 2.0, 3.0]] * 3] * 2), False

    def f(x: Tensor) -> Tensor:
        y = x.float().reshape(1, 3)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_rounded):
            z = functional.bilinear(y, y, weight)
        return z.square().sum().double()

    x = rand(CPU, 3)
    hessian = hofunc.hessian(f)
    for _ in range(MET + 1):
        hessian(x)
    is_rounded = True
    found = hessian(x)
    assert ways[-2:] == [True, False]
    assert torch.equal(found, hofunc.hessian(lambda x: f(x))(x))


def test_an_error_of_the_function_is_raised(ways: Ways) -> None:
    fails = False

    def f(x: Tensor) -> Tensor:
        y = x.sin()
        if fails:
            raise ValueError("as it does")
        return y.sum()

    x = rand(CPU, 3)
    hessian = met(f, ways, x)
    fails = True
    with pytest.raises(ValueError, match="as it does"):
        hessian(x)


def test_random_numbers_are_drawn_once() -> None:
    hessian, x = hofunc.hessian(lambda x: (functional.dropout(x, 0.5) ** 2).sum()), rand(CPU, 64)
    torch.manual_seed(0)
    found = [hessian(x) for _ in range(MET + 3)]
    torch.manual_seed(0)
    for each in found:
        mask = functional.dropout(torch.ones_like(x), 0.5)
        assert torch.equal(each.diag(), 2 * mask**2)


def test_torch_compile_inside() -> None:
    """Nothing is compiled in there, as where a tape is."""

    def f(x: Tensor) -> Tensor:
        return torch.compile(lambda y: y.sin() * y, backend="eager")(x).sum()

    x = rand(CPU, 3)
    hessian = hofunc.hessian(f)
    for _ in range(MET + 2):
        check(lambda x: (x.sin() * x).sum(), hessian, x)


def test_what_a_function_reaches_may_be_new_at_each_call(ways: Ways) -> None:
    """A loss that closes over a batch is made anew for each, and the batch before is gone by then."""

    def made(batch: Tensor, targets: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: ((batch @ x).tanh() - targets).square().sum()

    for seed in range(MET + 3):
        f, x = made(rand(CPU, 4, 6, seed=seed), rand(CPU, 4, seed=-seed)), rand(CPU, 6, seed=seed)
        check(f, hofunc.hessian(f), x)
        del f
    assert ways[-1]


def test_what_a_function_reaches_may_be_one_of_several(ways: Ways) -> None:
    """Batches that are kept, so that none is gone, are told from what was captured once it was another one."""

    def made(batch: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: (batch @ x).tanh().square().sum()

    batches = [rand(CPU, 4, 6, seed=seed) for seed in range(3)]
    for number in range(4 * MET):
        f, x = made(batches[number // MET % 3]), rand(CPU, 6, seed=number)
        check(f, hofunc.hessian(f), x)
    assert all(ways[-2 * MET :])


def test_what_is_computed_past_the_calls_is_not_taken_for_what_was_captured(ways: Ways) -> None:
    def made(factor: Tensor, *, is_hidden: bool) -> Callable[[Tensor], Tensor]:
        def f(x: Tensor) -> Tensor:
            taken = factor
            if is_hidden:
                with torch._C.DisableTorchFunction():
                    taken = x.exp()
            return (taken * x).sin().sum()

        return f

    for seed in range(MET + 3):
        f = made(rand(CPU, 6, seed=seed), is_hidden=seed > MET)
        check(f, hofunc.hessian(f), rand(CPU, 6, seed=seed))
        del f
    assert any(ways)
    assert not ways[-1]


def test_what_a_function_reaches_is_looked_at_while_it_changes(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models of one code, of which each is called many times in turn."""
    looked: list[Any] = []

    def noting(function: Any) -> dict[int, Tensor]:
        looked.append(function)
        return reached(function)

    monkeypatch.setattr("hofunc.graph.by_calls.reached", noting)

    def made(weight: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: (weight @ x).tanh().square().sum()

    models = [made(rand(CPU, 4, 6, seed=seed)) for seed in range(2)]
    hessians = [hofunc.hessian(model) for model in models]
    for number in range(4):
        for seed in range(20):
            del looked[:]
            check(models[number % 2], hessians[number % 2], rand(CPU, 6, seed=seed))
        assert not looked
    assert ways == [False] * (MET - 1) + [True] * (len(ways) - MET + 1)


def test_what_notes_look_at_grows_with_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call is compared with what it made itself, and looks up what came along before."""

    def taken(steps: int) -> int:
        looked_at: list[Tensor] = []

        def counted(tensor: Tensor) -> Any:
            looked_at.append(tensor)
            return storage_key(tensor)

        monkeypatch.setattr(call_notes, "storage_key", counted)
        asking._met.clear()

        def f(x: Tensor) -> Tensor:
            for _ in range(steps):
                x = x.sin()
            return x.sum()

        hessian = hofunc.hessian(f)
        for _ in range(MET):
            hessian(rand(CPU, 2))
        return len(looked_at)

    few, more, most = taken(10), taken(20), taken(40)
    assert few > 0
    assert most - more == 2 * (more - few)


def test_inputs_that_autograd_follows(ways: Ways) -> None:
    """As parameters are in training, of which a call may have a backward pass, none, or be made without gradients."""
    weight = rand(CPU, 3, seed=9).requires_grad_()

    def f(x: Tensor) -> Tensor:
        return ((x**3).sin() * weight).sum() * x.sum()

    def slopes(x: Tensor, found: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad((found**2).sum(), (x, weight))

    hessian = hofunc.hessian(f)
    for seed in range(4 * MET):
        x = rand(CPU, 3, seed=seed).requires_grad_()
        expected = torch.func.jacrev(torch.func.jacrev(f))(x)
        with torch.set_grad_enabled(seed % 3 != 1):
            found = hessian(x)
        assert relative_error(found, expected) < 1e-12
        assert found.requires_grad is (seed % 3 != 1)
        if seed % 3 == 0:
            for got, want in zip(slopes(x, found), slopes(x, expected), strict=True):
                assert relative_error(got, want) < 1e-12
    assert ways == [False] * (MET - 1) + [True] * 3 * MET


def test_what_is_returned_beside_has_the_history_of_inputs(ways: Ways) -> None:
    hessian = hofunc.hessian(lambda x: ((x**3).sum(), {"mean": x.exp().mean(), "x": x}), has_aux=True)
    for seed in range(MET + 3):
        x = rand(CPU, 3, seed=seed).requires_grad_()
        found, beside = hessian(x)
        total = found.sum() + beside["mean"] + (beside["x"] ** 2).sum()
        (slope,) = torch.autograd.grad(total, x)
        assert relative_error(slope, 6 + x.exp() / 3 + 2 * x) < 1e-12
    assert ways[-1]


@pytest.mark.parametrize("is_given", [False, True])
def test_a_function_that_asks_whether_its_input_is_followed(ways: Ways, *, is_given: bool) -> None:
    """It is told that it is, as under torch.func, whether autograd follows what it was given or not."""

    def f(x: Tensor) -> Tensor:
        return (x**3).sum() if x.requires_grad else (x**2).sum()

    hessian = hofunc.hessian(f)
    for seed in range(2 * MET):
        x = rand(CPU, 3, seed=seed).requires_grad_(is_given)
        assert relative_error(hessian(x), (6 * x).diag()) < 1e-12
    assert not any(ways)
