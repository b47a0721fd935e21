"""Recurrent layers and cells against nested torch.func."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hofunc
from tests.cases import distinct, rand
from tests.rules.opcase import ORACLE_WARNINGS, OpCase, every_row, use
from verification.oracles import nested_reverse, relative_error

pytestmark = ORACLE_WARNINGS

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "LSTM": lambda: nn.LSTM(2, 2),
    "LSTM of two layers in both directions": lambda: nn.LSTM(2, 1, 2, bidirectional=True, batch_first=True),
    "LSTM without biases": lambda: nn.LSTM(2, 2, bias=False),
    "LSTM with a projection": lambda: nn.LSTM(2, 2, proj_size=1),
    "LSTM in evaluation": lambda: nn.LSTM(2, 1, 2, dropout=0.5).eval(),
    "GRU": lambda: nn.GRU(2, 2),
    "GRU of two layers in both directions": lambda: nn.GRU(2, 1, 2, bidirectional=True, batch_first=True),
    "RNN": lambda: nn.RNN(2, 2),
    "RNN with relu": lambda: nn.RNN(2, 2, nonlinearity="relu", bidirectional=True),
}


def layer(name: str, dtype: torch.dtype) -> nn.Module:
    """Return one of the layers, with the same weights in every dtype."""
    return distinct(LAYERS[name]().requires_grad_(False).to(dtype))


def states(name: str, dtype: torch.dtype) -> Callable[[Tensor], Any]:
    """Return the function from a sequence to what a layer returns, in float64."""

    model = layer(name, dtype)

    def f(x: Tensor) -> Any:
        parameters = {key: parameter.to(x.device) for key, parameter in model.named_parameters()}
        output, last = torch.func.functional_call(model, parameters, (x.to(dtype),))
        return torch.cat([state.flatten() for state in (output, *(last if isinstance(last, tuple) else (last,)))]).to(x)

    return f


SINGLE = ("LSTM", "LSTM of two layers in both directions", "LSTM without biases", "LSTM in evaluation")

CASES: list[OpCase] = [
    *(use(name, states(name, torch.float64), (2, 1, 2), orders=(1, 2)) for name in LAYERS),
    *(
        use(
            f"{name} in single precision",
            states(name, torch.float32),
            (2, 1, 2),
            orders=(1, 2),
            reference=states(name, torch.float64),
            tolerance=1e-4,
        )
        for name in SINGLE
    ),
    use("LSTM without a batch", states("LSTM", torch.float64), (2, 2), orders=(1, 2, 3)),
    use("GRU without a batch", states("GRU", torch.float64), (2, 2), orders=(1, 2, 3)),
]


@every_row(CASES)
def test_layers(case: OpCase, order: int, device: torch.device) -> None:
    case.check(order, device)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_layers_by_their_parameters(name: str, dtype: torch.dtype, device: torch.device) -> None:
    def loss(dtype: torch.dtype) -> Callable[..., Tensor]:
        model = layer(name, dtype).to(device)
        x = rand(device, 2, 1, 2).to(dtype)
        return lambda parameters: torch.func.functional_call(model, parameters, (x,))[0].sin().sum()

    def parameters(dtype: torch.dtype) -> dict[str, Tensor]:
        return {key: value.detach() for key, value in layer(name, dtype).to(device).named_parameters()}

    got = hofunc.hessian(loss(dtype))(parameters(dtype))
    expected = nested_reverse(loss(torch.float64), 2)(parameters(torch.float64))
    for key, row in expected.items():
        for other, block in row.items():
            assert relative_error(got[key][other].double(), block) < (1e-10 if dtype == torch.float64 else 1e-4)


def test_layers_keep_the_batch(device: torch.device) -> None:
    model = layer("LSTM", torch.float64).to(device)
    derivative = hofunc.hod(lambda x: model(x)[0].sum((0, 2)), 2, layout="compact")(rand(device, 2, 3, 2))
    assert derivative.dense(keep_batch=True).shape == (3, 2, 2, 2, 2)


def test_layers_of_one_op_are_taken_apart_in_inference_mode(device: torch.device) -> None:
    model, x = layer("LSTM", torch.float32).to(device), rand(device, 2, 1, 2).float()
    expected = hofunc.hessian(lambda x: model(x)[0].sum())(x)
    with torch.inference_mode():
        torch.testing.assert_close(hofunc.hessian(lambda x: model(x)[0].sum())(x), expected)
