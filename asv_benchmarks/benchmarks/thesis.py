"""The network of the THOAD thesis: layers without bias, relu inside and softmax at the end, summed to a scalar.

The thesis sums the softmax itself, which is constant; here the sum is weighted.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jacfwd, jacrev, vmap

import hofunc

BATCH, WIDTH, LAYERS = 100, 10, 3

Contenders = dict[str, Callable[[], Tensor]]


def network(batch: int = BATCH, width: int = WIDTH) -> tuple[Callable[[Tensor, Tensor], Tensor], tuple[Tensor, Tensor]]:
    """Return the network as a function of its input and of the weights of the sum, both (..., width), and a batch."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    layers = [random(width, width) / width**0.5 for _ in range(LAYERS)]

    def loss(x: Tensor, weights: Tensor) -> Tensor:
        for layer in layers[:-1]:
            x = torch.relu(x @ layer)
        return (torch.softmax(x @ layers[-1], -1) * weights).sum()

    return loss, (random(batch, width), random(batch, width))


def whole_hessians() -> Contenders:
    """Return ways to the whole Hessian (batch, width, batch, width) by the input."""
    loss, args = network()
    ours, theirs = hofunc.hessian(loss), torch.func.hessian(loss)
    return {"hofunc.hessian": lambda: ours(*args), "torch.func.hessian": lambda: theirs(*args)}


def row_hessians() -> Contenders:
    """Return ways to the Hessian of every row by that row, (batch, width, width)."""
    loss, args = network()
    ours = hofunc.hessian(loss, layout="compact")
    backward = vmap(jacrev(jacrev(loss)))
    mixed = vmap(jacfwd(jacrev(loss)))
    return {
        "hofunc, compact": lambda: ours(*args).dense(keep_batch=True),
        "vmap(jacrev(jacrev))": lambda: backward(*args),
        "vmap(jacfwd(jacrev))": lambda: mixed(*args),
    }


def row_thirds() -> Contenders:
    """Return ways to the third derivative of every row by that row, (batch, width, width, width)."""
    loss, args = network()
    ours = hofunc.hod(loss, order=3, layout="compact")
    backward = vmap(jacrev(jacrev(jacrev(loss))))
    mixed = vmap(jacfwd(jacrev(jacrev(loss))))
    forward = vmap(jacfwd(jacfwd(jacrev(loss))))
    return {
        "hofunc, compact": lambda: ours(*args).dense(keep_batch=True),
        "vmap(jacrev(jacrev(jacrev)))": lambda: backward(*args),
        "vmap(jacfwd(jacrev(jacrev)))": lambda: mixed(*args),
        "vmap(jacfwd(jacfwd(jacrev)))": lambda: forward(*args),
    }


class Network:
    """Time of hofunc's derivatives by the input, planned before: one thread, float32."""

    def setup(self) -> None:
        """Record and plan once."""
        torch.set_num_threads(1)
        self.whole_hessian = whole_hessians()["hofunc.hessian"]
        self.row_hessian = row_hessians()["hofunc, compact"]
        self.row_third = row_thirds()["hofunc, compact"]
        for function in (self.whole_hessian, self.row_hessian, self.row_third):
            function()

    def time_whole_hessian(self) -> None:
        """Time the dense Hessian of the batch."""
        self.whole_hessian()

    def time_row_hessian(self) -> None:
        """Time the Hessian of every row."""
        self.row_hessian()

    def time_row_third(self) -> None:
        """Time the third derivative of every row."""
        self.row_third()
