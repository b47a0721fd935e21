r"""
Optimal Brain Surgeon
=====================

Which weight of a trained network can go, and how have the others to move when it goes? To second order the answer is in
the inverse of the Hessian of the loss, the whole of it, as a diagonal misleads. The third derivative, along the move
alone, tells how far that answer can be trusted, and mends it.
"""

from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_diabetes
from torch import Tensor

import hofunc

torch.set_default_dtype(torch.float64)

# %%
# Surgery
# -------
# At a minimum of the loss :math:`L` with Hessian :math:`H`, let weight :math:`q` be set to zero, and the others be
# moved so that the loss grows least. With :math:`\delta` for the move (Hassibi and Stork, *Advances in Neural
# Information Processing Systems* 5, 1993),
#
# .. math::
#     \delta_q = -\frac{w_q}{[H^{-1}]_{qq}} H^{-1} e_q, \qquad
#     L(w + \delta_q) - L(w) = \frac{w_q^2}{2 [H^{-1}]_{qq}} + \frac{1}{6} L_{ijk}\delta_i\delta_j\delta_k
#     + \frac{1}{24} L_{ijkl}\delta_i\delta_j\delta_k\delta_l + \dots
#
# The first term is the surgeon's saliency. The next ones are derivatives along one vector for every weight ``q``. As
# patterns of :func:`hofunc.einsum` they cost that and no more: the tensors :math:`L_{ijk}` and :math:`L_{ijkl}`, of
# :math:`97^3` and :math:`97^4` entries, are not made.

ALONG = {"third": ", i, j, k, q i, q j, q k -> q", "fourth": ", i, j, k, l, q i, q j, q k, q l -> q"}


def surgery(weights: Tensor, hessian: Tensor) -> tuple[Tensor, Tensor]:
    """Return the saliency (q) of every weight, and the moves (q, i) that set each of them to zero."""
    values, vectors = torch.linalg.eigh(hessian)
    inverse = vectors / values.abs().clamp(min=2e-3) @ vectors.T  # at the minimum, just the inverse
    return weights.square() / (2 * inverse.diagonal()), -(weights / inverse.diagonal())[:, None] * inverse


# %%
# A network on real data
# ----------------------
# A tanh network with 97 weights learns the progression of diabetes from ten features. Where an optimiser would stop,
# the gradient is not zero, as the formulas assume; a few steps of Newton's method, whose Hessians are there anyway,
# end at a minimum to rounding.

features, target = map(torch.tensor, load_diabetes(return_X_y=True))
features, target = features / features.std(0), (target - target.mean()) / target.std()
HIDDEN = 8


def network(weights: Tensor, x: Tensor) -> Tensor:
    """Return the predictions of a network whose weights are one vector."""
    inner, bias, outer, offset = weights.split([10 * HIDDEN, HIDDEN, HIDDEN, 1])
    return torch.tanh(x @ inner.reshape(10, HIDDEN) + bias) @ outer + offset


def loss(weights: Tensor) -> Tensor:
    """Return half of the mean squared error, with a penalty."""
    return (network(weights, features) - target).square().mean() / 2 + 2e-3 * weights.square().sum()


torch.manual_seed(0)
weights = (torch.randn(12 * HIDDEN + 1) / 2).requires_grad_()
optimizer = torch.optim.LBFGS([weights], max_iter=400, line_search_fn="strong_wolfe")


def closure() -> Tensor:
    """Return the loss, and its gradient in the weights."""
    optimizer.zero_grad()
    value = loss(weights)
    value.backward()
    return value


optimizer.step(closure)
weights = weights.detach()
curvature = hofunc.jit(hofunc.derivatives(loss, order=2))
for _ in range(20):
    value, gradient, hessian = curvature(weights)
    if gradient.norm() < 1e-12:
        break
    weights = weights - torch.linalg.solve(hessian, gradient)
saliency, moves = surgery(weights, hessian)
print(f"norm of the gradient {gradient.norm():.1e}, smallest eigenvalue {torch.linalg.eigvalsh(hessian)[0]:.4f}")

# %%
# One weight
# ----------
# What removing each of the 97 costs is predicted from derivatives, and measured.

along = hofunc.einsum(loss, ALONG)(weights, operands={"third": (moves,) * 3, "fourth": (moves,) * 4})
actual = torch.func.vmap(loss)(weights + moves) - value
predicted = {
    "order 2: the saliency": saliency,
    "order 3": saliency + along["third"] / 6,
    "order 4": saliency + along["third"] / 6 + along["fourth"] / 24,
}
for name, growth in predicted.items():
    print(f"{name:22} median relative error {((growth - actual).abs() / actual).median():.4f}")

# %%
# One after the other
# -------------------
# Pruning goes on from there: choose a weight, remove it, and compute the Hessian of those that are left anew. Where
# that is no longer a minimum, eigenvalues count by their magnitude. Optimal Brain Damage (LeCun, Denker and Solla,
# *Advances in Neural Information Processing Systems* 2, 1990) uses the diagonal of the same Hessian and moves no
# other weight.


def by_magnitude(weights: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sizes of weights, and moves that set one to zero and keep all others."""
    return weights.abs(), -torch.diag(weights)


def by_damage(weights: Tensor, hessian: Tensor) -> tuple[Tensor, Tensor]:
    """Return the saliencies of Optimal Brain Damage, and the same moves."""
    return weights.square() * hessian.diagonal() / 2, -torch.diag(weights)


def losses_of(method: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], weights: Tensor, removals: int) -> list[float]:
    """Return the losses after every removal, the choice and the move being those of a method."""
    kept, losses = torch.arange(len(weights)), [float(loss(weights))]
    for _ in range(removals):
        hessian = curvature(weights)[2][kept][:, kept]
        scores, moves = method(weights[kept], hessian)
        chosen = int(scores.argmin())
        weights = weights.index_add(0, kept, moves[chosen])
        kept = kept[torch.arange(len(kept)) != chosen]
        losses.append(float(loss(weights)))
    return losses


REMOVALS = 75
runs = {
    "magnitude": losses_of(by_magnitude, weights, REMOVALS),
    "Optimal Brain Damage": losses_of(by_damage, weights, REMOVALS),
    "Optimal Brain Surgeon": losses_of(surgery, weights, REMOVALS),
}
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for (name, growth), color in zip(predicted.items(), ("#b2182b", "#f4a582", "#2166ac"), strict=True):
    left.loglog(actual, (growth / actual - 1).abs(), "o", color=color, markersize=4, label=name)
left.set(xlabel="growth of the loss, measured", ylabel="relative error of the prediction", title="One weight removed")
left.legend()
for (name, losses), color in zip(runs.items(), ("#999999", "#4393c3", "#b2182b"), strict=True):
    right.plot(losses, color=color, label=name)
right.set(xlabel="weights removed, of 97", ylabel="loss, without retraining", title="One after the other")
right.set(xlim=(0, REMOVALS), ylim=(0.19, 0.6))
right.legend()

# %%
# What has to hold
# ----------------
# For a linear model nothing is left out: the saliency is what the loss grows by, and the moved weights are those of
# least squares without the feature. For the network each order predicts better than the one before.


def squares(weights: Tensor) -> Tensor:
    """Return the loss of a linear model."""
    return (features @ weights - target).square().mean() / 2


_, slope, hessian = hofunc.derivatives(squares, order=2)(torch.zeros(10))
least = -torch.linalg.solve(hessian, slope)
saliency, moves = surgery(least, hessian)
for removed in range(10):
    others = [feature for feature in range(10) if feature != removed]
    refit = torch.zeros(10)
    refit[others] = torch.linalg.lstsq(features[:, others], target[:, None]).solution[:, 0]
    torch.testing.assert_close(least + moves[removed], refit, rtol=0, atol=1e-11)
    torch.testing.assert_close(squares(refit) - squares(least), saliency[removed], rtol=0, atol=1e-13)

errors = [float(((growth - actual).abs() / actual).median()) for growth in predicted.values()]
assert errors[2] < errors[1] / 4 < errors[0] / 6
assert runs["Optimal Brain Surgeon"][40] < 0.21 < 0.25 < runs["Optimal Brain Damage"][40]
