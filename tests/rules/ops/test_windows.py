"""Windows and columns of them, against nested torch.func, and the two directions of their map against each other."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - the name that everyone gives it

import hofunc
from hofunc.rules.ops.windows import Windows, unwindowed, windowed
from tests.cases import rand
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, use

pytestmark = ORACLE_WARNINGS

CASES = [
    use("unfold along a dim", lambda x: x.unfold(0, 2, 1), (4,)),
    use("unfold with a step", lambda x: x.unfold(1, 2, 2), (2, 5)),
    use("unfold into parts", lambda x: x.unfold(-1, 2, 2), (2, 4)),
    use("unfold with a gap", lambda x: x.unfold(0, 1, 2), (5, 1)),
    use("unfold of a scalar", lambda x: x.unfold(0, 1, 1), ()),
    use("unfold beside its input", lambda x: x.unfold(0, 3, 1).sum(1) * x[1:-1], (4,)),
    use("columns", lambda x: F.unfold(x, 2), (1, 1, 2, 3)),
    use("columns with all options", lambda x: F.unfold(x, (2, 1), (1, 2), (1, 0), (2, 1)), (1, 1, 3, 2)),
    use("columns without a batch", lambda x: F.unfold(x, 2), (1, 2, 3)),
    use("an image of columns", lambda x: F.fold(x, (2, 3), 2), (1, 4, 2)),
    use("an image of columns with all options", lambda x: F.fold(x, (3, 2), (2, 1), (1, 2), (1, 0), (2, 1)), (1, 2, 4)),
    use("an image of columns without a batch", lambda x: F.fold(x, (2, 3), 2), (4, 2)),
    use("there and back", lambda x: F.fold(F.unfold(x, 2).sin(), (2, 3), 2), (1, 1, 2, 3)),
]


@every_row(CASES)
def test_windows(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


@pytest.mark.parametrize(
    "windows",
    [
        Windows(3, 2, 4, 1, 0, 1),
        Windows(3, 3, 3, 1, 1, 1),
        Windows(2, 2, 6, 3, 0, 2),
        Windows(2, 2, 3, 4, 2, 1),
        Windows(6, 1, 2, 1, 2, 1),
        Windows(1, 3, 1, 1, 2, 2),
        Windows(2, 2, 9, 2, 0, 3),
    ],
)
def test_adding_windows_up_is_the_transpose_of_taking_them(windows: Windows, device: torch.device) -> None:
    identity = torch.eye(windows.length, dtype=torch.float64, device=device)
    taken = windowed(identity, windows)
    assert taken.shape == (windows.length, windows.number, windows.width)
    for number in range(windows.number):
        for place in range(windows.width):
            at = number * windows.stride + place * windows.dilation - windows.padding
            expected = [float(at == other) for other in range(windows.length)]
            assert taken[:, number, place].tolist() == expected
    columns = torch.eye(windows.number * windows.width, dtype=torch.float64, device=device)
    added = unwindowed(columns.reshape(-1, windows.number, windows.width), windows)
    assert torch.equal(added, taken.flatten(1).t())


def test_windows_keep_the_other_axes(device: torch.device) -> None:
    derivative = hofunc.hod(lambda x: x.unfold(1, 2, 1).prod(2).sum(1), 2, layout="compact")(rand(device, 3, 4))
    assert derivative.dense(keep_batch=True).shape == (3, 4, 4)
