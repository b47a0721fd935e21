"""Normalising flows and probabilistic programs: nflows, zuko, normflows, pyro."""

from typing import Any

import torch
from torch import Tensor

from verification.zoo.entry import Case, Library, Refusal

nflows = Library("nflows")
zuko = Library("zuko")
normflows = Library("normflows")
pyro = Library("pyro-ppl")

_POINTS = ((0.3, -0.5), (0.8, 0.2))


def _nflow(transform: Any) -> Case:
    """Return the log density of a flow over two numbers."""
    from nflows.distributions.normal import StandardNormal
    from nflows.flows.base import Flow

    flow = Flow(transform, StandardNormal([2])).eval()
    return flow.log_prob, (torch.tensor(_POINTS),)


@nflows
def masked_affine() -> Case:
    from nflows.transforms.autoregressive import MaskedAffineAutoregressiveTransform

    return _nflow(MaskedAffineAutoregressiveTransform(features=2, hidden_features=4))


@nflows
def rational_quadratic_spline() -> Case:
    from nflows.transforms.autoregressive import MaskedPiecewiseRationalQuadraticAutoregressiveTransform

    return _nflow(
        MaskedPiecewiseRationalQuadraticAutoregressiveTransform(2, 4, num_bins=3, tails="linear", tail_bound=2.0)
    )


@nflows
def lu_linear() -> Case:
    from nflows.transforms.base import CompositeTransform
    from nflows.transforms.lu import LULinear
    from nflows.transforms.nonlinearities import Tanh

    return _nflow(CompositeTransform([LULinear(2), Tanh()]))


def _zuko(name: str, **options: Any) -> Case:
    """Return the log density of a flow of zuko."""
    import zuko.flows

    flow = getattr(zuko.flows, name)(2, 0, hidden_features=[4], **options)
    return lambda x: flow().log_prob(x), (torch.tensor(_POINTS),)


@zuko
def maf() -> Case:
    return _zuko("MAF", transforms=1)


@zuko
def neural_spline_flow() -> Case:
    return _zuko("NSF", transforms=1, bins=3)


@zuko
def neural_autoregressive_flow() -> Case:
    return _zuko("NAF", transforms=1, signal=2, network={"hidden_features": [4]})


_NOT_TWICE = "its custom Function has a backward pass that torch cannot differentiate again either"


@zuko.entry(options={"functions": ["zuko.utils.GaussLegendre"]})  # of which torch does not differentiate the backward
def sum_of_squares_polynomials() -> Case:
    return _zuko("SOSPF", transforms=1, degree=2, polynomials=2)


@zuko
def gaussianization() -> Case:
    return _zuko("GF", transforms=1, components=2)


@zuko.entry(refused=Refusal("UnsupportedOpError", "no rule for AdaptiveCheckpointAdjoint", _NOT_TWICE))
def continuous_flow() -> Case:
    return _zuko("CNF")


def _normflow(*layers: Any) -> Case:
    """Return the log density of a flow of normflows."""
    import normflows as library

    model = library.NormalizingFlow(library.distributions.DiagGaussian(2), list(layers)).eval()
    return model.log_prob, (torch.tensor(_POINTS),)


@normflows
def real_nvp() -> Case:
    from normflows.flows import AffineCouplingBlock, Permute
    from normflows.nets import MLP

    return _normflow(AffineCouplingBlock(MLP([1, 4, 2], init_zeros=False)), Permute(2))


_BUFFERS = "it writes to buffers of its module at every call, in evaluation too (docs/how-to/buffers.md)"


@normflows.entry(refused=Refusal("MutationError", "f is not pure", _BUFFERS))
def residual_flow() -> Case:
    from normflows.flows import Residual
    from normflows.nets import LipschitzMLP

    network = LipschitzMLP([2, 4, 2], init_zeros=False, lipschitz_const=0.9)
    return _normflow(Residual(network, reduce_memory=False, exact_trace=True, brute_force=True))


@normflows
def autoregressive_spline() -> Case:
    from normflows.flows import AutoregressiveRationalQuadraticSpline

    return _normflow(AutoregressiveRationalQuadraticSpline(2, 1, 4, num_bins=3))


_HOOKS = "pyro hooks into backward passes, to warn of what is not finite in them"


@pyro.entry(refused=Refusal("UntracedError", "f calls register_hook", _HOOKS))
def trace_log_density() -> Case:
    import pyro as library
    from pyro import distributions as dist
    from pyro import poutine

    data = torch.tensor([0.3, 1.2, -0.4])

    def model() -> None:
        mean = library.sample("mean", dist.Normal(0.0, 2.0))
        scale = library.sample("scale", dist.LogNormal(0.0, 1.0))
        with library.plate("data", 3):
            library.sample("x", dist.StudentT(4.0, mean, scale), obs=data)

    def density(mean: Tensor, scale: Tensor) -> Tensor:
        conditioned = poutine.condition(model, {"mean": mean, "scale": scale})
        return poutine.trace(conditioned).get_trace().log_prob_sum()

    return density, (torch.tensor(0.4), torch.tensor(1.3))


@pyro
def hidden_markov_model() -> Case:
    from pyro import distributions as dist

    start, noise = torch.tensor([0.2, -0.3]), torch.tensor([[0.5], [-0.4], [0.1]])

    def f(transition: Tensor) -> Tensor:
        observed = dist.Normal(torch.tensor([-1.0, 1.0]), torch.tensor([0.5, 0.8]))
        return dist.DiscreteHMM(start, transition, observed).log_prob(noise[:, 0])

    return f, (torch.tensor([[0.3, -0.2], [0.1, 0.6]]),)


@pyro
def spline_transform() -> Case:
    from pyro.distributions.transforms import Spline

    transform = Spline(2, count_bins=3)
    return lambda x: transform.log_abs_det_jacobian(x, transform(x)), (torch.tensor([0.3, -0.5]),)
