"""What a plan says of itself: strategies, rules, patterns, lost batches, steps."""

import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import hofunc
from hofunc import hod
from hofunc.outline import outline_of
from hofunc.plan import estimate, packing
from hofunc.rules.registry import RULES
from tests.cases import CASES, Case, mixed, rand

pytestmark = [
    pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning"),
]


@pytest.fixture
def _no_rule_for_cumprod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RULES, torch.ops.aten.cumprod.default)
    monkeypatch.setattr("hofunc.run.cache._plans", OrderedDict())


def explained(f: Callable[..., Any], *args: Any, order: int = 2, **options: Any) -> str:
    return hod(f, order, **options).plan(*args).explain()


def row(text: str, start: str) -> str:
    """Return the one line that starts so, with single spaces."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    (found,) = [line for line in lines if line.startswith(start)]
    return found


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return rand(device, 5, 3)


def test_the_whole_text(device: torch.device) -> None:
    text = explained(lambda x: (x**4).sum(), rand(device, 2, 3), strategy="reverse")
    estimates = [word for line in text.splitlines() for word in line.split() if word.replace(".", "").isdigit()]
    assert estimates
    assert text.splitlines()[0] == "hod(<lambda>): order 2, by the strategy reverse"
    sections = [part.splitlines()[0] for part in text.split("\n\n")[1:]]
    assert sections == [
        "Strategies, for the derivatives alone (* taken: asked for)",
        "Graph, as derived: constant is what the inputs to differentiate by do not reach",
        "Results: the axes of the output, then of every input; all inputs share those named from b on",
        "Steps",
    ]
    assert row(text, "0 args[0]") == "0 args[0] 2x3 input, differentiated by"
    (share,) = [word for word in row(text, "1 aten").split() if word.endswith("%")]
    assert row(text, "1 aten") == f"1 aten.pow.Tensor_Scalar 0 2x3 {share} elementwise"
    assert row(text, "2 aten") == "2 aten.sum.default 1 () linear"
    assert (
        row(text, f"{100 - int(share[:-1])}% of the time")
        == f"{100 - int(share[:-1])}% of the time puts results together"
    )
    assert row(text, "output 0") == "output 0 args[0], args[0] (), b c, b c"
    assert row(text, "axis 0") == "axis 0 of args[0] is first lost at node 2, aten.sum.default,"
    assert row(text, "which") == "which sums over axis 0 of its operand"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_is_explained_within_a_terminal(case: Case, device: torch.device) -> None:
    f, args = case.build(device)
    text = explained(f, *args, order=case.orders[0], argnums=case.argnums)
    assert max(map(len, text.splitlines())) <= 110
    assert not [line for line in text.splitlines() if line != line.rstrip()]


def test_the_cheapest_strategy_wins(x: Tensor) -> None:
    text = explained(lambda x: (x @ x.t()).exp().sum(), x)
    lines = text.split("\n\n")[1].splitlines()
    assert lines[0].endswith("(* taken: the least estimated time)")
    assert lines[2].split()[0] == "*"
    estimates = [float(line.split()[-2]) for line in lines[2:]]
    assert len(estimates) == 3
    assert estimates == sorted(estimates)


def test_strategies_that_do_not_apply(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    assert row(explained(mixed, x, order=1), "mixed") == "mixed the same as reverse at order 1"
    monkeypatch.setattr(packing, "MAX_ENTRIES", 10)
    text = explained(lambda x: x.softmax(1).sum(0), x, order=3)
    assert row(text, "forward").startswith("forward does not apply: at order 3, 3 directions take more than 10 ")


def test_strategies_that_masks_leave_out(x: Tensor) -> None:
    text = explained(lambda x: (x.relu() @ x.relu()).sqrt(), x[0], layout="compact")
    for strategy in ("forward", "mixed"):
        assert f"  {strategy} was left out: it may multiply an infinite slope behind a mask by zero" in text


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.where(x > 0, x, 1.0).sqrt().sum(),
        lambda x: (x * x).masked_fill(x * x == 0, 1.0).sqrt().sum(),
        lambda x: (x * (1 + 2j)).abs().square().sum(),
    ],
)
def test_masks_that_leave_no_singularity_leave_out_no_strategy(f: Callable[[Tensor], Tensor], x: Tensor) -> None:
    assert "left out" not in explained(lambda x: f(x @ x.t()), x)


def test_strategies_that_were_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two inputs of three directions each: polynomials of order 4 by each have thousands of coefficients."""
    monkeypatch.setattr(estimate, "_jointly", lambda *_, **__: None)

    def f(x: Tensor, a: Tensor) -> Tensor:
        v = (a * x).view(3, 1)
        return torch.logsumexp(v @ v.t(), 1) + x.sum()

    text = hofunc.hod(f, 4, (0, 1)).plan(torch.ones(3), torch.ones(3)).explain()
    assert row(text, "mixed").startswith("mixed was given up: its steps are too many")


def test_inputs_have_the_names_of_arguments(x: Tensor) -> None:
    weight = x[0].clone()
    text = hod(lambda p, q, *, r: (p["a"] * q * r * weight).sum(), 2).plan({"a": x}, x, r=x).explain()
    nodes = [" ".join(line.split()) for line in text.split("\n\n")[2].splitlines()[2:]]
    assert nodes[:4] == [
        "0 args[0]['a'] 5x3 input, differentiated by",
        "1 args[1] 5x3 input",
        "2 kwargs['r'] 5x3 input",
        "3 captured 0 3 input",
    ]


@pytest.mark.usefixtures("_no_rule_for_cumprod")
def test_composites_are_named_and_fallbacks_too(x: Tensor) -> None:
    text = explained(lambda x: functional.layer_norm(x, (3,)).cumprod(0).sum(), x)
    assert "aten.native_layer_norm.default" in text
    assert " ".join(row(text, "1 ").split()[-1:]) == "aten.native_layer_norm.default"
    fallback = next(line for line in text.splitlines() if "aten.cumprod.default" in line and "fallback" in line)
    assert "fallback: nested torch.func" in fallback


def test_constants_multilinear_and_softmax(x: Tensor) -> None:
    text = explained(lambda x: ((x @ x.t()).softmax(1) * x[:, :1].sign()).sum(), x)
    kinds = {line.split()[1]: line.split()[-1] for line in text.split("\n\n")[2].splitlines()[2:]}
    assert kinds["aten.mm.default"] == "multilinear"
    assert kinds["aten._softmax.default"] == "softmax"
    assert kinds["aten.sign.default"] == "constant"


@pytest.mark.parametrize(
    ("f", "order", "pattern", "loss"),
    [
        (lambda x: x.exp().sum(0), 2, "b, c b, c b", "aten.sum.dim_IntList, which sums over axis 0 of its operand"),
        (lambda x: (x.t() @ x).sin(), 2, "", "aten.mm.default, which mixes the rows along axis 1 of its operand"),
        (
            lambda x: x[:, 0].dot(x[:, 1]).exp(),
            2,
            "(), ",
            "aten.dot.default, which contracts axis 0 of its operand with another tensor",
        ),
        (
            lambda x: x.cumsum(0),
            1,
            "i b, c b",
            "aten.cumsum.default, which moves what lies along axis 0 of its operand",
        ),
        (
            lambda x: x.cumprod(0),
            1,
            "i j, b c",
            "aten.cumprod.default, which has no rule, so that its structure is not known",
        ),
    ],
)
@pytest.mark.usefixtures("_no_rule_for_cumprod")
def test_where_the_batch_is_lost(f: Callable[[Tensor], Tensor], order: int, pattern: str, loss: str, x: Tensor) -> None:
    text = explained(f, x, order=order)
    assert f"{row(text, 'axis 0 of args[0] is first lost')} {row(text, 'which')}".endswith(loss)
    assert pattern in row(text, "output 0")


@pytest.mark.parametrize(
    ("f", "pattern"),
    [
        (lambda x: x.sin().prod(1), "b, b i, b j"),
        (lambda x: x.sin().sum(1), "b, b c, b c"),
        (lambda x: (x * x.sum(1, keepdim=True)).exp(), "b i, b j, b k"),
        (lambda x: x[:, None].permute(2, 1, 0).expand(3, 2, 5).exp(), "b i c, c b, c b"),
    ],
)
def test_where_the_batch_is_kept(f: Callable[[Tensor], Tensor], pattern: str, x: Tensor) -> None:
    text = explained(f, x)
    assert row(text, "axis 0") == "axis 0 of args[0] is kept by all nodes"
    assert pattern in row(text, "output 0")


def test_results_that_vanish(x: Tensor) -> None:
    assert "all are zero" in explained(lambda x: x * 2, x)


def test_only_the_costly_steps_of_many(x: Tensor) -> None:
    plan = hod(lambda x: ((x @ x.t()).tanh() @ x).softmax(1).exp().sum(), 3).plan(x)
    steps = plan.explain().split("\n\n")[-1].splitlines()
    assert steps[0] == f"Steps: the 20 that take longest, of {plan.steps}"
    assert len(steps) == 22
    places = [int(line.split()[0]) for line in steps[2:]]
    assert places == sorted(places)


def test_a_range_of_orders(x: Tensor) -> None:
    text = hofunc.derivatives(mixed, 3).plan(x).explain()
    assert text.startswith("derivatives(mixed): orders 1 to 3, by the strategy ")
    assert len([line for line in text.splitlines() if line.startswith("  output 0")]) == 3


def test_contractions_are_told_by_their_axes_and_vectors(device: torch.device) -> None:
    x, w = rand(device, 4, 3), rand(device, 3, 5)
    patterns = {"value": "b -> b", "laplacian": "b, b i, b i -> b", "sum": "b -> "}
    text = hofunc.einsum(lambda x: torch.tanh(torch.tanh(x @ w) @ w.T).sum(-1), patterns).plan(x).explain()
    assert "orders 0 to 2" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["0", "output", "0", "0", "b", "of", "4"] in rows
    assert ["1", "output", "0", "2", "b", "of", "4"] in rows
    assert ["2", "output", "0", "0", "a", "number"] in rows
    assert "Vectors: how many of its shape each node carries along slots, and how many adjoints" in text
    assert all(len(line) <= 110 for line in text.splitlines())


def network(x: Tensor) -> Tensor:
    a = torch.ones(x.shape[1], 30, dtype=x.dtype, device=x.device)
    wide = (x @ a).tanh()
    return (wide @ a.t()).sin().sum(-1)


@pytest.mark.parametrize(
    "transform",
    [
        *(hod(network, 2, strategy=strategy) for strategy in ("reverse", "forward", "mixed")),
        hod(network, 3, layout="compact"),
        hofunc.laplacian(network),
        hofunc.einsum(network, "b, b i, b i -> b", strategy="reverse"),
    ],
)
def test_steps_are_those_of_nodes(transform: Any, device: torch.device) -> None:
    """What is composed with a node's derivatives is the node's; what is no node's puts the results together."""
    x = rand(device, 20, 4)
    subject = transform.plan(x)._subject
    outline = outline_of(subject)
    assert outline.rest + sum(item.share for item in outline.items) == pytest.approx(1)
    assert sum(item.flops for item in outline.items) <= subject.at_once.flops
    by_name = {item.name: item.flops for item in outline.items}
    assert by_name["aten.tanh.default"] >= 20 * 30, "its slope at least"


def test_the_cost_of_a_node_by_hand(device: torch.device) -> None:
    """Of x -> sum(w x) at order one: the value is not asked for, and the slope is w itself."""
    x, w = rand(device, 8), rand(device, 8)
    outline = outline_of(hod(lambda x: (w * x.exp()).sum(), 1, strategy="reverse").plan(x)._subject)  # type: ignore[arg-type]
    flops = {item.name: item.flops for item in outline.items if item.flops}
    assert flops == {"aten.exp.default": 16}, "the exponential, and its product with w"


def test_lines_are_told_where_they_were_noted(x: Tensor) -> None:
    with hofunc.detect_anomaly():
        text = hod(mixed, 2).plan(x).explain()
    assert "cases.py:" in text
    assert "cases.py:" not in hod(mixed, 2).plan(x).explain()


def test_a_strategy_for_several_kinds_of_results(x: Tensor) -> None:
    assert row(hofunc.laplacian(network).plan(x).explain(), "each") == "each is for results of several kinds"


def test_batches_of_many_inputs(device: torch.device) -> None:
    text = hofunc.jacobian(lambda *x: torch.stack(x).sum(0), tuple(range(25))).plan(*[rand(device, 2)] * 25).explain()
    assert len([line for line in text.splitlines() if " is kept by all nodes" in line]) == 20
    assert row(text, "axis 0 of 5") == "axis 0 of 5 other inputs is not looked at"


_PROGRAMS = """
import torch, hofunc
torch.manual_seed(0)
lstm = torch.nn.LSTM(2, 3).double().requires_grad_(False)
layer = torch.nn.TransformerEncoderLayer(4, 2, 4, batch_first=True).double().eval().requires_grad_(False)
first, second = torch.triu_indices(6, 6, 1)
x, positions = torch.randn(12, 1, 2, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
tokens = torch.randn(1, 3, 4, dtype=torch.float64)
asked = [
    (lambda x: lstm(x)[0].square().sum(), x),
    (lambda x: layer(x).sin().sum(), tokens),
    (lambda p: (1 / (p[first] - p[second]).square().sum(-1)).tanh().sum(), positions),
]
for f, at in asked:
    plan = hofunc.hessian(f).plan(at)
    print(plan.explain())
print(hofunc.hessian(f, max_bytes=int(0.6 * plan.peak_bytes)).plan(at).explain())
"""


def test_plans_are_the_same_in_every_process() -> None:
    told = {
        subprocess.run(  # noqa: S603 - it is a program of ours
            [sys.executable, "-c", _PROGRAMS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
