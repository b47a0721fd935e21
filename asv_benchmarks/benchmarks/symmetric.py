"""The different entries of symmetric tensors."""

from itertools import combinations_with_replacement
from math import comb

import torch
from torch import Tensor


def count(width: int, rank: int) -> int:
    """Return the number of different entries of a symmetric tensor with rank axes of a width."""
    return comb(width + rank - 1, rank)


def keys(width: int, rank: int) -> list[tuple[int, ...]]:
    """Return the sorted indices of every different entry."""
    return list(combinations_with_replacement(range(width), rank))


def positions(width: int, rank: int) -> Tensor:
    """Return for every entry the position of its sorted indices among the keys, (width, ... rank times)."""
    number = {key: position for position, key in enumerate(keys(width, rank))}
    entries = torch.cartesian_prod(*[torch.arange(width)] * rank).reshape(-1, rank).sort(-1).values
    return torch.tensor([number[tuple(entry)] for entry in entries.tolist()]).view((width,) * rank)
