"""Nodes, and calls with their tensors taken out."""

import math
import struct
from typing import Any

import pytest
import torch

from hofunc.graph.node import Call, Ref, computed, exact, fill, refs, renumbered, with_calls


def test_a_call_fills_in_its_tensors_in_order(device: torch.device) -> None:
    call = Call(torch.addmm, (Ref(4), Ref(2), Ref(7)), (("beta", 2.0), ("alpha", 3)))
    bias, left, right = (torch.full((2, 2), value, device=device) for value in (1.0, 2.0, 3.0))
    assert torch.equal(call(bias, left, right), 2 * bias + 3 * (left @ right))


def test_refs_in_lists_and_keywords() -> None:
    template = ((Ref(1), (2, Ref(3))), "x", (("out", Ref(1)),))
    assert list(refs(template)) == [Ref(1), Ref(3), Ref(1)]
    assert fill(template, iter("abc")) == (("a", (2, "b")), "x", (("out", "c"),))
    assert renumbered(template, {1: 10, 3: 30}) == ((Ref(10), (2, Ref(30))), "x", (("out", Ref(10)),))


INNER = Call(torch.exp, (Ref(3),), (("out", Ref(1)),))
NESTED = (Ref(1), (INNER, 2), Call(torch.sin, (INNER,)))


def test_refs_in_calls_among_arguments() -> None:
    assert refs(NESTED) == [Ref(1), Ref(3), Ref(1), Ref(3), Ref(1)]
    other = Call(torch.exp, (Ref(30),), (("out", Ref(10)),))
    assert renumbered(NESTED, {1: 10, 3: 30}) == (Ref(10), (other, 2), Call(torch.sin, (other,)))
    assert fill(NESTED, map(Ref, (10, 30, 10, 30, 10))) == renumbered(NESTED, {1: 10, 3: 30})
    assert type(fill(NESTED, iter(range(5)))[1][0]) is Call


def test_only_outermost_calls_are_replaced() -> None:
    assert with_calls(NESTED, lambda call: call.op) == (Ref(1), (torch.exp, 2), torch.sin)
    assert with_calls((Ref(1), (2, "x")), lambda call: call.op) == (Ref(1), (2, "x"))


def test_calls_among_arguments_are_computed(device: torch.device) -> None:
    x, y = (torch.full((2,), value, dtype=torch.float64, device=device) for value in (2.0, 3.0))
    call = Call(torch.add, (Call(torch.mul, (Ref(0), Ref(1))), Ref(0)), (("alpha", 10),))
    assert computed((call, (Ref(1), 5)), {0: x, 1: y})[0].tolist() == [26, 26]
    assert computed(Ref(1), [x, y]) is y


def test_a_ref_is_not_a_tuple_to_look_into() -> None:
    assert list(refs(Ref(5))) == [Ref(5)]
    assert renumbered(5, {5: 6}) == 5


NAN = math.nan
SAME_BITS = struct.unpack("d", struct.pack("d", NAN))[0]
OTHER_NAN = struct.unpack("Q", struct.pack("d", NAN))[0] + 1
OTHER_NAN = struct.unpack("d", struct.pack("Q", OTHER_NAN))[0]


def copied(number: Any) -> Any:
    """Return a number of the same bits that is another object."""
    parts = struct.unpack("2d", struct.pack("2d", number.real, number.imag))
    return complex(*parts) if isinstance(number, complex) else parts[0]


APART = [0.0, -0.0, NAN, -NAN, OTHER_NAN, 1.0, math.inf]
PARTS = [complex(a, b) for a in (0.0, -0.0, NAN, 1.0) for b in (0.0, -0.0, NAN, 1.0)]


@pytest.mark.parametrize("numbers", [APART, PARTS], ids=["real", "complex"])
def test_numbers_in_keys_are_told_apart_by_their_bits(numbers: list[Any]) -> None:
    keys = [("op", (exact(number), 1)) for number in numbers]
    assert len({*keys}) == len(keys)
    for number, key in zip(numbers, keys, strict=True):
        again = copied(number)
        assert ("op", (exact(again), 1)) == key
        assert hash(("op", (exact(again), 1))) == hash(key)
        assert repr(type(number)(exact(number))) == repr(number)


def test_a_nan_is_not_the_same_object_twice() -> None:
    assert SAME_BITS is not NAN
    assert SAME_BITS != NAN
    assert exact(SAME_BITS) == exact(NAN)


def test_ordinary_numbers_in_keys_are_themselves() -> None:
    for number in (0.0, 2.5, math.inf, -math.inf, 1 + 2j):
        assert exact(number) is number
