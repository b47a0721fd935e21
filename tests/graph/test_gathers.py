"""What is read and added along the last axis, however a tensor lies in memory."""

import pytest
import torch

from hofunc.graph.gathers import add_at, lies_in_rows, read_at
from verification.memory import SLACK, taken

SHAPES = [(7,), (5, 7), (4, 5, 7), (2, 3, 4, 7), (0, 3, 7), (20, 1, 7)]
INDICES = [torch.tensor([3, 0, 3, 6]), torch.tensor([], dtype=torch.long)]


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("first", [False, True])
def test_it_is_as_by_index_select_and_index_add(shape: tuple[int, ...], index: torch.Tensor, first: bool) -> None:
    tensor = torch.randn(shape)
    tensor = tensor.movedim(-1, 0).contiguous().movedim(0, -1) if first else tensor
    assert torch.equal(read_at(tensor, index), tensor.index_select(-1, index))
    part = torch.randn(*shape[:-1], len(index))
    part = part.movedim(-1, 0).contiguous().movedim(0, -1) if first else part
    expected = torch.zeros(shape).index_add(-1, index, part)
    torch.testing.assert_close(add_at(part, index, shape[-1]), expected)


def test_rows() -> None:
    assert lies_in_rows(torch.randn(7, 4, 5).movedim(0, -1))
    assert not lies_in_rows(torch.randn(4, 5, 7))
    assert not lies_in_rows(torch.randn(7, 3).movedim(0, -1))  # of few elements


@pytest.mark.parametrize("first", [False, True])
def test_transforms_follow_it(first: bool) -> None:
    tensor, index = torch.randn(4, 5, 7, dtype=torch.float64), INDICES[0]
    tensor = tensor.movedim(-1, 0).contiguous().movedim(0, -1) if first else tensor
    for ours, theirs in (
        (lambda x: read_at(x, index), lambda x: x.index_select(-1, index)),
        (lambda x: add_at(x[..., :4], index, 7), lambda x: x.new_zeros(4, 5, 7).index_add(-1, index, x[..., :4])),
    ):
        for transform in (torch.func.jacrev, torch.func.jacfwd):
            torch.testing.assert_close(transform(ours)(tensor), transform(theirs)(tensor))
        batch = torch.stack([tensor, 2 * tensor])
        torch.testing.assert_close(torch.func.vmap(ours)(batch), torch.stack([theirs(x) for x in batch]))


@pytest.mark.parametrize("first", [False, True])
def test_it_is_added_to_zeros_themselves(first: bool) -> None:
    tensor, index = torch.randn(4, 5, 4), INDICES[0]
    tensor = tensor.movedim(-1, 0).contiguous().movedim(0, -1) if first else tensor
    assert taken(lambda: add_at(tensor, index, 5000)) <= 4 * 5 * 5000 * 4 + SLACK
