"""Models of transformers, tiny, with random weights and their default attention.

Torch cannot differentiate that attention twice, and differentiates layer_norm wrongly (see
docs/explanations/torch-errors.md). So the oracles differentiate the same models with eager attention and the norm
written out; but not ViT, whose eager attention is rounded to single precision.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from verification.zoo.entry import Case, Library

transformers = Library("transformers")

_SMALL = {"vocab_size": 11, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2}
_EAGER = {"attn_implementation": "eager"}

Configured = Callable[..., Case]  # a case, of a model that is configured by keyword arguments


def _normalised(x: Tensor, shape: Any, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    assert tuple(shape) == x.shape[-1:]
    return centred / ((centred**2).mean(-1, keepdim=True) + eps).sqrt() * weight + bias


def _also_eager(make: Configured) -> Configured:
    """Enter a model, and one for the oracles."""

    def eager() -> Case:
        f, arguments = make(**_EAGER)

        @wraps(f)
        def written_out(*tensors: Tensor) -> Any:
            with mock.patch("torch.nn.functional.layer_norm", _normalised):
                return f(*tensors)

        return written_out, arguments

    return transformers.entry(like=eager)(make)


def _by_embeddings(model: Any, **others: Any) -> Case:
    """Return what a model makes of the last of two tokens, by their embeddings."""
    model = model.eval()

    def f(x: Tensor) -> Tensor:
        return model(inputs_embeds=x, **others)[0][:, -1]

    return f, (0.5 * torch.randn(1, 2, 4),)


@_also_eager
def gpt2(**options: Any) -> Case:
    """Differentiate by the embeddings."""
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(vocab_size=11, n_positions=8, n_embd=4, n_layer=1, n_head=2, **options)
    return _by_embeddings(GPT2Model(config))


@_also_eager
def llama(**options: Any) -> Case:
    """Differentiate by the embeddings."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(**_SMALL, intermediate_size=8, num_key_value_heads=1, **options)
    return _by_embeddings(LlamaModel(config), use_cache=False)


@_also_eager
def mistral(**options: Any) -> Case:
    """Differentiate by the embeddings."""
    from transformers import MistralConfig, MistralModel

    config = MistralConfig(**_SMALL, intermediate_size=8, num_key_value_heads=1, **options)
    return _by_embeddings(MistralModel(config), use_cache=False)


@_also_eager
def bert(**options: Any) -> Case:
    """Differentiate by the embeddings."""
    from transformers import BertConfig, BertModel

    return _by_embeddings(BertModel(BertConfig(**_SMALL, intermediate_size=8, **options)))


@_also_eager
def roberta_scores(**options: Any) -> Case:
    """Differentiate the scores of a sentence by the embeddings."""
    from transformers import RobertaConfig, RobertaForSequenceClassification

    config = RobertaConfig(**_SMALL, intermediate_size=8, **options)
    model = RobertaForSequenceClassification(config).eval()
    return lambda x: model(inputs_embeds=x).logits, (0.5 * torch.randn(1, 2, 4),)


@transformers
def mamba() -> Case:
    """Differentiate by the embeddings."""
    from transformers import MambaConfig, MambaModel

    config = MambaConfig(vocab_size=11, hidden_size=4, state_size=2, num_hidden_layers=1, expand=1, time_step_rank=2)
    return _by_embeddings(MambaModel(config), use_cache=False)


@_also_eager
def t5(**options: Any) -> Case:
    """Differentiate by the embeddings of what is read."""
    from transformers import T5Config, T5Model

    config = T5Config(vocab_size=11, d_model=4, d_kv=2, d_ff=8, num_layers=1, num_heads=2, **options)
    return _by_embeddings(T5Model(config), decoder_input_ids=torch.tensor([[1, 2]]), use_cache=False)


@transformers
def vit() -> Case:
    """Differentiate by the pixels."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        image_size=4,
        patch_size=2,
        num_channels=1,
    )
    model = ViTModel(config).eval()
    return lambda x: model(x)[0][:, 0], (torch.randn(1, 1, 4, 4),)


@_also_eager
def gpt2_loss_by_a_weight(**options: Any) -> Case:
    """Differentiate the loss of a sentence by the weights of a layer norm."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 7, "n_positions": 8, "n_embd": 4, "n_layer": 1, "n_head": 2}
    config = GPT2Config(**sizes, initializer_range=0.5, bos_token_id=0, eos_token_id=0, **options)
    model = GPT2LMHeadModel(config).eval()
    ids, name = torch.tensor([[1, 5, 2]]), "transformer.h.0.ln_1.weight"

    def f(weight: Tensor) -> Tensor:
        return torch.func.functional_call(model, {name: weight}, (), {"input_ids": ids, "labels": ids}).loss

    return f, (model.get_parameter(name).detach().clone(),)
