"""Products of two tensors through windows: what they are, and by which of torch's kernels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that everyone gives it

import hofunc
from hofunc.algebra.labels import Label, full, labels_of
from hofunc.algebra.term import Factor, Term
from hofunc.plan.contract import contract
from hofunc.rules.ops.windows import Windows, along_windows
from tests.algebra.dense import RandomTerms
from tests.cases import rand
from tests.plan.plans import names
from tests.plan.workbench import Workbench
from verification.oracles import relative_error

CPU = torch.device("cpu")
KERNELS = {"window": "convolved", "axis": "convolved_back", "place": "convolved_weight"}

PLAIN = Windows(4, 3, 6, 1, 0, 1)
STRIDED = Windows(3, 3, 6, 2, 1, 1)
DILATED = Windows(6, 3, 8, 1, 1, 2)
WITH_A_REST = Windows(2, 2, 6, 3, 0, 1)
OF_ONE_PLACE = Windows(5, 1, 5, 1, 0, 1)
OF_ONE_WINDOW = Windows(1, 3, 3, 1, 0, 1)
CROPPED = Windows(2, 3, 6, 1, 0, 1)  # of four that fit


class Product:
    """A product of two tensors through windows along some axes.

    Args:
        made: Which end of the windows is left.
        windows: The windows along each axis.
        seed: In what order the tensors have their axes, and what they hold.
        shared: Whether a label of both is not summed.
        more: Whether another tensor has the windows as well.
    """

    def __init__(
        self, made: str, windows: Sequence[Windows], seed: int = 0, *, shared: bool = False, more: bool = False
    ):
        self.draw, shuffled = RandomTerms(seed), np.random.default_rng(seed)
        rows, columns, summed = Label(2), Label(3), Label(2)
        ends = [
            {"window": Label(each.number), "place": Label(each.width), "axis": Label(each.length)} for each in windows
        ]
        first, second = [end for end in ("axis", "window", "place") if end != made]
        left = [summed, rows, *(each[first] for each in ends)]
        right = [columns, summed, *(each[second] for each in ends)]
        factors = [self._factor([each[place] for place in shuffled.permutation(len(each))]) for each in (left, right)]
        if more:
            factors.append(self._factor([each[first] for each in ends]))
        out = [rows, columns, *(each[made] for each in ends), *([summed] if shared else [])]
        shown = tuple(out[place] for place in shuffled.permutation(len(out)))
        self.factors = factors
        pairs = list(zip(windows, (list(own.values()) for own in ends), strict=True))
        self.windows = [along_windows(each, *map(_axis, own)) for each, own in pairs]
        self.out, self.shown = tuple(map(_axis, shown)), shown
        self.relations = [(_relation(each), own) for each, own in pairs]

    def _factor(self, labels: Sequence[Label]) -> Factor:
        return self.draw.factor(tuple(map(_axis, labels)))

    def check(self) -> list[str]:
        """Check what is contracted, and return the names of the steps."""
        bench = Workbench(self.draw, torch.device("cpu"))
        named = bench.named(Term(1, tuple(self.factors), self.out, ()))
        got = contract(bench.builder, named._replace(factors=(*named.factors, *self.windows)))
        tensors = [(self.draw.tensors[source], labels_of(axes)) for source, axes in self.factors]
        operands: list[Any] = []
        for tensor, labels in (*tensors, *self.relations):
            operands += [tensor, [self._number(label) for label in labels]]
        expected = np.einsum(*operands, list(map(self._number, self.shown)), optimize=True)
        np.testing.assert_allclose(bench.meaning([got]), expected, rtol=1e-12, atol=1e-12)
        return names(bench.builder.program([factor.source for factor in got.factors]))

    def _number(self, label: Label) -> int:
        every = dict.fromkeys(x for _, labels in self.relations for x in labels)
        for _, axes in self.factors:
            every.update(dict.fromkeys(labels_of(axes)))
        return [*every].index(label)


def _axis(label: Label) -> tuple:
    return (full(label),)


def _relation(windows: Windows) -> np.ndarray:
    window, place, axis = np.ogrid[: windows.number, : windows.width, : windows.length]
    meets: np.ndarray = window * windows.stride + place * windows.dilation - windows.padding == axis
    return meets.astype(float)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("made", KERNELS)
@pytest.mark.parametrize(
    "windows",
    [
        (PLAIN,),
        (STRIDED,),
        (DILATED,),
        (WITH_A_REST,),
        (PLAIN, STRIDED),
        (DILATED, OF_ONE_PLACE),
        (OF_ONE_WINDOW, PLAIN),
        (PLAIN, WITH_A_REST, OF_ONE_PLACE),
    ],
)
def test_one_kernel_takes_both_tensors(windows: tuple[Windows, ...], made: str, seed: int) -> None:
    called = Product(made, windows, seed).check()
    assert called.count(KERNELS[made]) == 1
    assert not {"windowed", "unwindowed"} & {*called}


@pytest.mark.parametrize("made", KERNELS)
@pytest.mark.parametrize("windows", [(OF_ONE_PLACE,), (OF_ONE_WINDOW,), (CROPPED,)])
def test_products_of_matrices_and_others_that_no_kernel_does(windows: tuple[Windows, ...], made: str) -> None:
    assert KERNELS[made] not in Product(made, windows).check()


@pytest.mark.parametrize("made", KERNELS)
def test_rows_that_stay_apart_are_no_groups(made: str) -> None:
    assert KERNELS[made] not in Product(made, (PLAIN,), shared=True).check()


@pytest.mark.parametrize("made", KERNELS)
def test_what_a_third_tensor_has_as_well_is_not_summed(made: str) -> None:
    Product(made, (PLAIN, STRIDED), more=True).check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [4, 24])
def test_a_product_with_the_hessian_lays_no_windows_out(size: int, dtype: torch.dtype) -> None:
    """But in single precision where torch's kernels take longer than that."""
    x, w, v = rand(CPU, 2, 3, size, size).to(dtype), rand(CPU, 4, 3, 3, 3).to(dtype), rand(CPU, 4, 3, 3, 3).to(dtype)
    u = rand(CPU, 2, 4, 3, 3).to(dtype)

    def f(w: Tensor, u: Tensor) -> Tensor:
        return F.conv2d(F.conv2d(x, w, padding=1).tanh(), u, padding=1).sin().sum()

    plan = hofunc.hvp(f, (0, 1)).plan(w, u, vector=(v, u))
    called = names(plan._steps.program)
    is_small = dtype == torch.float32 and size == 4
    assert ("windowed" in called) == is_small
    assert ("convolved_weight" in called) != is_small
    got = plan(w, u, vector=(v, u))
    expected = torch.func.jvp(torch.func.grad(f, (0, 1)), (w, u), (v, u))[1]
    assert relative_error(got, expected) < (1e-12 if dtype == torch.float64 else 1e-5)
