"""Programs in steps: recurrences, solvers, filters, and sums that are written with indices."""

from functools import partial

import torch
from torch import Tensor

from .problem import Problem, drawn

STATE = 3  # numbers of the state of a recurrence


def _recurrent(inputs: Tensor, weight: Tensor, into: Tensor, bias: Tensor) -> Tensor:
    state = torch.zeros(STATE, dtype=torch.float64)
    for step in range(len(inputs)):
        state = torch.tanh(weight @ state + into @ inputs[step] + bias)
    return state.sum()


def _weights() -> tuple[Tensor, ...]:
    return drawn(STATE, STATE, seed=1, scale=0.5), drawn(STATE, STATE, seed=2), drawn(STATE, seed=3)


def recurrent_by_inputs(steps: int) -> Problem:
    """The last state of a tanh RNN by all inputs, of which each step reads one."""
    weights = _weights()
    return Problem(lambda x: _recurrent(x, *weights), (drawn(steps, STATE),))


def recurrent_by_weights(steps: int) -> Problem:
    """The same by two weights and a bias."""
    inputs = drawn(steps, STATE)
    return Problem(partial(_recurrent, inputs), _weights())


def neural_ode(steps: int) -> Problem:
    """The end of a small neural ODE by Runge and Kutta's steps of order 4, by its parameters."""

    def f(first: Tensor, bias: Tensor, second: Tensor) -> Tensor:
        def slope(y: Tensor) -> Tensor:
            return second @ torch.tanh(first @ y + bias)

        y, length = torch.tensor([1.0, 0.0], dtype=torch.float64), 0.1
        for _ in range(steps):
            k1 = slope(y)
            k2 = slope(y + length / 2 * k1)
            k3 = slope(y + length / 2 * k2)
            k4 = slope(y + length * k3)
            y = y + length / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y.square().sum()

    return Problem(f, (drawn(4, 2, seed=1), drawn(4, seed=2), drawn(2, 4, seed=3)))


def lotka_volterra(steps: int, order: int = 2) -> Problem:
    """Prey and predators by Euler's steps, by the four rates."""

    def f(rates: Tensor) -> Tensor:
        born, eaten, starved, fed = rates
        prey, predators = torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
        for _ in range(steps):
            meetings = prey * predators
            prey, predators = (
                prey + 0.01 * (born * prey - eaten * meetings),
                predators + 0.01 * (fed * meetings - starved * predators),
            )
        return prey * predators

    return Problem(f, (torch.tensor([1.5, 1.0, 3.0, 1.0], dtype=torch.float64),), order)


def logistic_map(steps: int) -> Problem:
    """A scalar recurrence by its rate, which every step takes."""

    def f(rate: Tensor) -> Tensor:
        x = torch.tensor(0.4, dtype=torch.float64)
        for _ in range(steps):
            x = rate * x * (1 - x)
        return x

    return Problem(f, (torch.tensor(2.5, dtype=torch.float64),), order=4)


def kalman(steps: int) -> Problem:
    """Minus twice the log-likelihood of a Kalman filter by the logarithms of its variances."""
    measured = drawn(steps, 1, seed=5)
    transition = torch.tensor([[1.0, 0.1], [0.0, 1.0]], dtype=torch.float64)
    seen = torch.tensor([[1.0, 0.0]], dtype=torch.float64)

    def f(logarithms: Tensor) -> Tensor:
        noise, error = torch.diag(logarithms[:2].exp()), logarithms[2:3].exp().reshape(1, 1)
        state, spread = torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
        total = torch.zeros((), dtype=torch.float64)
        for step in range(steps):
            state, spread = transition @ state, transition @ spread @ transition.T + noise
            variance, surprise = seen @ spread @ seen.T + error, measured[step] - seen @ state
            gain = spread @ seen.T / variance
            total = total + (surprise * surprise / variance[0]).sum() + variance.log().sum()
            state, spread = state + gain @ surprise, spread - gain @ seen @ spread
        return total

    return Problem(f, (drawn(3, scale=0.1),))


def hidden_markov(steps: int) -> Problem:
    """The log-likelihood of a hidden Markov model by the logits of its transitions."""
    seen = drawn(steps, STATE, seed=4)

    def f(logits: Tensor) -> Tensor:
        moves, state = logits.log_softmax(1), torch.zeros(STATE, dtype=torch.float64)
        for step in range(steps):
            state = torch.logsumexp(state[:, None] + moves, 0) + seen[step]
        return torch.logsumexp(state, 0)

    return Problem(f, (drawn(STATE, STATE),))


def descent(steps: int) -> Problem:
    """Where gradient descent on a cosine and a square ends, by its start and the rate."""
    target = drawn(STATE, seed=4)

    def f(start: Tensor, rate: Tensor) -> Tensor:
        x = start
        for _ in range(steps):
            x = x - rate * (x - target - torch.sin(x))
        return (x - target).square().sum()

    return Problem(f, (drawn(STATE), torch.tensor(0.1, dtype=torch.float64)))


def sinkhorn(steps: int) -> Problem:
    """The cost of transport after so many iterations of Sinkhorn, by the costs."""

    def f(costs: Tensor) -> Tensor:
        rows = torch.zeros(STATE, 1, dtype=torch.float64)
        for _ in range(steps):
            columns = -torch.logsumexp(rows - costs, 0, keepdim=True)
            rows = -torch.logsumexp(columns - costs, 1, keepdim=True)
        return ((rows + columns - costs).exp() * costs).sum()

    return Problem(f, (drawn(STATE, STATE).abs(),))


def written_in_place(steps: int) -> Problem:
    """A recurrence whose states are rows of one tensor, each written in place."""

    def f(x: Tensor) -> Tensor:
        states = torch.zeros(steps + 1, STATE, dtype=torch.float64)
        states[0] = x
        for step in range(steps):
            states[step + 1] = torch.sin(states[step]) + states[step] * x
        return states.sum()

    def written_out(x: Tensor) -> Tensor:
        states = [x]
        for _ in range(steps):
            states.append(torch.sin(states[-1]) + states[-1] * x)
        return torch.stack(states).sum()

    return Problem(f, (drawn(STATE, scale=0.5),), written_out=written_out)


def chain(steps: int) -> Problem:
    """Sines of sines."""

    def f(x: Tensor) -> Tensor:
        for _ in range(steps):
            x = torch.sin(x)
        return x.sum()

    return Problem(f, (drawn(5),))


def skips(steps: int) -> Problem:
    """Sums that skip layers, times a third input, at order 4."""
    weights = [drawn(4, 4, seed=step, scale=0.5) for step in range(steps)]

    def f(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        for weight in weights:
            x = x + torch.tanh(weight @ x + y)
        return (x * z).sum()

    return Problem(f, (drawn(4), drawn(4, seed=1), drawn(4, seed=2)), order=4)


def masked_writes(steps: int) -> Problem:
    """Elements that are written where others are positive."""
    weights = [drawn(6, 6, seed=step, scale=0.5) for step in range(steps)]

    def f(x: Tensor) -> Tensor:
        for weight in weights:
            y = weight @ x
            y[y > 0] = torch.sin(y[y > 0])
            x = torch.tanh(y) + x
        return x.sum()

    return Problem(f, (drawn(6),))


def rosenbrock(count: int) -> Problem:
    """Rosenbrock's function as it stands in books, with `x[i]`."""

    def f(x: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for i in range(count - 1):
            total = total + 100 * (x[i + 1] - x[i] ** 2) ** 2 + (1 - x[i]) ** 2
        return total

    return Problem(f, (drawn(count),))


def cholesky(count: int) -> Problem:
    """The log-determinant of a matrix by Cholesky's algorithm, one entry at a time, by logarithms of its diagonal."""
    basis = drawn(count, count, seed=4)
    given = basis @ basis.T + count * torch.eye(count, dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        matrix = given + torch.diag(x.exp())
        root: dict[tuple[int, int], Tensor] = {}
        for i in range(count):
            for j in range(i + 1):
                left = matrix[i, j]
                for k in range(j):
                    left = left - root[i, k] * root[j, k]
                root[i, j] = left.sqrt() if i == j else left / root[j, j]
        return torch.stack([root[i, i].log() for i in range(count)]).sum()

    return Problem(f, (drawn(count),))


def leaves(count: int, order: int = 2) -> Problem:
    """A dictionary of numbers, of which each is multiplied by two others."""

    def f(numbers: dict[str, Tensor]) -> Tensor:
        each = list(numbers.values())
        total = torch.zeros((), dtype=torch.float64)
        for i in range(count):
            total = total + torch.sin(each[i]) * each[i - 1] * each[i // 2]
        return total

    return Problem(f, ({f"number {i:03}": drawn(seed=i) for i in range(count)},), order)


def rational(count: int) -> Problem:
    """A quotient without a closed form of its derivatives in the table of ops, at order 6."""
    return Problem(lambda x: (1 / (1 + x * x)).sum(), (drawn(count),), order=6)
