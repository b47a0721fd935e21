"""Tensors are known whichever Python object holds them: subclasses, and what is refused of them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.masked import masked_tensor
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_leaves, tree_map

import hofunc
from hofunc.errors import UntracedError
from hofunc.graph.identity import alias_of, place_of, variables_of
from tests.cases import rand
from verification.oracles import nested_reverse, relative_error

vmap, grad = torch.func.vmap, torch.func.grad
pytestmark = pytest.mark.filterwarnings("ignore:.*prototype:UserWarning")


class Sub(Tensor):
    """A subclass as of no line."""


class Unwrapping(Tensor):
    """A subclass that runs ops on plain tensors, also the reading of attributes."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        args, kwargs = tree_map(lambda a: a.as_subclass(Tensor) if isinstance(a, cls) else a, (args, kwargs or {}))
        out = func(*args, **kwargs)
        return out.as_subclass(cls) if isinstance(out, Tensor) else out


class Weight(torch.nn.Parameter):
    """A parameter that keeps its class, other than torch's own."""

    __torch_function__: Any = classmethod(Tensor.__torch_function__.__func__)  # type: ignore[attr-defined]


def _of(cls: type[Tensor], tensor: Tensor) -> Tensor:
    return cls(tensor) if issubclass(cls, torch.nn.Parameter) else tensor.as_subclass(cls)


def views(x: Tensor) -> Tensor:
    first, second = x.split(2, 1)
    return (x[0] * x.t()[:, 1].sum() + (first * second).sin().reshape(-1)).prod()


def writes(x: Tensor) -> Tensor:
    y = x.sin()
    y.mul_(x)
    y[0] = y[1] * 2
    y[:, 1].add_(x[:, 0])
    return (y**2).sum() * y[0, 0]


def cuts(x: Tensor) -> Tensor:
    y = x.sin()
    with torch.no_grad():
        z = y * 2
    return (z * y * y.detach() * x).sum()


def transforms(x: Tensor) -> Tensor:
    return vmap(grad(lambda row: (row.sin() * row**2).prod()))(x).pow(2).sum()


def returns_its_input(x: Tensor) -> dict[str, Tensor]:
    return {"x": x, "y": x * x}


def test_a_subclass_in_inference_mode(device: torch.device) -> None:
    x = rand(device, 2, 4)
    with torch.inference_mode():
        got = hofunc.hessian(views)(x.as_subclass(Sub))
        inside = hofunc.hessian(lambda x: views(x.as_subclass(Sub)))(x)
    assert relative_error((got.clone(), inside.clone()), (nested_reverse(views, 2)(x),) * 2) < 1e-10


def _under_vmap(f: Callable[[Tensor], Any], x: Tensor) -> Any:
    """Return the Hessian at a tensor that vmap does not map."""
    batches = vmap(lambda s: hofunc.hessian(lambda x: tree_map(lambda y: s * y, f(x)))(x))(torch.ones(2).to(x))
    return tree_map(lambda batch: batch[0], batches)


FUNCTIONS: list[Callable[[Tensor], Any]] = [views, writes, cuts, transforms, returns_its_input]
Ways = dict[str, Callable[..., Any]]
INPUTS: Ways = {
    "an input": lambda cls, f: lambda x: hofunc.hessian(f)(_of(cls, x)),
    "inside f": lambda cls, f: hofunc.hessian(lambda x: f((x * 1).as_subclass(cls))),
    "a plan's input": lambda cls, f: lambda x: hofunc.hessian(f).plan(_of(cls, x * 2))(x),
    "an input of a plan": lambda cls, f: lambda x: hofunc.hessian(f).plan(x * 2)(_of(cls, x)),
    "an input under vmap": lambda cls, f: lambda x: _under_vmap(f, _of(cls, x)),
    "an input of nested hod": lambda cls, f: (
        lambda x: hofunc.jacobian(lambda x: hofunc.jacobian(f)(x.as_subclass(cls)))(x)
    ),
}


@pytest.mark.parametrize("way", INPUTS)
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("cls", [Sub, Unwrapping, Weight])
def test_a_subclass_is_differentiated_as_a_tensor(
    cls: type[Tensor], f: Callable[[Tensor], Any], way: str, device: torch.device
) -> None:
    x = rand(device, 2, 4)
    got = INPUTS[way](cls, f)(x)
    assert relative_error(got, nested_reverse(f, 2)(x)) < 1e-10
    assert {type(leaf) for leaf in tree_leaves(got)} == {Tensor}


@pytest.mark.parametrize("is_planned", [False, True])
@pytest.mark.parametrize("f", FUNCTIONS[:4], ids=lambda f: f.__name__)
@pytest.mark.parametrize("cls", [Sub, Unwrapping, Weight])
def test_a_captured_subclass_is_used_and_trained(
    cls: type[Tensor], f: Callable[[Tensor], Any], is_planned: bool, device: torch.device
) -> None:
    x, w = rand(device, 2, 4), rand(device, 4, seed=1)
    held = _of(cls, w.clone())
    if cls is not Unwrapping:  # which is another object wherever it is asked for
        held.requires_grad_()
    transform = hofunc.jacobian(lambda x: f(x * held + held.sin()))
    got = (transform.plan(x * 2) if is_planned else transform)(x)
    assert type(got) is Tensor

    def expected(w: Tensor) -> Tensor:
        return nested_reverse(lambda x: f(x * w + w.sin()), 1)(x)

    assert relative_error(got, expected(w)) < 1e-10
    if held.requires_grad:
        (trained,) = torch.autograd.grad(got.square().sum(), held)
        assert relative_error(trained.as_subclass(Tensor), grad(lambda w: expected(w).square().sum())(w)) < 1e-10


def _no_grad(x: Tensor) -> Tensor:
    y = x.sin()
    with torch.no_grad():
        z = y.as_subclass(Sub)
    return z * x * x


def _times_detached(y: Tensor) -> Tensor:
    return y.as_subclass(Sub) * y.detach()


def _detached_and_not(y: Tensor) -> tuple[Tensor, Tensor]:
    alias = y.as_subclass(Sub)
    return y.detach(), alias


captured = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
CUT: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "data": (lambda x: x.as_subclass(Sub).data * x, lambda x: x.detach() * x),
    "detach": (lambda x: x.as_subclass(Sub).detach() * x, lambda x: x.detach() * x),
    "another alias is detached": (
        lambda x: _times_detached(x.sin()),
        lambda x: x.sin() * x.sin().detach(),
    ),
    "detached after the alias was made": (
        lambda x: torch.mul(*_detached_and_not(x.sin())),
        lambda x: x.sin() * x.sin().detach(),
    ),
    "a parameter": (lambda x: torch.nn.Parameter(x.sin()) * x * x, lambda x: x.sin().detach() * x * x),
    "_make_subclass": (lambda x: Tensor._make_subclass(Sub, x.sin()) * x, lambda x: x.sin().detach() * x),
    "without gradients": (_no_grad, lambda x: x.sin().detach() * x * x),
    "of a captured tensor": (lambda x: captured.to(x).as_subclass(Sub) * x * x, lambda x: captured.to(x) * x * x),
    "of another dtype": (
        lambda x: x.view(torch.int64).as_subclass(Sub).sign() * x * x,
        lambda x: x.view(torch.int64).sign() * x * x,
    ),
    "of conjugates": (
        lambda x: torch.complex(x, x * x).conj().as_subclass(Sub).imag * x,
        lambda x: torch.complex(x, x * x).conj().imag * x,
    ),
}


@pytest.mark.parametrize("name", CUT)
def test_an_alias_is_told_from_what_is_detached(name: str, device: torch.device) -> None:
    f, reference = CUT[name]
    x = rand(device, 3)
    assert relative_error(hofunc.hessian(f)(x), nested_reverse(reference, 2)(x)) < 1e-12


def test_an_alias_of_a_captured_input_is_captured(device: torch.device) -> None:
    x = rand(device, 3)
    for f in (lambda y: y * y * x.as_subclass(Sub), lambda y: y * y * x[:].as_subclass(Sub)):
        assert torch.equal(hofunc.hessian(lambda y, f=f: f(y).sum())(x), (2 * x).diag())


def test_an_alias_is_a_place_of_its_own_with_the_strides_of_the_tensor(device: torch.device) -> None:
    for x in (rand(device, 2, 3).mT, rand(device, 8).as_strided((2, 1, 3), (1, 7, 2)), rand(device)):
        for tensor in (x, x.clone().requires_grad_()):
            alias = alias_of(tensor)
            assert alias.stride() == tensor.stride()
            assert alias.data_ptr() == tensor.data_ptr()
            assert alias.requires_grad == tensor.requires_grad
            assert not alias._is_view()
            assert place_of(alias.as_subclass(Sub)) == place_of(alias) != place_of(tensor)


def test_f_sees_the_class_and_its_attributes(device: torch.device) -> None:
    seen: list[Any] = []
    x = rand(device, 3).as_subclass(Sub)
    x.unit = "m"  # type: ignore[attr-defined]

    def f(x: Any) -> Tensor:
        seen.append((type(x), x.unit))
        return x.sum()

    hofunc.hessian(f)(x)
    assert seen == [(Sub, "m")]


# What is refused, by the name of the class.

_mask = torch.tensor([True, False, True])


def _nested(x: Tensor) -> Tensor:
    return torch.nested.as_nested_tensor([x, x[:2]])


def _first(pair: Any) -> Tensor:
    return pair.a


def _data(masked: Any) -> Tensor:
    return masked.get_data()


REFUSED: dict[str, tuple[str, Callable[[Tensor], Any]]] = {
    "an input": ("TwoTensor", lambda x: hofunc.hessian(torch.sin)(TwoTensor(x, x.clone()))),
    "captured": ("TwoTensor", lambda x: hofunc.hessian(lambda y: y * TwoTensor(x, x.clone()))(x)),
    "made inside": ("TwoTensor", lambda x: hofunc.hessian(lambda y: _first(TwoTensor(y, y.clone()) ** 3))(x)),
    "written": ("TwoTensor", lambda x: hofunc.hessian(lambda y: _first(TwoTensor(y.sin(), y.cos()).mul_(2)))(x)),
    "of a plan": ("TwoTensor", lambda x: hofunc.hessian(lambda y: _first(TwoTensor(y, y.clone()) ** 3)).plan(x)),
    "under vmap": ("TwoTensor", lambda x: vmap(hofunc.jacobian(lambda y: y * TwoTensor(x, x)))(x[None])),
    "masked": ("MaskedTensor", lambda x: hofunc.hessian(torch.sin)(masked_tensor(x, _mask.to(x.device)))),
    "masked inside": (
        "MaskedTensor",
        lambda x: hofunc.hessian(lambda y: _data(masked_tensor(y, _mask.to(x.device)) ** 3))(x),
    ),
    "nested": ("a nested tensor", lambda x: hofunc.hessian(lambda y: (_nested(y) * 2).to_padded_tensor(0.0))(x)),
    "captured in inference mode": (
        "Sub",
        torch.inference_mode()(lambda x: hofunc.hessian(partial(torch.mul, (x * 1).as_subclass(Sub)))(x)),
    ),
    "sparse": (
        "torch.sparse_coo",
        lambda x: hofunc.hessian(lambda y: torch.sparse.mm(x.diag().to_sparse(), y[:, None]))(x),
    ),
    "sparse, by @": ("torch.sparse_coo", lambda x: hofunc.jacobian(lambda y: x.diag().to_sparse() @ y)(x)),
    "compressed": ("torch.sparse_csr", lambda x: hofunc.jacobian(lambda y: x.diag().to_sparse_csr() @ y)(x)),
    "a sparse input": ("torch.sparse_coo", lambda x: hofunc.hessian(torch.sin)(x.to_sparse())),
    "a sparse input of a plan": ("torch.sparse_coo", lambda x: hofunc.hessian(torch.sin).plan(x.to_sparse())),
    "sparse under vmap": (
        "torch.sparse_coo",
        lambda x: vmap(hofunc.jacobian(lambda y: x.diag().to_sparse() @ y))(x[None]),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_what_computes_out_of_sight_is_refused_by_name(case: str, device: torch.device) -> None:
    name, call = REFUSED[case]
    with pytest.raises(UntracedError, match=f"{name}(.|\n)*expected(.|\n)*(Let f take|Use )"):
        call(rand(device, 3))


def test_a_dense_copy_of_a_sparse_matrix_is_a_constant(device: torch.device) -> None:
    x = rand(device, 3)
    matrix = x.diag().to_sparse()
    jacobian = hofunc.jacobian(lambda y: matrix.to_dense() @ y)
    for got in (jacobian(x), vmap(jacobian)(x[None])[0], jacobian.plan(x)(x)):
        assert torch.equal(got, x.diag())


WITHOUT_ELEMENTS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "nested": (lambda x: torch.nested.nested_tensor([x, x[:1]]), "got a nested tensor,.* Use a padded tensor"),
    "jagged": (lambda x: torch.nested.nested_tensor([x, x[:1]], layout=torch.jagged), "computes with a NestedTensor"),
    "masked": (lambda x: masked_tensor(x, x > 0), "computes with a MaskedTensor"),
    "sparse": (lambda x: x.to_sparse(), "got one of layout torch.sparse_coo,.* Use its to_dense"),
    "sparse by rows": (lambda x: x[None].to_sparse_csr(), "got one of layout torch.sparse_csr,.* Use its to_dense"),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("name", ["nested", "sparse"])
def test_they_are_named_where_others_were_taken_before(name: str, device: torch.device) -> None:
    make, message = WITHOUT_ELEMENTS[name]
    x = rand(device, 3)
    hessian = hofunc.hessian(lambda x: (x**3).sum())
    for _ in range(3):  # from the third call on inputs are compared at once, in which torch ended the process
        hessian(x)
    with pytest.raises(UntracedError, match=message):
        hessian(make(x))
    with pytest.raises(hofunc.PlanMismatchError, match=r"args\[0\] of a plan: got a tensor that is nested or sparse"):
        hessian.plan(x)(make(x))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_jit_calls_the_transform_where_a_tensor_is_nested(device: torch.device) -> None:
    x = rand(device, 3)
    rows = torch.nested.nested_tensor([x, x[:1]])
    hessian = hofunc.hessian(lambda x, rows: (x**3).sum() * rows.to_padded_tensor(0.0).sum())
    jitted = hofunc.jit(hessian)
    for _ in range(3):
        assert torch.equal(jitted(x, rows), hessian(x, rows))
        assert torch.equal(jitted(x, rows=rows), hessian(x, rows))
    with pytest.raises(UntracedError, match="got a nested tensor"):
        hofunc.jit(hofunc.hessian(lambda x: (x**3).sum()))(rows)


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning", "ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("is_plan", [False, True])
@pytest.mark.parametrize("name", WITHOUT_ELEMENTS)
def test_tensors_without_elements_of_their_own_are_named(name: str, is_plan: bool, device: torch.device) -> None:
    make, message = WITHOUT_ELEMENTS[name]
    x = rand(device, 3)
    other = make(x)

    def refuses(f: Callable[..., Any], *args: Tensor, has_aux: bool = False) -> None:
        transform = hofunc.hod(f, has_aux=has_aux)
        with pytest.raises(UntracedError, match=message):
            (transform.plan if is_plan else transform)(*args)

    refuses(lambda x: x.sum(), other)
    refuses(lambda x: other * x.sum(), x)
    refuses(lambda x, other: other * x.sum(), x, other)
    refuses(lambda x: other, x)
    refuses(lambda x: (x**2, other), x, has_aux=True)


def test_variables_are_no_views_and_keep_the_history_that_there_is(device: torch.device) -> None:
    base = rand(device, 4, 3)
    leaf = rand(device, 2).requires_grad_()
    tensors = [base, base[1:], base.t(), base[0, 0], torch.nn.Parameter(base, requires_grad=False), leaf, 2 * leaf]
    for tensor, variable in zip(tensors, variables_of(tensors, follow=False), strict=True):
        assert variable is not tensor
        assert not variable._is_view()
        assert variable.stride() == tensor.stride()
        assert variable.data_ptr() == tensor.data_ptr()
        assert variable.requires_grad == tensor.requires_grad
    assert all(variable.requires_grad for variable in variables_of(tensors, follow=True))


def test_a_variable_keeps_its_tangent(device: torch.device) -> None:
    x, direction = rand(device, 3), rand(device, 3)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, direction)
        (variable,) = variables_of([dual], follow=False)
        tangent = torch.autograd.forward_ad.unpack_dual(variable).tangent
    torch.testing.assert_close(tangent, direction)


class _HoldsWhatIsDetached(TorchFunctionMode):
    """Returns zeros for what is detached, as an oracle does that holds what is constant."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return torch.zeros_like(out) if func is torch.Tensor.detach else out


def test_what_detaching_means_to_a_mode_around_does_not_matter(device: torch.device) -> None:
    x = rand(device, 3)
    with _HoldsWhatIsDetached():
        found = hofunc.hessian(lambda x: (x**3).sum())(x)
    torch.testing.assert_close(found, (6 * x).diag())


def asking(x: Tensor) -> Tensor:
    """Return a number of which the function takes a slope itself."""
    (slope,) = torch.autograd.grad(x.sin().sum(), x, create_graph=True)
    return (slope * x**3).sum()


@pytest.mark.parametrize("f", [lambda x: (x.sin() * x**3).sum(), asking])
@pytest.mark.parametrize("times", [1, 3])
def test_a_write_to_an_input_before_a_backward_pass_is_noticed(
    f: Callable[[Tensor], Tensor], times: int, device: torch.device
) -> None:
    """As of torch's own derivatives."""
    transform = hofunc.derivatives(f, 2)
    for _ in range(times):
        x, other = rand(device, 3).requires_grad_(), rand(device, 3)
        found = transform(x)
        torch.autograd.grad(found[2].sum(), x, retain_graph=True)
        with torch.no_grad():
            x.add_(other)
        for each in found:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                torch.autograd.grad(each.sum(), x, retain_graph=True)


def test_what_is_not_used_has_no_gradient(device: torch.device) -> None:
    x, y = rand(device, 3).requires_grad_(), rand(device, 3, seed=1).requires_grad_()
    (found, _), _ = hofunc.hessian(lambda x, y: (x**3).sum() + y.sum(), argnums=(0, 1))(x, y)
    assert torch.autograd.grad(found.sum(), (x, y), allow_unused=True)[1] is None
