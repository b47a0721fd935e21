"""The loss of connectionist temporal classification, against the sum over all paths."""

from itertools import groupby, product
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

import hofunc
from tests.cases import rand
from tests.checks import check_hod
from tests.rules.opcase import ORACLE_WARNINGS, between
from verification.oracles import nested_reverse, relative_error

pytestmark = ORACLE_WARNINGS


def over_paths(log_probs: Tensor, targets: list[list[int]], times: list[int], blank: int = 0) -> Tensor:
    """Return minus the logarithm of the sum over all paths that come down to a sample's labels."""
    losses = []
    for sample, labels in enumerate(targets):
        paths = product(range(log_probs.shape[2]), repeat=times[sample])
        kept = [path for path in paths if [symbol for symbol, _ in groupby(path) if symbol != blank] == labels]
        steps = torch.arange(times[sample], device=log_probs.device)
        weights = [log_probs[steps, sample, torch.tensor(path, device=log_probs.device)].sum() for path in kept]
        losses.append(-torch.stack(weights).logsumexp(0))
    return torch.stack(losses)


def ctc_loss(x: Tensor, targets: Tensor, times: Any, lengths: Any, **options: Any) -> Tensor:
    """Call torch's loss, which takes lengths as numbers too, whatever its annotations say."""
    return F.ctc_loss(x, targets, times, lengths, **options)


SAMPLES: dict[str, tuple[list[list[int]], list[int], int]] = {
    "one sample": ([[1, 2]], [3], 0),
    "two samples of several lengths": ([[2], [1, 1]], [2, 3], 0),
    "the same label twice": ([[1, 1]], [4], 0),
    "no label": ([[], [1]], [2, 3], 0),
    "another blank": ([[0, 1]], [3], 2),
}


@pytest.mark.parametrize("concatenated", [False, True])
@pytest.mark.parametrize("name", SAMPLES)
def test_losses(name: str, concatenated: bool, device: torch.device) -> None:
    labels, times, blank = SAMPLES[name]
    longest = max(map(len, labels))
    padded = torch.tensor([row + [1] * (longest - len(row)) for row in labels], device=device)
    joined = torch.tensor([label for row in labels for label in row], device=device)
    lengths = [len(row) for row in labels]
    x = rand(device, max(times), len(labels), 3)

    def f(x: Tensor) -> Tensor:
        return ctc_loss(x, joined if concatenated else padded, times, lengths, blank=blank, reduction="none")

    for order in (1, 2) if x.numel() > 12 else (1, 2, 3):
        got = hofunc.hod(between(f), order)(x)
        assert (
            relative_error(got, nested_reverse(between(lambda x: over_paths(x, labels, times, blank)), order)(x))
            < 1e-10
        )


def _loss(x: Tensor, **options: Any) -> Tensor:
    targets = torch.tensor([[1, 2], [2, 2]], device=x.device)
    return ctc_loss(x.log_softmax(2), targets, (3, 3), (2, 1), **options)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_gradient_of_torch_after_a_softmax(reduction: str, device: torch.device) -> None:
    x = rand(device, 3, 2, 3)
    got = hofunc.jacobian(lambda x: _loss(x, reduction=reduction))(x)
    (expected,) = torch.autograd.grad(_loss(y := x.clone().requires_grad_(), reduction=reduction), y)
    assert relative_error(got, expected) < 1e-10


def test_lengths_as_tensors(device: torch.device) -> None:
    targets, times, lengths = (torch.tensor(n, device=device) for n in ([1, 2, 2], [3, 2], [2, 1]))

    def f(x: Tensor) -> Tensor:
        return ctc_loss(x, targets, times, lengths, reduction="none")

    check_hod(f, (rand(device, 3, 2, 3),), 2, reference=lambda x: over_paths(x, [[1, 2], [2]], [3, 2]))


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_labels_that_do_not_fit(zero_infinity: bool, device: torch.device) -> None:
    targets = torch.tensor([[1, 1], [1, 2]], device=device)

    def f(x: Tensor) -> Tensor:
        return ctc_loss(x.log_softmax(2), targets, (2, 2), (2, 2), reduction="none", zero_infinity=zero_infinity)

    x = rand(device, 2, 2, 3)
    for order in (1, 2):
        got = hofunc.hod(f, order)(x)
        assert got[1].isfinite().all()
        assert not got[0].any() if zero_infinity else got[0].isnan().any()


def test_probabilities_of_zero(device: torch.device) -> None:
    x = rand(device, 3, 1, 3).log_softmax(2)
    x[1, 0, 2] = -torch.inf

    def f(x: Tensor) -> Tensor:
        return ctc_loss(x, torch.tensor([[1, 2]], device=device), (3,), (2,), reduction="none")

    got = hofunc.hessian(f)(x)
    assert got.isfinite().all()
    assert not got[0, 1, 0, 2].any()


def test_samples_are_kept_apart(device: torch.device) -> None:
    targets = torch.tensor([[1, 2], [2, 1], [1, 1]], device=device)

    def f(x: Tensor) -> Tensor:
        return ctc_loss(x.transpose(0, 1), targets, (3, 3, 3), (2, 2, 2), reduction="none")

    got = hofunc.hod(f, 2, layout="compact")(rand(device, 3, 3, 3))
    assert got.dense(keep_batch=True).shape == (3, 3, 3, 3, 3)
