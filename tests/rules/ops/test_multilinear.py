"""Products, against nested torch.func."""

import pytest
import torch

import hofunc
from tests.cases import rand
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, use

pytestmark = ORACLE_WARNINGS

CASES: list[OpCase] = [
    use("mul", torch.mul, (2, 2), (2, 2)),
    use("mul broadcasts", torch.mul, (2, 1), (3,)),
    use("mul by a scalar", torch.mul, (), (2, 2)),
    use("mul by itself", lambda x: x * x, (3,)),
    use("mul by its transpose", lambda x: x * x.t(), (2, 2)),
    use("mul by a row of itself", lambda x: x * x[:1], (2, 2)),
    use("mul by a number", lambda x: x * -1.5, (3,)),
    use("mul by a number on the left", lambda x: 2 * x, (3,)),
    use("mul by a constant", lambda x: x * torch.arange(3.0).to(x), (2, 3)),
    use("mul of an empty tensor", lambda x: x * x, (0, 2), orders=(1,)),
    use("mm", torch.mm, (2, 3), (3, 2), orders=(1, 2)),
    use("mm of rows of one", torch.mm, (1, 2), (2, 1)),
    use("mm by itself", lambda x: x.mm(x), (2, 2)),
    use("mm by its transpose", lambda x: x.mm(x.t()), (2, 3), orders=(1, 2)),
    use("mm of expanded tensors", lambda x, y: x.expand(2, 2).mm(y.expand(2, 3)), (2,), (2, 1)),
    use("mm by a constant", lambda x: x.mm(torch.arange(6.0).reshape(2, 3).to(x)), (2, 2)),
    use("mm over nothing", lambda x: x.mm(x.t()), (2, 0), orders=(1,)),
    use("bmm", torch.bmm, (2, 1, 2), (2, 2, 1)),
    use("bmm by itself", lambda x: x.bmm(x), (1, 2, 2)),
    use("matmul of a batch and a matrix", torch.matmul, (2, 1, 2), (2, 2), orders=(1, 2)),
    use("matmul of a batch and a vector", torch.matmul, (2, 1, 2), (2,)),
    use("mv", torch.mv, (2, 3), (3,)),
    use("mv of a tensor and its row", lambda x: x.mv(x[0]), (2, 2)),
    use("dot", torch.dot, (3,), (3,)),
    use("dot with itself", lambda x: x.dot(x), (3,)),
    use("vdot", torch.vdot, (3,), (3,)),
    use("outer", torch.outer, (2,), (3,)),
    use("einsum with a diagonal", lambda x: torch.einsum("ii,ij->j", x, x), (2, 2)),
    use("a product of three", lambda x, y: x * y * x, (2, 2), (2,)),
]


@every_row(CASES)
def test_multilinear(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


def test_no_derivative_of_a_product_goes_beyond_its_factors(device: torch.device) -> None:
    got = hofunc.hod(torch.mul, 3, (0, 1), layout="compact")(rand(device, 3), rand(device, 3, seed=1))
    assert {block.pattern for first in got for second in first for block in second} == {"0"}


@pytest.mark.parametrize(("argnum", "pattern"), [(0, "b i, b j"), (1, "i b, j b")])
def test_a_matrix_product_keeps_its_free_label(argnum: int, pattern: str, device: torch.device) -> None:
    derivative = hofunc.hod(torch.mm, 1, argnum, layout="compact")(rand(device, 3, 2), rand(device, 2, 4))
    assert derivative.pattern.count("b") == pattern.count("b")
    assert derivative.nbytes == 8 * (2 * 4 if argnum == 0 else 3 * 2)
