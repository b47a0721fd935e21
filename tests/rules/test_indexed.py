"""Every op that takes indices, where they repeat, and where they select nothing; tensors without elements."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

import hofunc
from hofunc.arguments import STRATEGIES
from hofunc.graph.record import record
from hofunc.rules.registry import RULES
from tests.cases import rand
from tests.rules.opcase import ORACLE_WARNINGS
from verification.indexed import INDICES, NOT_HERE, TABLE, Indexed, of_vector, squared, vector, written_out
from verification.oracles import nested_reverse, relative_error

pytestmark = [
    ORACLE_WARNINGS,
    pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter:UserWarning"),
    pytest.mark.filterwarnings("ignore:index_reduce.. is in beta:UserWarning"),
    pytest.mark.filterwarnings("ignore::hofunc.FallbackWarning"),
]


def every_use(uses: Sequence[Indexed]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("use", uses, ids=lambda use: use.name)


def test_every_op_that_takes_indices_is_in_the_table() -> None:
    taking = {op for op in RULES for argument in _arguments(op) if argument in INDICES}
    assert {str(op) for op in taking} - {str(op) for op in NOT_HERE} <= {str(use.op) for use in TABLE}
    assert taking >= NOT_HERE.keys()


def _arguments(op: object) -> list[str]:
    """Return the names of the arguments of an op, none of a function of hofunc's own that stands for one."""
    schema = getattr(op, "_schema", None)
    return [argument.name for argument in schema.arguments] if schema is not None else []


@every_use(TABLE)
def test_a_use_records_its_op(use: Indexed, device: torch.device) -> None:
    index, found = torch.tensor([2, 0, 2], device=device), set()
    for inference in (False, True):  # in which torch does not take composite ops apart
        f = torch.inference_mode(inference)(of_vector(use.f, index))
        found |= {node.op for node in record(lambda tensors, _, f=f: f(*tensors), [vector(index)]).graph.nodes}
    assert use.op in found


@every_use(TABLE)
def test_repeated_indices_squared_and_summed(use: Indexed, device: torch.device) -> None:
    """At order 3, and by every strategy by name, in verification/test_awkward_structure.py."""
    index = torch.tensor([2, 0, 2, 2], device=device)
    got = hofunc.hessian(squared(of_vector(use.f, index)))(vector(index))
    assert relative_error(got, nested_reverse(squared(written_out(use, index)), 2)(vector(index))) < 1e-12


@every_use([use for use in TABLE if use.name != "max_unpool2d"])
def test_indices_that_select_nothing(use: Indexed, device: torch.device) -> None:
    index = torch.zeros(0, dtype=torch.int64, device=device)
    expected = nested_reverse(squared(written_out(use, index)), 2)(vector(index))
    hessian = hofunc.hessian(squared(of_vector(use.f, index)))
    assert relative_error(hessian(vector(index)), expected) < 1e-12
    assert relative_error(hessian.plan(vector(index))(vector(index)), expected) < 1e-12


def _masked(x: Tensor) -> Tensor:
    out, mask = torch.zeros_like(x), x.detach() > 9
    out[mask] = x[mask].sin()
    return out


def _masked_rows(x: Tensor) -> Tensor:
    out, rows = x * 1, (x.detach() > 9)[:, 0]
    out[rows] = out[rows].cos()
    out[rows, 1] += 1.0
    return out


def _where_they_are(x: Tensor) -> Tensor:
    out, places = x.sin(), (x.detach() > 9).nonzero(as_tuple=True)
    out[places] += x[places].cos()
    return out.index_add(0, places[0], x[places[0]])


def _empty_slices(x: Tensor) -> Tensor:
    out = x.sin()
    out[1:1] = x[:0]
    out[2:1:2] *= 2
    return torch.cat([out, x[:0], out[len(x) :]], 0)


def _strided(x: Tensor) -> Tensor:
    return torch.cat([x.sin(), x.sin().as_strided((0, 2), (1, 1))])


@pytest.mark.parametrize("rows", [3, 0])
@pytest.mark.parametrize("f", [_masked, _masked_rows, _where_they_are, _empty_slices, _strided])
def test_code_that_selects_nothing(f: Callable[[Tensor], Tensor], rows: int, device: torch.device) -> None:
    x = rand(device, rows, 2)
    for order in (1, 2, 3):
        expected = nested_reverse(f, order)(x)
        for strategy in STRATEGIES:
            assert relative_error(hofunc.hod(f, order, strategy=strategy)(x), expected) < 1e-12
        assert relative_error(hofunc.hod(f, order).plan(x)(x), expected) < 1e-12


def test_what_has_no_elements_is_constant(device: torch.device) -> None:
    """Of an op whose result has no element nothing is asked, so that it need not have a rule."""
    x = rand(device, 3)
    plan = hofunc.hod(lambda x: (torch.logdet(torch.outer(x, x)[:0, :0]) + x.prod(), x[:0].erfinv()), 2).plan(x)
    scalar, nothing = plan(x)
    assert nothing.shape == (0, 3, 3)
    assert relative_error(scalar, nested_reverse(torch.prod, 2)(x)) < 1e-12
