"""Recurrent layers that torch computes in one op: a step after the other. All others are recorded as their steps."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hofunc.errors import UnsupportedOpError
from hofunc.rules.registry import define_composite

aten = torch.ops.aten

LSTM = 2  # of the kinds of layers that oneDNN has


def _layer(
    x: Tensor,
    from_input: Tensor,
    from_hidden: Tensor,
    input_bias: Tensor,
    hidden_bias: Tensor,
    hidden: Tensor,
    cell: Tensor,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    *_: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    if mode != LSTM or batch_sizes:
        raise UnsupportedOpError(
            "hofunc: no rule for aten.mkldnn_rnn_layer.default of this kind",
            got=f"mode {mode}, batch sizes {tuple(batch_sizes)}",
            expected="an LSTM, over sequences of one length",
            remedy="Compute in float64, or turn oneDNN off with torch.backends.mkldnn.flags(enabled=False).",
        )
    gates = x @ from_input.t()
    gates = gates + (input_bias + hidden_bias) if has_biases else gates
    h, c = hidden.reshape(-1, hidden_size), cell.reshape(-1, hidden_size)
    outputs: list[Tensor] = []
    for step in reversed(gates.unbind(0)) if reverse else gates.unbind(0):
        enter, forget, new, leave = (step + h @ from_hidden.t()).chunk(4, -1)
        c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
        h = leave.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs[::-1] if reverse else outputs), h.reshape(hidden.shape), c.reshape(cell.shape)


define_composite(aten.mkldnn_rnn_layer.default, _layer)
