"""What a function must not do, what it is told, and that nothing is changed by then."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

import hofunc
from hofunc.errors import BranchError, HofuncError, MutationError, UntracedError
from tests.cases import rand
from tests.graph.recordings import recorded, recorded_under
from verification.oracles import relative_error

vmap = torch.func.vmap


def assert_says(error: BaseException, *parts: str) -> None:
    """Check the four parts of a message: what, got against expected, where, and what next."""
    message = str(error)
    assert isinstance(error, HofuncError)
    places = [message.find(part) for part in parts]
    assert -1 not in places, message
    assert places == sorted(places), message


# Writes.


def _input_in_place(x: Tensor, _: Tensor) -> Tensor:
    return x.mul_(2)


def _view_of_the_input(x: Tensor, _: Tensor) -> Tensor:
    x[0, 1:] = 0
    return x * 2


def _input_through_data(x: Tensor, _: Tensor) -> Tensor:
    x.data.mul_(2)
    return x * 2


def _input_after_detach(x: Tensor, _: Tensor) -> Tensor:
    x.detach().t().zero_()
    return x * 2


def _captured_tensor(x: Tensor, captured: Tensor) -> Tensor:
    captured += x
    return captured


def _captured_tensor_without_x(x: Tensor, captured: Tensor) -> Tensor:
    captured.zero_()
    return x * captured


def _view_of_a_captured_tensor(x: Tensor, captured: Tensor) -> Tensor:
    captured.view(-1)[2] = 5
    return x * captured


def _out_argument(x: Tensor, captured: Tensor) -> Tensor:
    return torch.mul(x, 2, out=captured)


def _after_other_writes(x: Tensor, _: Tensor) -> Tensor:
    y = x.clone()
    y[0] = 3
    x[1] = y[0]
    return x * y


def _shape_of_the_input(x: Tensor, _: Tensor) -> Tensor:
    return x.t_() * 2


def _without_gradients(x: Tensor, captured: Tensor) -> Tensor:
    with torch.no_grad():
        captured.add_(1)
    return x * captured


def _first_of_two_results(x: Tensor, captured: Tensor) -> Tensor:
    places = torch.empty(x.shape, dtype=torch.long, device=x.device)
    torch.sort(x, out=(captured, places))
    return x * captured


def _second_of_two_results(x: Tensor, captured: Tensor) -> Tensor:
    least = torch.empty_like(x[0])
    torch.aminmax(x, dim=0, out=(least, captured[0]))
    return x * captured


def _last_of_a_list(x: Tensor, captured: Tensor) -> Tensor:
    own = x.clone()
    torch._foreach_mul_([own, captured], [x, x])
    return own * captured


def _first_of_a_list(x: Tensor, captured: Tensor) -> Tensor:
    own = torch.ones_like(x)
    torch._foreach_add_([captured, own], 2.0)
    return x * own


def _an_input_in_a_list(x: Tensor, _: Tensor) -> Tensor:
    own = x.clone()
    torch._foreach_neg_([own, x])
    return own


def _a_list_without_gradients(x: Tensor, captured: Tensor) -> Tensor:
    own = x.clone()
    with torch.no_grad():
        torch._foreach_copy_([own, captured], [x, x])
    return own


MUTATIONS = [
    _input_in_place,
    _view_of_the_input,
    _input_through_data,
    _input_after_detach,
    _captured_tensor,
    _captured_tensor_without_x,
    _view_of_a_captured_tensor,
    _out_argument,
    _after_other_writes,
    _shape_of_the_input,
    _without_gradients,
    _first_of_two_results,
    _second_of_two_results,
    _last_of_a_list,
    _first_of_a_list,
    _an_input_in_a_list,
    _a_list_without_gradients,
]


@pytest.mark.parametrize("f", MUTATIONS, ids=lambda f: f.__name__)
def test_a_write_to_what_the_function_did_not_make_is_refused(
    f: Callable[[Tensor, Tensor], Tensor], device: torch.device
) -> None:
    x, captured = rand(device, 2, 3), rand(device, 2, 3, seed=1)
    before = x.clone(), captured.clone()
    with pytest.raises(MutationError) as caught:
        recorded(lambda x: f(x, captured), x)
    assert_says(
        caught.value,
        "f is not pure: got aten.",
        "writing to an input or to a captured tensor, expected a function that leaves its inputs",
        "(called at test_purity.py:",
        "Write to a clone",
    )
    for tensor, kept in zip((x, captured), before, strict=True):
        assert torch.equal(tensor, kept)
        assert tensor._version == 0


@pytest.mark.parametrize("f", [_input_in_place, _captured_tensor, _view_of_a_captured_tensor, _out_argument])
def test_under_vmap_too(f: Callable[[Tensor, Tensor], Tensor], device: torch.device) -> None:
    x, captured = rand(device, 4, 2, 3), rand(device, 4, 2, 3, seed=1)
    before = x.clone(), captured.clone()
    with pytest.raises(MutationError, match=r"f is not pure.*called at test_purity\.py:"):
        vmap(lambda x, captured: hofunc.hod(lambda x: f(x, captured), 1)(x))(x, captured)
    assert torch.equal(x, before[0])
    assert torch.equal(captured, before[1])


def test_the_line_of_the_write_is_named(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        x.mul_(2)
        return x

    line = f.__code__.co_firstlineno + 1
    with pytest.raises(MutationError, match=rf"called at test_purity\.py:{line}\)"):
        recorded(f, rand(device, 3))


def test_an_input_may_be_written_by_its_own_caller(device: torch.device) -> None:
    """What f gets is an alias: a write outside f, after it, does not concern the recording."""
    x = rand(device, 3)
    recording = recorded(lambda x: x.clone().mul_(2), x)
    x.zero_()
    assert recording.values[recording.graph.outputs[0]].any()


# Branches.


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * 2 if x.sum() > 0 else x,
        lambda x: x * float((x * x)[0]),
        lambda x: x * x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x * x.nonzero().shape[0],
        lambda x: x * (2 if torch.equal(x, x * 2) else 3),
        lambda x: x * (2 if torch.allclose(x, x * 2) else 3),
        lambda x: x * len(x.round().unique()),
    ],
)
def test_a_branch_on_a_batch_is_refused(f: Callable[[Tensor], Tensor], device: torch.device) -> None:
    with pytest.raises(BranchError) as caught:
        recorded_under(vmap, f, rand(device, 4, 3))
    assert_says(
        caught.value,
        "f depends on the value of a tensor under vmap: got aten.",
        "which needs a single value, expected a function whose steps are the same for every member of the batch",
        "(called at test_purity.py:",
        "Use torch.where in place of the branch",
    )


def test_a_branch_on_a_captured_batch_is_refused(device: torch.device) -> None:
    def g(x: Tensor, w: Tensor) -> Tensor:
        return hofunc.hod(lambda x: x * 2 if w.sum() > 0 else x, 1)(x)

    with pytest.raises(BranchError):
        vmap(g)(rand(device, 4, 3), rand(device, 4, 3))


def test_a_branch_on_a_batch_that_was_written_somewhere_is_refused(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        y[0] = x[1]
        return x * 2 if y.sum() > 0 else x

    with pytest.raises(BranchError):
        recorded_under(vmap, f, rand(device, 4, 3))


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_what_is_true_of_whole_batches_may_decide(randomness: str, device: torch.device) -> None:
    """torch's vmap has one answer for all members; distributions check so what they are given."""

    def f(x: Tensor, scale: Tensor, noise: Tensor | None = None) -> Tensor:
        noise = torch.rand_like(x) if noise is None else noise  # it is drawn again for the answers, and for the values
        total = (
            torch.distributions.Exponential(scale.abs(), validate_args=True).log_prob((x + noise).abs()).sum()
            * (noise * x**2).sum()
        )
        return total * x.prod() if torch._is_any_true(x > 0) and torch._is_all_true(noise < 1) else total

    x, scale = rand(device, 4, 3), rand(device, 4, 3)
    torch.manual_seed(1)
    got = vmap(hofunc.hessian(f), randomness=randomness)(x, scale)
    after = torch.rand(())
    torch.manual_seed(1)
    noise = vmap(lambda x: torch.rand_like(x), randomness=randomness)(x).expand(4, 3)
    expected = [torch.func.hessian(f)(*rows) for rows in zip(x, scale, noise, strict=True)]
    assert relative_error(got, torch.stack(expected)) < 1e-12
    assert torch.equal(after, torch.rand(()))

    both = vmap(vmap(hofunc.hessian(f), randomness="same"), (None, 0), randomness="same")
    torch.manual_seed(1)
    got = both(x, scale[:, None].expand(4, 4, 3))
    torch.manual_seed(1)
    row = torch.rand_like(x[0])
    assert relative_error(got[2, 1], torch.func.hessian(f)(x[1], scale[2], row)) < 1e-12


def test_a_branch_on_what_is_true_of_the_first_of_a_batch_only_is_refused(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.distributions.Exponential(x, validate_args=True).log_prob(torch.ones_like(x))

    rates = torch.tensor([1.0, -1.0], device=device)
    with pytest.raises(BranchError) as caught:
        vmap(hofunc.hessian(f))(rates)
    assert_says(
        caught.value,
        "f depends on the value of a tensor under vmap: got False from aten._is_all_true.default for all members of a ",
        "batch, and True for the first, expected members that are all alike",
        "(called at test_purity.py:",
        "See which members differ",
    )
    plan = hofunc.hessian(f).plan(rates[0])
    assert torch.allclose(vmap(plan)(rates.abs()), -1 / rates**2)
    with pytest.raises(HofuncError, match="got False"):
        vmap(plan)(rates)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_mask_that_is_not_batched_may_select_of_a_batch(device: torch.device) -> None:
    mask = torch.tensor([True, False, True], device=device)

    def f(x: Tensor) -> Tensor:
        return x.masked_select(mask).prod() ** 2

    x = rand(device, 4, 3)
    assert relative_error(vmap(hofunc.hessian(f))(x), torch.stack([torch.func.hessian(f)(row) for row in x])) < 1e-12


def test_a_branch_on_what_is_not_batched_is_taken(device: torch.device) -> None:
    weight = rand(device, 3).abs()

    def g(x: Tensor, scale: Tensor) -> Tensor:
        return hofunc.hod(lambda x: (x * x).sum() * scale if weight.sum() > 0 and scale > 0 else x.sum(), 1)(x)

    x = rand(device, 4, 3)
    assert torch.equal(vmap(g, in_dims=(0, None))(x, torch.tensor(2.0, device=device)), 4 * x)


def test_a_branch_under_grad_is_taken(device: torch.device) -> None:
    """Under grad alone there is a single value."""
    x = rand(device, 3).abs()

    def g(x: Tensor) -> Tensor:
        return hofunc.hod(lambda x: (x * x * x).sum() if x.sum() > 0 else x.sum(), 1)(x).sum()

    assert torch.allclose(torch.func.grad(g)(x), 6 * x)


# Custom functions.


class Straight(torch.autograd.Function):
    """Rounds, and passes the gradient straight through; of the form that torch.func does not take."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(_: Any, *grads: Tensor) -> Any:
        return grads[0]


@pytest.mark.parametrize("outer", [vmap, lambda f: lambda x: torch.func.grad(lambda x: f(x).sum())(x)])
def test_a_custom_function_is_refused_under_a_transform(outer: Callable[..., Any], device: torch.device) -> None:
    with pytest.raises(UntracedError) as caught:
        outer(lambda x: hofunc.hod(lambda x: Straight.apply(x).sum(), 1)(x))(rand(device, 2, 3))
    assert_says(
        caught.value,
        "f uses a custom torch.autograd.Function: got ",
        "Straight.apply without a setup_context, of which only the forward can be recorded",
        "expected ops whose derivatives are known",
        "(called at test_purity.py:",
        "set hofunc.options(functions='forward')",
    )


def test_a_custom_function_of_untracked_tensors_is_let_pass(device: torch.device) -> None:
    weight = rand(device, 3)
    recording = recorded(lambda x: x * Straight.apply(weight), rand(device, 3))
    assert torch.equal(recording.values[1], weight.round())


# Hooks, and what f makes require gradients.


def _hooked(x: Tensor) -> Tensor:
    y = x.sin()
    y.register_hook(_doubled)
    return y * y


def _doubled(gradient: Tensor) -> Tensor:
    return gradient * 2


def _hooked_and_written(x: Tensor) -> Tensor:
    y = x.sin()
    y.register_hook(_doubled)
    return y.mul_(2) * x


def _written_and_hooked(x: Tensor) -> Tensor:
    y = x.sin()
    y.mul_(x).register_hook(_doubled)
    return y * x


def _hooked_input(x: Tensor) -> Tensor:
    x.register_hook(_doubled)
    return x * x


@pytest.mark.parametrize("f", [_hooked, _hooked_and_written, _written_and_hooked, _hooked_input])
def test_a_hook_is_refused(f: Callable[[Tensor], Tensor], device: torch.device) -> None:
    """Hooks double the derivative in torch.func."""
    message = r"calls register_hook: got the hook _doubled of .*Register the hook"
    for x in (rand(device, 3).requires_grad_(), rand(device, 3)):
        for call in (hofunc.jacobian(f), hofunc.jacobian(f).plan, hofunc.hod(hofunc.jacobian(f), 1)):
            with pytest.raises(UntracedError, match=message):
                call(x)


def _doubled_by_step(gradients: tuple, *_: Any) -> tuple:
    return tuple(2 * gradient for gradient in gradients)


def _step_hooked(x: Tensor) -> Tensor:
    y = x.sin()
    get_gradient_edge(y).node.register_hook(_doubled_by_step)
    return y * y


def _hooked_before_step(x: Tensor) -> Tensor:
    y = x.sin()
    get_gradient_edge(y).node.register_prehook(_doubled_by_step)
    return y * y


def _step_hooked_and_written(x: Tensor) -> Tensor:
    y = x.sin()
    get_gradient_edge(y).node.register_hook(_doubled_by_step)
    return y.mul_(2) * x


def _step_of_many(x: Tensor) -> Tensor:
    y = (x.sin() * 2).exp()
    step, _ = get_gradient_edge(y).node.next_functions[0]
    assert step is not None
    step.register_hook(_doubled_by_step)
    return y


@pytest.mark.parametrize("f", [_step_hooked, _hooked_before_step, _step_hooked_and_written, _step_of_many])
def test_a_hook_of_a_step_of_autograd_is_refused(f: Callable[[Tensor], Tensor], device: torch.device) -> None:
    x = rand(device, 3).requires_grad_()
    for call in (hofunc.jacobian(f), hofunc.jacobian(f).plan, hofunc.hod(hofunc.jacobian(f), 1)):
        with pytest.raises(UntracedError, match=r"calls register_hook: got the hook _doubled_by_step of .*Backward0"):
            call(x)


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook:FutureWarning")
@pytest.mark.parametrize("registered", ["register_backward_hook", "register_full_backward_hook"])
def test_a_backward_hook_of_a_module_is_refused(registered: str, device: torch.device) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()).to(device, torch.float64)
    x, f = rand(device, 3), hofunc.jacobian(lambda x: net(x).sum())
    handle = getattr(net[1], registered)(lambda _, inputs, __: _doubled_by_step(inputs))
    for call in (f, f.plan, lambda x: f(x.requires_grad_())):
        with pytest.raises(UntracedError, match=r"f calls a module that has a backward hook: got .* of a module"):
            call(x)
    handle.remove()
    f(x.detach())


def test_other_handles_are_no_hooks_of_steps(device: torch.device) -> None:
    """A handle was made, so that the steps are looked at; what is captured may have hooks, which training calls."""
    x, w = rand(device, 3).requires_grad_(), rand(device, 3).requires_grad_()
    exponential = w.exp()
    get_gradient_edge(exponential).node.register_hook(_doubled_by_step)

    def f(x: Tensor) -> Tensor:
        torch.nn.Tanh().register_forward_hook(lambda *_: None)
        return (exponential * x**2).sum()

    by_x, by_w = torch.autograd.grad(hofunc.jacobian(f)(x).sum(), (x, w))
    assert torch.allclose(by_x, 2 * w.exp())
    assert torch.allclose(by_w, 2 * 2 * x * w.exp())


def test_hooks_of_what_is_passed_and_captured_are_called_in_training(device: torch.device) -> None:
    x, w = rand(device, 3).requires_grad_(), rand(device, 3).requires_grad_()
    x.register_hook(_doubled)
    w.register_hook(_doubled)
    transform = hofunc.jacobian(lambda x: (w * x**2).sum())
    for result in (transform(x), transform.plan(x.detach())(x)):
        by_x, by_w = torch.autograd.grad(result.sum(), (x, w))
        assert torch.allclose(by_x, 4 * w)
        assert torch.allclose(by_w, 4 * x)


def _requires_gradients(x: Tensor) -> Tensor:
    return x.requires_grad_() ** 3


def _makes_a_leaf(x: Tensor) -> Tensor:
    return x**3 * torch.ones(3, requires_grad=True).to(x)


def _makes_another(x: Tensor) -> Tensor:
    return x**3 + (x * 2).requires_grad_().detach() * (x * 0).requires_grad_()


def _makes_a_parameter_of_x(x: Tensor) -> Tensor:
    return x**3 + (x.sin() - torch.nn.Parameter(x.sin())).detach()


def _makes_a_parameter(x: Tensor) -> Tensor:
    return x**3 * (torch.nn.Parameter(torch.ones(3)).to(x) * 1)


@pytest.mark.parametrize("f", [_makes_a_leaf, _makes_a_parameter_of_x, _makes_a_parameter])
def test_leaves_that_f_makes_leave_no_graph_either_under_vmap(
    f: Callable[[Tensor], Tensor], device: torch.device
) -> None:
    """As in torch.func, of which a leaf that nobody can reach is no output."""
    x, w = rand(device, 2, 3), rand(device, 3).requires_grad_()
    transform = hofunc.hessian(lambda x: f(x).sum())
    for result in (transform(x[0]), torch.func.vmap(transform)(x), *hofunc.derivatives(f)(x[0])):
        assert not result.requires_grad
    assert relative_error(torch.func.vmap(transform)(x), (6 * x).diag_embed()) < 1e-12
    trained = hofunc.jacobian(lambda x: (f(x) * w.exp()).sum())
    for result in (trained(x[0]), torch.func.vmap(trained)(x[:1])):
        assert torch.allclose(torch.autograd.grad(result.sum(), w)[0], 3 * x[0] ** 2 * w.exp())


@pytest.mark.parametrize("f", [_requires_gradients, _makes_a_leaf, _makes_another, _makes_a_parameter_of_x])
def test_what_f_makes_require_gradients_leaves_no_graph(f: Callable[[Tensor], Tensor], device: torch.device) -> None:
    x = rand(device, 3)
    transform = hofunc.hessian(lambda x: f(x).sum())
    for result in (transform(x), transform.plan(x)(x), *hofunc.derivatives(f)(x)):
        assert not result.requires_grad
    assert not x.requires_grad
    assert relative_error(transform(x), (6 * x).diag()) < 1e-12


def test_what_f_captures_keeps_its_graph_beside_that(device: torch.device) -> None:
    x, w = rand(device, 3), rand(device, 3).requires_grad_()
    transform = hofunc.jacobian(lambda x: (_requires_gradients(x) * w.exp()).sum())
    for result in (transform(x), transform.plan(x)(x)):
        assert torch.allclose(torch.autograd.grad(result.sum(), w)[0], 3 * x**2 * w.exp())
