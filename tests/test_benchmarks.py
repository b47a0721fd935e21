"""Every way to every workload gives the same derivative, and the tables of the comparison render; nothing is timed."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacfwd, jacrev, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

import hofunc
from asv_benchmarks import accepted, baseline, compare, contest, estimates, markdown, memory, networks, results, table
from asv_benchmarks.benchmarks import columns, contracted, contractions, derivatives, jets, sparse, symmetric
from asv_benchmarks.benchmarks.captured import captured
from asv_benchmarks.benchmarks.contractions import Contraction
from asv_benchmarks.benchmarks.graphs import (
    bag_whole,
    convolution_whole,
    elements_whole,
    filters_whole,
    pairs_whole,
    sentence_whole,
)
from asv_benchmarks.benchmarks.nests import NESTS, flat, nested
from asv_benchmarks.benchmarks.peers import flattened, ours, peer_of_kind, peers
from asv_benchmarks.benchmarks.points import grid, points, tracked
from asv_benchmarks.benchmarks.timing import interleaved
from asv_benchmarks.benchmarks.ways import BY_HAND, Peer
from asv_benchmarks.benchmarks.workloads import (
    RESULT_LIMIT,
    Function,
    Workload,
    attention_whole,
    classifier_parameters,
    convolutional_whole,
    perceptron_rows,
    thesis_parameters,
    thesis_rows,
    thesis_whole,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
]

DOCS = Path(__file__).parents[1] / "docs"

SMALL = [
    thesis_rows(2, 3),
    thesis_rows(2, 3, order=3, depth=2),
    thesis_rows(2, 2, order=4),
    thesis_whole(2, 3),
    thesis_parameters(2, batch=3),
    perceptron_rows(2, 2, rows=3, width=4, depth=2),
    perceptron_rows(2, 3, rows=3, activation="silu", width=4, depth=2),
    perceptron_rows(1, 4, rows=3, activation="sin", width=4, depth=2),
    attention_whole(3, 2),
    classifier_parameters(3, inputs=2, classes=2, batch=4),
    convolutional_whole("input", 3, (1, 2, 1)),
    convolutional_whole("parameters", 3, (1, 2, 1)),
    pairs_whole(4),
    pairs_whole(3, order=3),
    elements_whole(4),
    filters_whole(4, width=3),
    filters_whole(3, depth=2, width=3),
    convolution_whole("features", 4, 3, 3, 2),
    convolution_whole("parameters", 4, 2, 3, 2),
    bag_whole(5, 3, sentences=3, length=2),
    sentence_whole(4, 3, length=3),
]
each_small = pytest.mark.parametrize("workload", SMALL, ids=lambda workload: workload.name)


def runs_in_tests(workload: Workload, peer: Peer) -> bool:
    """To compile takes seconds, as to capture high orders or G does; JAX and jet-for-pytorch need not be installed."""
    if peer.kind == "captured" and peer.name != "hofunc plan":
        return workload.order == 2 and workload.family != "G"
    return peer.kind in {"eager", "captured", BY_HAND} and "jet" not in peer.name


def reference(workload: Workload) -> Tensor:
    """Nested jacfwd of everything, by independent code."""
    derivative = workload.f
    for _ in range(workload.order):
        derivative = jacfwd(derivative, argnums=workload.argnums)
    if not workload.rows:
        return flattened(workload, derivative(*workload.args))
    x = workload.args[0]
    whole = derivative(x) if workload.family == "T" else derivative(x).sum(0)
    rows = torch.arange(x.shape[0])
    return whole[tuple(part for _ in range(workload.order) for part in (rows, slice(None)))]


@each_small
def test_every_peer_agrees_with_hofunc(workload: Workload) -> None:
    expected = reference(workload)
    contenders = [peer for peer in (*ours(workload), *peers(workload)) if runs_in_tests(workload, peer)]
    assert len(contenders) > 4
    for peer in contenders:
        got = flattened(workload, peer.prepare()())
        assert got.shape == expected.shape, peer.name
        assert got.numel() == workload.size
        assert contest.difference(got, expected) < 2e-6, peer.name


@each_small
def test_no_workload_is_degenerate(workload: Workload) -> None:
    assert reference(workload).abs().max() > 1e-4


CONTRACTIONS = [
    contractions.of_rows("Laplacian", 3, rows=3),
    contractions.weighted(2, rows=3),
    contractions.of_rows("biharmonic", 2, rows=3, activation="sin"),
    contractions.partial_derivative(3, rows=3),
    contractions.divergence(2, rows=3),
    contractions.product_of_attention(3, 2),
    contractions.product_of_classifier(3, batch=4),
]
DENSE = {  # of the dense derivative of every row
    "b, b i, b i -> b": "nii->n",
    "b, b i, b i, b j, b j -> b": "niijj->n",
    "b, b i, b j, i j -> b": "nij,ij->n",
    "b i, b i -> b": "nii->n",
}


def dense_contraction(contraction: Contraction, f: Function, x: Any) -> Tensor:
    """The dense derivative by nested jacfwd, contracted, as one vector."""
    if contraction.kind == "product":
        function, vector = flat(replace(contraction, args=(x,), function=lambda *given: f(given[-1])))
        other = torch.cat([leaf.reshape(-1) for leaf in tree_leaves(contraction.operands[0])])
        return jacfwd(jacrev(function))(vector) @ other
    for _ in range(contraction.order):
        f = jacfwd(f)
    dense = vmap(f)(x)
    if contraction.kind == "partial":
        return dense[:, 0, 0, 0]
    return torch.einsum(DENSE[contraction.pattern], dense, *contraction.operands)


def reference_of(contraction: Contraction) -> Tensor:
    """The contraction of the dense derivative, or the gradient of its mean square, by independent code."""
    (x,) = contraction.args
    if not contraction.is_step:
        return dense_contraction(contraction, contraction.f, x)

    def loss(learned: Any) -> Tensor:
        if contraction.by_args:
            return dense_contraction(contraction, contraction.f, learned).square().mean()
        return dense_contraction(contraction, contraction.with_learned(learned), x).square().mean()

    return contracted.flattened(grad(loss)(x if contraction.by_args else contraction.learned))


@pytest.mark.parametrize("is_step", [False, True], ids=["contraction", "step"])
@pytest.mark.parametrize("contraction", CONTRACTIONS, ids=lambda contraction: contraction.name)
def test_every_way_to_a_contraction_agrees_with_the_dense_derivative(contraction: Contraction, is_step: bool) -> None:
    point = contractions.step(contraction) if is_step else contraction
    expected = reference_of(point)
    assert expected.abs().max() > 1e-4
    assert point.nbytes == 4 * expected.numel()
    contenders = [peer for peer in (*ours(point), *peers(point)) if runs_quickly(point, peer)]
    assert len(contenders) >= 5
    for peer in contenders:
        got = flattened(point, peer.prepare()())
        assert contest.difference(got, expected) < 1e-5, peer.name


def runs_quickly(contraction: Contraction, peer: Peer) -> bool:
    """To capture takes tenths of a second, high orders seconds, as to compile does."""
    if "compiled" in peer.name or "jet" in peer.name or "JAX" in peer.name:
        return False
    is_captured = contraction.order == 2 and peer.name in {"captured loops of autograd.grad", "captured jvp(grad)"}
    return is_captured or peer.kind in {"eager", BY_HAND} or peer.name == "hofunc plan"


@pytest.mark.parametrize("make", [partial(contractions.of_rows, "biharmonic"), contractions.weighted])
def test_derivatives_along_directions_sum_up_to_the_contraction(make: Callable[..., Contraction]) -> None:
    point = make(3)
    whole = torch.randn(3, 3, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    symmetric = torch.stack([whole.permute(order) for order in permutations(range(4))]).sum(0)
    tensor = symmetric if point.order == 4 else symmetric[0, 0]
    along = [weight * contracted_along(tensor, vector) for vector, weight in zip(*point.directions(), strict=True)]
    subscripts = DENSE[point.pattern].replace("n", "")
    torch.testing.assert_close(
        torch.stack(along).sum(0), torch.einsum(subscripts, tensor, *(each.double() for each in point.operands))
    )


def test_no_peer_ends_the_process() -> None:
    names = [peer.name for peer in peers(contractions.step(contractions.partial_derivative(3)))]
    assert "jvp(jvp(grad))" in names
    assert "captured jvp(jvp(grad))" not in names
    assert "captured loops of autograd.grad" in names


def test_what_is_written_by_hand_is_shown_and_no_peer() -> None:
    entries = [
        contest.Entry("hofunc", "eager", [1.0] * 3, 0.0, ours=True),
        contest.Entry("by me", BY_HAND, [0.5] * 3, 0.0),
    ]
    held = contest.Contest("L 1", 512, entries, {})
    assert any("by me" in line and " 0.50 " in line for line in table.rows(held))
    assert all(held.ratio(kinds) is None for kinds in table.CLASSES.values())


@pytest.mark.parametrize("contraction", CONTRACTIONS, ids=lambda contraction: contraction.name)
def test_planning_is_counted_of_the_plan_that_is_made(contraction: Contraction) -> None:
    quick, plan = contracted.planned(contraction), contracted.plan(contraction)
    assert quick.plan.strategy == plan.strategy
    assert 0 < quick.plan.run_cost.flops <= plan.flops  # of which some are the function's
    assert quick.effort > 0


def test_captured_graphs_replay_on_other_values() -> None:
    """A graph that holds the values it was captured with as constants would be no peer."""
    workload = perceptron_rows(2, 3, rows=3, width=4, depth=2)
    for function, x in (nested(workload, NESTS[3][0]), columns.columns(workload)):
        other = x.flip(0) / 2
        torch.testing.assert_close(captured(function, x)(other), function(other))


@pytest.mark.parametrize(("width", "order"), list(product((1, 2, 4), (2, 3, 4))))
def test_directions_interpolate_every_entry(width: int, order: int) -> None:
    """The derivatives of a symmetric tensor along the directions give back the tensor."""
    generator = torch.Generator().manual_seed(0)
    packed = torch.randn(symmetric.count(width, order), generator=generator)
    tensor = packed[symmetric.positions(width, order)]
    along, inverse = jets.directions(width, order)
    assert len(along) == len(packed)
    values = torch.stack([contracted_along(tensor, direction) for direction in along])
    torch.testing.assert_close(inverse @ values, packed, rtol=1e-4, atol=1e-4)


def contracted_along(tensor: Tensor, direction: Tensor) -> Tensor:
    while tensor.dim():
        tensor = tensor @ direction.to(tensor.dtype)
    return tensor


def test_points_are_in_the_grid_and_within_the_limit() -> None:
    names = [workload.name for workload in grid()]
    assert len(names) == len(set(names))
    for workload in (*points(), *tracked()):
        assert workload.nbytes <= RESULT_LIMIT
        assert workload.name in names
    assert {workload.family for workload in points()} == {"T", "P", "A", "C", "N", "G", "L"}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
@pytest.mark.parametrize("way", sparse.WAYS)
def test_every_way_to_a_sparse_hessian_agrees_with_the_dense_one(way: str) -> None:
    workload = elements_whole(8)
    matrix = sparse.hessian(8, way)()
    assert matrix.layout == torch.sparse_csr
    assert contest.difference(matrix.to_dense(), reference(workload)) < 2e-6


def test_asv_tracks_the_bytes_of_a_sparse_hessian() -> None:
    tracker = sparse.Sparse()
    tracker.call = sparse.hessian(8, "hofunc plan")
    matrix = tracker.call()
    size = matrix.values().numel()
    assert tracker.track_bytes(8, "hofunc plan") == 12 * size + 8 * (len(matrix) + 1)  # float32, and indices in int64


@pytest.mark.parametrize("kind", derivatives.KINDS)
def test_asv_finds_a_way_of_every_kind(kind: str) -> None:
    for workload in tracked():
        found = peer_of_kind(workload, kind)
        assert kind in {found.name, found.kind}


def test_asv_tracks_what_plans_count() -> None:
    tracker, name = derivatives.Plan(), "T whole Hessian, 10x10, depth 3"
    tracker.setup(name)
    counted = {"steps": tracker.track_steps, "flops": tracker.track_flops, "peak_bytes": tracker.track_peak_bytes}
    size = baseline.measured(derivatives.TRACKED[name])
    assert {quantity: count(name) for quantity, count in counted.items()} == {key: size[key] for key in counted}


def test_asv_tracks_what_contractions_take_to_plan() -> None:
    assert set(derivatives.CONTRACTED) <= set(derivatives.TRACKED)
    tracker, name = derivatives.PlanningOfContractions(), "L hvp, classifier 10-70-10, 32 rows"
    assert tracker.track_effort(name) == baseline.measured(derivatives.TRACKED[name])["effort"]


def test_a_contest_renders_as_a_table() -> None:
    workload = perceptron_rows(2, 2, rows=3, width=4, depth=2)
    chosen = {"hofunc", "hofunc plan", "columns by autograd.grad"}
    held = contest.contest(workload, contest.Budget(rounds=2), lambda peer: peer.name in chosen)
    text = "\n".join([*table.rows(held), *table.summary([held])])
    assert "P tanh order 2, 3x2, width 4, depth 2: result 48 B" in text
    assert "columns by autograd.grad" in text
    assert "geometric mean, P" in text
    assert "minimum, all" in text
    assert held.ratio(("captured",)) is None
    assert (held.ratio(("eager",)) or 0) > 0


def held(name: str, hofunc: float, peer: float, slow: str = "") -> contest.Contest:
    entries = [
        contest.Entry("hofunc", "eager", [hofunc] * 3, 0.0, ours=True),
        contest.Entry("nested", "eager", [peer] * 3, 1e-7),
    ]
    return contest.Contest(name, 1600, entries, {"naive": slow} if slow else {})


def test_means_and_minima_are_taken_by_family() -> None:
    contests = [held("T 1", 1.0, 2.0), held("T 2", 1.0, 8.0), held("P 1", 1.0, 0.5)]
    families = table.families(table.ratios(contests))
    assert list(families) == ["T", "P", "all"]
    assert table.reduced(families["all"], "minimum", "eager") == 0.5
    assert table.reduced(families["T"], "geometric mean", "eager") == pytest.approx(4)
    assert table.reduced(families["all"], "minimum", "compiled") is None


def test_a_class_of_which_nobody_took_part_has_no_ratio() -> None:
    assert held("L 1", 1.0, 2.0).ratio(table.CLASSES["eager"]) == 2.0
    assert held("L 1", 1.0, 2.0).ratio(table.CLASSES["captured"]) is None


def test_kept_contests_are_read_as_they_were(tmp_path: Path) -> None:
    kept = tmp_path / "results" / "one.jsonl"
    for contest_ in (held("T 1", 1.0, 3.0), held("P 1", 1.0, 0.5), held("T 1", 1.0, 2.0, slow="over 1 s")):
        results.add(kept, contest_)
    assert results.read(kept) == [held("T 1", 1.0, 2.0, slow="over 1 s"), held("P 1", 1.0, 0.5)]


def test_accepted_contests_become_a_page_and_a_run(tmp_path: Path) -> None:
    page, kept = tmp_path / "page.md", tmp_path / "accepted.json"
    page.write_text("# Words\n")
    first = [held("T 1", 1.0, 3.0, slow="over 1 s"), held("P 1", 1.0, 0.5)]
    markdown.accept(page, "alone", {"One thread": first, "Two threads": first}, kept)
    markdown.accept(page, "alone", {"One thread": [held("T 1", 1.0, 2.0)]}, kept)
    text = page.read_text()
    assert text.startswith("# Words\n")
    assert text.count("## One thread\n") == 1
    assert text.count("### T 1: One thread\n") == text.count("### P 1: One thread\n") == 1
    assert "| T | 1 | 2.00 | 2.00 |" in text
    assert "| P | 1 | 0.50 | 0.50 |" in text
    assert text.count("| naive |  |  | skipped: over 1 s |  |") == 1  # on two threads, which were not measured again
    runs = accepted.read(kept)
    assert [(run.title, len(run.workloads), run.conditions) for run in runs] == [
        ("One thread", 2, "alone"),
        ("Two threads", 2, "alone"),
        ("One thread", 1, "alone"),
    ]
    accepted.write(runs, kept)
    assert accepted.read(kept) == runs


def test_the_pages_have_the_ratios_that_are_accepted() -> None:
    runs = accepted.read()
    for name in {run.page for run in runs}:
        (page,) = DOCS.rglob(f"{name}.md")
        text = page.read_text()
        for title, ratios in accepted.latest(run for run in runs if run.page == name).items():
            assert "\n".join(["", f"## {title}", "", *markdown.overview(ratios), ""]) in text


def test_who_takes_too_long_or_fails_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise ValueError("no rule\nfor it")

    def sleeps() -> None:
        time.sleep(5)

    slow = [Peer("fails", "eager", lambda: fails), Peer("sleeps", "eager", lambda: sleeps)]
    monkeypatch.setattr(contest, "peers", lambda _: slow)
    monkeypatch.setattr(contest, "ours", lambda workload: ours(workload)[:1])
    held = contest.contest(thesis_rows(2, 3), contest.Budget(prepare=1, rounds=2), lambda _: True)
    assert held.skipped == {"fails": "ValueError: no rule", "sleeps": "TooLongError: over 1 s"}
    assert [entry.name for entry in held.entries] == ["hofunc"]
    assert "skipped: ValueError: no rule" in "\n".join(table.rows(held))
    slow[:] = [peer for peer in peers(thesis_rows(2, 3)) if peer.name == "columns by autograd.grad"]
    held = contest.contest(thesis_rows(2, 3), contest.Budget(call=0, rounds=2), lambda _: True)
    assert "a call, over 0 s" in held.skipped["columns by autograd.grad"]


def test_a_result_that_differs_is_seen() -> None:
    assert contest.difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])) == 0.5


def test_sizes_are_readable() -> None:
    assert [table.size(value) for value in (12, 1600, 256e6)] == ["12 B", "1.6 kB", "256 MB"]


def test_functions_take_turns() -> None:
    def rounds() -> list[str]:
        calls: list[str] = []
        seconds = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 8)
        assert calls[:2] == [*"ab"]
        assert [len(taken) for taken in seconds.values()] == [8, 8]
        return ["".join(calls[start : start + 2]) for start in range(2, len(calls), 2)]

    assert {*rounds()} == {"ab", "ba"}
    assert rounds() == rounds()


def test_functions_warm_up_for_some_time() -> None:
    calls: list[str] = []
    seconds = interleaved({"a": lambda: calls.append("a")}, 3, clock=lambda: float(len(calls)), warm=4.0)
    assert calls == ["a"] * 7
    assert seconds["a"] == [1.0] * 3


def test_the_command_line() -> None:
    chosen = compare.options(["--threads", "2", "--workload", "T", "--rounds", "5", "--kinds", "eager", "--busy"])
    assert (chosen.threads, chosen.workload, chosen.rounds, chosen.kinds) == (2, "T", 5, ["eager"])
    assert chosen.busy


# Memory.


def test_peak_of_a_call() -> None:
    kilobyte = torch.ones(256)

    def call() -> Tensor:
        both = kilobyte + 1, kilobyte + 2  # freed at the end, with a third held
        return both[0] + both[1]

    assert memory.peak(call) == 3 * 1024


def test_row_of_peaks() -> None:
    workload = thesis_whole(2, 3)
    name, result, eager, plan, least = memory.row(workload).strip("| ").split(" | ")
    assert name == workload.name
    assert result == table.size(workload.nbytes)
    assert float(plan) >= 1
    assert float(eager) >= 1
    assert float(least.split()[0]) >= 1


def test_the_equation_of_the_estimates_has_its_solution() -> None:
    generator = torch.Generator().manual_seed(0)
    x, factors = torch.rand(3, 5, generator=generator).double() / 5, torch.randn(4, generator=generator).double()
    u = estimates.solution(x, factors)
    laplacian = hofunc.laplacian(lambda x: estimates.solution(x, factors))(x)
    assert torch.allclose(laplacian + u - u**3, estimates.source(x, factors), rtol=1e-12)
    weights = [weight.detach().double() for weight in estimates.network(5, generator)]
    sphere = x / x.norm(dim=-1, keepdim=True)
    assert estimates.ansatz(sphere, weights).abs().max() < 1e-14


def test_steps_through_estimates_are_counted() -> None:
    rate, held = estimates.steps_a_second(20, samples=4, seconds=0.01)
    assert rate > 0
    assert held > 0


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: networks.normalised(1), (2, 16)),
        (lambda: networks.convolved(1), (2, 4, 3, 3)),
        (lambda: networks.attending(1), (2, 3, 16)),
        (networks.Recurrent, (2, 3, 4)),
    ],
    ids=["normalised", "convolved", "attending", "recurrent"],
)
def test_products_by_networks_are_those_of_torch(make: Callable[[], torch.nn.Module], shape: tuple[int, ...]) -> None:
    with sdpa_kernel(SDPBackend.MATH):
        leaves, *_, difference = networks.row(make, shape)
    assert int(leaves) == len([*make().parameters()])
    assert float(difference) < 1e-12
