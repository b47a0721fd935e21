"""What moves a network's prediction on real data: its exact first, second and third derivatives, patient by patient.

A small tanh network learns the progression of diabetes from ten features of 442 patients. Then one call of
`hofunc.derivatives` gives every patient's gradient, Hessian and third derivative of the prediction:

    value, first, second, third = hofunc.derivatives(predict, order=3, layout="compact")(features)

`predict` takes the whole batch; nothing is mapped by hand. What comes out is a table of sensitivities, the strongest
interactions of two and three features, a picture of both, and the time that nested torch.func takes for the same.
They describe the network, which treats sex as a number like the others, and not what causes the disease.

Run it with `make demo`, or `python docs/examples/diabetes.py --picture somewhere.png`.
"""

import argparse
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable
from itertools import combinations_with_replacement
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.datasets import load_diabetes
from torch import Tensor, nn
from torch.func import jacfwd, jacrev, vmap
from tqdm import tqdm

import hofunc

# The ten columns, in the order of sklearn.datasets.load_diabetes().
FEATURES = (
    "age",
    "sex",
    "BMI",
    "blood pressure",
    "total cholesterol",
    "LDL",
    "HDL",
    "cholesterol/HDL",
    "log triglycerides",
    "glucose",
)
SEED = 0
TEST_ROWS = 88
WIDTH = 10  # of both hidden layers; 8 and 16 predict the held-out rows as well
EPOCHS = 500
LEARNING_RATE = 1e-2
WEIGHT_DECAY = 0.04
ROUNDS = 15  # of the timing
SHOWN = 8  # interactions of each order

Prediction = Callable[[Tensor], Tensor]


class Data(NamedTuple):
    """The data set: features in standard deviations from their mean (442, 10), scores in points (442,), and a split."""

    features: Tensor
    scores: Tensor
    train: Tensor
    test: Tensor


class Orders(NamedTuple):
    """Per-sample value (N,) of the prediction, and derivatives (N, 10), (N, 10, 10), (N, 10, 10, 10)."""

    value: Tensor
    first: Tensor
    second: Tensor
    third: Tensor


class Entry(NamedTuple):
    """One entry of a derivative: by which features, and its values (N,) over the samples."""

    name: str
    samples: Tensor


def load() -> Data:
    """Load the data and split its rows; the mean and spread that standardise the features are the training rows'."""
    bunch = load_diabetes(scaled=False)
    features, scores = torch.tensor(bunch.data), torch.tensor(bunch.target)
    rows = torch.randperm(len(scores), generator=torch.Generator().manual_seed(SEED))
    train, test = rows[TEST_ROWS:], rows[:TEST_ROWS]
    standardised = (features - features[train].mean(0)) / features[train].std(0)
    return Data(standardised, scores, train, test)


def train_network(data: Data) -> Prediction:
    """Train a network on the training rows; return it as a function from features (..., 10) to scores (...)."""
    torch.manual_seed(SEED)
    network = nn.Sequential(
        nn.Linear(len(FEATURES), WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)
    )
    mean, spread = data.scores[data.train].mean(), data.scores[data.train].std()
    features, targets = data.features[data.train], (data.scores[data.train] - mean) / spread
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    progress = tqdm(range(EPOCHS), desc="training", unit=" epochs", mininterval=0.5)
    for epoch in progress:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(network(features).squeeze(-1), targets)
        loss.backward()
        optimizer.step()
        if (epoch + 1) % 100 == 0:
            progress.set_postfix(loss=f"{loss.item():.3f}")
    network.requires_grad_(False)
    return lambda x: mean + spread * network(x).squeeze(-1)


def r_squared(predict: Prediction, data: Data, rows: Tensor) -> float:
    """Return the share of the scores' variance on some rows that the prediction explains."""
    residual = data.scores[rows] - predict(data.features[rows])
    return float(1 - residual.square().mean() / data.scores[rows].var(correction=0))


def with_hofunc(predict: Prediction) -> Callable[[Tensor], Orders]:
    """Return a function from the features of all samples to the value and derivatives of each, by hofunc."""
    transformed = hofunc.derivatives(predict, order=3, layout="compact")

    def orders(x: Tensor) -> Orders:
        value, *derivatives = transformed(x)
        return Orders(value, *(derivative.dense(keep_batch=True) for derivative in derivatives))

    return orders


def with_nesting(predict: Prediction, outermost: Callable, middle: Callable) -> Callable[[Tensor], Orders]:
    """Return the same by nested torch.func as an expert writes it: one row, mapped, every order from one nest.

    With jacfwd(jacrev(jacrev)) or jacfwd(jacfwd(jacrev)) it is the fastest of the eight nestings of jacfwd and jacrev.
    """

    def value(row: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        y = predict(row)
        return y, (y,)

    def differentiated(transform: Callable, function: Callable) -> Callable:
        def derivative(row: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
            result, lower = transform(function, has_aux=True)(row)
            return result, (*lower, result)

        return derivative

    nest = differentiated(outermost, differentiated(middle, differentiated(jacrev, value)))
    mapped = vmap(lambda row: nest(row)[1])
    return lambda x: Orders(*mapped(x))


def strongest(derivative: Tensor, count: int = SHOWN) -> list[Entry]:
    """Return the entries of a derivative (N, 10, ...) with the largest mean absolute value, each combination once."""
    combinations = list(combinations_with_replacement(range(len(FEATURES)), derivative.dim() - 1))
    entries = derivative[:, *torch.tensor(combinations).T]
    ranking = entries.abs().mean(0).argsort(descending=True)[:count]
    return [Entry(name_of(combinations[index]), entries[:, index]) for index in ranking.tolist()]


def name_of(combination: tuple[int, ...]) -> str:
    """Name a combination of features: `BMI² × glucose`."""
    powers = {1: "", 2: "²", 3: "³"}
    return " × ".join(f"{FEATURES[column]}{powers[count]}" for column, count in Counter(combination).items())


def table(heading: str, entries: list[Entry]) -> str:
    """Tabulate the mean, the spread (standard deviation) and the mean absolute value of entries over the samples."""
    lines = [f"\n{heading:46}{'mean':>10}{'spread':>10}{'mean abs':>10}"]
    for name, samples in entries:
        figures = (samples.mean(), samples.std(), samples.abs().mean())
        lines.append(f"{name:46}" + "".join(f"{float(figure):10.2f}" for figure in figures))
    return "\n".join(lines)


def timed(contenders: dict[str, Callable[[Tensor], Orders]], x: Tensor) -> str:
    """Time functions of x in turn, ROUNDS times after one to warm up, and tabulate the medians and ranges."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(1 + ROUNDS):
        for name, function in contenders.items():
            start = time.perf_counter()
            function(x)
            seconds[name].append(time.perf_counter() - start)
    lines = [f"{'milliseconds':32}{'median':>10}{'min':>10}{'max':>10}"]
    for name, (_, *taken) in seconds.items():
        figures = (statistics.median(taken), min(taken), max(taken))
        lines.append(f"{name:32}" + "".join(f"{1e3 * figure:10.1f}" for figure in figures))
    return "\n".join(lines)


def disagreement(got: Orders, reference: Orders) -> list[float]:
    """Return the largest difference of each order, relative to the largest entry of that order."""
    return [float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, reference, strict=True)]


def draw_entries(axes: Axes, entries: list[Entry], title: str, unit: str) -> None:
    """Draw the value of entries for every sample, and their means."""
    jitter = torch.rand(len(entries[0].samples), generator=torch.Generator().manual_seed(SEED)) / 2 - 0.25
    for height, (_, samples) in enumerate(entries):
        axes.scatter(samples, height + jitter, s=6, alpha=0.3, color="#4d4d4d", linewidths=0)
        axes.scatter(samples.mean(), height, s=70, marker="D", color="#b2182b", edgecolors="white", zorder=3)
    axes.axvline(0, color="black", linewidth=0.8, zorder=0)
    axes.set_yticks(range(len(entries)), [name for name, _ in entries])
    axes.invert_yaxis()
    axes.set_title(title)
    axes.set_xlabel(unit)


def draw_matrix(axes: Axes, second: Tensor) -> None:
    """Draw the mean absolute second derivative by every two features."""
    image = axes.imshow(second.abs().mean(0), cmap="Reds", vmin=0, aspect="auto")
    axes.set_xticks(range(len(FEATURES)), FEATURES, rotation=35, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(FEATURES)), FEATURES)
    axes.set_title("Second derivatives by all pairs: mean absolute value")
    axes.figure.colorbar(image, ax=axes, label="points per SD²")


def save_picture(path: Path, orders: Orders) -> None:
    """Draw all three orders into a PNG file."""
    figure = Figure(figsize=(15, 10), layout="constrained")
    ((slopes, matrix), (pairs, triples)) = figure.subplots(2, 2)
    everything = strongest(orders.first, len(FEATURES))
    draw_entries(slopes, everything, "First derivatives", "points per standard deviation (SD) of the feature")
    draw_matrix(matrix, orders.second)
    draw_entries(pairs, strongest(orders.second), "Strongest second derivatives", "points per SD²")
    draw_entries(triples, strongest(orders.third), "Strongest third derivatives", "points per SD³")
    figure.suptitle(
        f"What moves a prediction of diabetes progression: exact derivatives for {len(orders.value)} patients\n"
        "a dot is a patient, a diamond the mean over patients",
        fontsize=14,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=75)


def report(orders: Orders) -> None:
    """Print the sensitivities and the strongest interactions."""
    print(
        f"\nDerivatives of the prediction over {len(orders.value)} patients, in points of the disease-progression score"
    )
    print("per standard deviation (SD) of each feature; spread is the standard deviation over the patients.")
    print(table("First derivatives, points per SD", strongest(orders.first, len(FEATURES))))
    print(table("Strongest second derivatives, points per SD²", strongest(orders.second)))
    print(table("Strongest third derivatives, points per SD³", strongest(orders.third)))


def compare(predict: Prediction, x: Tensor) -> None:
    """Print the time that hofunc and nested torch.func take, and by how much they disagree."""
    contenders = {
        "hofunc.derivatives, compact": with_hofunc(predict),
        "vmap(jacfwd(jacrev(jacrev)))": with_nesting(predict, jacfwd, jacrev),
        "vmap(jacfwd(jacfwd(jacrev)))": with_nesting(predict, jacfwd, jacfwd),
    }
    print(f"\nTime from the features {tuple(x.shape)} to the value and all three derivatives as dense tensors:")
    print(
        f"{x.dtype}, {torch.get_num_threads()} thread, {ROUNDS} rounds of all in turn; each call of hofunc records anew"
    )
    print(timed(contenders, x))
    got, *references = (function(x) for function in contenders.values())
    errors = [max(order) for order in zip(*(disagreement(got, other) for other in references), strict=True)]
    print("\nLargest disagreement, relative to the largest entry of each order (value, first, second, third):")
    print("  ".join(f"{error:.1e}" for error in errors), f"  largest of all: {max(errors):.1e}")
    third = hofunc.hod(predict, order=3, layout="compact")(x)
    terabytes = math.prod(third.shape) * x.element_size() / 1e12
    print(f"\nWithout vmap, nested torch.func would fill {terabytes:.0f} TB with the third derivative;", end=" ")
    print(f"hofunc keeps {third.nbytes / 1e6:.1f} MB of it, with the pattern '{third.pattern}'.")


def main() -> None:
    """Train, differentiate, report, draw and compare."""
    parser = argparse.ArgumentParser(description="What moves a network's prediction, to the third derivative.")
    parser.add_argument("--picture", type=Path, default=Path("build/diabetes.png"), help="PNG file to write")
    path = parser.parse_args().picture
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # tensors this small gain nothing from more
    data = load()
    predict = train_network(data)
    print(f"R²: {r_squared(predict, data, data.train):.2f} on {len(data.train)} training rows,", end=" ")
    print(f"{r_squared(predict, data, data.test):.2f} on {len(data.test)} test rows")
    start = time.perf_counter()
    orders = with_hofunc(predict)(data.features)
    print(f"Derivatives of orders 0 to 3: {time.perf_counter() - start:.2f} s, recording and planning included")
    report(orders)
    save_picture(path, orders)
    print(f"\nPicture: {path}")
    compare(predict, data.features)


if __name__ == "__main__":
    main()
