"""Models of transformers, tiny, with random weights and their default attention."""

from typing import Any

import torch
from torch import Tensor

from verification.zoo.entry import Case, Library

transformers = Library("transformers")

_SMALL = {"vocab_size": 11, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2}


def _by_embeddings(model: Any, **others: Any) -> Case:
    """Return what a model makes of the last of two tokens, by their embeddings."""
    model = model.eval()

    def f(x: Tensor) -> Tensor:
        return model(inputs_embeds=x, **others)[0][:, -1]

    return f, (0.5 * torch.randn(1, 2, 4),)


@transformers
def gpt2() -> Case:
    """Differentiate by the embeddings."""
    from transformers import GPT2Config, GPT2Model

    return _by_embeddings(GPT2Model(GPT2Config(vocab_size=11, n_positions=8, n_embd=4, n_layer=1, n_head=2)))


@transformers
def llama() -> Case:
    """Differentiate by the embeddings."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(**_SMALL, intermediate_size=8, num_key_value_heads=1)
    return _by_embeddings(LlamaModel(config), use_cache=False)


@transformers
def mistral() -> Case:
    """Differentiate by the embeddings."""
    from transformers import MistralConfig, MistralModel

    config = MistralConfig(**_SMALL, intermediate_size=8, num_key_value_heads=1)
    return _by_embeddings(MistralModel(config), use_cache=False)


@transformers
def bert() -> Case:
    """Differentiate by the embeddings."""
    from transformers import BertConfig, BertModel

    return _by_embeddings(BertModel(BertConfig(**_SMALL, intermediate_size=8)))


@transformers
def roberta_scores() -> Case:
    """Differentiate the scores of a sentence by the embeddings."""
    from transformers import RobertaConfig, RobertaForSequenceClassification

    model = RobertaForSequenceClassification(RobertaConfig(**_SMALL, intermediate_size=8)).eval()
    return lambda x: model(inputs_embeds=x).logits, (0.5 * torch.randn(1, 2, 4),)


@transformers
def mamba() -> Case:
    """Differentiate by the embeddings."""
    from transformers import MambaConfig, MambaModel

    config = MambaConfig(vocab_size=11, hidden_size=4, state_size=2, num_hidden_layers=1, expand=1, time_step_rank=2)
    return _by_embeddings(MambaModel(config), use_cache=False)


@transformers
def t5() -> Case:
    """Differentiate by the embeddings of what is read."""
    from transformers import T5Config, T5Model

    config = T5Config(vocab_size=11, d_model=4, d_kv=2, d_ff=8, num_layers=1, num_heads=2)
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


@transformers
def gpt2_loss_by_a_weight() -> Case:
    """Differentiate the loss of a sentence by the weights of a layer norm."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=7, n_positions=8, n_embd=4, n_layer=1, n_head=2)).eval()
    ids, name = torch.tensor([[1, 5, 2]]), "transformer.h.0.ln_1.weight"

    def f(weight: Tensor) -> Tensor:
        return torch.func.functional_call(model, {name: weight}, (), {"input_ids": ids, "labels": ids}).loss

    return f, (model.get_parameter(name).detach().clone(),)
