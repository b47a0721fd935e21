r"""
Sobolev training
================

Where a simulation gives slopes and curvatures along with values, a network should learn them all. Every point then says
six things about a function of two variables instead of one. The loss holds gradients and Hessians of the network; to
minimise it is to differentiate these once more, by the weights.
"""

from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import hofunc

torch.set_default_dtype(torch.float64)

# %%
# What is fitted
# --------------
# The function is that of Styblinski and Tang, one of those by which Sobolev training was introduced (Czarnecki and
# others, Sobolev training for neural networks, *Advances in Neural Information Processing Systems* 30, 2017),
#
# .. math::
#     f(x) = \frac{1}{2} \sum_i \left(x_i^4 - 16 x_i^2 + 5 x_i\right),
#
# here over 40, so that it is of the order of one. The loss of order two is, over points :math:`x_b` and with
# :math:`u` for the network,
#
# .. math::
#     \frac{1}{N}\sum_b \left(u - f\right)^2 + \left|\nabla u - \nabla f\right|^2
#     + \left|\nabla^2 u - \nabla^2 f\right|^2.
#
# Each term is a pattern of :func:`hofunc.einsum`, which computes all that are asked for by one program. With
# :func:`hofunc.jit` the network is recorded once. Its weights are read at every call, and autograd goes on through
# the result, as if it were that of a layer.

PATTERNS = {"value": "b -> b", "slope": "b, b i -> b i", "curvature": "b, b i, b j -> b i j"}
Function = Callable[[Tensor], Tensor]


def target(x: Tensor) -> Tensor:
    """Return values (n,) at points (n, 2)."""
    return (x**4 - 16 * x**2 + 5 * x).sum(-1) / 80


def jets(f: Function, order: int) -> Callable[[Tensor], dict[str, Tensor]]:
    """Return a function from points (n, 2) to values (n,), and slopes (n, 2) and curvatures (n, 2, 2) if asked for."""
    return hofunc.jit(hofunc.einsum(f, dict(list(PATTERNS.items())[: order + 1])))


def distance(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> Tensor:
    """Return the mean squared distance of all that is found."""
    return torch.stack([(found[name] - wanted[name]).square().sum() for name in found]).sum() / len(found["value"])


# %%
# Training
# --------
# Networks that have the same start and the same points, but know values only, slopes too, or curvatures too. Their
# errors are measured at 2000 other points, as the norm of what they leave of values, slopes and curvatures together.


def sample(size: int) -> Tensor:
    """Return points (size, 2) that fill the square from -3.5 to 3.5."""
    engine = torch.quasirandom.SobolEngine(2, scramble=True, seed=1)
    return 7 * engine.draw(size, dtype=torch.float64) - 3.5


def trained(order: int, points: Tensor) -> Function:
    """Return a network trained on derivatives to an order."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))

    def predict(x: Tensor) -> Tensor:
        return network(x / 3.5)[:, 0]

    found, wanted = jets(predict, order), jets(target, order)(points)
    optimizer = torch.optim.LBFGS(network.parameters(), max_iter=500, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = distance(found(points), wanted)
        loss.backward()
        return loss

    optimizer.step(closure)
    network.requires_grad_(False)
    return predict


test = 7 * torch.rand(2000, 2, generator=torch.Generator().manual_seed(0)) - 3.5
NAMES = ("values", "and slopes", "and curvatures")
sizes = (8, 12, 16, 24)
networks = {(order, size): trained(order, sample(size)) for size in sizes for order in range(3)}
rms = {key: float((network(test) - target(test)).square().mean().sqrt()) for key, network in networks.items()}
for order, name in enumerate(NAMES):
    print(f"{name:15}", "  ".join(f"{size} points: {rms[order, size]:.4f}" for size in sizes))

# %%
# Sixteen points, and what becomes of them. With curvatures the four valleys are there, and have their depth.

axis = torch.linspace(-3.5, 3.5, 71)
grid = torch.cartesian_prod(axis, axis)
figure, panels = plt.subplots(1, 4, figsize=(12, 3.5), layout="constrained", sharex=True, sharey=True)
shown = [("function", target), *((f"learned: {NAMES[order]}", networks[order, 16]) for order in range(3))]
for axes, (name, function) in zip(panels, shown, strict=True):
    heights = function(grid).reshape(71, 71).T.numpy()
    image = axes.contourf(axis, axis, heights, levels=torch.linspace(-2, 0.4, 17).tolist(), extend="both")
    axes.plot(*sample(16).T, "o", color="white", markeredgecolor="black", markersize=4)
    axes.set(title=name, xlabel="$x_1$", aspect="equal")
panels[0].set_ylabel("$x_2$")
figure.colorbar(image, ax=panels, label="$f$")

# %%
# A network with curvatures learns more from 8 points than one without any derivatives from 24.

figure, axes = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
for order, color in enumerate(("#b2182b", "#f4a582", "#2166ac")):
    axes.loglog(sizes, [rms[order, size] for size in sizes], "o-", color=color, label=NAMES[order])
axes.set_xticks(sizes, [*map(str, sizes)])
axes.minorticks_off()
axes.set(xlabel="points", ylabel="root mean square error of values", title="What a network learns from")
axes.set_ylim(top=2)
axes.legend(loc="upper right", ncols=3)

# %%
# What has to hold
# ----------------
# The function is a polynomial of degree four in two variables, which has 15 coefficients. Values at three points are
# three equations for them, slopes make them 9 and curvatures 18. If the points are not on a line, these are enough: a
# polynomial of degree four with none of the three at the corners of a triangle has six zeros on every side, and so
# the sides as factors and one factor of first degree; that would have to vanish at the corners. So the loss of order
# two, of three points, has the one minimum zero, at the coefficients of the function, and its gradient by autograd is
# that of least squares.

POWERS = torch.tensor([(i, j) for i in range(5) for j in range(5 - i)])


def monomials(x: Tensor) -> Tensor:
    """Return all monomials (n, 15) of points (n, 2)."""
    return torch.stack([x[:, 0] ** i * x[:, 1] ** j for i, j in POWERS.tolist()], -1)


corners = torch.tensor([[-1.0, 0.5], [1.5, 1.0], [0.0, -2.0]])
_, *compact = hofunc.derivatives(monomials, order=2, layout="compact")(corners)
equations = [monomials(corners)[..., None], *(each.dense(keep_batch=True).flatten(2) for each in compact)]
design = [each.transpose(1, 2).reshape(-1, 15) for each in equations]
ranks = [int(torch.linalg.matrix_rank(torch.cat(design[: order + 1]))) for order in range(3)]
assert ranks == [3, 9, 15]

wanted = jets(target, 2)(corners)
coefficients = torch.ones(15, requires_grad=True)
distance(jets(lambda x: monomials(x) @ coefficients, 2)(corners), wanted).backward()
matrix, right = torch.cat(design), torch.cat([each.flatten() for each in wanted.values()])
gradient = 2 / 3 * matrix.T @ (matrix @ coefficients.detach() - right)
torch.testing.assert_close(coefficients.grad, gradient, rtol=1e-12, atol=1e-12)
exact = torch.zeros(15)
for power, factor in ((1, 5), (2, -16), (4, 1)):
    exact[(POWERS.max(1)[0] == power) & (POWERS.min(1)[0] == 0)] = factor / 80
torch.testing.assert_close(torch.linalg.lstsq(matrix, right).solution, exact, rtol=0, atol=1e-12)

assert rms[2, 16] < rms[1, 16] / 2 < rms[0, 16] / 4
assert rms[2, 8] < rms[0, 24]
