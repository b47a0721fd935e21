"""Programs that grow: what planning costs by the number of steps, layers, leaves or variables, float64."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from . import layered, stepped
from .problem import Problem

ONE = 1.2  # exponent of planning in the size, by an input of so many parts
ALL = 2.0  # by all parameters, of which the result has a block for each pair


@dataclass(frozen=True)
class Program:
    """A function of a size, and which derivative of it is asked for.

    Attributes:
        name: As it is shown, with the order unless it is 2.
        make: From the size to the problem, always the same one.
        sizes: Those that are measured: the number of what the name counts.
        small: The size at which steps of planning are counted, with twice that, for tests and asv.
        exponent: Of the growth of planning with the size, at most.
        nested: The largest size at which nested torch.func is tried; beyond it takes too much memory.
    """

    name: str
    make: Callable[[int], Problem]
    sizes: tuple[int, int, int]
    small: int
    exponent: float = ONE
    nested: int = 10**9

    def at(self, size: int) -> str:
        """Return the name of the program at a size."""
        return f"{self.name}: {size}"


PROGRAMS = (
    Program("tanh RNN by the inputs, steps", stepped.recurrent_by_inputs, (50, 100, 200), 5),
    Program("tanh RNN by the weights, steps", stepped.recurrent_by_weights, (50, 100, 200), 10),
    Program("LSTM by the inputs, steps", partial(layered.lstm, layers=1, directions=1), (50, 100, 200), 6),
    Program("bidirectional LSTM of 2 layers by the inputs, steps", layered.lstm, (3, 6, 12), 2),
    Program("neural ODE by RK4, by the parameters, steps", stepped.neural_ode, (25, 50, 100), 2),
    Program("Lotka-Volterra by Euler, by 4 numbers, steps", stepped.lotka_volterra, (25, 50, 100), 6),
    Program("Lotka-Volterra, order 3, steps", partial(stepped.lotka_volterra, order=3), (25, 50, 100), 12),
    Program("logistic map, order 4, steps", stepped.logistic_map, (10, 20, 40), 10),
    Program("Kalman filter by 3 variances, steps", stepped.kalman, (25, 50, 100), 8),
    Program("hidden Markov model by its logits, steps", stepped.hidden_markov, (10, 20, 40), 5),
    Program("gradient descent unrolled, by the start and the rate, steps", stepped.descent, (10, 20, 40), 5),
    Program("Sinkhorn iterations by the costs, steps", stepped.sinkhorn, (5, 10, 20), 3),
    Program("`y[i+1] = f(y[i])` in place, steps", stepped.written_in_place, (12, 25, 50), 5),
    Program("sines of sines, steps", stepped.chain, (200, 800, 3200), 20),
    Program("skip sums and a product, order 4, 3 inputs, steps", stepped.skips, (2, 4, 8), 4),
    Program("`y[y > 0] = ...`, steps", stepped.masked_writes, (2, 4, 8), 2),
    Program("Rosenbrock by `x[i]`, variables", stepped.rosenbrock, (250, 500, 1000), 60),
    Program("Cholesky by hand, rows", stepped.cholesky, (6, 9, 12), 4, exponent=3 * ONE),
    Program("scalar leaves, leaves", stepped.leaves, (125, 250, 500), 50, exponent=ALL),
    Program("scalar leaves, order 3, leaves", partial(stepped.leaves, order=3), (5, 10, 20), 8, exponent=3.0),
    Program("MLP by the input, layers", layered.perceptron_by_input, (6, 12, 24), 2),
    Program("MLP by all parameters, layers", layered.perceptron_by_parameters, (6, 12, 24), 3, exponent=ALL),
    Program("transformer encoder by the input, layers", layered.encoder_by_input, (3, 6, 12), 2),
    Program(
        "transformer encoder by all parameters, layers", layered.encoder_by_parameters, (3, 6, 12), 1, exponent=ALL
    ),
    Program("decoder with a causal mask, layers", layered.decoder, (1, 2, 4), 1),
    Program("decoder with a causal mask, order 3, layers", partial(layered.decoder, order=3), (1, 2, 4), 0),
    Program("ResNet by the image, blocks", layered.residual_network, (2, 4, 8), 1),
    Program("graph network by the features, layers", layered.graph_network, (2, 4, 8), 2),
    Program("weight that changes at every call, layers", layered.annealed, (2, 4, 8), 2),
    Program("`x[x > 0]` before an MLP, layers", layered.selected, (2, 4, 8), 2),
    Program("`1 / (1 + x * x)`, order 6, elements", stepped.rational, (2, 4, 8), 2, nested=0),
)
