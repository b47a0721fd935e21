"""Ops on meta tensors, told by shapes, against torch's own kernels."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import permutations
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from hofunc.plan.factored import factored
from hofunc.plan.shaped import shaped
from hofunc.plan.tried import tried

aten = torch.ops.aten


def meta(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


INDEX = meta(4, dtype=torch.int64)
CALLS: list[tuple[Any, Sequence[Any], dict[str, Any]]] = [
    (aten.sum.default, [meta(3, 4)], {}),
    (aten.sum.dim_IntList, [meta(3, 4, 5), [0, -1]], {}),
    (aten.sum.dim_IntList, [meta(3, 4, 5), [1], True], {}),
    (aten.sum.dim_IntList, [meta(3, 4, 5), None], {"keepdim": True}),
    (aten.sum.dim_IntList, [meta(3, 4), []], {}),
    (aten.mean.default, [meta(3, 4)], {}),
    (aten.mean.dim, [meta(3, 4, 5), [-2]], {}),
    (aten.amax.default, [meta(3, 4, 5), [2], True], {}),
    (aten.amin.default, [meta(3, 4, 5)], {}),
    (aten.logsumexp.default, [meta(3, 4, 5), [1]], {}),
    (aten.linalg_vector_norm.default, [meta(3, 4, 5), 2, [1], True], {}),
    (aten.linalg_vector_norm.default, [meta(3, 4, 5)], {}),
    (aten.mm.default, [meta(3, 4), meta(4, 5)], {}),
    (aten.mm.default, [meta(3, 0), meta(0, 5)], {}),
    (aten.bmm.default, [meta(2, 3, 4), meta(2, 4, 5)], {}),
    (aten.addmm.default, [meta(5), meta(3, 4), meta(4, 5)], {}),
    (aten.addmm.default, [meta(3, 1), meta(3, 4), meta(4, 5)], {}),
    (aten.baddbmm.default, [meta(2, 3, 5), meta(2, 3, 4), meta(2, 4, 5)], {}),
    (aten.convolution.default, [meta(2, 4, 9), meta(6, 2, 3), meta(6), [2], [1], [2], False, [0], 2], {}),
    (
        aten.convolution.default,
        [meta(2, 1, 9, 8), meta(3, 1, 3, 2), None, [1, 1], [0, 1], [1, 1], False, [0, 0], 1],
        {},
    ),
    (aten.convolution.default, [meta(2, 4, 9), meta(4, 3, 3), meta(6), [2], [1], [2], True, [1], 2], {}),
    (
        aten.convolution_backward.default,
        [
            meta(2, 6, 7, 6),
            meta(2, 4, 9, 8),
            meta(6, 2, 3, 3),
            [6],
            [1, 1],
            [0, 0],
            [1, 1],
            False,
            [0, 0],
            2,
            [True] * 3,
        ],
        {},
    ),
    (
        aten.convolution_backward.default,
        [meta(2, 6, 7), meta(2, 4, 9), meta(6, 4, 3), None, [1], [0], [1], False, [0], 1, [False, True, False]],
        {},
    ),
    (aten.slice_scatter.default, [meta(3, 4), meta(3, 2), 1, 1, 3], {}),
    (aten.select_scatter.default, [meta(3, 4), meta(4), 0, 1], {}),
    (aten.diagonal_scatter.default, [meta(4, 4), meta(4)], {}),
    (aten._softmax.default, [meta(3, 4), -1, False], {}),
    (aten._log_softmax.default, [meta(3, 4), 0, False], {}),
    (aten.cumsum.default, [meta(3, 4), 1], {}),
    (aten.cumprod.default, [meta(3, 4), 0], {}),
    (aten.cumprod.default, [meta(3, 4), -1], {}),
    (aten.cat.default, [[meta(3, 4), meta(3, 2)], -1], {}),
    (aten.cat.default, [[meta(4), meta(0)]], {}),
    (aten.cat.default, [[meta(4, 3).T, meta(3, 4)], 1], {}),
    (aten.cat.default, [[meta(2, 3, 4, 5), meta(2, 1, 4, 5)], 1], {}),
    (aten.cat.default, [[meta(4, 3, 2, 2).permute(1, 0, 3, 2)] * 2], {}),
    (aten.cat.default, [[meta(2, 3, 4, 5), meta(2, 4, 5, 1).permute(0, 3, 1, 2)], 1], {}),
    (aten.stack.default, [[meta(3, 4, 5).mT] * 2, 1], {}),
    (aten.stack.default, [[meta(3, 4), meta(3, 4)], -1], {}),
    (aten.stack.default, [[meta(), meta()]], {}),
    (aten.stack.default, [[meta(4, 2)[:, 0], meta(4)], 1], {}),
    (aten.diag_embed.default, [meta(3, 4)], {}),
    (aten.triu.default, [meta(3, 4, dtype=torch.bool), 1], {}),
    (aten.flip.default, [meta(3, 4), [0]], {}),
    (aten.tril.default, [meta(3, 4), -1], {}),
    (aten.triu.default, [meta(3, 4)], {}),
    (aten.index_select.default, [meta(3, 5), -1, INDEX], {}),
    (aten.index_add.default, [meta(3, 5), 1, INDEX, meta(3, 4)], {}),
    (aten.scatter_add.default, [meta(5, 3), 0, meta(4, 3, dtype=torch.int64), meta(4, 3)], {}),
    (aten.nll_loss_backward.default, [meta(), meta(4, 6), INDEX, None, 1, -100, meta()], {}),
    (aten.empty_like.default, [meta(3, 4)], {"pin_memory": False}),
    (aten.ones_like.default, [meta(3, dtype=torch.int64)], {}),
    (aten.zeros_like.default, [meta(3, 4, dtype=torch.bool)], {}),
    (aten.full_like.default, [meta(3, 4), 2.0], {"memory_format": torch.preserve_format}),
]


def looks(tensor: Tensor | Sequence[Tensor | None] | None) -> tuple[Any, ...]:
    if isinstance(tensor, Sequence):
        return tuple(map(looks, tensor))
    return () if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


@pytest.mark.parametrize(("op", "args", "kwargs"), CALLS, ids=lambda each: str(each) if callable(each) else "")
def test_it_is_what_torch_returns(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    got = shaped(op, args, kwargs)
    assert got is not None
    assert looks(got) == looks(op(*args, **kwargs))


def turned(random: Random, tensor: Any) -> Any:
    """Return a tensor of the same shape whose axes lie in memory in another order."""
    if not isinstance(tensor, Tensor) or tensor.dim() < 2:
        return tensor
    order = random.choice([*permutations(range(tensor.dim()))])
    moved = torch.empty([tensor.shape[dim] for dim in order], dtype=tensor.dtype, device="meta")
    return moved.permute([order.index(dim) for dim in range(tensor.dim())])


@pytest.mark.parametrize(("op", "args", "kwargs"), CALLS, ids=lambda each: str(each) if callable(each) else "")
def test_tensors_that_lie_otherwise_in_memory(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    random = Random(0)  # noqa: S311
    for _ in range(10):
        moved = [turned(random, arg) for arg in args]
        got = shaped(op, moved, kwargs)
        assert got is None or looks(got) == looks(op(*moved, **kwargs))


@pytest.mark.parametrize(
    ("op", "args", "kwargs"),
    [
        (aten.sum.default, [meta(3, dtype=torch.int64)], {}),  # whose sum has another dtype
        (aten.sum.dim_IntList, [meta(3, 4), [2]], {}),
        (aten.sum.dim_IntList, [meta(3, 4), [0]], {"dtype": torch.float32}),
        (aten.amax.default, [meta(0, 4)], {}),
        (aten.mm.default, [meta(3, 4), meta(5, 4)], {}),
        (aten.mm.default, [meta(3, 4), meta(4, 5, dtype=torch.float32)], {}),
        (aten.bmm.default, [meta(2, 3, 4), meta(3, 4, 5)], {}),
        (aten.addmm.default, [meta(4), meta(3, 4), meta(4, 5)], {}),
        (aten.addmm.default, [meta(1, 3, 5), meta(3, 4), meta(4, 5)], {}),
        (aten.convolution.default, [meta(2, 3, 9), meta(6, 2, 3), None, [1], [0], [1], False, [0], 1], {}),
        (aten.convolution.default, [meta(2, 1, 2), meta(6, 1, 3), None, [1], [0], [1], False, [0], 1], {}),
        (aten.convolution.default, [meta(2, 2, 9), meta(1, 6, 3), None, [1], [0], [1], True, [0], 1], {}),
        (aten._softmax.default, [meta(3, dtype=torch.float16), 0, True], {}),
        (aten.index_select.default, [meta(3, dtype=torch.int64), 0, INDEX], {}),
        (aten.ones_like.default, [meta(3)], {"dtype": torch.int64}),
        (aten.cat.default, [[meta(3), meta(3, dtype=torch.int64)]], {}),
        (aten.cat.default, [[meta(3, 4), meta(0)]], {}),
        (aten.cat.default, [[meta(3, 4), meta(2, 5)]], {}),
        (aten.cat.default, [[meta(2, 3, 3, 4).permute(0, 3, 1, 2)] * 2], {}),
        (aten.stack.default, [[meta(2, 3, 3, 4).permute(0, 3, 1, 2)] * 2], {}),
        (aten.stack.default, [[meta(3), meta(4)]], {}),
        (aten.diag_embed.default, [meta(3), 1], {}),
        (aten.sum.default, [torch.ones(3)], {}),
        (aten.exp.default, [meta(3)], {}),
    ],
    ids=lambda each: str(each) if callable(each) else "",
)
def test_others_are_left_to_torch(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    assert shaped(op, args, kwargs) is None


MATRICES: list[tuple[Any, Callable[[Tensor], Sequence[Any]], dict[str, Any]]] = [
    (aten.linalg_inv_ex.default, lambda a: [a], {}),
    (aten.linalg_cholesky_ex.default, lambda a: [a], {"upper": False}),
    (aten.linalg_solve_triangular.default, lambda a: [a, a[..., :1]], {"upper": False}),
    (aten.linalg_solve_triangular.default, lambda a: [a.mT, a], {"upper": True, "unitriangular": True}),
    (aten._linalg_det.default, lambda a: [a], {}),
    (aten._linalg_slogdet.default, lambda a: [a.mT], {}),
    (aten._linalg_eigh.default, lambda a: [a, "U"], {}),
    (aten.linalg_lu_factor_ex.default, lambda a: [a], {}),
    (aten.linalg_lu_solve.default, lambda a: [a.mT, torch.empty_like(a[..., 0], dtype=torch.int32), a], {}),
    (aten.linalg_lu_solve.default, lambda a: [a, torch.empty_like(a[..., 0], dtype=torch.int32), a[..., :1]], {}),
]


OPS = [op for op, *_ in MATRICES]


@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 3), (1, 1), (2, 4, 1, 1)], ids=str)
@pytest.mark.parametrize(("op", "given", "kwargs"), MATRICES, ids=lambda each: str(each) if each in OPS else "")
def test_factorisations(
    op: Any, given: Callable[[Tensor], Sequence[Any]], kwargs: dict[str, Any], shape: tuple[int, ...]
) -> None:
    args = given(meta(*shape))
    got, expected = factored(op, args, kwargs), op(*args, **kwargs)
    assert got is not None
    pairs = [(got, expected)] if isinstance(got, Tensor) else zip(got, expected, strict=True)
    assert all(looks(one) == looks(other) for one, other in pairs)


def test_other_matrices_are_left_to_torch() -> None:
    square = meta(3, 3)
    assert factored(aten.linalg_inv_ex.default, [meta(2, 3)], {}) is None
    assert factored(aten.linalg_inv_ex.default, [torch.eye(3)], {}) is None
    assert factored(aten.linalg_inv_ex.default, [meta(3, 3, dtype=torch.complex64)], {}) is None
    assert factored(aten.linalg_solve_triangular.default, [square, meta(2, 3, 1)], {"upper": True}) is None
    assert factored(aten.linalg_solve_triangular.default, [square, square], {"upper": True, "left": False}) is None
    assert factored(aten._linalg_eigh.default, [square, "L", False], {}) is None
    assert factored(aten.exp.default, [square], {}) is None


TRIED: list[tuple[Any, Sequence[Any], dict[str, Any]]] = [
    (aten.roll.default, [meta(3, 4), [1], [0]], {}),
    (aten.triu.default, [meta(4, 3).T, 1], {}),
    (
        aten.convolution_backward.default,
        [meta(2, 3, 7), meta(2, 1, 9), meta(3, 1, 3), None, [1], [0], [1], False, [0], 1, [True] * 3],
        {},
    ),
    (aten.max_pool2d_with_indices.default, [meta(2, 3, 8, 8), [2, 2]], {}),
    (aten.avg_pool2d.default, [meta(2, 3, 8, 8), [2, 2]], {}),
    (aten.upsample_bilinear2d.vec, [meta(1, 2, 3, 3), [6, 6], True, None], {}),
    (aten._linalg_svd.default, [meta(3, 4)], {}),
    (aten._linalg_det.default, [meta(4, 4, dtype=torch.complex128)], {}),
    (aten._fft_r2c.default, [meta(3, 8), [1], 0, True], {}),
    (aten.sort.default, [meta(3, 4)], {}),
    (aten.topk.default, [meta(3, 4), 2], {}),
    (aten.gather.default, [meta(3, 5), 1, meta(3, 2, dtype=torch.int64)], {}),
    (aten.linalg_lu_solve.default, [meta(4, 4), meta(4, dtype=torch.int32), meta(4, 2)], {}),
    (aten.arange.default, [5], {"device": torch.device("meta"), "pin_memory": False}),
    (aten.eye.default, [3], {"dtype": torch.float64, "device": torch.device("meta")}),
]


@pytest.mark.parametrize(("op", "args", "kwargs"), TRIED, ids=lambda each: str(each) if callable(each) else "")
def test_what_is_tried_on_numbers(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    got = tried(op, args, kwargs)
    numbers = [filled(arg) if isinstance(arg, Tensor) else arg for arg in args]
    expected = op(*numbers, **kwargs | ({"device": torch.device("cpu")} if "device" in kwargs else {}))
    assert got is not None
    pairs = [(got, expected)] if isinstance(got, Tensor) else [*zip(got, expected, strict=True)]
    assert all(one.is_meta and looks(one)[:3] == looks(other)[:3] for one, other in pairs)


def filled(tensor: Tensor) -> Tensor:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return made.normal_() if tensor.dtype.is_floating_point or tensor.dtype.is_complex else made.fill_(1)


def test_what_is_not_tried() -> None:
    state = torch.get_rng_state()
    assert tried(aten.exp.default, [torch.ones(3)], {}) is None  # which has numbers
    assert tried(aten.roll.default, [meta(200, 200), [1], [0]], {}) is None  # too many
    assert tried(aten.bernoulli.default, [meta(3)], {}) is None  # random
    assert tried(aten.native_dropout.default, [meta(3), 0.5, True], {}) is None
    assert tried(aten.view.default, [meta(3, 4), [12]], {}) is None  # a view
    assert tried(aten.triu_.default, [meta(3, 4)], {}) is None  # writes
    assert tried(aten._local_scalar_dense.default, [meta()], {}) is None  # which needs values
    assert tried(aten.nonzero.default, [meta(3)], {}) is None
    assert tried(aten.index.Tensor, [meta(3), [meta(3, dtype=torch.bool)]], {}) is None
    assert tried(aten.gather.default, [meta(3, 5), 7, meta(3, 2, dtype=torch.int64)], {}) is None  # wrong
    assert torch.equal(state, torch.get_rng_state())


FRESH = """
import sys, torch, hofunc
from torch import nn
torch.manual_seed(0)
x = torch.randn(2, 6, 8)
layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
image = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU(), nn.Flatten(), nn.Linear(192, 3))
classes, pairs = torch.tensor([0, 2]), torch.tensor([1, 0])
calls = {
    "a transformer": (hofunc.hessian, lambda x: layer(x).square().mean()),
    "a classifier": (hofunc.hessian, lambda x: nn.functional.cross_entropy(image(x[:, None]), classes)),
    "a recurrent network": (hofunc.hessian, lambda x, net=nn.LSTM(8, 4): net(x)[0].square().sum()),
    "distances": (hofunc.hessian, lambda x: (x[0] - x[1][:, pairs].repeat(1, 4)).norm(dim=-1).pow(-6).sum()),
    "parts": (hofunc.hessian, lambda x: torch.stack([torch.cat([x, x.cumprod(1)]).sum(1), torch.ones(4, 8)]).norm()),
    "a field": (hofunc.laplacian, lambda x, net=nn.Sequential(nn.Linear(8, 8), nn.Tanh()): net(x).sum(-1)),
    "a determinant": (hofunc.hessian, lambda x: torch.linalg.cholesky(x[0] @ x[0].T + torch.eye(6)).diagonal().sum()),
    "a solution": (hofunc.hessian, lambda x: torch.linalg.solve(torch.eye(6) + x[0] @ x[0].T, x[0, :, 0]).sum()),
    "a product": (hofunc.hvp, lambda x: nn.functional.layer_norm(x, (8,)).softmax(-1).logsumexp(-1).sum()),
}
calls |= {
    "rolled": (hofunc.hessian, lambda x: (x.roll(1, -1) * x).triu(1).square().sum()),
    "pooled": (hofunc.hessian, lambda x: nn.functional.max_pool2d(torch.cat([x, x], 1), 2).pow(3).sum()),
    "frequencies": (hofunc.hessian, lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.arange(5), n=8).pow(3).sum()),
    "solved": (hofunc.hessian, lambda x: torch.linalg.solve(torch.eye(6) + 1j * (x[0] @ x[0].T), x[0] + 0j).real.sum()),
    "the best": (hofunc.hessian, lambda x: x.sort().values.pow(2).mul(torch.arange(8)).sum() + x.topk(2).values.prod()),
}
def filtered(x):
    state, spread = x[0, 0, :2], torch.eye(2)
    for step in range(60):
        spread = spread @ spread.T / 2 + torch.diag(x[1, 0, :2].exp())
        gain = spread[:, :1] / (spread[:1, :1] + 1)
        state, spread = state + (gain @ (step - state[:1, None])).sum(1), spread - gain @ spread[:1]
    return state.square().sum() + spread.logdet()
def masked(x):
    y = x * 2
    y[y > 0] = y[y > 0].sin()
    return y.prod()
upwards = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.ConvTranspose2d(8, 4, 2, 2), nn.Tanh())
calls |= {
    "filtered": (hofunc.hessian, filtered),
    "masked": (hofunc.hessian, masked),
    "upwards": (hofunc.hessian, lambda x: upwards(x.repeat(1, 4, 4)[:, None]).square().sum()),
}
for name, (transform, f) in calls.items():
    transform(f)(x, **({"vector": x} if transform is hofunc.hvp else {}))
    print(name, *sorted({"sympy", "torch._dynamo"} & sys.modules.keys()))
"""


def test_a_first_call_imports_no_compiler() -> None:
    """torch's own kernels for meta tensors do, which takes up to a second of a process."""
    found = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=True)  # noqa: S603
    lines = found.stdout.splitlines()
    assert len(lines) == 17
    assert not [line for line in lines if line.endswith(("sympy", "torch._dynamo"))], lines
