"""The conformance suite judges rightly: its oracles, its verdicts, its limits and its page."""

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import hofunc
from verification.conformance import lines, measure
from verification.conformance.limits import TooSlowError, limited
from verification.conformance.sample import Sample
from verification.conformance.verdicts import RIGHT, UNJUDGED, WRONG, Evidence, judge
from verification.oracles import nested_reverse

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "conformance.md"
CELL = re.compile(r"right \d+|(refused|too slow|broken) \d+ of \d+|-")
NAN = math.nan

# torch's own: its forward mode compiles a helper with what it deprecates


def sample(f: Callable[..., Tensor], *inputs: Tensor) -> Sample:
    return Sample(lambda *inputs: [f(*inputs)], inputs, [f(*inputs)])


def smooth() -> Sample:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 2, 3, generator=generator, dtype=torch.float64)
    return sample(lambda x, y: (x.sin() @ y.T).exp(), x, y)


# The oracles.


@pytest.mark.parametrize("order", lines.ORDERS)
def test_the_oracles_agree_on_a_smooth_function(order: int) -> None:
    line = lines.directions_of(smooth()).line(smooth())
    slots = tuple(range(order))
    expected = nested_reverse(line, order)(lines.origin())[slots].item()
    differences, error = lines.differences(line, order)
    assert lines.reverse(line, order) == pytest.approx(expected, rel=1e-12)
    assert lines.forward(line, order) == pytest.approx(expected, rel=1e-12)
    assert differences == pytest.approx(expected, rel=1e-7)
    assert abs(differences - expected) <= max(30 * error, 1e-12 * abs(expected))
    assert error < 1e-6 * abs(expected)


@pytest.mark.parametrize(("f", "order"), [(torch.abs, 1), (torch.relu, 1), (lambda x: x * x.abs(), 2)])
def test_differences_know_a_kink(f: Callable[[Tensor], Tensor], order: int) -> None:
    kinked = sample(f, torch.zeros(1, dtype=torch.float64))
    value, error = lines.differences(lines.directions_of(kinked).line(kinked), order)
    assert error > 0.1 * max(1e-6, abs(value))


def test_differences_see_that_torch_is_wrong() -> None:
    x, weight = torch.randn(2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    norm = sample(lambda x, w: torch.nn.functional.layer_norm(x, (4,), w).tanh(), x, weight)
    directions = lines.directions_of(norm)
    line = directions.line(norm)
    differences, error = lines.differences(line, 3)
    assert abs(lines.reverse(line, 3) - differences) > 1e-2 * abs(differences) > 1e3 * error
    assert measure.derivative(norm, directions, 3) == pytest.approx(differences, rel=1e-6)


# What hofunc says.


@pytest.mark.parametrize("order", lines.ORDERS)
def test_a_contracted_derivative_is_that_along_the_lines(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    directions = lines.directions_of(smooth())
    dense = measure.derivative(smooth(), directions, order)
    monkeypatch.setattr(measure, "DENSE", 0)
    assert dense == pytest.approx(measure.derivative(smooth(), directions, order), rel=1e-12)
    assert dense == pytest.approx(lines.reverse(directions.line(smooth()), order), rel=1e-12)


def test_every_entry_of_a_derivative_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is wrong shows in the number that stands for all."""
    square = sample(lambda x: x * x, smooth().inputs[0])
    directions = lines.directions_of(square)
    right = measure.derivative(square, directions, 2)
    for place in range(square.inputs[0].numel() ** 3):
        block = nested_reverse(torch.square, 2)(square.inputs[0])
        block.reshape(-1)[place] += 1e-3
        monkeypatch.setattr(hofunc, "hod", lambda *_, block=block: lambda *_: [((block,),)])
        assert abs(measure.derivative(square, directions, 2) - right) > 1e-8


def test_the_rules_of_a_sample() -> None:
    rules = measure.rules_of(smooth())
    assert rules.kinds == {"elementwise", "multilinear", "linear"}
    assert rules.fallback == frozenset()


@pytest.mark.parametrize(("reduction", "kind"), [("mean", "linear"), ("none", "composite")])
def test_an_op_has_the_kind_of_its_form(reduction: str, kind: str) -> None:
    x, target = torch.rand(2, 3), torch.tensor([2, 0])

    def loss(x: Tensor) -> list[Tensor]:
        return [torch.nn.functional.nll_loss(x, target, reduction=reduction)]

    assert measure.rules_of(Sample(loss, (x,), loss(x))).kinds == {kind}


# The verdict.


@pytest.mark.parametrize(
    ("got", "evidence", "verdict", "differ"),
    [
        (1.0, Evidence(1.0, 1.0, 1.0, 1e-9), RIGHT, ()),
        (2.0, Evidence(1.0, 1.0, 1.0, 1e-9), WRONG, ("reverse", "forward", "differences")),
        (NAN, Evidence(1.0, 1.0, 1.0, 1e-9), WRONG, ("reverse", "forward", "differences")),
        (1.0, Evidence(2.0, 2.0, 1.0, 1e-9), RIGHT, ("reverse", "forward")),  # torch is wrong
        (2.0, Evidence(2.0, 2.0, 1.0, 1e-9), WRONG, ("differences",)),  # and hofunc with it
        (1.0, Evidence(NAN, NAN, 1.0, 1e-9), RIGHT, ()),
        (1.0, Evidence(1.0, 1.0, 7.0, 3.0), RIGHT, ()),  # a kink
        (2.0, Evidence(1.0, 1.0, 7.0, 3.0), WRONG, ("reverse", "forward")),
        (1.0, Evidence(1.0, NAN, 7.0, 3.0), UNJUDGED, ()),  # the fallback may be what the oracle is
        (1.0, Evidence(2.0, 3.0, 7.0, 3.0), UNJUDGED, ("reverse", "forward")),  # they contradict each other
        (1.0, Evidence(NAN, NAN, NAN, math.inf), UNJUDGED, ()),
        (1.0 + 1e-10, Evidence(1.0, 1.0, 1.0, 1e-9), RIGHT, ()),
        (1.0 + 1e-5, Evidence(1.0, 1.0, 7.0, 3.0), WRONG, ("reverse", "forward")),
        (1e-3, Evidence(1.001e-3, 1.001e-3, NAN, math.inf, resolution=1e-3), RIGHT, ()),  # a cast to float16
    ],
)
def test_the_verdict(got: float, evidence: Evidence, verdict: str, differ: tuple[str, ...]) -> None:
    judgement = judge(got, evidence)
    assert judgement.verdict == verdict
    assert judgement.differ == differ


def test_where_torch_has_a_convention_differences_have_no_say() -> None:
    assert judge(2.0, Evidence(2.0, 2.0, 1.0, 1e-9), convention=True).verdict == RIGHT


# The limits.


def test_what_is_too_slow_is_stopped() -> None:
    with pytest.raises(TooSlowError), limited(0.05):
        sum(number for number in range(10**8))


def test_what_is_too_large_fails() -> None:
    with pytest.raises(RuntimeError, match="can't allocate memory"), limited(10):
        torch.empty(1 << 33, dtype=torch.float64)
    assert torch.empty(1 << 10).numel()


# The page.


def rows_of_the_page() -> list[list[str]]:
    table = PAGE.read_text(encoding="utf-8").split("## All entries")[1]
    lines_ = [line for line in table.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines_]


def test_the_page_is_well_formed() -> None:
    rows = rows_of_the_page()
    assert len(rows) > 500
    assert len({row[0] for row in rows}) == len(rows)
    for name, *_, one, two, three, decided in rows:
        assert CELL.fullmatch(one), name
        assert CELL.fullmatch(two), name
        assert CELL.fullmatch(three), name
        assert decided == "-" or decided == "all" or " of " in decided, name


def test_the_totals_of_the_page_are_those_of_its_rows() -> None:
    page, rows = PAGE.read_text(encoding="utf-8"), rows_of_the_page()
    counts = [sum(row[2 + place].startswith("right") for row in rows) for place in range(3)]
    (right,) = re.findall(r"^\| entries right \| (.*) \|$", page, re.MULTILINE)
    assert [int(cell.split()[0]) for cell in right.split(" | ")] == counts
    assert "| entries wrong | 0 (0.0 %) | 0 (0.0 %) | 0 (0.0 %) |" in page
