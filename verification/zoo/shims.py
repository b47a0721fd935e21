"""What pinned libraries look for on import that this torch, or its build for the CPU, does not have.

None of it is used by what is differentiated.
"""

import os
from typing import TypeVar

import torch
from torch.utils.data import dataloader

_OPS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def install() -> list[torch.library.Library]:
    """Set it up; returns what has to be kept."""
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # of e3nn 0.4, which loads its constants
    os.environ["DDE_BACKEND"] = "pytorch"
    if not hasattr(dataloader, "T_co"):
        dataloader.T_co = TypeVar("T_co", covariant=True)  # type: ignore[attr-defined] # of schnetpack 2.0
    fragment = torch.library.Library("torchvision", "FRAGMENT")  # whose extension is built for CUDA
    for op in _OPS:
        fragment.define(op)
    return [fragment]
