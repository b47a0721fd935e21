"""The zoo's judge and page, without the libraries."""

import torch
from torch import Tensor
from torch.nn import functional

from verification.conformance.verdicts import REFUSED, RIGHT, UNJUDGED
from verification.zoo.entries import ENTRIES
from verification.zoo.entry import Case, Entry
from verification.zoo.judge import Verdict, sample_of, verdict
from verification.zoo.pace import Pace
from verification.zoo.results import Found
from verification.zoo.table import page


def test_a_function_may_ask_for_gradients_of_what_it_is_given() -> None:
    x = torch.tensor([2.0], dtype=torch.float64)
    sample = sample_of((lambda x: torch.autograd.grad((x**3).sum(), x, create_graph=True)[0], (x,)))
    assert sample.outputs[0].tolist() == [12.0]


def test_what_contradicts_itself_does_not_tell_that_another_is_wrong() -> None:
    x = torch.tensor([0.3, -0.8, 1.1, 0.4], dtype=torch.float64)

    def rounded(x: Tensor) -> Tensor:  # so that differences cannot tell; torch's nested modes are wrong at order 3
        return functional.layer_norm(x, (4,)).tanh().sum().float()

    case: Case = rounded, (x,)
    entry = Entry("none", "layer_norm", lambda: case)
    assert verdict(entry, sample_of(case), sample_of(case), 3).verdict == UNJUDGED


def test_the_page_begins_with_what_it_comes_to() -> None:
    keys = [*ENTRIES][:2]
    both = tuple(Verdict(order, RIGHT, ("reverse",)) for order in (2, 3))
    neither = tuple(Verdict(order, REFUSED, (), "UnsupportedOpError: no rule") for order in (2, 3))
    paces = (Pace(2, 1.0, 0.5, 0.1, 1.0, "autograd"), Pace(3, 1.0, 2.0, 0.1, 1.0, "autograd"))
    text = page([Found(keys[0], "1.0", both, paces), Found(keys[1], "1.0", neither)], 2)
    assert "At order 2: **50 % right, 0 % wrong, 50 % refused**" in text
    assert "level with torch's best in **1 of 2 (50 %)**" in text
