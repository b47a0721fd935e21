"""Tensors that f makes of what it computes past all ops: what they hold, without derivatives, in every recording."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hofunc
from hofunc.errors import BranchError, MutationError
from hofunc.transform import Transform
from tests.cases import rand
from tests.checks import assert_equal

vmap = torch.func.vmap


class Sub(Tensor):
    pass


class Made(Tensor):
    @staticmethod
    def __new__(cls, held: Tensor) -> "Made":
        return Tensor._make_subclass(cls, held)


def _given_data(y: Tensor) -> Tensor:
    z = torch.zeros(3, dtype=y.dtype, device=y.device)
    z.data = y.detach()
    return z


def _layer(y: Tensor) -> nn.Identity:
    layer = nn.Identity()
    layer.weight = nn.Parameter(y[None])
    return layer


def _written(y: Tensor) -> Tensor:
    parameter = nn.Parameter(y.clone())
    with torch.no_grad():
        parameter.mul_(2)
    return parameter


def _original_written(y: Tensor) -> Tensor:
    z = y.clone()
    parameter = nn.Parameter(z)
    z.mul_(2)
    return parameter


def _gradient(y: Tensor) -> Tensor:
    return torch.func.grad(lambda z: (nn.Parameter(z.sin()) * z).sum())(y)


MADE: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "parameter": (nn.Parameter, torch.detach),
    "without gradients": (lambda y: nn.Parameter(y, requires_grad=False), torch.detach),
    "in a list": (lambda y: nn.ParameterList([y])[0], torch.detach),
    "of a subclass": (lambda y: Tensor._make_subclass(Sub, y), torch.detach),
    "of a class of its own": (Made, torch.detach),
    "data": (lambda y: y.data, torch.detach),
    "data of a clone": (lambda y: y.clone().data, torch.detach),
    "given data": (_given_data, torch.detach),
    "in a module": (lambda y: _layer(y).get_parameter("weight")[0], torch.detach),
    "in a state": (lambda y: _layer(y).state_dict()["weight"][0], torch.detach),
    "of a view": (
        lambda y: nn.Parameter(y[None].expand(2, 3))[1] * nn.Parameter(y[1:])[0],
        lambda y: (y * y[1]).detach(),
    ),
    "transposed": (lambda y: nn.Parameter(y.outer(y).mT)[0], lambda y: (y * y[0]).detach()),
    "conjugated": (lambda y: (nn.Parameter(torch.complex(y, y * y).conj()) * 1).imag, lambda y: -(y * y).detach()),
    "twice": (lambda y: nn.Parameter(nn.Parameter(y) * y), lambda y: (y * y).detach()),
    "written to": (_written, lambda y: (2 * y).detach()),
    "of what is written to": (_original_written, lambda y: (2 * y).detach()),
    "in a gradient": (_gradient, lambda y: y.sin().detach()),
    "in a map": (lambda y: vmap(lambda e: nn.Parameter(e.sin()) * e)(y), lambda y: y.sin().detach() * y),
}


@pytest.mark.parametrize("of", [lambda x: x, torch.sin], ids=["input", "computed"])
@pytest.mark.parametrize("name", MADE)
def test_what_is_made_past_ops_is_no_constant(name: str, of: Callable[[Tensor], Tensor], device: torch.device) -> None:
    made, reference = MADE[name]
    x = rand(device, 2, 3)

    def transform(made: Callable[[Tensor], Tensor]) -> Transform:
        return hofunc.hessian(lambda x: (x**3 * made(of(x))).sum())

    expected = torch.stack([transform(reference)(row) for row in x])
    assert_equal(torch.stack([transform(made)(row).detach() for row in x]), expected)
    for rows, dim in ((x, 0), (x.mT.contiguous(), 1)):
        assert_equal(vmap(transform(made), in_dims=dim)(rows), expected)
    plan = transform(made).plan(x[0])
    assert_equal(plan(x[0]).detach(), expected[0])
    try:
        assert_equal(plan(x[1]).detach(), expected[1])
    except hofunc.ArgumentError as error:
        assert re.search("from (_make_subclass|torch.Tensor.data.__set__), expected", str(error))  # noqa: PT017
        assert of is not torch.sin


def test_nested_transforms_see_it_too(device: torch.device) -> None:
    x = rand(device, 2, 3)

    def total(made: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: vmap(hofunc.hessian(lambda x: (x**3 * made(x)).sum()))(x).sum()

    assert_equal(torch.func.grad(total(nn.Parameter))(x), torch.func.grad(total(torch.detach))(x))
    assert_equal(vmap(torch.func.grad(total(nn.Parameter)))(x[None]), torch.func.grad(total(torch.detach))(x)[None])


def test_what_is_captured_is_not_what_has_its_memory(device: torch.device) -> None:
    """The first row of a batch is where the stand-in for all rows is taken from, and is a reference point as well."""
    x = rand(device, 2, 3)
    first, parameter, row = x[0], nn.Parameter(x[0]), x[0].as_subclass(Sub)
    for captured in (first, parameter, row):
        got = vmap(hofunc.hessian(lambda x, captured=captured: (x**3 * captured).sum()))(x)
        assert_equal(got.detach(), (6 * x * x[0]).diag_embed())
        plan = hofunc.hessian(lambda x, captured=captured: (x**3 * captured).sum()).plan(first)
        assert_equal(plan(x[1]).detach(), (6 * x[1] * x[0]).diag())


HIDDEN: dict[str, Callable[[Tensor], Tensor]] = {
    "Tensor": lambda y: torch.Tensor([y[0], 1.0, y[2]]).to(y),
    "DoubleTensor": lambda y: torch.DoubleTensor([y[0], 1.0, y[2]]).to(y),
    "LongTensor": lambda y: torch.LongTensor([y[0].long(), 1, 2]).to(y),
    "in a gradient": lambda y: torch.func.grad(lambda z: (torch.tensor(z.detach()) * z).sum())(y),
}


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_numbers_that_constructors_read_out_of_sight(name: str, device: torch.device) -> None:
    x = rand(device, 2, 3)
    transform = hofunc.hessian(lambda x: (x**3 * HIDDEN[name](3 * x)).sum())
    with pytest.raises(BranchError, match="under vmap"):
        vmap(transform)(x)
    plan = transform.plan(x[0])
    assert_equal(plan(x[0]), transform(x[0]))
    with pytest.raises(hofunc.ArgumentError, match="reads values of tensors"):
        plan(3 * x[1])


def test_other_data_of_what_is_used_is_refused(device: torch.device) -> None:
    x, w = rand(device, 2, 3), torch.ones(3, dtype=torch.float64, device=device)

    def computed(x: Tensor) -> Tensor:
        y = x * 2
        y.data = x.detach()
        return y * y

    def captured(x: Tensor) -> Tensor:
        y = w * x**2
        w.data = w.detach() + 1
        return y * w

    message = re.escape("f sets the data of a tensor that it has used: got other data for a tensor of shape (3,)")
    for f in (computed, captured):
        for call in (vmap(hofunc.jacobian(f)), lambda x, f=f: hofunc.jacobian(f).plan(x[0])):
            with pytest.raises(MutationError, match=message):
                call(x)
