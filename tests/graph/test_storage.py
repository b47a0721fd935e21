"""In-place code: what is recorded of it computes the same when it is replayed at other inputs."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.errors import UntracedError
from hofunc.graph.effects import effects, functional_form
from hofunc.graph.layout import Layout
from hofunc.graph.tape import Tape
from tests.cases import rand
from tests.graph.programs import program
from tests.graph.recordings import check_replay, computed, ops, recorded
from verification.oracles import nested_reverse, relative_error

aten = torch.ops.aten

IN_PLACE: list[Callable[[Tensor], Any]] = []


def in_place(f: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """Enter a function of a tensor of shape (3, 4)."""
    IN_PLACE.append(f)
    return f


@in_place
def whole(x: Tensor) -> Any:
    y = x.clone()
    z = y.add_(1)
    return z.mul_(x), y


@in_place
def rows_from_rows(x: Tensor) -> Any:
    y = x.clone()
    y[0] = y[1] * 2
    y[1:] += y[0]
    y[:, 2] = 1.5
    return y


@in_place
def a_view_taken_before_the_write(x: Tensor) -> Any:
    y = x * 2
    row, column = y[1], y[:, 1]
    y.sin_()
    row.mul_(3)
    return row, column, y


@in_place
def a_write_through_a_view_of_a_view(x: Tensor) -> Any:
    y = x * 1
    y.t()[1:].diagonal().exp_()
    y.view(-1)[2:10:3].neg_()
    return y, y[1]


@in_place
def a_value_read_before_the_write_stays(x: Tensor) -> Any:
    y = x * 2
    before = y[0] * 1
    y[0].zero_()
    return before, y


@in_place
def tracked_into_untracked(x: Tensor) -> Any:
    y, z = torch.zeros_like(x), torch.ones(12, dtype=x.dtype, device=x.device)
    y.copy_(x)
    z[2:5] = x[0, :3]
    w = torch.empty(4, 3, dtype=x.dtype, device=x.device)
    w.t().copy_(x)
    return y, z, w, w[1]


@in_place
def swapped_rows(x: Tensor) -> Any:
    y = x.clone()
    y[0], y[1] = y[1].clone(), y[0].clone()
    y[[0, 2]] = y[[2, 0]]
    return y


@in_place
def overlapping_reads(x: Tensor) -> Any:
    y = x.reshape(-1).clone()
    y[1:] += y[:-1].clone()
    y.unfold(0, 3, 3)[1] = 0
    windows = y.unfold(0, 3, 1)
    before = windows * 1
    y[5] = 2
    return y, before, windows


@in_place
def masks_and_indices(x: Tensor) -> Any:
    y = x.clone()
    y.masked_fill_(torch.eye(3, 4, dtype=torch.bool, device=x.device), 0.5)
    y.index_add_(0, torch.tensor([0, 0], device=x.device), x[1:])
    y.scatter_(1, torch.tensor([[1], [0], [3]], device=x.device), x[:, :1])
    return y


@in_place
def an_out_argument(x: Tensor) -> Any:
    y, parts = torch.empty_like(x), torch.zeros(2, 12, dtype=x.dtype, device=x.device)
    result = torch.mul(x, x, out=y)
    torch.add(y.view(-1), 1, alpha=2, out=parts[1])
    return result, y, parts


@in_place
def an_out_argument_that_is_an_operand(x: Tensor) -> Any:
    y = x * 1
    torch.mul(y, x, out=y)
    return y


@in_place
def new_shapes_in_place(x: Tensor) -> Any:
    y, z = x * 2, x * 3
    y.unsqueeze_(0)
    w = z.t_()
    z.squeeze_().transpose_(0, 1).add_(x)
    return y, z, w


@in_place
def a_new_shape_of_a_tensor_that_was_written(x: Tensor) -> Any:
    y = x.clone()
    y[0] = 1
    row = y[1]
    y.t_()
    y[0] *= 2
    return y, row


@in_place
def a_running_total(x: Tensor) -> Any:
    total = torch.zeros((), dtype=x.dtype, device=x.device)
    for row in x:
        total += row.prod()
        total *= row[0]
    return total


@in_place
def temporaries_that_die_before_the_write(x: Tensor) -> Any:
    """A tensor made after the write may get the memory, and so the id, of one that died in it."""
    y = x.clone()
    rows = [y[i % 3] * i for i in range(40)]
    y[0] = rows[1]
    return y, [row.exp() for row in rows]


@in_place
def inside_torch(x: Tensor) -> Any:
    y = torch.nn.functional.relu(x * 1, inplace=True)
    return torch.nn.functional.dropout(y, 0.5, training=False, inplace=True)


@in_place
def in_transforms(x: Tensor) -> Any:
    def f(row: Tensor) -> Tensor:
        y = row.clone()
        y[0] = row[1] * row[2]
        return y.prod()

    return torch.func.vmap(f)(x), torch.func.grad(f)(x[0])


@in_place
def broadcasts_of_what_is_written(x: Tensor) -> Any:
    y = x[0].clone()
    wide, scalar = y.expand(2, 4), y[1].expand(3)
    y[0] = 1
    before = wide * scalar[0]
    y[1:].mul_(2)
    return before, wide, scalar


@in_place
def empty_writes(x: Tensor) -> Any:
    y = x.clone()
    y[1:1] = 3
    y[:, 4:].mul_(2)
    return y


@in_place
def a_storage_with_gaps(x: Tensor) -> Any:
    y = torch.empty_strided((3, 4), (5, 1), dtype=x.dtype, device=x.device)
    y.copy_(x)
    y[1:].mul_(x[:2])
    y.view(3, 2, 2)[:, 1] += 1
    return y, y[:, 1]


@in_place
def a_tangent_of_a_view(x: Tensor) -> Any:
    return torch.func.jvp(torch.tanh, (x.sin()[1:],), (x[1:],))[1]


@in_place
def what_an_op_returns_beside_what_it_writes(x: Tensor) -> Any:
    mean, variance = x[0].clone(), torch.ones_like(x[1])
    y, save_mean, _ = aten._native_batch_norm_legit(x * 2, None, None, mean, variance, True, 0.1, 1e-5)
    return y, mean, save_mean * variance


@in_place
def lists(x: Tensor) -> Any:
    y, z, own = x.clone(), x.sin(), torch.ones_like(x)
    torch._foreach_mul_([y, own, z], [x, x, own])
    torch._foreach_add_([own], 2.0)
    torch._foreach_mul_([z, y], [2.0, 3.0])
    torch._foreach_addcmul_([y, z], [x, own], [own, x], torch.tensor([2.0, 3.0], dtype=x.dtype, device=x.device))
    with torch.no_grad():
        torch._foreach_clamp_max_([y, z], 0.9)
    return y, z, own


@in_place
def lists_of_which_one_reads_what_another_writes(x: Tensor) -> Any:
    y, z = x.clone(), x.sin()
    torch._foreach_add_([y, z], [z, y])
    torch._foreach_mul_([y, y[:1], y[1:]], [x, x[:1], x[1:]])
    return y, z


@pytest.mark.parametrize("f", IN_PLACE, ids=lambda f: f.__name__)
def test_in_place_code_replays(f: Callable[[Tensor], Any], device: torch.device) -> None:
    x, y = rand(device, 3, 4), rand(device, 3, 4, seed=1)
    before = x.clone()
    check_replay(f, [x], [y])
    assert torch.equal(x, before)


@pytest.mark.parametrize("seed", range(80))
def test_random_in_place_programs_replay(seed: int, device: torch.device) -> None:
    check_replay(program(Random(seed)), [rand(device, 3, 4)], [rand(device, 3, 4, seed=1)])  # noqa: S311


# The nodes that a write leaves.


def test_a_write_is_the_functional_op_and_new_contents(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        y = x.clone()
        y[0].mul_(2)
        return y

    recording = recorded(f, rand(device, 2, 3))
    contents = ["clone.default", "select.int", "mul.Tensor", "write_strided"]
    names = [getattr(node.op, "__name__", "") for node in computed(recording)][-4:]
    assert names == contents
    write = computed(recording)[-1]
    assert write.args[-1] == Layout((3,), (1,), 0)


@pytest.mark.parametrize("made", [torch.zeros_like, lambda x: torch.zeros(3, dtype=x.dtype, device=x.device)])
def test_what_is_made_of_numbers_is_what_the_function_holds(
    made: Callable[[Tensor], Tensor], device: torch.device
) -> None:
    """Torch would give it a detached alias if the tape held what the op returned."""
    recording = recorded(lambda x: made(x).add_(x).exp(), rand(device, 3))
    names = [name for name in ops(recording) if name != "detach.default"]  # which autograd saves of exp
    assert names[-2:] == ["add.Tensor", "exp.default"]
    assert len(names) <= 3


def test_what_is_made_of_numbers_and_dropped_is_still_the_functions_own(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        parameter = torch.nn.Parameter(torch.zeros(3, dtype=x.dtype, device=device))
        with torch.no_grad():
            parameter.add_(2)
        return x**3 * parameter

    got, expected = (hofunc.hessian(f)(rand(device, 3)) for f in (f, lambda x: 2 * x**3))
    assert torch.equal(got, expected)


def test_a_tensor_written_whole_is_not_read_back(device: torch.device) -> None:
    recording = recorded(lambda x: (x * 2).sin_().exp_(), rand(device, 3))
    nodes = recording.graph.nodes
    assert str(nodes[recording.graph.outputs[0]].op) == "aten.exp.default"
    assert str(nodes[nodes[recording.graph.outputs[0]].operands[0]].op) == "aten.sin.default"
    assert "read_strided" not in str(ops(recording))


def test_another_view_of_what_was_written_is_not_read_back(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        y = x.clone()
        one, other = y[0], y[0]
        one.mul_(2)
        return other * 1

    assert "read_strided" not in str(ops(recorded(f, rand(device, 2, 3))))


def test_a_write_elsewhere_leaves_a_tensor_as_it_was(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        y = x.clone()
        row = y[0]
        y[1] = 0
        return row * 2

    assert "read_strided" not in str(ops(recorded(f, rand(device, 2, 3))))


def test_writes_to_untracked_tensors_are_not_recorded(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        y = torch.ones(3, dtype=x.dtype, device=device)
        y.mul_(2)[0] = 5
        return x * y

    recording = recorded(f, rand(device, 3))
    assert ops(recording) == ["mul.Tensor"]
    assert recording.values[1].tolist() == [5, 2, 2]


def test_a_constant_written_later_keeps_the_value_that_it_was_used_with(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        scale = torch.full_like(x.detach(), 2)
        y = x * scale
        scale.fill_(3)
        return y + x * scale

    check_replay(f, [rand(device, 3)], [rand(device, 3, seed=1)])


# Refusals.


def test_another_dtype_of_the_storage_is_refused(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 1
        y.view(torch.int64).add_(1)
        return y

    with pytest.raises(UntracedError) as caught:
        recorded(f, rand(device, 3))
    for part in (
        "f writes in place to a storage that it sees in two dtypes",
        "got torch.int64 in a storage of torch.float64",
        "expected the dtype that the storage was allocated for",
        "called at test_storage.py:",
        "Write to a clone.",
    ):
        assert part in str(caught.value)


def test_views_of_complex_numbers_that_were_written_before_are_read(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        z = torch.zeros(3, dtype=torch.complex128, device=device)
        z[:] = torch.complex(x, x * x)
        return z.imag * z.conj().imag + z.real

    check_replay(f, [rand(device, 3)], [rand(device, 3, seed=1)])


def test_an_op_without_a_functional_form_is_refused(device: torch.device) -> None:
    with pytest.raises(UntracedError) as caught:
        recorded(lambda x: torch.zeros(3, dtype=x.dtype, device=device, out=x * 1), rand(device, 3))
    for part in (
        "f writes in place by an op that has no functional form",
        "got aten.zeros.out",
        "expected an in-place op with a counterpart that returns its result",
        "called at test_storage.py:",
        "Compute a new tensor instead.",
    ):
        assert part in str(caught.value)


# Schemas.


def test_the_effects_of_ops() -> None:
    assert effects(aten.mul.Tensor)[1:5] == ((), False, (), False)
    assert effects(aten.mul_.Tensor)[1:5] == (("self",), True, (0,), False)
    assert effects(aten.mul.out)[1:5] == (("out",), True, (2,), False)
    assert effects(aten.view.default)[1:5] == ((), True, (), False)
    assert effects(aten._unsafe_view.default)[1:5] == ((), True, (), False)
    assert effects(aten.aminmax.out).writes == ("min", "max")
    assert effects(aten.mul.Tensor) is effects(aten.mul.Tensor)


@pytest.mark.parametrize(
    ("op", "form"),
    [
        (aten.mul_.Tensor, aten.mul.Tensor),
        (aten.mul_.Scalar, aten.mul.Scalar),
        (aten.add.out, aten.add.Tensor),
        (aten.copy_.default, aten.copy.default),
        (aten.index_put_.default, aten.index_put.default),
        (aten.unsqueeze_.default, aten.unsqueeze.default),
        (aten.native_batch_norm.out, aten.native_batch_norm.default),
        (aten.uniform_.default, aten.uniform.default),
        (aten.zeros.out, None),
        (aten.fill_diagonal_.default, None),
    ],
)
def test_functional_forms(op: Any, form: Any) -> None:
    assert functional_form(op) is form


def _crossed(x: Tensor) -> Tensor:
    y, z = x.clone(), x.sin()
    torch._foreach_add_([y, z], [z, y])
    torch._foreach_mul_([y, z], [z, x])
    return y * z


def _crossed_written_out(x: Tensor) -> Tensor:
    y = x + x.sin()
    z = x.sin() + y
    return y * z * (z * x)


def test_derivatives_through_lists(device: torch.device) -> None:
    """Torch's own forget that the second of a list reads what was written to the first."""
    x = rand(device, 3)
    with hofunc.options(fallback="quiet"):
        got = hofunc.hessian(_crossed)(x)
        planned = hofunc.hessian(_crossed).plan(x)(x)
    expected = nested_reverse(_crossed_written_out, 2)(x)
    assert relative_error(_crossed(x), _crossed_written_out(x)) < 1e-14
    assert relative_error(got, expected) < 1e-12
    assert relative_error(planned, expected) < 1e-12


def test_results_of_one_op_written_to_several_tensors(device: torch.device) -> None:
    def f(x: Tensor) -> Tensor:
        least, most = torch.empty((), dtype=x.dtype, device=device), torch.zeros_like(x)
        torch.aminmax(x * x, out=(least, most[0].view(())))
        values, places = torch.empty_like(x), torch.empty(3, dtype=torch.long, device=device)
        torch.sort(x.sin(), out=(values, places))
        return x * least * most[0] * values

    def written_out(x: Tensor) -> Tensor:
        return x * (x * x).min() * (x * x).max() * x.sin().sort().values

    x = rand(device, 3)
    assert relative_error(hofunc.hessian(f)(x), nested_reverse(written_out, 2)(x)) < 1e-12
    assert relative_error(hofunc.hessian(f).plan(x)(x), nested_reverse(written_out, 2)(x)) < 1e-12


def test_what_an_out_variant_writes_beside_its_results_is_told_apart(device: torch.device) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        mean, variance, *saved = (x.new_zeros(3) for _ in range(4))
        out = torch.empty_like(x)
        torch.ops.aten._native_batch_norm_legit.out(
            x * 1, None, None, mean, variance, True, 0.1, 1e-5, out=out, save_mean=saved[0], save_invstd=saved[1]
        )
        return (out**3).sum() + (mean**2).sum() + variance.sum()

    def written_out(x: torch.Tensor) -> torch.Tensor:
        variance, mean = torch.var_mean(x, 0, correction=0)
        out = (x - mean) / (variance + 1e-5).sqrt()
        return (out**3).sum() + ((0.1 * mean) ** 2).sum() + 0.1 * x.var(0).sum()

    x = rand(device, 4, 3)
    assert relative_error(hofunc.hessian(f)(x), nested_reverse(written_out, 2)(x)) < 1e-10


def written_whole(x: Tensor) -> Tensor:
    """Write to all of a tensor."""
    return x.clone().mul_(2).exp_()


def read_in_part(x: Tensor) -> Tensor:
    """Write to a part of a tensor, and return the part."""
    return x.clone()[0].mul_(2)


@pytest.mark.parametrize("f", [written_whole, read_in_part])
def test_writes_of_which_nothing_else_reads_the_memory_leave_no_contents(
    f: Callable[[Tensor], Tensor], device: torch.device
) -> None:
    nodes = str(ops(recorded(f, rand(device, 2, 3))))
    assert "strided" not in nodes
    assert "in_memory_order" not in nodes


def test_what_touches_no_written_storage_is_looked_at_like_any_op(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []
    with_care = Tape._dispatch_with_care

    def noted(tape: Tape, op: Any, *args: Any) -> Any:
        looked_at.append(op._schema.name)
        return with_care(tape, op, *args)

    def f(x: Tensor) -> Tensor:
        y = x.clone()
        y[0].mul_(2)
        return (x.sin() + x.cos()) * y

    monkeypatch.setattr(Tape, "_dispatch_with_care", noted)
    recorded(f, rand(device, 2, 3))
    assert looked_at == ["aten::mul_", "aten::mul"]


def reshaped_between_writes(x: Tensor) -> Tensor:
    """Write to a tensor before and after its shape is changed in place."""
    y = x[:2].outer(x)
    y[0].mul_(2)
    y.t_()
    y[0] = x[:2]
    y.sin_()
    y.unsqueeze_(0)
    y[0, 1] *= x[2]
    return y.sum(0).sum(1) + y[0, :, 0]


def test_a_tensor_is_reshaped_in_place_between_writes(device: torch.device) -> None:
    def plain(x: Tensor) -> Tensor:
        y = x[:2].outer(x).t()
        y = torch.stack([x[:2].sin(), (y[1] * scale).sin() * x[2], (y[2] * scale).sin()])
        return y.sum(1) + y[:, 0]

    x, scale = rand(device, 3), torch.tensor([2.0, 1.0], dtype=torch.float64, device=device)
    for order in (1, 2):
        expected = nested_reverse(plain, order)(x)
        assert relative_error(hofunc.hod(reshaped_between_writes, order)(x), expected) < 1e-13
    assert relative_error(torch.func.vmap(hofunc.hessian(reshaped_between_writes))(x[None])[0], expected) < 1e-13
    check_replay(reshaped_between_writes, [x], [rand(device, 3, seed=1)])


def from_the_first_of_two(x: Tensor, bias: Tensor) -> Tensor:
    """Write to one half of a constant, which autograd relates neither to the other half nor to the whole."""
    first, second = (bias * 2).unsafe_chunk(2)
    first.add_(x)
    return (first * second).sin().sum()


def from_a_cell(x: Tensor, bias: Tensor) -> Tensor:
    """Call a cell of torch that writes to the parts of what it computes of a constant state."""
    weight = torch.linspace(-1, 1, 12, dtype=x.dtype, device=x.device).view(6, 2)
    state = torch.zeros(1, 2, dtype=x.dtype, device=x.device)
    return torch.gru_cell(x[None], state, weight, weight, bias, bias).sum()


@pytest.mark.parametrize(("f", "size"), [(from_the_first_of_two, 4), (from_a_cell, 6)])
def test_gradients_by_a_constant_beside_which_something_is_written(
    f: Callable[[Tensor, Tensor], Tensor], size: int, device: torch.device
) -> None:
    """The gradient of a Hessian by the other half was silently zero."""
    x, bias = rand(device, 2), rand(device, size, seed=1).requires_grad_()
    expected = torch.autograd.functional.hessian(lambda x: f(x, bias), x, create_graph=True)
    (slope,) = torch.autograd.grad(expected[0].sum(), bias)
    hessian = hofunc.hessian(lambda x: f(x, bias))
    for call in (hessian, hessian, hessian.plan(x), hofunc.jit(hessian)):
        got = call(x)
        assert relative_error(got, expected) < 1e-13
        assert relative_error(torch.autograd.grad(got[0].sum(), bias)[0], slope) < 1e-13


@pytest.mark.parametrize(("f", "size"), [(from_the_first_of_two, 4), (from_a_cell, 6)])
def test_a_constant_beside_which_something_is_written_is_one_behind_vmap(
    f: Callable[[Tensor, Tensor], Tensor], size: int, device: torch.device
) -> None:
    """It was taken for a view of what is written, as it reads the same memory."""
    x, bias = rand(device, 3, 2), rand(device, size, seed=1)
    expected = torch.stack([torch.autograd.functional.hessian(lambda x: f(x, bias), row) for row in x])
    assert relative_error(torch.func.vmap(hofunc.hessian(lambda x: f(x, bias)))(x), expected) < 1e-13
