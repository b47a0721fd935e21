"""No step makes a host wait for a device, and all tensors are where the inputs are: on the meta device, which has no
values, a wait is an error.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that everyone gives it

import hofunc
from tests.cases import CASES, Case, rand
from verification.waits import Waits

META = torch.device("meta")
CPU = torch.device("cpu")
READING = {  # cases of functions that look at values themselves
    "a branch that is taken",
    "a branch that is not taken",
    "a loop of as many steps as the values say",
    "what leaves torch is a constant",
}


LOW = [case for case in CASES if case.name not in READING and min(case.orders) <= 2]


@pytest.mark.parametrize("case", LOW, ids=lambda case: case.name)
def test_nothing_needs_values(case: Case) -> None:
    f, args = case.build(META)
    transform = hofunc.hod(f, min(2, max(case.orders)), case.argnums)
    transform(*args)  # planning makes index vectors, once
    with Waits(META) as own:  # what f makes of numbers of Python
        f(*args)
    with Waits(META) as waits:
        transform(*args)
    assert waits.ops == own.ops


def planned(f: Callable[..., Tensor], *args: Any, **options: Any) -> hofunc.Plan:
    """Return a plan of the values and all derivatives up to order two."""
    return hofunc.derivatives(f, 2, **options).plan(*args)


_first, _second = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3])

FUNCTIONS: dict[str, tuple[Callable[..., Tensor], tuple[int, ...]]] = {
    "determinant": (lambda x: torch.linalg.det(x).sin(), (3, 3)),
    "determinant of more rows": (lambda x: torch.linalg.det(x).sin(), (5, 5)),
    "complex numbers": (lambda x: (torch.complex(x, x.sin()).exp().log() ** 2).real.sum(), (3,)),
    "embedding": (lambda x: F.embedding(torch.tensor([0, 2, 2]), x).sin().sum(), (3, 2)),
    "windows": (lambda x: F.conv2d(x, x[:1, :, :2, :2]).sin().sum(), (1, 2, 4, 4)),
    "pooling": (lambda x: F.avg_pool2d(x, 3, 2, 1).sin().sum(), (1, 1, 4, 4)),
    "resampling": (lambda x: F.interpolate(x, 5, mode="linear").sin().sum(), (1, 1, 4)),
    "maximum": (lambda x: (x.max(0).values * x.sort(1).values.sum(0)).sum(), (3, 3)),
    "pairs": (lambda x: ((x[_first] - x[_second]) ** 4).sum(), (4,)),
    "norms": (lambda x: torch.cdist(x, x.flip(0)).sum() + x.norm(dim=1).sum(), (3, 2)),
    "fill by a mask": (lambda x: torch.where(x > 0, x, x.exp()).masked_fill(x > 1, 0.0).sin().sum(), (4,)),
    "scatter": (lambda x: x.scatter_add(0, _first, x.sin()[:3]).pow(3).sum(), (4,)),
}


@pytest.mark.parametrize("layout", ["dense", "compact"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_step_of_a_plan_waits(name: str, layout: str) -> None:
    f, shape = FUNCTIONS[name]
    plan = planned(f, rand(CPU, *shape), layout=layout)
    with Waits(CPU) as waits:
        plan(rand(CPU, *shape, seed=1))
    assert waits.ops == []


def test_what_f_reads_is_all_that_is_waited_for() -> None:
    plan = planned(lambda x: x.sin().sum() if x.sum() > 0 else x.sum(), torch.ones(3))
    with Waits() as waits:
        plan(torch.ones(3))
    assert waits.ops == ["aten._local_scalar_dense.default"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_plan_is_captured_as_a_graph_of_a_gpu() -> None:
    x = rand(torch.device("cuda"), 5, 3)
    plan = planned(lambda x: x.sin().prod(1).exp().sum(), x)
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # as torch asks for: libraries start outside of what is captured
        plan(x)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = plan(x)
    x.copy_(rand(x.device, 5, 3, seed=1))
    graph.replay()
    for one, other in zip(found, plan(x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of inductor's own
def test_a_plan_is_compiled_for_few_launches(device: torch.device) -> None:
    x = rand(device, 5, 3)
    plan = planned(lambda x: (x.sin() @ x.cos().T).exp().sum(), x)
    compiled = plan.compile(mode="reduce-overhead")
    for seed in range(3):  # a GPU runs, records, and repeats
        x = rand(device, 5, 3, seed=seed)
        found = [each.clone() for each in compiled(x)]  # which the next call overwrites
        for one, other in zip(found, plan(x), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


WAITING: dict[str, Callable[[Tensor], Any]] = {
    "a number": lambda x: x.sum().item(),
    "a branch": lambda x: bool((x > 0).any()),
    "a comparison": lambda x: torch.equal(x, x + 1),
    "places": lambda x: x.nonzero(),
    "a mask": lambda x: x[x > 0],
    "what a mask selects": lambda x: x.masked_select(x > 0),
    "numbers of Python": lambda x: x + torch.tensor([1.0, 2.0]),
    "another device": lambda x: x.to("meta"),
    "values by a mask": lambda x: x.index_put((x > 0,), torch.ones(2)),
}


@pytest.mark.parametrize("name", WAITING)
def test_the_count_sees(name: str) -> None:
    with Waits() as waits:
        WAITING[name](torch.tensor([1.0, 2.0]))
    assert waits.ops


def test_the_count_sees_what_is_elsewhere_and_nothing_else() -> None:
    x = torch.ones(2)
    with Waits(META) as elsewhere:
        x.sin()
    with Waits(CPU) as here:
        y = (x @ x).sin() + torch.where(x > 0, x, 0 * x).masked_fill(x > 1, 2.0)
        y[y > 2] = 0
        y.sum() + torch.zeros(2)
    assert elsewhere.ops == ["aten.sin.default"]
    assert here.ops == []
