"""What hofunc reads of how torch saves tensors: every fact, on the torch that is installed."""

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from hofunc.internals_saving import saving_hooks, without_modes
from tests.test_internals import Functions, Ops


def test_the_hooks_that_are_set() -> None:
    def pack(tensor: Tensor) -> Tensor:
        return tensor

    assert saving_hooks() is None
    with saved_tensors_hooks(pack, pack):
        assert saving_hooks() == (pack, pack)
        with save_on_cpu():
            assert saving_hooks() != (pack, pack)
        assert saving_hooks() == (pack, pack)
    assert saving_hooks() is None


def test_no_mode_looks_on() -> None:
    x = torch.ones(3)
    with Ops() as ops, Functions() as functions:
        with without_modes():
            x.sin().detach()
        assert not ops.ops
        assert not functions.called
        x.sin()
    assert len(ops.ops) == 1
    assert torch.Tensor.sin in functions.called
