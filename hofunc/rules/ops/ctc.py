"""Connectionist temporal classification, by its recursion over time.

Torch has only its gradient, and that one by log-probabilities as they come from log_softmax. Source: Graves et al.,
Connectionist temporal classification, ICML 2006, section 4.1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from hofunc.rules.registry import define_composite

aten = torch.ops.aten

NEVER = -1e30  # the logarithm of a probability of zero: finite, since that of a sum of zeros has no derivative


def _labels(targets: Tensor, lengths: Tensor, longest: int) -> Tensor:
    """Return the labels of every sample as a row; what is beyond its length does not matter."""
    if targets.dim() == 2:
        return targets[:, :longest]
    ends = lengths.cumsum(0)
    places = (ends - lengths)[:, None] + torch.arange(longest, device=targets.device)
    return targets.take(places.clamp(max=max(0, targets.numel() - 1)))


def _interleaved(labels: Tensor, blank: int) -> Tensor:
    """Put a blank before every label, and one at the end."""
    blanks = torch.full_like(labels, blank)
    end = torch.full((len(labels), 1), blank, dtype=labels.dtype, device=labels.device)
    return torch.cat([torch.stack([blanks, labels], -1).flatten(1), end], 1)


def _shifted(alpha: Tensor, places: int) -> Tensor:
    return torch.nn.functional.pad(alpha[:, :-places], (places, 0), value=NEVER)


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, None]:
    """Return minus the logarithm of the probability of each sample's labels, of log_probs (time, samples, classes)."""
    device = log_probs.device
    if targets.dim() == 2:
        longest = targets.shape[1]
    else:
        longest = targets.numel() if isinstance(target_lengths, Tensor) else max(target_lengths, default=0)
    times, lengths = (torch.as_tensor(n, device=device) for n in (input_lengths, target_lengths))
    symbols = _interleaved(_labels(targets, lengths, longest), blank)
    distinct = (symbols != blank) & (symbols != torch.nn.functional.pad(symbols[:, :-2], (2, 0), value=blank))
    steps = log_probs.gather(2, symbols.expand(len(log_probs), *symbols.shape)).clamp(min=NEVER)
    place = torch.arange(symbols.shape[1], device=device)
    alpha = torch.where(place < 2, steps[0], NEVER)
    for time in range(1, len(log_probs)):
        skipped = torch.where(distinct, _shifted(alpha, 2), NEVER) if longest else torch.full_like(alpha, NEVER)
        reached = torch.stack([alpha, _shifted(alpha, 1), skipped]).logsumexp(0) + steps[time]
        alpha = torch.where(time < times[:, None], reached, alpha)
    last = 2 * lengths[:, None]
    at_end = (place == last) | (place == last - 1)
    total = torch.where(at_end, alpha, NEVER).logsumexp(1)
    # by a factor, since a nan in a branch that where does not take would reach the other samples
    sign = torch.where(total.detach() < NEVER / 2, 0.0 if zero_infinity else torch.nan, -1.0)
    return total * sign.to(total.dtype), None


define_composite(aten._ctc_loss.default, ctc_loss)
define_composite(aten._ctc_loss.Tensor, ctc_loss)
