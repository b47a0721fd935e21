"""Attention: the kernels that fuse it, and whole layers of it, from the formula."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hofunc.errors import UnsupportedOpError
from hofunc.internals import OpOverload, schema_of
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
    key, value = _for_all(query, key), _for_all(query, value)
    return _weights(query, key, bias, is_causal, _scale(query, scale)) @ value


def _attention_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    bias: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients by query, key, value and bias, given that by the result."""
    scale, given = _scale(query, scale), (key, value)
    key, value = _for_all(query, key), _for_all(query, value)
    weights = _weights(query, key, bias, is_causal, scale)
    by_weights = gradient @ value.transpose(-2, -1)
    scores = aten._softmax_backward_data(by_weights, weights, -1, weights.dtype)
    by_value = weights.transpose(-2, -1) @ gradient
    by_bias = None if bias is None else scores.sum_to_size(bias.shape)
    of_all = scores.transpose(-2, -1) @ query * scale, by_value
    by_key, by_value = (_of_groups(each, like) for each, like in zip(of_all, given, strict=True))
    return scores @ key * scale, by_key, by_value, by_bias


def _for_all(query: Tensor, shared: Tensor) -> Tensor:
    """Return keys or values for all heads of queries, of which groups may share one."""
    heads = query.shape[-3]
    if shared.shape[-3] == heads:
        return shared
    groups = shared.unsqueeze(-3)
    return groups.expand(*groups.shape[:-3], heads // shared.shape[-3], *groups.shape[-2:]).flatten(-4, -3)


def _of_groups(gradient: Tensor, shared: Tensor) -> Tensor:
    """Return the gradient by keys or values that groups of heads share, given that by those of all heads."""
    heads = shared.shape[-3]
    return gradient if gradient.shape[-3] == heads else gradient.unflatten(-3, (heads, -1)).sum(-3)


def _scale(query: Tensor, scale: float | None) -> float:
    return query.shape[-1] ** -0.5 if scale is None else scale


def _weights(query: Tensor, key: Tensor, bias: Tensor | None, is_causal: bool, scale: float) -> Tensor:
    scores = query @ key.transpose(-2, -1) * scale
    if is_causal:
        allowed = scores.detach().new_ones(scores.shape[-2:]).tril() > 0
        scores = scores.masked_fill(~allowed, -torch.inf)
    if bias is not None:
        scores = scores + bias
    return scores.softmax(-1)


def _define_kernel(op: OpOverload) -> None:
    """Enter a fused kernel, or its backward, whose arguments are found by the names in its schema.

    What a backward is given of the forward's results, it has from the inputs, on which these depend.
    """
    names = [argument.name for argument in schema_of(op).arguments]

    def function(*args: Any, **kwargs: Any) -> tuple[Tensor | None, ...]:
        given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
        if given.get("dropout_p"):
            raise UnsupportedOpError(
                f"hofunc: {op}",
                got=f"dropout_p={given['dropout_p']}",
                expected="attention without dropout inside the fused kernel, whose mask is not to be had",
                remedy="Set dropout to zero, or use torch.nn.attention.sdpa_kernel(SDPBackend.MATH).",
            )
        tensors = given["query"], given["key"], given["value"]
        options = {"is_causal": given.get("is_causal", False), "scale": given.get("scale")}
        options["bias"] = given.get("attn_mask", given.get("attn_bias"))
        gradient = given.get("grad_out", given.get("grad_out_"))
        if gradient is None:
            return (attention(*tensors, **options),)
        return _attention_backward(gradient, *tensors, **options)

    define_composite(op, function)


for _op in (
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    aten._scaled_dot_product_flash_attention_backward.default,
    aten._scaled_dot_product_efficient_attention_backward.default,
    aten._scaled_dot_product_cudnn_attention_backward.default,
):
    _define_kernel(_op)


# The fused layers that torch.nn runs in eval mode when no parameter needs a gradient.

PADDING_MASK = 1  # of torch's numbers for kinds of mask; the other kinds broadcast as they are


def _multi_head(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    heads: int,
    weight: Tensor,
    bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    def projected(x: Tensor, part: int) -> Tensor:
        rows = slice(part * embed_dim, (part + 1) * embed_dim)
        return (x @ weight[rows].t() + bias[rows]).unflatten(-1, (heads, -1)).transpose(1, 2)

    q, k, v = (projected(x, part) for part, x in enumerate((query, key, value)))
    scores = q @ k.transpose(-2, -1) * (embed_dim // heads) ** -0.5
    if mask is not None:
        hidden = mask.to(torch.bool)
        hidden = hidden[:, None, None, :] if mask_type == PADDING_MASK else hidden
        scores = scores.masked_fill(hidden, -torch.inf)
    weights = scores.softmax(-1)
    y = (weights @ v).transpose(1, 2).flatten(2) @ out_weight.t() + out_bias
    return y, (weights.mean(1) if average_weights else weights) if need_weights else None


def _encoder_layer(
    x: Tensor,
    embed_dim: int,
    heads: int,
    weight: Tensor,
    bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    *rest: Any,
) -> Tensor:
    norm_weight, norm_bias, norm_weight2, norm_bias2, weight1, bias1, weight2, bias2, *masks = rest
    mask, mask_type = (*masks, None, None)[:2]

    def attended(x: Tensor) -> Tensor:
        packed = weight, bias, out_weight, out_bias, mask, False, False, mask_type
        return _multi_head(x, x, x, embed_dim, heads, *packed)[0]

    def fed_forward(x: Tensor) -> Tensor:
        hidden = x @ weight1.t() + bias1
        return (functional.gelu(hidden) if use_gelu else hidden.relu()) @ weight2.t() + bias2

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.layer_norm(x, (embed_dim,), weight, bias, eps)

    if norm_first:
        x = x + attended(norm(x, norm_weight, norm_bias))
        return x + fed_forward(norm(x, norm_weight2, norm_bias2))
    x = norm(x + attended(x), norm_weight, norm_bias)
    return norm(x + fed_forward(x), norm_weight2, norm_bias2)


define_composite(aten._native_multi_head_attention.default, _multi_head)
define_composite(aten._transformer_encoder_layer_fwd.default, _encoder_layer)
