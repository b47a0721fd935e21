"""Rows of a table, one by one and in bags, against bags that are written out."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, ints, use

pytestmark = ORACLE_WARNINGS

REDUCTIONS: dict[str, Any] = {
    "sum": lambda rows: rows.sum(0),
    "mean": lambda rows: rows.mean(0),
    "max": lambda rows: rows.amax(0),
}


def bags(weight: Tensor, contents: Sequence[Sequence[int]], mode: str, scale: Tensor | None = None) -> Tensor:
    """Reduce the rows of each bag, of which an empty one gives zeros."""
    result, start = [], 0
    for bag in contents:
        rows = weight[list(bag)]
        if scale is not None:
            rows = rows * scale[start : start + len(bag), None]
        start += len(bag)
        result.append(REDUCTIONS[mode](rows) if bag else torch.zeros_like(weight[0]))
    return torch.stack(result)


def _in_bags(mode: str, **options: Any) -> OpCase:
    """Return a row of bags of three, no and one index; padding leaves index 1 out."""
    contents: tuple[list[int], ...] = ([2, 2], [], [0]) if "padding_idx" in options else ([2, 1, 2], [], [0])

    def f(weight: Tensor) -> Tensor:
        offsets = ints(weight, 0, 3, 3, *([4] if options.get("include_last_offset") else []))
        return F.embedding_bag(ints(weight, 2, 1, 2, 0), weight, offsets, mode=mode, **options)

    name = f"embedding_bag, {mode}, {', '.join(options) or 'plain'}"
    return use(name, f, (3, 2), reference=lambda weight: bags(weight, contents, mode))


CASES: list[OpCase] = [
    use("embedding", lambda w: F.embedding(ints(w, [1, 0], [1, 1]), w), (3, 2)),
    use("embedding by a scalar", lambda w: F.embedding(ints(w, 1)[0], w), (2, 2)),
    use("embedding with a padded row", lambda w: F.embedding(ints(w, 1, 2), w, padding_idx=1), (3, 1)),
    *(_in_bags(mode) for mode in REDUCTIONS),
    *(_in_bags(mode, padding_idx=1) for mode in REDUCTIONS),
    *(_in_bags(mode, include_last_offset=True) for mode in REDUCTIONS),
    use(
        "embedding_bag, weighted",
        lambda w, scale: F.embedding_bag(ints(w, 2, 1, 2), w, ints(w, 0, 1), mode="sum", per_sample_weights=scale),
        (3, 2),
        (3,),
        reference=lambda w, scale: bags(w, ([2], [1, 2]), "sum", scale),
    ),
    use(
        "embedding_bag of a matrix",
        lambda w: F.embedding_bag(ints(w, [2, 1], [0, 0]), w),
        (3, 2),
        reference=lambda w: bags(w, ([2, 1], [0, 0]), "mean"),
    ),
]


@every_row(CASES)
def test_embedding(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


def test_a_padded_row_is_a_constant(device: torch.device) -> None:
    weight = rand(device, 3, 2)
    got = hofunc.hessian(lambda w: (F.embedding(ints(w, 1, 2, 1), w, padding_idx=1) ** 3).sum())(weight)
    expected = torch.zeros(3, 2, 3, 2, dtype=weight.dtype, device=device)
    for column in range(2):
        expected[2, column, 2, column] = 6 * weight[2, column]
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("lookup", [F.embedding, F.embedding_bag])
def test_derivatives_are_not_scaled(lookup: Any, device: torch.device) -> None:
    index = torch.tensor([[0, 1], [1, 1]], device=device)
    with pytest.raises(hofunc.UnsupportedOpError, match="embedding: got scale_grad_by_freq=True"):
        hofunc.jacobian(lambda w: lookup(index, w, scale_grad_by_freq=True))(rand(device, 2, 2))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_plans_of_bags_that_nobody_followed_are_followed(mode: str, device: torch.device) -> None:
    """torch has a kernel of its own for weights that require no gradients, which fails for others."""
    weight = rand(device, 4, 3)
    indices, offsets = ints(weight, 0, 2, 1, 1, 3), ints(weight, 0, 2, 3)

    def f(weight: Tensor) -> Tensor:
        return F.embedding_bag(indices, weight, offsets, mode=mode).pow(3).sum()

    plan = hofunc.hessian(f).plan(weight)
    leaf = weight.clone().requires_grad_()
    (got,) = torch.autograd.grad(plan(leaf).sin().sum(), leaf)
    (expected,) = torch.autograd.grad(hofunc.hessian(f)(leaf).sin().sum(), leaf)
    torch.testing.assert_close(got, expected)
