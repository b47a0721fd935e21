"""Gaussian processes and what is optimised with them: gpytorch, linear_operator, botorch."""

from typing import Any

import torch
from torch import Tensor

from verification.zoo.entry import Case, Library

gpytorch = Library("gpytorch")
linear_operator = Library("linear_operator")
botorch = Library("botorch", kills_torch=True)


def _data() -> tuple[Tensor, Tensor]:
    x = torch.linspace(0, 1, 6)[:, None] * torch.tensor([1.0, 0.7])
    return x, torch.sin(4 * x[:, 0]) + 0.1 * torch.cos(20 * x[:, 1])


def _exact(kernel: Any) -> Any:
    """Return a process that went through the data, ready to predict."""
    import gpytorch as library

    class Exact(library.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(*_data(), library.likelihoods.GaussianLikelihood())
            self.mean = library.means.ConstantMean()
            self.kernel = kernel

        def forward(self, x: Tensor) -> Any:
            return library.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    return Exact()


def _rbf() -> Any:
    import gpytorch as library

    return library.kernels.ScaleKernel(library.kernels.RBFKernel())


_POINT = ((0.35, 0.4),)


@gpytorch
def posterior_mean() -> Case:
    """Differentiate the mean by where it is asked for."""
    model = _exact(_rbf()).eval()
    return lambda x: model(x).mean, (torch.tensor(_POINT),)


@gpytorch
def posterior_variance() -> Case:
    """Differentiate the variance by where it is asked for."""
    model = _exact(_rbf()).eval()
    return lambda x: model(x).variance, (torch.tensor(_POINT),)


@gpytorch
def posterior_covariance() -> Case:
    """Differentiate the covariance of two points."""
    model = _exact(_rbf()).eval()
    return lambda x: model(x).covariance_matrix, (torch.tensor([[0.35, 0.4], [0.6, 0.1]]),)


@gpytorch
def posterior_mean_matern() -> Case:
    """Differentiate the mean of a rough process."""
    import gpytorch as library

    model = _exact(library.kernels.ScaleKernel(library.kernels.MaternKernel(nu=2.5))).eval()
    return lambda x: model(x).mean, (torch.tensor(_POINT),)


def _likelihood_by_parameters(kernel: Any) -> Case:
    """Return the marginal likelihood as a function of all parameters."""
    import gpytorch as library

    model = _exact(kernel)
    likelihood = library.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    names = [name for name, _ in model.named_parameters()]
    x, y = _data()

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self) -> Tensor:
            return likelihood(model(x), y)

    loss = Loss()

    def f(*values: Tensor) -> Tensor:
        return torch.func.functional_call(loss, {f"model.{n}": v for n, v in zip(names, values, strict=True)}, ())

    return f, tuple(p.detach().clone() for p in model.parameters())


@gpytorch
def marginal_likelihood_rbf() -> Case:
    """Differentiate the marginal likelihood by the hyperparameters."""
    return _likelihood_by_parameters(_rbf())


@gpytorch
def marginal_likelihood_matern() -> Case:
    """Differentiate the marginal likelihood by the hyperparameters."""
    import gpytorch as library

    return _likelihood_by_parameters(library.kernels.ScaleKernel(library.kernels.MaternKernel(nu=1.5)))


@gpytorch
def kernel_periodic() -> Case:
    """Differentiate a periodic kernel by its points."""
    import gpytorch as library

    kernel = library.kernels.PeriodicKernel()
    return lambda x: kernel(x, x + 0.3).to_dense(), (torch.tensor([[0.1, 0.4], [0.5, 0.3]]),)


def _positive(x: Tensor) -> Tensor:
    return x @ x.mT + 2 * torch.eye(x.shape[-1])


@linear_operator
def solve() -> Case:
    """Differentiate the solution of equations by the matrix."""
    from linear_operator import to_linear_operator

    right = torch.randn(3, 2)
    return lambda x: to_linear_operator(_positive(x)).solve(right), (torch.randn(3, 3),)


@linear_operator
def inv_quad_logdet() -> Case:
    """Differentiate what a Gaussian likelihood is made of, by the matrix."""
    from linear_operator import to_linear_operator

    right = torch.randn(3, 2)

    def f(x: Tensor) -> Tensor:
        quadratic, logdet = to_linear_operator(_positive(x)).inv_quad_logdet(right, logdet=True)
        return quadratic + logdet

    return f, (torch.randn(3, 3),)


@linear_operator
def matmul_of_kronecker() -> Case:
    """Differentiate the product of a Kronecker product and a matrix."""
    from linear_operator import to_linear_operator
    from linear_operator.operators import KroneckerProductLinearOperator

    right = torch.randn(4, 2)

    def f(x: Tensor) -> Tensor:
        factor = to_linear_operator(_positive(x))
        return KroneckerProductLinearOperator(factor, factor) @ right

    return f, (torch.randn(2, 2),)


def _surrogate() -> Any:
    from botorch.models import SingleTaskGP

    x, y = _data()
    return SingleTaskGP(x, y[:, None]).eval()


@botorch
def expected_improvement() -> Case:
    """Differentiate an acquisition function by the point."""
    from botorch.acquisition import ExpectedImprovement

    return ExpectedImprovement(_surrogate(), best_f=0.5), (torch.tensor(_POINT),)


@botorch
def log_expected_improvement() -> Case:
    """Differentiate an acquisition function by the point."""
    from botorch.acquisition import LogExpectedImprovement

    return LogExpectedImprovement(_surrogate(), best_f=0.5), (torch.tensor(_POINT),)


@botorch
def upper_confidence_bound() -> Case:
    """Differentiate an acquisition function by the point."""
    from botorch.acquisition import UpperConfidenceBound

    return UpperConfidenceBound(_surrogate(), beta=2.0), (torch.tensor(_POINT),)


def _monte_carlo(name: str) -> Case:
    """Return an acquisition function of two points, by samples that stay the same."""
    from botorch import acquisition
    from botorch.sampling import SobolQMCNormalSampler

    sampler = SobolQMCNormalSampler(torch.Size([16]), seed=0)
    best = {"best_f": 0.5} if "Improvement" in name else {"beta": 2.0}
    made = getattr(acquisition, name)(_surrogate(), sampler=sampler, **best)
    return made, (torch.tensor([[0.35, 0.4], [0.6, 0.1]]),)


@botorch
def q_expected_improvement() -> Case:
    """Differentiate an acquisition function by two points."""
    return _monte_carlo("qExpectedImprovement")


@botorch
def q_log_expected_improvement() -> Case:
    """Differentiate an acquisition function by two points."""
    return _monte_carlo("qLogExpectedImprovement")


@botorch
def q_upper_confidence_bound() -> Case:
    """Differentiate an acquisition function by two points."""
    return _monte_carlo("qUpperConfidenceBound")
