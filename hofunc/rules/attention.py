"""Scaled dot-product attention: the kernels that fuse it, from the formula."""

from typing import Any

import torch
from torch import Tensor

from hofunc.errors import UnsupportedOpError
from hofunc.rules.registry import define_composite

aten = torch.ops.aten


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    bias: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Return scaled dot-product attention, from its formula."""
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        allowed = scores.detach().new_ones(scores.shape[-2:]).tril() > 0
        scores = scores.masked_fill(~allowed, -torch.inf)
    if bias is not None:
        scores = scores + bias
    return scores.softmax(-1) @ value


def _define_kernel(op: torch._ops.OpOverload) -> None:
    """Enter a fused kernel, whose arguments are found by the names in its schema."""
    names = [argument.name for argument in op._schema.arguments]

    def function(*args: Any, **kwargs: Any) -> tuple[Tensor]:
        given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
        if given.get("dropout_p"):
            raise UnsupportedOpError(
                f"hofunc: {op}",
                got=f"dropout_p={given['dropout_p']}",
                expected="attention without dropout inside the fused kernel, whose mask is not to be had",
                remedy="Set dropout to zero, or use torch.nn.attention.sdpa_kernel(SDPBackend.MATH).",
            )
        bias = given.get("attn_mask", given.get("attn_bias"))
        query, key, value = given["query"], given["key"], given["value"]
        return (
            attention(query, key, value, bias=bias, is_causal=given.get("is_causal", False), scale=given.get("scale")),
        )

    define_composite(op, function)


for _op in (
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
):
    _define_kernel(_op)
