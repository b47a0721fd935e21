"""What is known to be positive is, and is known where it matters."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hofunc.rules.lower import lower
from hofunc.rules.signs import Sign, sign_where_it_varies, signs_of
from tests.graph.recordings import recorded

Function = Callable[[Tensor], Tensor]


def sign_of(f: Function, x: Tensor) -> Sign:
    """Return the sign that is known of what a function returns."""
    return signs(f, x)[0]


def signs(f: Function, x: Tensor) -> tuple[Sign, Sign]:
    """Return the sign that is known of all elements of what a function returns, and of those that vary."""
    recording = recorded(f, x)
    lowered = lower(recording.graph, recording.values, 1)
    (output,) = lowered.graph.outputs
    known = signs_of(lowered.graph, lowered.rules, [output])
    return known[output], sign_where_it_varies(lowered.graph, output, known)


@pytest.mark.parametrize(
    ("f", "sign"),
    [
        (lambda x: x, Sign.ANY),
        (lambda x: x * x, Sign.NEVER_NEGATIVE),
        (lambda x: x * x.t(), Sign.ANY),
        (lambda x: x.relu() @ x.exp(), Sign.NEVER_NEGATIVE),
        (lambda x: x @ x, Sign.ANY),
        (lambda x: x**2, Sign.NEVER_NEGATIVE),
        (lambda x: x**3, Sign.ANY),
        (lambda x: x.square().mean(1, keepdim=True) + 1e-5, Sign.POSITIVE),
        (lambda x: x.square().mean() + 1e-9, Sign.TINY),
        (lambda x: x.square().mean() - 1e-5, Sign.ANY),
        (lambda x: x.relu() + x.exp() + 1, Sign.POSITIVE),
        (lambda x: x.var(1) + 1e-3, Sign.POSITIVE),
        (lambda x: -(x.relu() + 1), Sign.ANY),
        (lambda x: (x.relu() + 1) * 3, Sign.POSITIVE),
        (lambda x: (x.relu() + 1).reshape(-1).unsqueeze(0).expand(2, 4), Sign.POSITIVE),
        (lambda x: torch.nn.functional.pad(x.relu() + 1, (1, 1)), Sign.ANY),
        (lambda x: torch.diag_embed(x.relu() + 1), Sign.ANY),
        (lambda x: x.clamp(min=0.1), Sign.POSITIVE),
        (lambda x: x.clamp(0.0, 1.0), Sign.NEVER_NEGATIVE),
        (lambda x: x.clamp(-1, 1), Sign.ANY),
    ],
)
def test_what_is_known(f: Function, sign: Sign, device: torch.device) -> None:
    x = torch.tensor([[-0.5, 0.25], [0.0, 2.0]], dtype=torch.float64, device=device)
    assert sign_of(f, x) is sign
    assert sign is Sign.ANY or bool((f(x) >= 0).all())


@pytest.mark.parametrize(
    ("f", "sign"),
    [
        (lambda x: x, Sign.ANY),
        (lambda x: x.exp() + 1, Sign.POSITIVE),
        (lambda x: x.relu(), Sign.TINY),
        (lambda x: torch.where(x > 0, x, 1.0), Sign.TINY),
        (lambda x: torch.where(x > 0, x, -1.0), Sign.TINY),
        (lambda x: torch.where(x >= 1e-3, x, torch.zeros_like(x)), Sign.TINY),
        (lambda x: torch.where(x > 0.1, x, x * x + 1), Sign.TINY),
        (lambda x: torch.where(x > 0.1, x, x * x), Sign.NEVER_NEGATIVE),
        (lambda x: torch.where(x > 0.1, x.sin(), 1.0), Sign.ANY),
        (lambda x: torch.where(x >= 0, x, 1.0), Sign.NEVER_NEGATIVE),
        (lambda x: torch.where(x > -1, x, 1.0), Sign.ANY),
        (lambda x: torch.where(x < 1, x, 1.0), Sign.ANY),
        (lambda x: torch.where(x != 0, x, 1.0), Sign.ANY),
        (lambda x: torch.where(x.square() != 0, x.square(), 1.0), Sign.TINY),
        (lambda x: torch.where((x > 0) & (x < 1), x, 1.0), Sign.TINY),
        (lambda x: torch.where((x > 0) | (x < 1), x, 1.0), Sign.ANY),
        (lambda x: torch.where(~(x > 0), 1.0, x), Sign.TINY),
        (lambda x: torch.where(~(x > 0), x, 1.0), Sign.ANY),
        (lambda x: x.masked_fill(x <= 0, 1.0), Sign.TINY),
        (lambda x: x.masked_fill((x <= 0) | (x > 9), 1.0), Sign.TINY),
        (lambda x: x.masked_fill((x <= 0) & (x > 9), 1.0), Sign.ANY),
        (lambda x: (x * x).masked_fill(x * x == 0, x.new_ones(())), Sign.TINY),
        (lambda x: x.masked_fill(x > 0, 1.0), Sign.ANY),
    ],
)
def test_what_is_known_of_what_varies(f: Function, sign: Sign, device: torch.device) -> None:
    x = torch.tensor([[-0.5, 0.25], [0.0, 2.0]], dtype=torch.float64, device=device)
    assert signs(f, x)[1] is sign
