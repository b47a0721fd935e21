r"""
Influence functions and leave-one-out
=====================================

What would a model predict, had one row never been in its data? Influence functions answer from derivatives of the loss,
without a refit: to first order by the gradient and the Hessian, to second order by the third derivative too. For ridge
regression both have closed forms; for a logistic regression on real data they are compared with a refit for each row.
"""

from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes
from torch import Tensor
from torch.nn.functional import softplus

import hofunc

torch.set_default_dtype(torch.float64)

# %%
# Derivatives of a minimum
# ------------------------
# Let :math:`\ell_n` be the loss of row :math:`n`, and :math:`\theta(w)` the minimum of
# :math:`L = \sum_n w_n\ell_n(\theta) + \frac{\lambda}{2}|\theta|^2`. Differentiating
# :math:`\nabla L(\theta(w), w) = 0` by the weight of one row, once and twice, gives with the Hessian :math:`H` and
# the third derivative :math:`T` of :math:`L`
#
# .. math::
#     \theta' = -H^{-1}\nabla\ell_n, \qquad
#     \theta'' = -H^{-1}\left(T[\theta', \theta'] + 2\,\nabla^2\ell_n\,\theta'\right).
#
# The first is the influence function (Cook and Weisberg, *Residuals and Influence in Regression*, 1982; Koh and
# Liang, Understanding black-box predictions via influence functions, *ICML* 2017). To leave the row out is to take
# its weight from 1 to 0, so that :math:`\theta` moves by :math:`-\theta' + \frac{1}{2}\theta'' - \dots`
#
# All rows are done at once, from one function for the losses (N,) of all of them. In a pattern of
# :func:`hofunc.einsum` the first group names the axes of that output, the next ones those of the parameters, once for
# every differentiation, and the last ones those of operands. In ``curved`` the losses of rows ``m`` are summed, and
# the third derivative of the sum takes two vectors for every row ``n``; in ``own`` it is the Hessian of row ``n``
# that takes the vector of row ``n``. Neither a tensor with three axes of parameters nor a Hessian for each row is
# made on the way.


def influences(losses: Callable[[Tensor], Tensor], theta: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Return the first and second derivatives (N, d) of the minimum theta (d,) by the weight of each row."""
    found = hofunc.einsum(losses, {"slopes": "n, i -> n i", "hessian": "m, i, j -> i j"})(theta)
    hessian = found["hessian"] + penalty * torch.eye(len(theta))
    first = -torch.linalg.solve(hessian, found["slopes"].T).T
    products = hofunc.einsum(losses, {"curved": "m, i, j, k, n j, n k -> n i", "own": "n, i, j, n j -> n i"})
    moved = products(theta, operands={"curved": (first, first), "own": (first,)})
    return first, -torch.linalg.solve(hessian, (moved["curved"] + 2 * moved["own"]).T).T


# %%
# Ridge regression: closed forms
# ------------------------------
# With :math:`\ell_n = \frac{1}{2} (y_n - x_n\theta)^2`, residuals :math:`e_n` and leverages
# :math:`h_n = x_n (X^T X + \lambda)^{-1} x_n^T`, the residual of a row that was left out is exactly
# :math:`e_n / (1 - h_n)` (Allen, *Technometrics* 16, 1974). As a series in :math:`h_n`, it has to agree with the
# influences order by order: :math:`e_n (1 + h_n)` and :math:`e_n (1 + h_n + h_n^2)`.

diabetes, progression = map(torch.tensor, load_diabetes(return_X_y=True))
diabetes = diabetes[:60] / diabetes[:60].std(0)  # few rows, so that each matters
progression = progression[:60] - progression[:60].mean()
PENALTY = 1.0


def squares(theta: Tensor) -> Tensor:
    """Return the losses of all rows."""
    return (progression - diabetes @ theta).square() / 2


ridge = torch.linalg.solve(diabetes.T @ diabetes + PENALTY * torch.eye(10), diabetes.T @ progression)
first, second = influences(squares, ridge, PENALTY)
residual = progression - diabetes @ ridge
left_out = {
    "first order": residual + (diabetes * first).sum(-1),
    "second order": residual + (diabetes * (first - second / 2)).sum(-1),
}
leverage = (diabetes * torch.linalg.solve(diabetes.T @ diabetes + PENALTY * torch.eye(10), diabetes.T).T).sum(-1)
refitted = torch.empty(60)
for row in range(60):
    kept = torch.arange(60) != row
    gram = diabetes[kept].T @ diabetes[kept] + PENALTY * torch.eye(10)
    refitted[row] = progression[row] - diabetes[row] @ torch.linalg.solve(gram, diabetes[kept].T @ progression[kept])

# %%
# Logistic regression: against refits
# -----------------------------------
# Here the series does not end, and the third derivative is not zero. The data are 569 tumours, malignant or benign,
# with 30 features. The refits are real ones, 569 of them: Newton's method, for all at once. ``objective`` has one set
# of parameters for each of them, and the pattern ``n, n i, n j -> n i j`` is its Hessian for each.

features, labels = load_breast_cancer(return_X_y=True)
features = torch.tensor(features)
features = torch.cat([torch.ones(len(features), 1), (features - features.mean(0)) / features.std(0)], 1)
margins = features * torch.tensor(2.0 * labels - 1)[:, None]
rows, size = margins.shape


def logistic(theta: Tensor) -> Tensor:
    """Return the losses of all rows."""
    return softplus(-margins @ theta)


def objective(thetas: Tensor, weights: Tensor) -> Tensor:
    """Return the objectives (n,) of parameters (n, d) with weights (n, N) of the rows."""
    return (weights * softplus(-thetas @ margins.T)).sum(-1) + PENALTY * thetas.square().sum(-1) / 2


newton = hofunc.jit(hofunc.einsum(objective, {"slope": "n, n i -> n i", "hessian": "n, n i, n j -> n i j"}))


def fitted(thetas: Tensor, weights: Tensor) -> Tensor:
    """Return the minima of all objectives by Newton's method, started at thetas."""
    for _ in range(30):
        found = newton(thetas, weights)
        if found["slope"].abs().max() < 1e-10:
            return thetas
        thetas = thetas - torch.linalg.solve(found["hessian"], found["slope"])
    raise RuntimeError("Newton's method has not converged")


theta = fitted(torch.zeros(1, size), torch.ones(1, rows))[0]
first, second = influences(logistic, theta, PENALTY)
refits = fitted(theta - first, 1 - torch.eye(rows))
actual = (margins * (refits - theta)).sum(-1)
order_one = -(margins * first).sum(-1)
order_two = order_one + (margins * second).sum(-1) / 2
held_out = [float(softplus(-(margins @ theta + move)).mean()) for move in (actual, order_one, order_two)]
print(f"loss of the rows as they are fitted: {logistic(theta).mean():.5f}")
print("loss of the rows when left out: {:.5f}; by influence of order 1 {:.5f}, of order 2 {:.5f}".format(*held_out))

# %%
# On the left is how much the residual of a row grows when it is left out, on the right how wrong the loss of a
# tumour's log odds is predicted, relative to that of its refit. The horizontal axis is the leverage in both, for
# logistic regression :math:`p_n (1 - p_n)\, x_n H^{-1} x_n^T` with the probability :math:`p_n`. The error of each
# order is a power of it: rows that matter most are those for which the first order is not enough, and a few for which
# the second is not either.

odds = torch.sigmoid(-margins @ theta)
hessian = hofunc.hessian(lambda theta: logistic(theta).sum())(theta) + PENALTY * torch.eye(size)
weight = odds * (1 - odds) * (margins * torch.linalg.solve(hessian, margins.T).T).sum(-1)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
heights = torch.linspace(0, 0.5, 100)
left.plot(heights, 1 / (1 - heights), "k-", linewidth=1, label="exact: $1 / (1 - h)$")
for (name, predicted), marker, color in zip(left_out.items(), "os", ("#b2182b", "#2166ac"), strict=True):
    left.plot(leverage, predicted / residual, marker, color=color, markersize=4, label=f"influence, {name}")
left.plot(leverage, refitted / residual, "kx", markersize=4, label="refit")
left.set(xlabel="leverage $h$", ylabel="residual left out / residual", title="Ridge regression, diabetes")
left.legend()
for predicted, marker, color, name in ((order_one, "o", "#b2182b", "first"), (order_two, "s", "#2166ac", "second")):
    right.loglog(
        weight, (predicted / actual - 1).abs(), marker, color=color, markersize=3, label=f"influence, {name} order"
    )
right.set(xlabel="leverage", ylabel="relative error of the prediction", xlim=(1e-4, 1), ylim=(1e-8, 2))
right.set_title("Logistic regression, breast cancer")
right.legend()

# %%
# What has to hold
# ----------------
# The closed forms of ridge regression, to rounding. For logistic regression the first order leaves an error of the
# order of the square of the change of a weight, the second one of its cube: with half the change, a fourth and an
# eighth.

torch.testing.assert_close(refitted, residual / (1 - leverage), rtol=1e-10, atol=1e-10)
torch.testing.assert_close(left_out["first order"], residual * (1 + leverage), rtol=1e-10, atol=1e-10)
torch.testing.assert_close(left_out["second order"], residual * (1 + leverage + leverage**2), rtol=1e-10, atol=1e-10)


def remainders(change: float) -> tuple[float, float]:
    """Return the norms of what both orders leave of the parameters' moves, when weights fall by a change."""
    moves = fitted(theta - change * first, 1 - change * torch.eye(rows)) - theta
    return float((moves + change * first).norm()), float((moves + change * first - change**2 * second / 2).norm())


(first_whole, second_whole), (first_half, second_half) = remainders(2e-2), remainders(1e-2)
assert abs(first_whole / first_half - 4) < 0.05
assert abs(second_whole / second_half - 8) < 0.2
assert (order_two - actual).abs().median() < (order_one - actual).abs().median() / 10
