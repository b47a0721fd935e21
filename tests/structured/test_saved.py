"""Structured derivatives are saved, copied and put into batches."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

import hofunc
from hofunc import ArgumentError, Derivative
from hofunc.derivative import loaded
from tests.cases import rand
from tests.checks import assert_equal, refused
from verification.structures import Structure, written_out


def row(x: Tensor) -> Tensor:
    return x.prod(-1).sin() + (x**3).sum(-1)


def edges(x: Tensor) -> Tensor:
    i, j = torch.tensor([0, 1, 2], device=x.device), torch.tensor([1, 2, 3], device=x.device)
    return (1 + (x[i] - x[j]).square().sum(-1)).log().sum()


def compact(f: Any, x: Tensor) -> Any:
    return hofunc.hessian(f, layout="compact")(x)


def saved(value: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True, **options)


@pytest.mark.parametrize("f", [row, edges, lambda x: x.sum().sin() + row(x), lambda x: 2 * x, lambda x: (x * x).sum()])
def test_what_is_kept(f: Any, device: torch.device) -> None:
    got = compact(f, rand(device, 4, 3))
    for other in (saved(got), pickle.loads(pickle.dumps(got)), copy.deepcopy(got), copy.copy(got)):  # noqa: S301
        assert isinstance(other, Derivative)
        assert (other.pattern, other.shapes, other.dtype, other.device) == (
            got.pattern,
            got.shapes,
            got.dtype,
            got.device,
        )
        assert other.symmetric_in == got.symmetric_in
        assert torch.equal(other.dense(), got.dense())
        assert_equal((other + got).dense(), 2 * got.dense())


def test_all_that_a_term_may_be() -> None:
    for seed in range(30):
        got = Structure(seed).derivative
        assert_equal(written_out(saved(got)), written_out(got))


def test_what_vmap_returned(device: torch.device) -> None:
    got = torch.func.vmap(hofunc.hessian(row, layout="compact"))(rand(device, 2, 4, 3))
    assert torch.equal(saved({"of": [got]})["of"][0].dense(), got.dense())


def test_a_copy_has_its_own_memory(device: torch.device) -> None:
    got = compact(row, rand(device, 4, 3))
    before, other = got.dense(), copy.deepcopy(got)
    other.terms[0].factors[0].source.zero_()
    assert torch.equal(got.dense(), before)


def test_it_is_loaded_to_another_device(device: torch.device) -> None:
    got = saved(compact(row, rand(device, 4, 3)), map_location="meta")
    assert got.device.type == "meta"
    assert saved(compact(lambda x: (x * x).sum(), rand(device, 3)), map_location="meta").dense().device.type == "meta"


def test_another_format() -> None:
    refused(
        lambda: loaded({"version": 99}), ArgumentError, "hofunc.Derivative: loading", "format 99, expected format 1"
    )
    refused(lambda: loaded([]), ArgumentError, "format None")  # type: ignore[arg-type]


@pytest.mark.parametrize("f", [row, edges, lambda x: 2 * x])
def test_batches(f: Any, device: torch.device) -> None:
    parts = [compact(f, rand(device, 4, 3, seed=seed)) for seed in range(3)]
    parts[1] = copy.deepcopy(parts[1])  # with labels of its own, as from another process
    batch = default_collate([{"d": part, "n": number} for number, part in enumerate(parts)])
    assert batch["d"].mapped == (3,)
    assert_equal(batch["d"].dense(), torch.stack([part.dense() for part in parts]))
    (loader,) = DataLoader(parts, batch_size=3)  # type: ignore[arg-type]
    assert_equal(loader.dense(), batch["d"].dense())
    multiples = default_collate([parts[0], 2 * parts[0]])
    assert_equal(multiples.dense()[1], 2 * parts[0].dense())
    twice = default_collate([batch["d"], batch["d"]])
    assert twice.mapped == (2, 3)
    assert_equal(twice.dense()[1], batch["d"].dense())


def test_batches_of_other_structures(device: torch.device) -> None:
    x = rand(device, 4, 3)
    parts = [compact(row, x), compact(lambda x: x.sum(1).sin(), x)]
    refused(
        lambda: default_collate(parts), ArgumentError, "a batch of several", "the structure of the first", ".dense()"
    )
    refused(lambda: default_collate([parts[0], parts[0].to(torch.float32)]), ArgumentError, "a batch of several")
