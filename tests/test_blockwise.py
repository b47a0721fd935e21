"""The blocks of a derivative by several tensors: names, contractions, sums, and what they are kept as."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import default_collate

import hofunc
from hofunc import ArgumentError, Blocks, Derivative
from tests.cases import rand
from tests.checks import assert_equal, refused
from verification.oracles import nested_reverse

Params = dict[str, Tensor]
is_derivative = {"is_leaf": lambda each: isinstance(each, Derivative)}


def loss(p: Params, x: Tensor) -> Tensor:
    return ((x @ p["w"] + p["b"]).tanh() ** 2).sum() + (p["b"] ** 3).sum()


def several(p: Params, x: Tensor) -> dict[str, Any]:
    return {"y": (x @ p["w"]).sin() + p["b"], "z": [loss(p, x)]}


def params(device: torch.device) -> tuple[Params, Tensor]:
    return {"w": rand(device, 3, 2, seed=1), "b": rand(device, 2, seed=2)}, rand(device, 4, 3)


def compact(f: Callable[..., Any], args: tuple[Any, ...], order: int = 2, **options: Any) -> Any:
    return hofunc.hod(f, order, layout="compact", **options)(*args)


def test_they_nest_as_dense_derivatives_do(device: torch.device) -> None:
    args = params(device)
    got, expected = compact(loss, args), hofunc.hessian(loss)(*args)
    assert isinstance(got, Blocks)
    assert_equal(got.dense(), expected)
    assert_equal(pytree.tree_map(lambda block: block.dense(), got, **is_derivative), expected)
    assert_equal({name: {key: d.dense() for key, d in row.items()} for name, row in got.items()}, expected)
    assert list(got) == ["w", "b"]
    assert "w" in got
    assert len(got) == 2
    assert got.nbytes == sum(each.numel() * 8 for each in {id(x): x for x in pytree.tree_leaves(got)}.values())
    (first, _), (_, last) = compact(lambda x, y: (x * y).sin().sum(), args[1:] * 2, argnums=(0, 1))
    assert isinstance(first, Derivative)
    assert isinstance(last, Derivative)


def test_one_tensor_alone_has_no_blocks(device: torch.device) -> None:
    assert isinstance(compact(torch.sin, (rand(device, 3),)), Derivative)
    assert isinstance(compact(lambda p: p["w"].sin(), ({"w": rand(device, 3)},)), Blocks)


def test_blocks_by_name(device: torch.device) -> None:
    args = params(device)
    got, expected = compact(loss, args, argnums=(0, 1)), hofunc.hessian(loss, (0, 1))(*args)
    assert_equal(got.block("w", "b").dense(), expected[0]["w"][0]["b"])
    assert_equal(got.block((0, "b"), 1).dense(), expected[0]["b"][1])
    assert_equal(got.block(1, 1).dense(), expected[1][1])
    part = got.block(0, 1)
    assert isinstance(part, Blocks)
    assert_equal(part.dense(), {name: expected[0][name][1] for name in ("w", "b")})
    assert_equal(part.block("b", 1).dense(), expected[0]["b"][1])


def test_blocks_of_outputs(device: torch.device) -> None:
    args = params(device)
    got, expected = compact(several, args), hofunc.hessian(several)(*args)
    assert_equal(got.block("w", "b", output="y").dense(), expected["y"]["w"]["b"])
    assert_equal(got.block("w", "b", output=("z", 0)).dense(), expected["z"][0]["w"]["b"])
    assert_equal(got.block("w", "b").dense(), {"y": expected["y"]["w"]["b"], "z": [expected["z"][0]["w"]["b"]]})
    assert_equal(got.block("w", "b", output="z").block("w", "b", output=0).dense(), expected["z"][0]["w"]["b"])


def joined(p: Params) -> Tensor:
    return torch.cat([p["w"].reshape(-1), p["b"]])


def of_one_vector(p: Params, x: Tensor, order: int) -> Tensor:
    """Return the derivative of `loss` by all parameters as one vector."""
    expected: Tensor = nested_reverse(lambda q: loss({"w": q[:6].reshape(3, 2), "b": q[6:]}, x), order)(joined(p))
    return expected


@pytest.mark.parametrize("order", [1, 2, 3])
def test_contractions_over_all_blocks(order: int, device: torch.device) -> None:
    p, x = params(device)
    v = {"w": rand(device, 3, 2, seed=5), "b": rand(device, 2, seed=6)}
    got, expected = compact(loss, (p, x), order), of_one_vector(p, x, order)
    for _ in range(order):
        expected = expected @ joined(v)
    assert_equal(got.contract(*[v] * order), expected)
    for slot in range(order if order > 1 else 0):
        left = got.contract(*[None if place == slot else v for place in range(order)])
        assert isinstance(left, Blocks)
        assert_equal(left.contract(v), expected)
    assert_equal(compact(several, (p, x), order).contract(*[v] * order)["z"][0], expected)


def test_diagonal_and_trace(device: torch.device) -> None:
    p, x = params(device)
    got, expected = compact(loss, (p, x)), of_one_vector(p, x, 2)
    assert_equal(joined(got.diagonal().dense()), expected.diagonal())
    assert_equal(got.trace(), expected.trace())
    third = compact(loss, (p, x), 3)
    assert_equal(joined(third.trace((0, 2)).dense()), torch.einsum("iji->j", of_one_vector(p, x, 3)))


def test_sums_and_multiples(device: torch.device) -> None:
    args = params(device)
    one, other = compact(loss, args), compact(lambda p, x: loss(p, 2 * x), args)
    got = sum([one, -other, 3 * one / 2]) - other
    expected = pytree.tree_map(lambda a, b: 2.5 * a - 2 * b, one.dense(), other.dense())
    assert isinstance(got, Blocks)
    assert_equal(got.dense(), expected)
    assert got.to(torch.float32)["w"]["b"].dtype == torch.float32


def test_detach(device: torch.device) -> None:
    got = compact(loss, pytree.tree_map(Tensor.requires_grad_, params(device)))
    for blocks, has_history in ((got, True), (got.detach(), False)):
        assert blocks["w"]["b"].dense().requires_grad == has_history
    assert_equal(got.detach().dense(), got.dense())


def test_blocks_that_were_asked_for(device: torch.device) -> None:
    args = params(device)
    expected = hofunc.hessian(loss)(*args)
    diagonal = compact(loss, args, blocks="diagonal")
    assert_equal(diagonal["w"].dense(), expected["w"]["w"])
    assert_equal(diagonal.block("w", "w").dense(), expected["w"]["w"])
    assert_equal(diagonal.diagonal().dense()["b"], expected["b"]["b"].diagonal())
    assert_equal(diagonal.trace(), compact(loss, args).trace())
    parts = "hofunc.Blocks", "one that was computed", "blocks= or groups="
    refused(lambda: diagonal.block("w", "b"), ArgumentError, "the block by args[0]['w'], args[0]['b']", *parts)
    refused(lambda: diagonal.contract(args[0]), ArgumentError, *parts)
    listed = compact(loss, args, blocks=[("w", "b")])
    assert_equal(listed[0].dense(), expected["w"]["b"])
    assert_equal(listed.block("b", "w").dense(), expected["b"]["w"])


def test_taps_and_parameters_by_name(device: torch.device) -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return (hofunc.tap("h", (x @ w).tanh()) ** 3).sum()

    x, w = rand(device, 4, 3), rand(device, 3, 2, seed=1)
    got, expected = (hofunc.hessian(f, wrt=("w", "h"), layout=layout)(x, w) for layout in ("compact", "dense"))
    assert_equal(got.dense(), expected)
    assert_equal(got.block("w", "h").dense(), expected[0][1])
    assert_equal(got.block("h", 1).dense(), expected[1][0])
    assert repr(got).splitlines()[2].startswith("  args[1], tap 'h': Derivative(")
    (listed,) = hofunc.hessian(f, wrt=("w", "h"), blocks=[("h", "w")])(x, w)
    assert_equal(listed, expected[1][0])
    file = io.BytesIO()
    torch.save(got, file)
    file.seek(0)
    assert_equal(torch.load(file, weights_only=True).block("w", "h").dense(), expected[0][1])


def test_under_transforms_and_autograd(device: torch.device) -> None:
    p, x = params(device)
    rows = torch.stack([x, 2 * x])
    got = torch.func.vmap(hofunc.hessian(loss, layout="compact"), in_dims=(None, 0))(p, rows)
    each = [compact(loss, (p, row)) for row in rows]
    assert isinstance(got, Blocks)
    assert_equal(got.contract(p, p), torch.stack([one.contract(p, p) for one in each]))
    assert_equal(got.block("w", "b").dense(), torch.stack([one["w"]["b"].dense() for one in each]))
    gradient = torch.func.grad(lambda p: compact(loss, (p, x)).contract(p, p))(p)
    flat = torch.func.grad(lambda p: joined(p) @ of_one_vector(p, x, 2) @ joined(p))(p)
    assert_equal(gradient, flat)


def test_they_are_kept(device: torch.device) -> None:
    args = params(device)
    got, file = compact(several, args), io.BytesIO()
    torch.save(got, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=True), pickle.loads(pickle.dumps(got)), copy.deepcopy(got)):  # noqa: S301
        assert isinstance(other, Blocks)
        assert_equal(other.dense(), got.dense())
        assert_equal(other.block("w", "b", output="y").dense(), got["y"]["w"]["b"].dense())
    one = compact(loss, args)
    batch = default_collate([one, 2 * one])
    assert_equal(batch["w"]["b"].dense(), torch.stack([one["w"]["b"].dense(), 2 * one["w"]["b"].dense()]))
    assert_equal(batch.contract(args[0], args[0])[1], 2 * one.contract(args[0], args[0]))
    refused(lambda: default_collate([one, compact(loss, args, 1)]), ArgumentError, "a sum")


def test_sparse_blocks_are_nested_and_one_matrix_has_all(device: torch.device) -> None:
    args = params(device)
    got = compact(loss, args)
    assert_equal({n: {m: x.to_dense() for m, x in row.items()} for n, row in got.to_sparse().items()}, got.dense())

    def both(p: Params, x: Tensor) -> dict[str, Tensor]:
        return {"y": (x @ p["w"]).sin() + p["b"], "b": p["b"]}

    def by_vector(f: Callable[[Params], list[Tensor]]) -> Callable[[Tensor], Tensor]:
        return lambda v: torch.cat([y.flatten() for y in f({"w": v[:-2].reshape(3, 2), "b": v[-2:]})])

    v = torch.cat([each.flatten() for each in args[0].values()])
    expected = nested_reverse(by_vector(lambda p: [loss(p, args[1])]), 2)(v)
    matrix = got.to_sparse_csr()
    assert matrix.layout is torch.sparse_csr
    assert_equal(matrix.to_dense(), expected[0])
    jacobian = compact(both, args, order=1)
    expected = nested_reverse(by_vector(lambda p: [*both(p, args[1]).values()]), 1)(v)
    assert_equal(jacobian.to_sparse_csr().to_dense(), expected)
    assert_equal(torch.from_numpy(jacobian.to_scipy().toarray()).to(device), expected)


def test_they_are_shown(device: torch.device) -> None:
    args = params(device)
    got = compact(loss, args)
    assert repr(got).splitlines()[0] == f"Blocks(nbytes={got.nbytes})"
    assert repr(got).splitlines()[2] == f"  args[0]['w'], args[0]['b']: {got['w']['b']!r}"
    assert ">args[0][&#x27;w&#x27;], args[0][&#x27;b&#x27;]</td>" in got._repr_html_()
    assert "output['z'][0], args[0]['b'], args[0]['b']:" in repr(compact(several, args))


def test_wrong_use(device: torch.device) -> None:
    args = params(device)
    got = compact(loss, args)
    refused(lambda: got.block("w"), ArgumentError, "hofunc.Blocks.block", "got 1, expected 2, one for every slot")
    refused(lambda: got.block("w", "c"), ArgumentError, "'c', which names no tensor")
    refused(lambda: got.block("w", "b", output=1), ArgumentError, "names no tensor")
    refused(lambda: got.contract(args[0], None, None), ArgumentError, "got 3, expected at most 2")
    refused(lambda: got.contract(args[0]["w"]), ArgumentError, "the vector of slot 0", "the structure")
    refused(lambda: got.contract({"w": args[0]["w"], "b": args[0]["w"]}), ArgumentError, "shape (3, 2)", "(2,)")
    refused(lambda: got + got["w"]["b"], ArgumentError, "a sum", "got Derivative")
    refused(lambda: got + got.block("w", "w"), ArgumentError, "a sum", "got Derivative")
    refused(lambda: compact(several, args).to_scipy(), ArgumentError, "got 2 tensors", "one element", "to_sparse")
    refused(lambda: compact(loss, args, blocks="diagonal").to_scipy(), ArgumentError, "one that was computed")
    refused(lambda: compact(loss, args, 3).to_sparse_csr(), ArgumentError, "order 3", "to_sparse")
    refused(lambda: got.trace((0, 0)), ArgumentError, "pairs ((0, 0),)")
    with pytest.raises(AttributeError, match="'Blocks' object has no attribute 'w'"):
        _ = got.w
