"""What a notebook shows of plans."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.draw.drawing import drawing_of
from hofunc.explain import told
from hofunc.notebook import as_html
from hofunc.structured.shown import ROWS
from tests.cases import CASES, Case, rand
from tests.markup import read

pytestmark = [pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning")]


def shown(plan: Any) -> tuple[list[str], str]:
    html = plan._repr_html_()
    assert len(html) < 200_000
    return read(html)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_is_shown_and_drawn(case: Case, device: torch.device) -> None:
    f, args = case.build(device)
    plan = hofunc.hod(f, case.orders[0], argnums=case.argnums).plan(*args)
    _, text = shown(plan)
    assert plan.name in text
    drawing = plan.draw()
    assert drawing.dot.startswith("digraph plan {")
    assert len(drawing.mermaid) < 50_000


def test_patterns_costs_and_steps(device: torch.device) -> None:
    w = rand(device, 3, 5)
    plan = hofunc.hessian(lambda x: (x @ w).tanh().sum(), layout="compact").plan(rand(device, 4, 3))
    tags, text = shown(plan)
    assert (tags.count("details"), tags.count("svg")) == (3, 1)
    for part in ("hessian(<lambda>): order 2", "(), b i, b j", "aten.tanh.default", "flops", f"{plan.steps} steps"):
        assert part in text
    assert "for args[0]: float64 (4, 3)" in text
    assert "reverse was not planned" not in text, "nothing is planned for it that was not"


def test_names_of_users_are_only_text(device: torch.device) -> None:
    def f(x: dict[str, Tensor]) -> Tensor:
        return hofunc.tap("<i>&", x["<b>"].sin()).sum()

    f.__name__ = "<script>alert(1)</script>"
    plan = hofunc.jacobian(f).plan({"<b>": rand(device, 3)})
    tags, text = shown(plan)
    assert "script" not in tags
    assert "b" not in tags
    assert "<script>alert(1)</script>" in text
    assert "args[0]['<b>']" in text


def test_contractions_and_results_that_vanish(device: torch.device) -> None:
    _, text = shown(hofunc.laplacian(lambda x: x.sin().sum(-1)).plan(rand(device, 4, 3)))
    assert "... of 4" in text
    assert "all are zero" in shown(hofunc.hessian(lambda x: 2 * x).plan(rand(device, 3)))[1]


def test_compiled_chunked_and_loaded(device: torch.device, tmp_path: Path) -> None:
    plan = hofunc.hessian(lambda x: x.sin().prod(-1)).plan(rand(device, 4, 3))
    assert ", compiled" in as_html(told(plan._subject), plan.takes, is_compiled=True)
    plan.save(tmp_path / "plan")
    assert hofunc.load_plan(tmp_path / "plan")._repr_html_() == plan._repr_html_()
    chunked = hofunc.hessian(lambda x: x.sin().prod(-1), chunk_size=2).plan(rand(device, 4, 3))
    assert "run in 2 chunks of 2 rows" in chunked._repr_html_()


def test_a_plan_of_thousands_of_nodes_is_short(device: torch.device) -> None:
    plan = hofunc.hessian(lambda *x: sum(x).sin().sum(), (0, 1)).plan(*[rand(device, 2)] * 2)
    known = told(plan._subject)
    outline, item, row = known.outline, known.outline.items[-1], ("output 0", "<i>" * 999, "b" * 999)
    items = tuple(
        [item._replace(number=n, name=f"op{n * n % 97} {'<b>' * 99}", operands=(n - 1,)) for n in range(1, 5000)]
    )
    many = outline._replace(items=(outline.items[0], *items), results=outline.results._replace(rows=(row,) * 5000))
    html = as_html(known._replace(outline=many, pictures=known.pictures[:1] * 50), plan.takes, is_compiled=False)
    tags, text = read(html)
    assert len(html) < 200_000
    assert f"5000 nodes, those {ROWS} that take longest" in text
    assert "and 4950 more" in text
    assert tags.count("svg") == ROWS
    drawing = drawing_of(many._replace(outputs=(4999,)))
    assert len(drawing.dot) < 100_000
    assert "5000 nodes in " in drawing.mermaid


def test_plans_of_jit(device: torch.device) -> None:
    jitted = hofunc.jit(hofunc.hessian(lambda x, n=1: (x**3).sum() if x.sum() > 0 else (x**2).sum()))
    assert "jit(<lambda>, plans=0), of at most 64" in shown(jitted)[1]
    for x in (rand(device, 3).abs(), -rand(device, 3).abs()):
        jitted(x)
    tags, text = shown(jitted)
    assert "plans=2" in text
    assert tags.count("tr") == 3
    assert "got False" in text
