"""Random programs that take views and write through them."""

from collections.abc import Callable
from random import Random

import torch
from torch import Tensor


def program(random: Random) -> Callable[[Tensor], list[Tensor]]:
    """Return a function of a tensor of shape (3, 4) that does the same whenever it is called."""
    state = random.getstate()

    def f(x: Tensor) -> list[Tensor]:
        random.setstate(state)
        seen, own = [x], [x.clone()]
        for _ in range(random.randint(3, 12)):
            kind = random.random()
            if kind < 0.3:
                made = random.choice([lambda: random.choice(seen) * 1.5, lambda: x.new_zeros(4, 3), own[-1].clone])()
                own.append(made)
                seen.append(made)
            elif kind < 0.6:
                place = random.randrange(len(own))
                own.append(_view(own[place], random))
                seen.append(_view(random.choice(seen), random))
            else:
                _write(_view(random.choice(own), random), random.choice(seen), random)
        return [tensor * 1 for tensor in seen] + own

    return f


def _view(tensor: Tensor, random: Random) -> Tensor:
    if tensor.dim() == 0:
        return tensor.unsqueeze(0)
    dim = random.randrange(tensor.dim())
    start, stop = sorted(random.choices(range(tensor.shape[dim] + 1), k=2))
    views = [
        lambda: tensor,
        lambda: tensor.narrow(dim, start, stop - start),
        lambda: tensor[(slice(None),) * dim + (slice(start, stop, 2),)],
        lambda: tensor.transpose(0, dim),
        lambda: tensor.select(dim, start) if start < tensor.shape[dim] else tensor,
        lambda: tensor.diagonal() if tensor.dim() == 2 else tensor,
        lambda: tensor.view(-1) if tensor.is_contiguous() else tensor,
    ]
    return random.choice(views)()


def _write(target: Tensor, source: Tensor, random: Random) -> None:
    value = source.clone().expand_as(target) if source.shape == target.shape else source.sum()
    writes = [
        lambda: target.mul_(2),
        lambda: target.sin_(),
        lambda: target.copy_(value),
        lambda: target.add_(value),
        lambda: torch.mul(target.clone(), value, out=target),
    ]
    random.choice(writes)()
