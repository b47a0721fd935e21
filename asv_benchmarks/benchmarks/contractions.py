"""What is measured of contractions of derivatives: family L, with training steps through them.

Networks have one output a row, four layers of width 64 and any inputs; the flow has as many outputs as inputs. Products
of a Hessian with a vector are those of the functions of families A and C.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .functions import TORCH, Array, Ops, flow, perceptron
from .symmetric import keys
from .workloads import Function, Random, Subject, Workload, attention_whole, classifier_parameters, layers_of

ROWS_OF = {"Laplacian": "b, b i, b i -> b", "biharmonic": "b, b i, b i, b j, b j -> b"}
WEIGHTED = "b, b i, b j, i j -> b"
DIVERGENCE = "b i, b i -> b"
PRODUCT = ", *p, *q, *q -> *p"  # of the Hessian and a vector, each as the argument is


@dataclass(frozen=True)
class Contraction(Subject):
    """A contraction of a derivative of a function by its only argument.

    Attributes:
        kind: Which ways there are to it: "Laplacian", "biharmonic", "partial", "product" or "divergence".
        pattern: As `hofunc.einsum` takes it.
        order: That of the derivative.
        operands: What the pattern multiplies the derivative by.
        by_args: Whether what is learned is the argument, rather than the constants.
        is_step: Whether the gradient of the mean square of the contraction is wanted, by all that is learned.
    """

    kind: str
    pattern: str
    order: int
    operands: tuple[Any, ...] = ()
    by_args: bool = False
    is_step: bool = False

    @property
    def learned(self) -> list[Tensor]:
        """What a training step learns."""
        return [leaf for leaf in tree_leaves(self.args if self.by_args else self.constants) if _is_number(leaf)]

    @property
    def nbytes(self) -> int:
        """The bytes of the result, in float32."""
        x = self.args[0]
        results = self.learned if self.is_step else tree_leaves(x) if self.kind == "product" else [x[:, 0]]
        return 4 * sum(leaf.numel() for leaf in results)

    def with_learned(
        self, learned: Sequence[Array], ops: Ops = TORCH, convert: Callable[[Tensor], Array] = lambda tensor: tensor
    ) -> Callable[[Any], Array]:
        """Return the function of the argument alone, with constants of which some are given, unless it has none."""
        supply = iter(learned)

        def turned(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            return next(supply, None) if _is_number(leaf) and not self.by_args else convert(leaf)

        return partial(self.function, ops, tree_map(turned, self.constants))

    def directions(self) -> tuple[Tensor, Tensor]:
        """Return vectors (K, d) and weights (K,): the sum of derivatives of the order along these is the contraction.

        Of the biharmonic, 12 u_iijj is the sum of those along i + j and i - j, less twice those along i and along j.
        """
        width = self.args[0].shape[1]
        basis = torch.eye(width)
        if self.kind == "biharmonic":
            pairs = [(i, j) for i, j in keys(width, 2) if i != j]
            vectors = [basis[i] + sign * basis[j] for sign in (1, -1) for i, j in pairs]
            weights = [1 - (width - 1) / 3] * width + [1 / 6] * len(vectors)
            return torch.stack([*basis, *vectors]), torch.tensor(weights)
        factor = torch.linalg.cholesky(self.operands[0]).T if self.operands else basis
        count = 1 if self.kind == "partial" else width
        return factor[:count], torch.ones(count)


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _of_network(title: str, kind: str, pattern: str, order: int, size: Sequence[Any], outputs: int = 1) -> Contraction:
    """Return a contraction of a derivative of every row of a network of an activation, with so many rows and inputs."""
    activation, rows, inputs = size
    random = Random()
    layers = layers_of(random, inputs, *(4 * [64]), outputs)
    args = (random(rows, inputs),)
    name = f"L {title}, {activation} {rows}x{inputs}"
    function = perceptron if outputs == 1 else flow
    return Contraction(name, function, (activation, layers), args, kind, pattern, order)


def of_rows(kind: str, inputs: int, rows: int = 128, activation: str = "tanh") -> Contraction:
    """The Laplacian or the biharmonic of every row."""
    return _of_network(kind, kind, ROWS_OF[kind], ROWS_OF[kind].count("b "), (activation, rows, inputs))


def weighted(inputs: int, rows: int = 128, activation: str = "tanh") -> Contraction:
    """The Laplacian of every row, weighted by a positive matrix that is given at the call."""
    factor = Random()(inputs, inputs) / inputs**0.5
    found = _of_network("weighted Laplacian", "Laplacian", WEIGHTED, 2, (activation, rows, inputs))
    return replace(found, operands=(factor @ factor.T + torch.eye(inputs),))


def partial_derivative(order: int, rows: int = 128, activation: str = "tanh") -> Contraction:
    """The derivative of an order of every row by the first of its two numbers."""
    pattern = f"b{order * ', b 0'} -> b"
    return _of_network(f"u_{order * 'x'}", "partial", pattern, order, (activation, rows, 2))


def divergence(inputs: int = 10, rows: int = 128, activation: str = "tanh") -> Contraction:
    """The divergence of a flow of every row."""
    return _of_network("divergence", "divergence", DIVERGENCE, 1, (activation, rows, inputs), inputs)


def product_of_attention(length: int = 32, width: int = 16) -> Contraction:
    """The Hessian of attention by its input times a vector."""
    return _product(attention_whole(length, width), f"attention {length}x{width}")


def product_of_classifier(hidden: int = 70, batch: int = 32) -> Contraction:
    """The Hessian of a classifier's loss by its parameters times a vector; these are also what is learned."""
    found = classifier_parameters(hidden, batch=batch)
    return replace(_product(found, f"classifier 10-{hidden}-10, {batch} rows"), by_args=True)


def _product(workload: Workload, title: str) -> Contraction:
    """Return the product of a workload's Hessian and a vector."""
    random = Random()
    vector = tree_map(lambda leaf: random(*leaf.shape), workload.args[0])
    name = f"L hvp, {title}"
    return Contraction(name, workload.function, workload.constants, workload.args, "product", PRODUCT, 2, (vector,))


def step(contraction: Contraction) -> Contraction:
    """A training step: the gradient of the mean square of a contraction."""
    return replace(contraction, name=f"{contraction.name}, step", is_step=True)


def mean_square(result: Any) -> Any:
    """Return the mean of the squares of all numbers of a result, in any library."""
    leaves = [result] if hasattr(result, "shape") else [result[key] for key in sorted(result)]
    count = sum(leaf.size if not isinstance(leaf, Tensor) else leaf.numel() for leaf in leaves)
    return sum((leaf * leaf).sum() for leaf in leaves) / count


Way = Callable[[Function], Callable[[Any], Any]]  # from a function to its contraction, as a function of its argument
