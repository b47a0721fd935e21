"""Networks for equations: deepxde, neuraloperator; and the private training of opacus."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from verification.zoo.entry import Case, Library

deepxde = Library("deepxde")
neuraloperator = Library("neuraloperator")
opacus = Library("opacus")


def _residual(equation: Callable[[Any, Tensor, Tensor], Tensor]) -> Case:
    """Return the residual of an equation for a small network, as a function of two points."""
    import deepxde as library

    library.config.set_default_float("float64")
    network = library.nn.FNN([2, 4, 1], "tanh", "Glorot normal")

    def f(x: Tensor) -> Tensor:
        library.grad.clear()
        return equation(library.grad, x, network(x))

    return f, (torch.tensor([[0.3, -0.5], [0.8, 0.2]]),)


@deepxde
def network() -> Case:
    return _residual(lambda _grad, _x, y: y)


@deepxde
def laplacian_by_hessian() -> Case:
    return _residual(lambda grad, x, y: grad.hessian(y, x, i=0, j=0) + grad.hessian(y, x, i=1, j=1) - y**3)


@deepxde
def burgers_by_jacobian() -> Case:
    return _residual(lambda grad, x, y: grad.jacobian(y, x, j=1) + y * grad.jacobian(y, x, j=0))


@deepxde
def operator_network() -> Case:
    import deepxde as library

    library.config.set_default_float("float64")
    model = library.nn.DeepONet([3, 4, 4], [2, 4, 4], "tanh", "Glorot normal")
    values = torch.randn(1, 3)
    return lambda x: model((values, x)), (torch.tensor([[0.3, -0.5]]),)


@neuraloperator
def fourier_neural_operator() -> Case:
    from neuralop.models import FNO

    model = FNO(n_modes=(3,), in_channels=1, out_channels=1, hidden_channels=2, n_layers=1).eval()
    for parameter in model.parameters():  # those of frequencies are made in single precision
        parameter.data = parameter.data.to(torch.complex128 if parameter.is_complex() else torch.float64)
    return model, (torch.randn(1, 1, 5),)


@neuraloperator
def spectral_convolution() -> Case:
    from neuralop.layers.spectral_convolution import SpectralConv

    layer = SpectralConv(1, 1, (3,))
    return lambda x: layer(x).tanh(), (torch.randn(1, 1, 6),)


@neuraloperator
def sobolev_loss() -> Case:
    from neuralop.losses import H1Loss

    loss, other = H1Loss(d=1), torch.randn(1, 1, 6)
    return lambda x: loss(x, other), (torch.randn(1, 1, 6),)


@opacus
def private_attention() -> Case:
    from opacus.layers import DPMultiheadAttention

    layer = DPMultiheadAttention(2, 1)
    return lambda x: layer(x, x, x, need_weights=False)[0], (torch.randn(2, 1, 2),)


@opacus
def private_lstm() -> Case:
    from opacus.layers import DPLSTM

    layer = DPLSTM(2, 2, batch_first=True)
    return lambda x: layer(x)[0], (torch.randn(1, 2, 2),)


@opacus
def gradients_of_samples() -> Case:
    from opacus.grad_sample.functorch import ft_compute_per_sample_gradient, prepare_layer

    layer, above = torch.nn.Linear(2, 2), torch.randn(3, 2)
    network = torch.nn.Sequential(layer, torch.nn.Tanh())
    prepare_layer(network)

    def f(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(ft_compute_per_sample_gradient(network, [x], above).values())

    return f, (torch.randn(3, 2),)
