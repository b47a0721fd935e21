r"""
Certificates of monotonicity and of interactions
================================================

Does a prediction rise with a feature, not only at a patient's data but at all that are like them? Is an effect the same
whatever another feature is? Derivatives at one point answer for a whole box around it, if what comes after the last of
them is bounded. The more orders are known, the larger the box for which the answer is proven.
"""

import math

import matplotlib.pyplot as plt
import torch
from numpy.polynomial import Polynomial
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

import hofunc

torch.set_default_dtype(torch.float64)

# %%
# A model of real data
# --------------------
# A network with one hidden layer, :math:`f(x) = v \cdot \tanh(W x + b) + c`, predicts the progression of diabetes
# from ten features, in units of their standard deviations. One call gives gradient, Hessian and third derivative of
# every patient's prediction; labels that rows share are found, and nothing is mapped by hand.

FEATURES = ("age", "sex", "BMI", "pressure", "cholesterol", "LDL", "HDL", "chol./HDL", "log trigl.", "glucose")
features, target = map(torch.tensor, load_diabetes(return_X_y=True))
features, target = features / features.std(0), target - target.mean()
HIDDEN = 6


def train(model: nn.Module, decay: float) -> None:
    """Train a model from features (n, 10) to targets (n, 1) on the data."""
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=300, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        error = (model(features)[:, 0] - target / target.std()).square().mean()
        loss = error + decay * sum(weight.square().sum() for weight in model.parameters())
        loss.backward()
        return loss

    optimizer.step(closure)
    model.requires_grad_(False)


torch.manual_seed(0)
network = nn.Sequential(nn.Linear(10, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))
train(network, decay=7e-3)


def predict(x: Tensor) -> Tensor:
    """Return the predictions (n,), in points of progression, for features (n, 10)."""
    return target.std() * network(x)[..., 0]


value, *compact = hofunc.derivatives(predict, order=3, layout="compact")(features)
first, second, third = (derivative.dense(keep_batch=True) for derivative in compact)
print(compact[-1])
print(f"explained variance {1 - (target - value).var() / target.var():.2f}")

# %%
# What is proven
# --------------
# In the box :math:`|x_j - c_j| \le r` Taylor's formula with the remainder of Lagrange bounds how far the slope by
# feature :math:`i` is from that at the centre,
#
# .. math::
#     |f_i(x) - f_i(c)| \le r\sum_j |f_{ij}(c)| + \frac{r^2}2 \sum_{jk} |f_{ijk}(c)| + \frac{r^3}6 B_i^{(4)}, \qquad
#     B_i^{(k)} = \tau_k \sum_m |v_m w_{mi}| \|w_m\|_1^{k-1}.
#
# The last term bounds all fourth derivatives everywhere, since no derivative of order :math:`k` of tanh is larger
# than :math:`\tau_k`: it is a polynomial of tanh itself, whose maximum on :math:`[-1, 1]` is at one of its stationary
# points. So the slope has one sign in the box if the right hand side is less than :math:`|f_i(c)|`. The sum may end
# earlier, with :math:`B^{(2)}` or :math:`B^{(3)}`. That is a proof but for rounding, for which a part in :math:`10^9`
# is left.


def largest(order: int) -> float:
    """Return the maximum of a derivative of tanh."""
    derivative, slope = Polynomial([0, 1]), Polynomial([1, 0, -1])
    for _ in range(order):
        derivative = derivative.deriv() * slope
    return float(abs(derivative(derivative.deriv().roots().real.clip(-1, 1))).max())


inner, bias, weights, _ = network.parameters()
outer = target.std() * weights[0]
bounds = {k: largest(k) * (outer[:, None] * inner).abs().T @ inner.abs().sum(1) ** (k - 1) for k in (2, 3, 4)}


def growth(order: int, radius: Tensor) -> Tensor:
    """Return how far slopes (n, 10) can be from those at the centre in boxes of radii (n, 10), from some orders."""
    sums = [second.abs().sum(-1), third.abs().sum((-1, -2))][: order - 1]
    known = sum(radius**k / math.factorial(k) * each for k, each in enumerate(sums, 1))
    return known + radius**order / math.factorial(order) * bounds[order + 1]


def radii(order: int) -> Tensor:
    """Return the radii (n, 10) of the largest boxes in which each slope is proven to have one sign, by bisection."""
    low, high = torch.zeros_like(first), torch.full_like(first, 10.0)
    for _ in range(60):
        middle = (low + high) / 2
        proven = growth(order, middle) < first.abs() * (1 - 1e-9)
        low, high = torch.where(proven, middle, low), torch.where(proven, high, middle)
    return low


certified = [radii(1)]
for order in (2, 3):
    certified.append(torch.maximum(certified[-1], radii(order)))  # a proof by fewer orders is one as well
for order, radius in enumerate(certified, 1):
    print(f"derivatives to order {order}: median radius {radius.median():.3f} standard deviations")

# %%
# How far from the truth that is, a search for counterexamples tells: at the corner of a box where the Hessian would
# turn the slope most, and at others, the sign is looked at.

slopes = hofunc.jit(hofunc.gradient(predict))


def corners(count: int) -> Tensor:
    """Return for every patient and feature directions (count, n, i, j) of corners, the first by the Hessian."""
    best = -first.sign()[..., None] * second.sign()
    others = torch.randn(count - 1, *second.shape, generator=torch.Generator().manual_seed(0)).sign()
    return torch.cat([best[None], others])


def violated(radius: Tensor, directions: Tensor) -> Tensor:
    """Tell for which slopes (n, 10) a place is known, in boxes of radii (n, 10), where the sign is another."""
    found = torch.zeros(first.shape, dtype=torch.bool)
    for direction in directions:
        for feature in range(10):
            moved = slopes(features + radius[:, feature, None] * direction[:, feature])
            found[:, feature] |= moved[:, feature] * first[:, feature] <= 0
    return found


attempts = torch.logspace(-3, 1, 60)
counterexample = torch.full_like(first, torch.inf)
for attempt in attempts.flip(0):
    found = violated(torch.full_like(first, float(attempt)), corners(4))
    counterexample = torch.where(found, attempt, counterexample)

# %%
# Interactions
# ------------
# Two features interact if the effect of one depends on the other, that is, if :math:`f_{ij}` is not zero somewhere;
# its mean square over the data is a measure of it (Friedman and Popescu, Predictive learning via rule ensembles,
# *Ann. Appl. Stat.* 2, 2008). An additive model has none, and its Hessian says so before any number is looked at: in
# the pattern of the compact form one label stands for both slots, so that entries off the diagonal are not small, but
# not there. That they vanish is proven for every input, as the function computes all of them by the same ops.


class Additive(nn.Module):
    """A sum of functions of one feature each, with four hidden units for each."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.bias, self.outer = (nn.Parameter(torch.randn(10, 4) / 2) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """Return predictions (n, 1) for features (n, 10)."""
        return (self.outer * torch.tanh(x[..., None] * self.inner + self.bias)).sum((-1, -2))[..., None]


additive = Additive()
train(additive, decay=7e-3)
separate = hofunc.hessian(lambda x: target.std() * additive(x)[..., 0], layout="compact")(features)
print("network: ", compact[1].pattern)
print("additive:", separate.pattern)

# %%
# For the network the sign of an interaction is proven in a box as that of a slope is, with one order more of
# everything.

ROOM = 0.05
rest = torch.einsum("m,mi,mj,m->ij", outer.abs(), inner.abs(), inner.abs(), inner.abs().sum(1) ** 2) * largest(4)
proven = second.abs() * (1 - 1e-9) > ROOM * third.abs().sum(-1) + ROOM**2 / 2 * rest
print(f"signs of interactions proven within {ROOM} standard deviations: {proven.double().mean():.0%}")

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
quantiles = torch.linspace(0, 100, first.numel())
for order, (radius, color) in enumerate(zip(certified, ("#b2182b", "#f4a582", "#2166ac"), strict=True), 1):
    left.semilogy(quantiles, radius.flatten().sort()[0], color=color, label=f"proven, derivatives to order {order}")
left.semilogy(quantiles, counterexample.flatten().sort()[0], "k--", linewidth=1, label="counterexample found")
left.set(xlabel="percentile of slopes", ylabel="radius of the box, standard deviations", ylim=(1e-3, 5))
left.set_title("442 patients, 10 features: the sign of a slope")
left.legend()
image = right.imshow(second.square().mean(0).sqrt().numpy(), cmap="Reds", vmin=0)
right.set_xticks(range(10), FEATURES, rotation=40, ha="right", rotation_mode="anchor")
right.set_yticks(range(10), FEATURES)
right.set_title("Interactions: root mean square of $f_{ij}$")
figure.colorbar(image, ax=right, label="points per SD²")

# %%
# What has to hold
# ----------------
# The derivatives of the network are :math:`\sum_m v_m \tanh^{(k)}(u_m)\, w_m \otimes \dots \otimes w_m`, and the
# largest derivatives of tanh of order two and three :math:`4 / (3\sqrt3)` and 2. No sampled place may contradict a
# certificate, while boxes three times as large are mostly too large; and no slope may be further from that at the
# centre than Taylor's formula says, at any order. The additive model's Hessian has only a diagonal.

assert math.isclose(largest(2), 4 / (3 * math.sqrt(3)), rel_tol=1e-12)
assert math.isclose(largest(3), 2, rel_tol=1e-12)
grid = torch.linspace(-5, 5, 20_001)
_, *found = hofunc.derivatives(torch.tanh, order=4, layout="compact")(grid)
for order, derivative in enumerate(found, 1):
    assert 1 - 1e-5 < float(derivative.dense(keep_batch=True).abs().max()) / largest(order) < 1 + 1e-12

t = torch.tanh(features @ inner.T + bias)
bend, twist = 2 * t * (t**2 - 1), 2 * (1 - t**2) * (3 * t**2 - 1)
closed = torch.einsum("nm,m,mi,mj->nij", bend, outer, inner, inner)
torch.testing.assert_close(second, closed, rtol=0, atol=1e-11)
closed = torch.einsum("nm,m,mi,mj,mk->nijk", twist, outer, inner, inner, inner)
torch.testing.assert_close(third, closed, rtol=0, atol=1e-11)

inside = 2 * torch.rand(20, *second.shape, generator=torch.Generator().manual_seed(1)) - 1
directions = torch.cat([corners(20), inside])
assert not violated(certified[-1], directions).any()
assert violated(3 * certified[-1], directions).double().mean() > 0.5
for size in (0.1, 0.3, 1.0):
    for direction in directions[:, :, 0]:
        change = (slopes(features + size * direction) - first).abs()
        for order in (1, 2, 3):
            assert (change <= growth(order, torch.full_like(first, size)) + 1e-9).all()

assert separate.pattern == "b, b c, b c"
t = torch.tanh(features[..., None] * additive.inner + additive.bias)
closed = target.std() * (2 * t * (t**2 - 1) * additive.outer * additive.inner**2).sum(-1)
rows = torch.arange(5)
expected = torch.zeros(5, 5, 10, 5, 10)
expected[rows, rows, :, rows] = torch.diag_embed(closed[:5])
torch.testing.assert_close(separate[:5].dense(), expected, rtol=1e-11, atol=0)  # zeros have to be zero
