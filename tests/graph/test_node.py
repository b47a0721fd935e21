"""Nodes, and calls with their tensors taken out."""

import torch

from hofunc.graph.node import NEGATIVE_ZERO, Call, Ref, fill, refs, renumbered


def test_a_call_fills_in_its_tensors_in_order(device: torch.device) -> None:
    call = Call(torch.addmm, (Ref(4), Ref(2), Ref(7)), (("beta", 2.0), ("alpha", 3)))
    bias, left, right = (torch.full((2, 2), value, device=device) for value in (1.0, 2.0, 3.0))
    assert torch.equal(call(bias, left, right), 2 * bias + 3 * (left @ right))


def test_refs_in_lists_and_keywords() -> None:
    template = ((Ref(1), (2, Ref(3))), "x", (("out", Ref(1)),))
    assert list(refs(template)) == [Ref(1), Ref(3), Ref(1)]
    assert fill(template, iter("abc")) == (("a", (2, "b")), "x", (("out", "c"),))
    assert renumbered(template, {1: 10, 3: 30}) == ((Ref(10), (2, Ref(30))), "x", (("out", Ref(10)),))


def test_a_ref_is_not_a_tuple_to_look_into() -> None:
    assert list(refs(Ref(5))) == [Ref(5)]
    assert renumbered(5, {5: 6}) == 5


def test_negative_zero_is_kept_apart_from_zero() -> None:
    assert str(float(NEGATIVE_ZERO)) == "-0.0"
    assert type(NEGATIVE_ZERO)(-0.0) == NEGATIVE_ZERO
    assert (NEGATIVE_ZERO, 1) != (0.0, 1) != (NEGATIVE_ZERO, 1)
    assert len({NEGATIVE_ZERO: 1, 0.0: 2}) == 2
