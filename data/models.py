"""Model factories for the shipped configuration and the tests: real architectures, random weights.

Each returns `(model in training mode, (args, kwargs))`; nothing is downloaded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

Sample = tuple[tuple[Any, ...], dict[str, Any]]


def gpt2(
    layers: int = 6,
    width: int = 384,
    heads: int = 6,
    vocabulary: int = 5000,
    batch: int = 4,
    tokens: int = 256,
    dropout: float = 0.0,
) -> tuple[nn.Module, Sample]:
    """transformers' GPT2LMHeadModel with tied embeddings."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=heads,
        vocab_size=vocabulary,
        n_positions=tokens,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return GPT2LMHeadModel(config).train(), ((_tokens(vocabulary, batch, tokens),), {})


def gpt2_loss(**sizes: Any) -> tuple[nn.Module, Sample, Any]:
    """`gpt2` with its tokens as labels, and the loss that it returns with its logits."""
    model, ((tokens,), _) = gpt2(**sizes)
    sample = ((), {"input_ids": tokens, "labels": tokens.clone()})
    return model, sample, lambda output: output.loss


def bert(
    layers: int = 2,
    width: int = 64,
    heads: int = 2,
    vocabulary: int = 200,
    batch: int = 2,
    tokens: int = 16,
    dropout: float = 0.1,
) -> tuple[nn.Module, Sample]:
    """transformers' BertForMaskedLM, called with keyword arguments and an attention mask."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        vocab_size=vocabulary,
        max_position_embeddings=tokens,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        use_cache=False,
    )
    inputs = {
        "input_ids": _tokens(vocabulary, batch, tokens),
        "attention_mask": torch.ones(batch, tokens, dtype=torch.int64),
    }
    return BertForMaskedLM(config).train(), ((), inputs)


def llama(
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    vocabulary: int = 200,
    batch: int = 2,
    tokens: int = 16,
    use_cache: bool = False,
) -> tuple[nn.Module, Sample]:
    """transformers' LlamaForCausalLM with half as many key and value heads as query heads."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        intermediate_size=3 * width,
        vocab_size=vocabulary,
        max_position_embeddings=tokens,
        use_cache=use_cache,
    )
    inputs = {"input_ids": _tokens(vocabulary, batch, tokens)}
    return LlamaForCausalLM(config).train(), ((), inputs)


def resnet(name: str = "resnet50", batch: int = 4, size: int = 224) -> tuple[nn.Module, Sample]:
    """A residual network of pytorchcv ("resnet10", "resnet50") on square color images.

    `size` is a multiple of 32; the last pooling is fitted to it.
    """
    from pytorchcv.models import resnet as family

    model = getattr(family, name)()
    model.features.final_pool = nn.AvgPool2d(kernel_size=size // 32, stride=1)
    return model.train(), ((torch.randn(batch, 3, size, size),), {})


def resnet50(batch: int = 4, size: int = 224) -> tuple[nn.Module, Sample]:
    """pytorchcv's ResNet-50."""
    return resnet("resnet50", batch, size)


def _tokens(vocabulary: int, batch: int, tokens: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, tokens))
