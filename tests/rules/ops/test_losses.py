"""Losses, against nested torch.func."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor
from torch.nn import LinearCrossEntropyOptions

import hofunc
from hofunc.rules.ops.losses import binary_cross_entropy
from tests.cases import rand
from tests.checks import check_hod
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, ints, use
from verification.oracles import nested_reverse, relative_error

pytestmark = ORACLE_WARNINGS

REDUCTIONS = ("none", "mean", "sum")


def _pairs(name: str, loss: Any, **options: Any) -> list[OpCase]:
    """Return a row for every reduction of a loss of two tensors."""
    return [
        use(f"{name}, {reduction}", lambda x, t, r=reduction: loss(x, t, reduction=r, **options), (2, 2), (2, 2))
        for reduction in REDUCTIONS
    ]


def _nll(name: str, shape: tuple[int, ...], *targets: Any, **options: Any) -> list[OpCase]:
    def loss(x: Tensor, reduction: str) -> Tensor:
        weight = torch.arange(1.0, 4.0).to(x) if options.get("weighted") else None
        ignore = options.get("ignore_index", -100)
        return F.nll_loss(x, ints(x, *targets), weight=weight, ignore_index=ignore, reduction=reduction)

    return [
        use(f"{name}, {reduction}", lambda x, r=reduction: loss(x.log_softmax(min(1, x.dim() - 1)), r), shape)
        for reduction in REDUCTIONS
    ]


def _signs(x: Tensor) -> Tensor:
    return ints(x, [1, -1], [-1, 1]).to(x)


def _multi_margin(x: Tensor, target: Tensor, p: int, margin: float) -> Tensor:
    """Write out, for every row, the mean of what the other classes come too close to the target's."""
    rows = []
    for row, label in zip(x, target.tolist(), strict=True):
        short = [(margin - row[label] + row[other]).clamp(min=0) ** p for other in range(len(row)) if other != label]
        rows.append(torch.stack(short).sum() / len(row))
    return torch.stack(rows)


def _multilabel_margin(x: Tensor, labels: list[list[int]]) -> Tensor:
    rows = []
    for row, own in zip(x, labels, strict=True):
        others = [place for place in range(len(row)) if place not in own]
        short = [(1 - row[label] + row[other]).clamp(min=0) for label in own for other in others]
        rows.append(torch.stack(short).sum() / len(row))
    return torch.stack(rows)


MARGINS: list[OpCase] = [
    use(
        "soft margin",
        lambda x: F.soft_margin_loss(x, _signs(x), reduction="sum"),
        (2, 2),
        reference=lambda x: (-_signs(x) * x).exp().log1p().sum(),
    ),
    *(
        use(
            f"multi margin, p = {p}",
            lambda x, p=p: F.multi_margin_loss(x, ints(x, 2, 0), p=p, margin=0.7, reduction="none"),
            (2, 3),
            reference=lambda x, p=p: _multi_margin(x, ints(x, 2, 0), p, 0.7),
        )
        for p in (1, 2)
    ),
    use(
        "multilabel margin",
        lambda x: F.multilabel_margin_loss(x, ints(x, [2, 0, -1], [1, -1, 0]), reduction="none"),
        (2, 3),
        reference=lambda x: _multilabel_margin(x, [[2, 0], [1]]),
    ),
    use(
        "multilabel margin of one row, with all labels and with none",
        lambda x: (
            F.multilabel_margin_loss(x, ints(x, 1, 0)) + x[0] * F.multilabel_margin_loss(x, ints(x, -1, 0)),
            F.multilabel_margin_loss(x, ints(x, 0, -1)),
        ),
        (2,),
        reference=lambda x: (0 * x.sum(), (1 - x[0] + x[1]).clamp(min=0) / 2),
    ),
    use("multilabel soft margin", lambda x: F.multilabel_soft_margin_loss(x, (_signs(x) + 1) / 2), (2, 2)),
    use("margin ranking", lambda x, y: F.margin_ranking_loss(x, y, _signs(x)[0], margin=0.3), (2,), (2,)),
    use("hinge embedding", lambda x: F.hinge_embedding_loss(x, _signs(x), margin=0.9, reduction="sum"), (2, 2)),
    use("cosine embedding", lambda x, y: F.cosine_embedding_loss(x, y, _signs(x)[0], margin=-0.5), (2, 2), (2, 2)),
    use("triplet margin", F.triplet_margin_loss, (1, 2), (1, 2), (1, 2)),
    use("triplet margin, p = 3, swapped", lambda a, b, c: F.triplet_margin_loss(a, b, c, 5, 3, swap=True), *[(2,)] * 3),
]

LIKELIHOODS: list[OpCase] = [
    use("poisson", lambda x, t: F.poisson_nll_loss(x, t.exp(), full=True), (2, 2), (2, 2)),
    use("poisson of a rate", lambda x: F.poisson_nll_loss(x.exp(), x.detach().cos() + 2, log_input=False), (3,)),
    use("gaussian", lambda x, t, v: F.gaussian_nll_loss(x, t, v.exp(), full=True), (2, 1), (2, 1), (2, 1)),
    use("kl divergence", lambda x, t: F.kl_div(x, t.exp(), reduction="batchmean"), (2, 2), (2, 2)),
    use("kl divergence of logarithms", lambda x, t: F.kl_div(x, t, log_target=True, reduction="sum"), (2, 2), (2, 2)),
    use("l1", lambda x, t: F.l1_loss(x, t, reduction="none"), (3,), (3,)),
    use(
        "binary cross-entropy",
        lambda x, t: F.binary_cross_entropy(x.sigmoid(), t.sigmoid(), t.detach().exp()),
        (2, 2),
        (2, 2),
        reference=lambda x, t: (t.detach().exp() * (F.softplus(x) - t.sigmoid() * x)).mean(),
    ),
    use(
        "binary cross-entropy with logits", lambda x, t: F.binary_cross_entropy_with_logits(x, t.sigmoid()), (3,), (3,)
    ),
]

CASES: list[OpCase] = [
    *MARGINS,
    *LIKELIHOODS,
    *_pairs("mse", F.mse_loss),
    *_pairs("huber", F.huber_loss, delta=0.8),
    *_pairs("smooth l1", F.smooth_l1_loss, beta=0.8),
    *_pairs("smooth l1 without its smooth part", F.smooth_l1_loss, beta=0.0),
    use("mse of a tensor and itself", lambda x: F.mse_loss(x, x.sin()), (3,)),
    *_nll("nll", (2, 3), 2, 0),
    *_nll("weighted nll", (2, 3), 2, 0, weighted=True),
    *_nll("nll with ignored rows", (3, 3), 2, 1, 0, ignore_index=1),
    *_nll("nll with a negative ignored index", (2, 3), -100, 1, weighted=True),
    use("nll of one sample", lambda x: F.nll_loss(x.log_softmax(0), ints(x, 1)[0]), (3,)),
    *_nll("nll of an image", (1, 3, 1, 2), [[2, 0]]),
    *_nll("weighted nll of an image", (1, 3, 2, 1), [[2], [-100]], weighted=True),
]


@every_row(CASES)
def test_losses(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("argnums", [0, 1, 2])
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_cross_entropy_of_a_linear_layer_some_rows_at_a_time(
    reduction: str, argnums: int, order: int, is_weighted: bool, device: torch.device
) -> None:
    """Of torch's own op the backward pass is nothing where autograd did not follow the arguments."""
    options = LinearCrossEntropyOptions(batch_chunk_size=2, allow_retain_graph=reduction != "none")
    args = rand(device, 5, 2), rand(device, 3, 2, seed=1), rand(device, 3, seed=2)
    target = ints(args[0], 2, 0, 1, 1, 2)
    class_weight = torch.tensor([0.5, 1.0, 2.0]).to(args[0]) if is_weighted else None

    def chunked(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        losses = F.linear_cross_entropy(
            x,
            weight,
            target,
            linear_bias=bias,
            weight=class_weight,
            reduction=reduction,
            ignore_index=1,
            options=options,
        )
        return losses.sin().sum()

    def whole(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        logits = F.linear(x, weight, bias)
        return F.cross_entropy(logits, target, class_weight, reduction=reduction, ignore_index=1).sin().sum()

    expected = nested_reverse(whole, order, argnums)(*args)
    assert relative_error(hofunc.hod(chunked, order, argnums)(*args), expected) < 1e-10


@pytest.mark.parametrize("loss", [F.huber_loss, F.smooth_l1_loss])
def test_the_two_parts_of_a_loss_that_is_linear_far_away(loss: Any, device: torch.device) -> None:
    x = torch.tensor([-3.0, -0.5, 0.5, 3.0], dtype=torch.float64, device=device)
    got = hofunc.hessian(lambda x: loss(x, torch.zeros_like(x), reduction="sum"))(x)
    torch.testing.assert_close(got, torch.diag(torch.tensor([0.0, 1.0, 1.0, 0.0]).to(x)))


def test_a_loss_without_reduction_keeps_the_batch(device: torch.device) -> None:
    target = ints(rand(device, 1), 2, 0, 1, 1)

    def loss(x: Tensor) -> Tensor:
        return F.cross_entropy(x, target, reduction="none")

    got = hofunc.hod(loss, 2, layout="compact")(rand(device, 4, 3))
    assert got.dense(keep_batch=True).shape == (4, 3, 3)


def test_the_rule_of_a_cross_entropy_has_its_value_at_the_ends(device: torch.device) -> None:
    x, t = torch.tensor([[0.0, 1.0, 0.25], [1.0, 0.0, 1.0]], dtype=torch.float64, device=device)
    torch.testing.assert_close(
        binary_cross_entropy(x, t, reduction=0), F.binary_cross_entropy(x, t, reduction="none"), rtol=1e-15, atol=0
    )


@pytest.mark.parametrize("order", [1, 2, 3])
def test_cross_entropy_of_a_sigmoid(order: int, device: torch.device) -> None:
    x, t, weight = rand(device, 4), rand(device, 4).sigmoid(), rand(device, 4).exp()
    check_hod(
        lambda x, t: F.binary_cross_entropy(x.sigmoid(), t, weight=weight),
        (x, t),
        order,
        argnums=(0, 1),
        reference=lambda x, t: (weight * (F.softplus(x) - t * x)).mean(),  # torch has rounding for zeros
    )


@pytest.mark.parametrize("order", [1, 2, 3])
def test_cross_entropy_of_a_sigmoid_and_of_what_depends_on_the_same(order: int, device: torch.device) -> None:
    check_hod(
        lambda x: F.binary_cross_entropy(x.sigmoid(), x.sin().square(), reduction="sum"),
        (rand(device, 4),),
        order,
        reference=lambda x: (F.softplus(x) - x.sin().square() * x).sum(),
    )


def test_cross_entropy_of_a_sigmoid_that_is_one_has_torchs_slope(device: torch.device) -> None:
    x, t = torch.tensor([40.0, -800.0], device=device, dtype=torch.float64), torch.tensor([0.0, 1.0], device=device)
    f = lambda x: F.binary_cross_entropy(x.sigmoid(), t.double(), reduction="sum")  # noqa: E731
    assert torch.equal(hofunc.jacobian(f)(x), torch.func.jacrev(f)(x))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("targets", [[0, -100, 2], [-100, -100, -100]])
@pytest.mark.parametrize("weights", [None, [1.0, 0.5, 2.0]])
def test_ignored_targets_are_as_by_torch(
    targets: list[int], weights: list[float] | None, reduction: str, device: torch.device
) -> None:
    x, target = rand(device, 3, 3), torch.tensor(targets, device=device)
    weight = None if weights is None else torch.tensor(weights, dtype=x.dtype, device=device)

    def loss(x: Tensor) -> Tensor:
        return F.cross_entropy(x, target, weight=weight, reduction=reduction)

    value, first, second = hofunc.derivatives(loss, 2)(x)
    torch.testing.assert_close(value, loss(x), equal_nan=True)  # the mean of nothing is nan
    torch.testing.assert_close(first, torch.func.jacrev(loss)(x))
    torch.testing.assert_close(second, torch.func.hessian(loss)(x))


def test_a_plan_refuses_targets_that_are_no_classes(device: torch.device) -> None:
    x, target = rand(device, 3, 3), torch.tensor([0, 1, 2], device=device)
    plan = hofunc.hvp(F.cross_entropy).plan(x, target, vector=x)
    with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
        plan(x, target + 1, vector=x)


def test_of_a_loss_its_derivatives_take_no_more_than_what_it_divides_by(device: torch.device) -> None:
    x, target = rand(device, 3, 3), torch.tensor([0, 1, 2], device=device)
    graph = hofunc.hvp(F.cross_entropy).plan(x, target, vector=x).to_fx().graph
    (forward,) = [node for node in graph.nodes if node.target is torch.ops.aten.nll_loss_forward.default]
    assert [node.args[1] for node in forward.users] == [1]
    assert torch.ops.aten.gather.default not in [node.target for node in graph.nodes]


def test_the_slopes_of_a_likelihood_are_one_step(device: torch.device) -> None:
    x, target = rand(device, 3, 3), torch.tensor([0, 1, 2], device=device)
    for reduction in ("mean", "sum"):
        plan = hofunc.hvp(lambda x, r=reduction: F.cross_entropy(x, target, reduction=r)).plan(x, vector=x)
        ops = [node.target for node in plan.to_fx().graph.nodes]
        assert ops.count(torch.ops.aten.nll_loss_backward.default) == 1
        assert ops.count(torch.ops.aten.where.self) == 0


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_likelihood_whose_weights_vary_is_differentiated_by_them_too(reduction: str, device: torch.device) -> None:
    x, weight, target = rand(device, 3, 4), rand(device, 4).exp(), torch.tensor([0, 3, 2], device=device)

    def loss(x: Tensor, weight: Tensor) -> Tensor:
        return F.nll_loss(x.log_softmax(1), target, weight=weight, reduction=reduction)

    def by_hand(x: Tensor, weight: Tensor) -> Tensor:
        losses = -x.log_softmax(1)[range(3), target] * weight[target]
        return {"none": losses, "sum": losses.sum(), "mean": losses.sum() / weight[target].sum()}[reduction]

    found = hofunc.hessian(loss, argnums=(0, 1))(x, weight)
    torch.testing.assert_close(found, torch.func.hessian(by_hand, argnums=(0, 1))(x, weight))


def test_a_plan_refuses_targets_of_pixels_that_are_no_classes(device: torch.device) -> None:
    x, target = rand(device, 1, 3, 2, 1), torch.tensor([[[0], [2]]], device=device)
    plan = hofunc.hvp(F.cross_entropy).plan(x, target, vector=x)
    with pytest.raises((RuntimeError, IndexError)):
        plan(x, target + 1, vector=x)
