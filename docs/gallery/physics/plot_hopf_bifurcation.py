r"""
The birth of an oscillation
===========================

Where an equilibrium loses its stability to an oscillation, first derivatives say when, and nothing else. Whether the
oscillation sets in softly, how large it is and how fast, stands in derivatives of order 2 and 3. This page gets the
first Lyapunov coefficient of a chemical oscillator from them, for many parameters at once, and predicts its limit
cycles.
"""

# %%
# The Brusselator
# ---------------
#
# Concentrations :math:`x, y` react by
#
# .. math:: \dot x = A - (B + 1) x + x^2 y, \qquad \dot y = B x - x^2 y,
#
# with the equilibrium :math:`(A, B / A)`. There, the trace of the Jacobian is :math:`B - 1 - A^2`, so that at
# :math:`B = 1 + A^2` it has eigenvalues :math:`\pm i\omega` with :math:`\omega = A`: a Hopf bifurcation.

import math

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.integrate import solve_ivp
from scipy.optimize import newton

import hofunc

torch.set_default_dtype(torch.float64)


def reaction(state: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the rates of change of rows of concentrations."""
    x, y = state.unbind(-1)
    conversion = x**2 * y
    return torch.stack([a - (b + 1) * x + conversion, b * x - conversion], -1)


# %%
# From tensors to a normal form
# -----------------------------
#
# With the Jacobian :math:`J` and the multilinear forms of order 2 and 3,
# :math:`F_2(u, v)_i = \sum_{jk} f_{i,jk} u_j v_k` and :math:`F_3(u, v, w)`, let :math:`J q = i\omega q`
# and :math:`J^T p = -i\omega p`, with :math:`|q| = 1` and :math:`\langle p, q \rangle = \bar p \cdot q = 1`. On the
# plane of :math:`q` the motion is that of a complex number :math:`z`,
#
# .. math:: \dot z = \lambda z + c\, z |z|^2 + \dots, \qquad
#           2 c = \langle p, F_3(q, q, \bar q) + 2 F_2(q, h_{11}) + F_2(\bar q, h_{20}) \rangle,
#
# .. math:: h_{11} = -J^{-1} F_2(q, \bar q), \qquad h_{20} = (2 i\omega - J)^{-1} F_2(q, q),
#
# and :math:`l_1 = \operatorname{Re} c / \omega` is the first Lyapunov coefficient (Kuznetsov, *Elements of Applied
# Bifurcation Theory*, sections 3.5 and 5.4). Where it is negative, as here, a stable cycle grows from nothing. It is
# proportional to :math:`|q|^2`, which is why the length of :math:`q` has to be said.
#
# Rows are independent, so one call has the tensors of all parameters.


def normal_form(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return c, q, h11 and h20 at the bifurcation, a row for each entry of a."""
    b = 1 + a**2
    at = torch.stack([a, b / a], -1)
    compact = hofunc.derivatives(reaction, order=3, layout="compact")(at, a, b)[1:]
    jacobian, quadratic, cubic = (each.dense(keep_batch=True).to(torch.complex128) for each in compact)
    frequency = 1j * a[:, None]
    # of a 2 x 2 matrix with eigenvalues i omega and -i omega, q and conj(p) are a column and a row of J + i omega
    shifted = jacobian + frequency[:, None] * torch.eye(2)
    q = shifted[:, :, 0] / torch.linalg.vector_norm(shifted[:, :, 0], dim=-1, keepdim=True)
    p = shifted[:, 0] / (shifted[:, 0] * q).sum(-1, keepdim=True)  # conj(p)

    def second(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.einsum("nijk, nj, nk -> ni", quadratic, u, v)

    h11 = -torch.linalg.solve(jacobian, second(q, q.conj()))
    h20 = torch.linalg.solve(2 * frequency[:, None] * torch.eye(2) - jacobian, second(q, q))
    third = torch.einsum("nijkl, nj, nk, nl -> ni", cubic, q, q, q.conj())
    c = (p * (third + 2 * second(q, h11) + second(q.conj(), h20))).sum(-1) / 2
    return c, q, h11, h20


parameters = torch.linspace(0.2, 4, 100)
c, *_ = normal_form(parameters)
lyapunov = c.real / parameters
by_hand = -(2 + parameters**2) / (2 * parameters * (1 + 2 * parameters**2))

# %%
# What it predicts
# ----------------
#
# A little above the bifurcation, at :math:`B = 1 + A^2 + \delta`, there is
# :math:`\lambda = \delta / 2 + i A + O(\delta^2)`. So the cycle has :math:`|z|^2 = -\delta / (2 \operatorname{Re} c)`
# and the frequency :math:`A + \operatorname{Im} c\, |z|^2`, and concentrations go along
#
# .. math:: z q + \bar z \bar q + h_{11} |z|^2 + \tfrac12 (h_{20} z^2 + \bar h_{20} \bar z^2)
#
# from the equilibrium, up to errors of order 3 in :math:`|z|`. Cycles are found beside it by integrating from a point
# on the line :math:`y = B / A` until it is met again, and by solving for a return to the same point.


def predicted(a: float, delta: float, order: int = 2) -> tuple[np.ndarray, float]:
    """Return the places along a cycle, from the equilibrium, to first or second order, and its frequency."""
    c, q, h11, h20 = (each[0].numpy() for each in normal_form(torch.tensor([a])))
    size = math.sqrt(-delta / (2 * c.real))
    z = size * np.exp(1j * np.linspace(0, 2 * math.pi, 4001))[:, None]
    ellipse = 2 * (z * q).real
    bent = h11.real * size**2 + (h20 * z**2).real
    return ellipse + (order - 1) * bent, a + c.imag * size**2


def simulated(a: float, delta: float) -> tuple[np.ndarray, float]:
    """Return the same of the cycle itself."""
    b = 1 + a**2 + delta

    def rates(_: float, state: np.ndarray) -> list[float]:
        conversion = state[0] ** 2 * state[1]
        return [a - (b + 1) * state[0] + conversion, b * state[0] - conversion]

    def crosses(_: float, state: np.ndarray) -> float:
        return state[1] - b / a

    crosses.direction, crosses.terminal = -1, 2  # the start is the first

    def round_trip(start: float, times: np.ndarray | None = None) -> solve_ivp:
        span = (0, 4 * math.pi / a)
        return solve_ivp(rates, span, [start, b / a], "DOP853", times, events=crosses, rtol=1e-11, atol=1e-12)

    right = predicted(a, delta)[0]
    right = right[right[:, 0] > 0]
    guess = a + right[np.abs(right[:, 1]).argmin(), 0]
    start = newton(lambda x: round_trip(x).y_events[0][-1][0] - x, guess, x1=1.001 * guess, tol=1e-11)
    period = round_trip(start).t_events[0][-1]
    orbit = round_trip(start, np.linspace(0, period, 4001)[:-1]).y
    return orbit.T - [a, b / a], 2 * math.pi / period


deltas = np.array([0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16])
found, cycles = [predicted(1.0, delta) for delta in deltas], [simulated(1.0, delta) for delta in deltas]
heights = np.array([[np.ptp(orbit[:, 0]) for orbit, _ in each] for each in (found, cycles)]) / 2
frequencies = np.array([[frequency for _, frequency in each] for each in (found, cycles)])

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
left.plot(parameters, lyapunov, lw=2, label="from tensors")
left.plot(parameters, by_hand, "k:", label=r"$-(2 + A^2) / (2 A (1 + 2 A^2))$")
left.set_xlabel("$A$")
left.set_ylabel("first Lyapunov coefficient")
left.set_ylim(-3, 0)
left.legend()
shown = 4  # delta of 0.04
middle.plot(*cycles[shown][0].T, lw=3, color="0.7", label="simulated")
middle.plot(*found[shown][0].T, "C0", label="to the second order")
middle.plot(*predicted(1.0, deltas[shown], order=1)[0].T, "C1--", label="to the first order")
middle.set_xlabel("$x - A$")
middle.set_ylabel("$y - B / A$")
middle.set_title(f"cycle at $A = 1$, $\\delta = {deltas[shown]}$")
middle.set_ylim(-0.4, 0.6)
middle.legend(loc="upper right")
right.loglog(deltas, heights[1], "o", mfc="none", color="0.3", label="simulated")
right.loglog(deltas, heights[0], "C0", label="predicted")
right.set_xlabel(r"$\delta = B - 1 - A^2$")
right.set_ylabel("half the range of $x$")
right.set_title("growth at $A = 1$")
right.legend()

# %%
# What is asserted: :math:`l_1` is the closed form, :math:`-(2 + A^2) / (2 A (1 + 2 A^2))`, for all :math:`A`; and the
# prediction is of the order that it should be: with a quarter of :math:`\delta`, the error of the height is a quarter
# in proportion, and that of the frequency a sixteenth.

torch.testing.assert_close(lyapunov, by_hand, rtol=1e-12, atol=0)
errors = np.abs(heights[0] / heights[1] - 1), np.abs(frequencies[0] - frequencies[1])
np.testing.assert_allclose(errors[0][2] / errors[0][0], 4, rtol=0.01)
np.testing.assert_allclose(errors[1][2] / errors[1][0], 16, rtol=0.01)
assert errors[0][0] < 2e-3
assert errors[1][0] < 1e-6
