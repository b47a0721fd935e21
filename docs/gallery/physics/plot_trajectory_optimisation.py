r"""
Swinging up a pendulum by second-order dynamics
===============================================

Optimal control by iterated linear-quadratic regulators leaves out how the dynamics bend, and converges linearly.
Differential dynamic programming keeps the second derivatives of the dynamics, and converges quadratically. This page
gets them for all steps in time at once, and swings a pendulum up with a motor that is too weak to lift it.
"""

# %%
# The problem
# -----------
#
# An angle from the lowest point and its velocity are driven by a torque, :math:`\ddot\theta = u - \sin\theta`, constant
# during each of 80 steps of a tenth of a second, which the method of Runge and Kutta takes. The torques are to minimise
#
# .. math:: J = \sum_t \tfrac12 h\, u_t^2 + \tfrac{c}{2} \left((\theta_T - \pi)^2 + \dot\theta_T^2\right) .
#
# One function has the dynamics and the cost of a step, for rows :math:`z = (\theta, \dot\theta, u)`.

import math
from itertools import pairwise

import matplotlib.pyplot as plt
import torch

import hofunc

torch.set_default_dtype(torch.float64)

STEPS, H, PRICE = 80, 0.1, 5.0
GOAL = torch.tensor([math.pi, 0.0])


def step(z: torch.Tensor) -> torch.Tensor:
    """Return the next angle and velocity, and the cost, of every row."""
    state, torque = z[..., :2], z[..., 2]

    def rate(state: torch.Tensor) -> torch.Tensor:
        return torch.stack([state[..., 1], torque - state[..., 0].sin()], -1)

    a = rate(state)
    b = rate(state + H / 2 * a)
    c = rate(state + H / 2 * b)
    d = rate(state + H * c)
    cost = H * torque**2 / 2
    return torch.cat([state + H / 6 * (a + 2 * b + 2 * c + d), cost[..., None]], -1)


def total(torques: torch.Tensor) -> torch.Tensor:
    """Return J."""
    state, cost = torch.zeros(2), torch.zeros(())
    for torque in torques:
        *moved, own = step(torch.cat([state, torque[None]])).unbind()
        state, cost = torch.stack(moved), cost + own
    return cost + PRICE / 2 * (state - GOAL).square().sum()


# %%
# A sweep back and a sweep forth
# ------------------------------
#
# With the value :math:`V` of what is left after a step, and :math:`F` for the Jacobian of a step, the quadratic model
# of a step is
#
# .. math:: Q_{zz} = \ell_{zz} + F^T V_{xx} F + \sum_i V_{x_i} \, \frac{\partial^2 f_i}{\partial z\, \partial z},
#
# of which iterated regulators leave out the last term, like the method of Gauss and Newton. It is minimised by a
# feedback :math:`\delta u = k + K \delta x`, which the forward sweep then applies to the true dynamics (Jacobson and
# Mayne, *Differential Dynamic Programming*, 1970; Tassa, Erez and Todorov 2012).
#
# Steps are rows, so both derivatives of all steps are one call, jitted since the shapes never change.

of_steps = hofunc.jit(hofunc.derivatives(step, order=2, layout="compact"))


def backward(z: torch.Tensor, keep: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the changes of torques, and their feedbacks; keep is what of the curvature of the dynamics is kept."""
    after, *compact = of_steps(z)
    first, second = (each.dense(keep_batch=True) for each in compact)  # (steps, 3, 3) and (steps, 3, 3, 3)
    slope, curvature = PRICE * (after[-1, :2] - GOAL), PRICE * torch.eye(2)
    changes, feedbacks = [], []
    for jacobian, bent in zip(first.flip(0), second.flip(0), strict=True):
        dynamics = jacobian[:2]
        q = jacobian[2] + slope @ dynamics
        weights = torch.cat([keep * slope, torch.ones(1)])
        qq = dynamics.T @ curvature @ dynamics + torch.einsum("o, oij -> ij", weights, bent)
        stiffness = qq[2, 2].clamp(min=H / 2)  # that of a convex problem
        change, feedback = -q[2] / stiffness, -qq[2, :2] / stiffness
        slope = q[:2] + change * qq[:2, 2] + feedback * (q[2] + stiffness * change)
        curvature = qq[:2, :2] - torch.outer(qq[:2, 2], qq[2, :2]) / stiffness
        changes.append(change)
        feedbacks.append(feedback)
    return torch.stack(changes[::-1]), torch.stack(feedbacks[::-1])


def forward(z: torch.Tensor, changes: torch.Tensor, feedbacks: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Return the trajectory with changed torques, and its cost."""
    state, cost, rows = torch.zeros(2), 0.0, []
    for row, change, feedback in zip(z, changes, feedbacks, strict=True):
        rows.append(torch.cat([state, (row[2] + change + feedback @ (state - row[:2]))[None]]))
        after = step(rows[-1])
        state, cost = after[:2], cost + after[2].item()
    return torch.stack(rows), cost + PRICE / 2 * (state - GOAL).square().sum().item()


gradient = hofunc.jit(hofunc.jacobian(total))


def optimised(z: torch.Tensor, keep: float, sweeps: int) -> tuple[torch.Tensor, list[float]]:
    """Return the trajectory after some sweeps, and the norm of the gradient of J before each and after the last."""
    _, cost = forward(z, torch.zeros(STEPS), torch.zeros(STEPS, 2))
    slopes = [gradient(z[:, 2]).norm().item()]
    for _ in range(sweeps):
        changes, feedbacks = backward(z, keep)
        for halvings in range(12):
            tried, cost_of_tried = forward(z, changes / 2**halvings, feedbacks)
            if cost_of_tried < cost + 1e-14:
                z, cost = tried, cost_of_tried
                break
        slopes.append(gradient(z[:, 2]).norm().item())
    return z, slopes


start, _ = forward(torch.zeros(STEPS, 3), torch.full((STEPS,), 0.2), torch.zeros(STEPS, 2))
by_regulators = optimised(start, keep=0.0, sweeps=40)
by_programming = optimised(start, keep=1.0, sweeps=13)
found = by_programming[0]

# %%
# The rate of convergence
# -----------------------
#
# Near the solution, regulators err by a factor a sweep, which is known: that by which the method of Gauss and Newton
# does, the largest eigenvalue of :math:`1 - G^{-1} \nabla^2 J`, where :math:`G` is the Hessian of :math:`J` without
# the second derivatives of the dynamics. Both matrices are hofunc's, of the whole trajectory of 80 steps.


def last(torques: torch.Tensor) -> torch.Tensor:
    """Return the last state."""
    state = torch.zeros(2)
    for torque in torques:
        state = step(torch.cat([state, torque[None]]))[:2]
    return state


sensitivity = hofunc.jacobian(last)(found[:, 2])
hessian = hofunc.hessian(total)(found[:, 2])
gauss_newton = H * torch.eye(STEPS) + PRICE * sensitivity.T @ sensitivity
factor = torch.linalg.eigvals(torch.eye(STEPS) - torch.linalg.solve(gauss_newton, hessian)).abs().max().item()

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
times = H * torch.arange(STEPS)
left.plot(times, found[:, 0] / math.pi, "C0", label=r"angle, over $\pi$")
left.plot(times, found[:, 2], "C1", drawstyle="steps-post", label="torque, over that of gravity")
left.set_xlabel("time, in units of $\\sqrt{\\mathrm{length} / g}$")
left.set_title("swing-up")
left.legend()
left.grid(color="0.9")
right.semilogy(by_regulators[1], ".-", color="C1", label="without second derivatives of the dynamics")
right.semilogy(by_programming[1], ".-", color="C0", label="with them")
fitted = by_regulators[1][30] * factor ** (torch.arange(10, 41) - 30.0)
right.semilogy(range(10, 41), fitted, "k:", label=f"a factor of {factor:.3f} a sweep")
right.set_ylim(1e-16, 1e3)
right.set_xlabel("sweeps")
right.set_ylabel("norm of the gradient of the cost")
right.set_title("convergence")
right.legend(loc="upper right")

# %%
# What is asserted: the gradient vanishes to rounding and the Hessian is positive definite, so this is a minimum; the
# torque stays below that of gravity; norms of the gradient go as :math:`e_{n+1} \le 20\, e_n^2` with second
# derivatives; and without them by the factor above.

kept, left_out = by_programming[1], by_regulators[1]
assert kept[-1] < 1e-13
assert torch.linalg.eigvalsh(hessian).min() > 0
assert found[:, 2].abs().max() < 0.9
last_sweeps = [pair for pair in pairwise(kept) if pair[0] < 1e-2]
assert all(later < 20 * former**2 + 1e-13 for former, later in last_sweeps), last_sweeps
assert math.isclose((left_out[40] / left_out[30]) ** 0.1, factor, rel_tol=1e-4)
