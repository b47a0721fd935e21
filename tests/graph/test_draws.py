"""Random numbers under vmap: as its randomness says, and the same as torch draws from the same state."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import hofunc
from hofunc.errors import BranchError, UntracedError
from hofunc.graph.draws import is_random
from tests.cases import rand
from tests.graph.recordings import ways_of
from verification.oracles import relative_error

CPU = torch.device("cpu")
vmap = torch.func.vmap
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")


def _dead(x: Tensor) -> Tensor:
    torch.rand(3)
    return x**2 * torch.rand(2).to(x)


def _written(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[:1].uniform_()
    return y * x**2


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "rand": lambda x: x**2 * torch.rand(2).to(x),
    "randn": lambda x: x**2 * torch.randn(2).to(x),
    "randint": lambda x: x**2 * torch.randint(9, (2,)).to(x),
    "randperm": lambda x: x**2 * torch.randperm(2).to(x),
    "rand_like": lambda x: x**2 * torch.rand_like(x),
    "rand_like of a constant": lambda x: x**2 * torch.rand_like(torch.ones(2)).to(x),
    "normal": lambda x: x**2 * torch.normal(0.0, 1.0, (2,)).to(x),
    "normal of tensors": lambda x: x**2 * torch.normal(torch.zeros(2), torch.ones(2)).to(x),
    "bernoulli": lambda x: x**2 * torch.bernoulli(torch.full((2,), 0.5)).to(x),
    "multinomial": lambda x: x**2 * torch.multinomial(torch.ones(9), 2).to(x),
    "poisson": lambda x: x**2 * torch.poisson(torch.full((2,), 9.0)).to(x),
    "dropout": lambda x: functional.dropout(x, 0.5) ** 2,
    "native_dropout": lambda x: torch.native_dropout(x, 0.5, True)[0] ** 2,
    "feature dropout": lambda x: torch.feature_dropout(x[None, :, None], 0.5, True)[0, :, 0] ** 2,
    "alpha dropout": lambda x: functional.alpha_dropout(x, 0.5, True) ** 2,
    "rrelu": lambda x: functional.rrelu(-x, 0.1, 0.3, training=True) ** 2,
    "gumbel_softmax": lambda x: functional.gumbel_softmax(x) ** 2,
    "in place": lambda x: x**2 * torch.empty(2).normal_().to(x),
    "in place, of x": lambda x: x**2 * (x * 2).exponential_(),
    "in place, like x": lambda x: x**2 * torch.empty_like(x).bernoulli_(0.5),
    "in place, in part": _written,
    "after one that is not used": _dead,
}


def _outcome(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor | str:
    torch.manual_seed(0)
    try:
        return function(x)
    except RuntimeError as error:
        return str(error)[:50]


@pytest.mark.parametrize("randomness", ["same", "different", "error"])
@pytest.mark.parametrize("name", DRAWS)
def test_rows_draw_as_vmap_says(name: str, randomness: str, device: torch.device) -> None:
    """The value is drawn as torch draws it, and the Hessian of squares times random numbers is twice these."""
    f, x = DRAWS[name], torch.ones(40, 2, dtype=torch.float64, device=device)
    expected = _outcome(vmap(f, randomness=randomness), x)
    value = _outcome(lambda x: vmap(hofunc.derivatives(f, 2), randomness=randomness)(x)[0], x)
    if isinstance(expected, str) or isinstance(value, str):
        assert value == expected
        assert randomness == "error" or name in {"rrelu", "in place", "in place, like x"}  # which torch refuses
        return
    assert torch.equal(value, expected)
    assert (value == value[0]).all() == (randomness == "same")
    if name not in {"gumbel_softmax", "alpha dropout"}:
        hessian = vmap(hofunc.hessian(lambda x: f(x).sum()), randomness=randomness)
        torch.manual_seed(0)
        assert torch.allclose(hessian(x).diagonal(dim1=1, dim2=2), 2 * value)


def test_each_of_two_vmaps_has_its_randomness(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return (x**2 * torch.rand(2).to(x)).sum()

    x = torch.ones(3, 4, 2, dtype=torch.float64, device=device)
    for inner, outer in (("same", "different"), ("different", "same"), ("different", "different")):
        torch.manual_seed(0)
        expected = vmap(
            vmap(lambda x: 2 * torch.rand(2).to(x) * torch.ones_like(x), randomness=inner), randomness=outer
        )(x)
        torch.manual_seed(0)
        got = vmap(vmap(hofunc.hessian(f), randomness=inner), randomness=outer)(x)
        assert torch.allclose(got, expected.diag_embed())


def test_a_branch_on_a_number_that_every_row_draws_is_refused(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        number = torch.rand(()).to(x)
        return number * x**2 if number > 0.5 else -number * x**2

    x = rand(device, 20)
    with pytest.raises(BranchError, match="under vmap"):
        vmap(hofunc.hessian(f), randomness="different")(x)
    for seed in range(4):  # the number that decides the branch is the one that it multiplies
        torch.manual_seed(seed)
        number = torch.rand(())
        torch.manual_seed(seed)
        got = vmap(hofunc.hessian(f), randomness="same")(x)
        assert torch.allclose(got, torch.ones_like(x) * 2 * (number if number > 0.5 else -number))


def test_rows_that_f_maps_itself_draw_as_its_vmap_says(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return vmap(lambda row: row**2 * torch.rand(2).to(x), randomness="different")(x).sum()

    for transform in (hofunc.hessian, lambda f: lambda x: vmap(hofunc.hessian(f), randomness="same")(x[None])[0]):
        weights = transform(f)(torch.ones(3, 2, dtype=torch.float64, device=device)).sum((2, 3)) / 2
        assert not (weights == weights[0]).all()
        assert (weights > 0).logical_and(weights < 1).all()


BY_GENERATOR: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "rand": lambda x, g: x**2 * torch.rand(2, generator=g).to(x),
    "randint": lambda x, g: x**2 * torch.randint(9, (2,), generator=g).to(x),
    "multinomial": lambda x, g: x**2 * torch.multinomial(torch.ones(9), 2, generator=g).to(x),
    "poisson": lambda x, g: x**2 * torch.poisson(torch.full((2,), 9.0), g).to(x),
    "in place": lambda x, g: x**2 * (x * 2).exponential_(generator=g),
    "beside another": lambda x, g: x**2 * torch.rand(2, generator=g).to(x) + x * torch.rand(2).to(x),
    "twice": lambda x, g: x**2 * torch.rand(2, generator=g).to(x) + x * torch.randn(2, generator=g).to(x),
    "seeded": lambda x, g: x**2 * torch.rand(2, generator=g.manual_seed(3)).to(x),
    "the default one seeded": lambda x, _: x**2 * torch.rand(2, generator=torch.manual_seed(3)).to(x),
}


@pytest.mark.parametrize("randomness", ["same", "different"])
@pytest.mark.parametrize("name", BY_GENERATOR)
def test_a_generator_is_left_as_torch_leaves_it(name: str, randomness: str, device: torch.device) -> None:
    f, x = BY_GENERATOR[name], torch.ones(4, 2, dtype=torch.float64, device=device)
    generators = [torch.Generator().manual_seed(7) for _ in range(2)]
    torch.manual_seed(0)
    expected = vmap(lambda x: f(x, generators[0]), randomness=randomness)(x)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    value, _, hessian = vmap(hofunc.derivatives(lambda x: f(x, generators[1]), 2), randomness=randomness)(x)
    assert torch.equal(value, expected)
    assert torch.equal(generators[0].get_state(), generators[1].get_state())
    assert torch.equal(torch.get_rng_state(), state)
    if "beside" not in name and name != "twice":
        assert torch.allclose(torch.einsum("...iii->...i", hessian), 2 * value)


def test_a_generator_that_f_sets_between_draws_is_refused(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        y = torch.rand(2).to(x)
        torch.manual_seed(0)
        return x**2 * (y + torch.rand(2).to(x))

    with pytest.raises(UntracedError, match="sets the state of a random generator between two draws"):
        vmap(hofunc.hessian(f), randomness="same")(rand(device, 3, 2))


def test_a_recording_inside_sets_no_generator(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        inner = hofunc.jacobian(lambda x: (x**2 * torch.rand(2).to(x)).sum())(x)
        return inner * torch.rand(2).to(x)

    got = vmap(hofunc.jacobian(f), randomness="same")(torch.ones(3, 2, dtype=torch.float64, device=device))
    assert (got == got[0]).all()


aten = torch.ops.aten


@pytest.mark.parametrize(
    ("expected", "op", "args", "kwargs"),
    [
        (False, aten._scaled_dot_product_flash_attention_for_cpu.default, (0, 0, 0), {}),
        (False, aten._scaled_dot_product_flash_attention_for_cpu.default, (0, 0, 0, 0.0, True), {"scale": 2.0}),
        (True, aten._scaled_dot_product_flash_attention_for_cpu.default, (0, 0, 0, 0.5), {}),
        (True, aten._scaled_dot_product_efficient_attention.default, (0, 0, 0, None, True), {"dropout_p": 0.5}),
        (True, aten._scaled_dot_product_efficient_attention.default, (0, 0, 0, None, True), (("dropout_p", 0.5),)),
        (False, aten._cudnn_rnn.default, (*[0] * 11, 0.5, False, False, [], None), {}),
        (False, aten._cudnn_rnn.default, (*[0] * 11, 0.0, True, False, [], None), {}),
        (True, aten._cudnn_rnn.default, (*[0] * 11, 0.5, True, False, [], None), {}),
        (True, aten.native_dropout.default, (0, 0.5, True), {}),
        (True, aten.native_dropout.default, (0, 0.5, None), {}),
        (False, aten.native_dropout.default, (0, 0.5, False), {}),
        (True, aten.rand.default, ([2],), {}),
        (False, aten.sin.default, (0,), {}),
    ],
)
def test_calls_that_draw(expected: bool, op: Any, args: tuple, kwargs: Any) -> None:
    assert is_random(op, args, kwargs) is expected


def _attended(x: Tensor) -> Tensor:
    heads = x.reshape(1, 2, 3, 2)
    return functional.scaled_dot_product_attention(heads, 2 * heads, 3 * heads, is_causal=True)


def test_attention_without_dropout_is_recorded_as_what_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ways, hessian, x = ways_of(monkeypatch, "recorded_by_calls"), hofunc.hessian(_attended), rand(CPU, 12)
    with sdpa_kernel(SDPBackend.MATH):
        expected = torch.func.jacrev(torch.func.jacrev(_attended))(x)
    for _ in range(4):
        assert relative_error(hessian(x), expected) < 1e-12
    assert ways[-1]
    assert relative_error(vmap(hessian)(x[None])[0], expected) < 1e-12  # of which randomness says nothing
