r"""
Gaussian processes that observe derivatives
===========================================

A derivative of a Gaussian process is jointly Gaussian with it, and the covariances are derivatives of the kernel: of
order two where gradients are observed, of order four where Laplacians are, which solves a differential equation. One
pattern for each pair of what is observed takes the place of formulas that are derived by hand for every kernel.
"""

import math

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import hofunc

torch.set_default_dtype(torch.float64)

# %%
# Covariances as patterns
# -----------------------
# If :math:`f` has the covariance :math:`k(x, x')`, then linear operators on it have
#
# .. math::
#     \mathrm{cov}\left(\frac{\partial f}{\partial x_i}(x), f(x')\right) = \frac{\partial k}{\partial x_i}, \quad
#     \mathrm{cov}\left(\frac{\partial f}{\partial x_i}(x), \frac{\partial f}{\partial x_j}(x')\right)
#     = \frac{\partial^2 k}{\partial x_i \partial x'_j}, \quad
#     \mathrm{cov}\left(\Delta f(x), \Delta f(x')\right) = \Delta\Delta' k
#
# (Rasmussen and Williams, *Gaussian Processes for Machine Learning*, 2006, section 9.4; Solak and others, *Advances
# in Neural Information Processing Systems* 15, 2003). A kernel takes points (n, d) and (m, d) and returns a matrix
# (n, m). An operator is written by the names of its slots: ``""`` is the value, ``"i"`` the gradient, ``"ii"`` the
# Laplacian. :func:`hofunc.einsum` differentiates by one argument or the other, as ``argnums`` says, and the patterns
# that come of it are, for two gradients, ``"n m, n i, m j -> n i m j"``.

Observed = tuple[str, Tensor]  # an operator, and the points where it is observed


class Kernel:
    """A stationary kernel with a scale of length for all coordinates."""

    def __init__(self, scale: Tensor | float):
        self.scale = scale

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the covariances (n, m) of values at x (n, d) and y (m, d)."""
        return self.of_square(((x[:, None] - y[None]) / self.scale).square().sum(-1))

    def of_square(self, square: Tensor) -> Tensor:
        """Return the covariance for the square of a distance, in scales."""
        raise NotImplementedError


class SquaredExponential(Kernel):
    """The kernel of smooth functions."""

    def of_square(self, square: Tensor) -> Tensor:
        """Return the covariance for the square of a distance, in scales."""
        return (-square / 2).exp()


class Matern(Kernel):
    """Matern's kernel of smoothness 5/2; where the root has no derivatives, the kernel has those of its series."""

    def of_square(self, square: Tensor) -> Tensor:
        """Return the covariance for the square of a distance, in scales."""
        apart = square > 0
        r = (5 * torch.where(apart, square, 1)).sqrt()
        return torch.where(apart, (1 + r + r**2 / 3) * (-r).exp(), 1 - 5 / 6 * square)


def block(kernel: Kernel, left: Observed, right: Observed) -> Tensor:
    """Return the covariance matrix of what is observed at the left with what is at the right."""
    (operator, x), (other, y) = left, (right[0].replace("i", "j"), right[1])
    groups = ["n m", *(f"n {axis}" for axis in operator), *(f"m {axis}" for axis in other)]
    rows, columns = (axis if len(axis) == 1 else "" for axis in (operator, other))  # a label that comes twice is summed
    transform = hofunc.einsum(
        kernel, f"{', '.join(groups)} -> n {rows} m {columns}", argnums=(0,) * len(operator) + (1,) * len(other)
    )
    found = transform(x, y)
    return found.reshape(math.prod(found.shape[: 1 + len(rows)]), -1)


def covariance(kernel: Kernel, left: list[Observed], right: list[Observed]) -> Tensor:
    """Return the covariance matrix of all that is observed at the left with all at the right."""
    return torch.cat([torch.cat([block(kernel, one, other) for other in right], 1) for one in left])


# %%
# Gradients of a function of two variables
# ----------------------------------------
# A simulation that returns a gradient with every value, as those with an adjoint do, says three things at each point
# of a plane. The posterior is the usual one, of all that is observed together; a table of operators is all that
# changes.

Data = list[tuple[str, Tensor, Tensor]]  # an operator, points, and what it is there


def conditioned(gram: Tensor, cross: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation, given covariances of what is known, and those with what is not."""
    root = torch.linalg.cholesky(gram + 1e-10 * torch.diag(gram.diagonal()))
    both = torch.linalg.solve_triangular(root, torch.cat([cross, known[:, None]], 1), upper=False)
    cross, known = both[:, :-1], both[:, -1]
    return known @ cross, (1 - cross.square().sum(0)).clamp(min=0).sqrt()


def posterior(kernel: Kernel, data: Data, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of values at points (n, d), given data."""
    observed = [(operator, places) for operator, places, _ in data]
    known = torch.cat([found.flatten() for _, _, found in data])
    return conditioned(covariance(kernel, observed, observed), covariance(kernel, observed, [("", points)]), known)


def surface(x: Tensor) -> Tensor:
    """Return a test function of points (..., 2)."""
    return (3 * x[..., 0]).sin() * (2 * x[..., 1]).cos() + x.prod(-1)


test = torch.cartesian_prod(torch.linspace(-1, 1, 25), torch.linspace(-1, 1, 25))
places = 2 * torch.quasirandom.SobolEngine(2, scramble=True, seed=3).draw(25, dtype=torch.float64) - 1
observed = [("", places), ("i", places)]
gram = covariance(SquaredExponential(0.8), observed, observed)  # (75, 75)
cross = covariance(SquaredExponential(0.8), observed, [("", test)])  # (75, 625)
known = torch.cat([surface(places), hofunc.gradient(surface)(places).flatten()])
sizes = range(4, 26, 3)
rms: dict[str, list[float]] = {"values": [], "values and gradients": []}
for size in sizes:
    values, slopes = torch.arange(size), 25 + torch.arange(2 * size)
    for name, kept in (("values", values), ("values and gradients", torch.cat([values, slopes]))):
        mean, _ = conditioned(gram[kept][:, kept], cross[kept], known[kept])
        rms[name].append(float((mean - surface(test)).square().mean().sqrt()))

# %%
# A differential equation
# -----------------------
# A Laplacian is as linear as a gradient. That :math:`-\Delta u = 1` at points of the unit disk, and that
# :math:`u = 0` at points of its edge, is all that is observed here; the mean of the posterior is a solution. It takes
# the kernel's derivatives of order four. The exact solution is :math:`(1 - r^2) / 4`.

angles = 2 * math.pi * torch.arange(20) / 20
edge = torch.stack([angles.cos(), angles.sin()], 1)
grid = torch.cartesian_prod(torch.linspace(-0.8, 0.8, 6), torch.linspace(-0.8, 0.8, 6))
inside = grid[grid.norm(dim=1) < 0.95]
equation: Data = [("ii", inside, -torch.ones(len(inside))), ("", edge, torch.zeros(len(edge)))]
radius = torch.linspace(-1, 1, 81)
across = torch.stack([radius, torch.zeros(81)], 1)
solution, deviation = posterior(SquaredExponential(1.0), equation, across)
exact = (1 - radius**2) / 4
print(f"{len(inside)} points inside, {len(edge)} on the edge: largest error {(solution - exact).abs().max():.1e}")

# %%
# One dimension shows what a gradient adds: with it, three points pin the curve down.

line = torch.linspace(-2, 2, 201)[:, None]
three = torch.tensor([[-1.6], [0.0], [1.3]])


def wave(x: Tensor) -> Tensor:
    """Return values at points (n, 1)."""
    return (2 * x[:, 0]).sin() * (-(x[:, 0] ** 2) / 4).exp()


figure, ((first, second), (third, fourth)) = plt.subplots(2, 2, figsize=(9, 7), layout="constrained")
curves: list[Data] = [
    [("", three, wave(three))],
    [("", three, wave(three)), ("i", three, hofunc.gradient(wave)(three))],
]
for axes, data, title in zip((first, second), curves, ("Values at three points", "Values and slopes"), strict=True):
    mean, deviation = posterior(SquaredExponential(0.7), data, line)
    low, high = mean - 2 * deviation, mean + 2 * deviation
    axes.fill_between(line[:, 0], low, high, color="#d1e5f0", label="2 standard deviations")
    axes.plot(line[:, 0], mean, color="#2166ac", label="mean")
    axes.plot(line[:, 0], wave(line), "k--", linewidth=1, label="function")
    axes.plot(three[:, 0], wave(three), "ko", markersize=5)
    axes.set(title=title, xlabel="$x$", ylabel="$f$", ylim=(-2, 2.8))
first.legend(loc="upper left", fontsize="small")
for (name, errors), color in zip(rms.items(), ("#b2182b", "#2166ac"), strict=True):
    third.semilogy(sizes, errors, "o-", color=color, label=name)
third.set(title="Function of two variables", xlabel="points", ylabel="root mean square error")
third.legend(fontsize="small")
fourth.plot(radius, solution, color="#2166ac", label="mean")
fourth.plot(radius, exact, "k--", linewidth=1, label="$(1 - r^2) / 4$")
fourth.set(
    title=r"$-\Delta u = 1$ in the disk, $u = 0$ on its edge",
    xlabel="$x$ at $y = 0$",
    ylabel="$u$",
    xticks=(-1, -0.5, 0, 0.5, 1),
)
fourth.legend(fontsize="small")

# %%
# What has to hold
# ----------------
# The closed forms of both kernels, with :math:`d = x - x'`, a scale :math:`\ell`, :math:`s = |d|^2/\ell^2`,
# :math:`a = \sqrt5/\ell` and :math:`D` dimensions, also where points coincide:
#
# .. math::
#     \partial_i\partial'_j k = k \left(\frac{\delta_{ij}}{\ell^2} - \frac{d_i d_j}{\ell^4}\right), \qquad
#     \Delta\Delta' k = \frac{k}{\ell^4}\left(s^2 - 2(D + 2)s + D(D + 2)\right)
#
# for the squared exponential, and for Matern's
#
# .. math::
#     \partial'_j k = \frac{a^2}{3}(1 + a|d|)\,e^{-a|d|} d_j, \qquad
#     \partial_i\partial'_j k = \frac{a^2}{3}\left((1 + a|d|)\delta_{ij} - a^2 d_i d_j\right)e^{-a|d|}.

torch.manual_seed(0)
scale, x = 0.7, torch.randn(6, 3)
y = torch.cat([x[:2], torch.randn(4, 3)])
apart = x[:, None] - y[None]
square = apart.square().sum(-1)
outer = apart[:, :, :, None] * apart[:, :, None, :]


def check(kernel: Kernel, left: str, right: str, closed: Tensor) -> None:
    """Compare a covariance with its closed form."""
    found = covariance(kernel, [(left, x)], [(right, y)])
    torch.testing.assert_close(found, closed.reshape(found.shape), rtol=1e-12, atol=1e-12)


s = square / scale**2
k = (-s / 2).exp()
crossed = k[..., None, None] * (torch.eye(3) / scale**2 - outer / scale**4)
check(SquaredExponential(scale), "", "i", k[..., None] * apart / scale**2)
check(SquaredExponential(scale), "i", "i", crossed.transpose(1, 2))
check(SquaredExponential(scale), "ii", "ii", k / scale**4 * (s**2 - 10 * s + 15))
a = math.sqrt(5) / scale
r = a * square.sqrt()
front = a**2 / 3 * (-r).exp()[..., None]
crossed = front[..., None] * ((1 + r)[..., None, None] * torch.eye(3) - a**2 * outer)
check(Matern(scale), "", "i", front * (1 + r)[..., None] * apart)
check(Matern(scale), "i", "i", crossed.transpose(1, 2))

torch.testing.assert_close(solution, exact, rtol=0, atol=1e-4)
assert rms["values and gradients"][-1] < rms["values"][-1] / 20
