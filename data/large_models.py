"""Language models of published sizes, for plans of devices that are not here.

Their weights are made by initializers of PyTorch, so that tracing allocates none of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from data.models import gpt2

Sample = tuple[tuple[Any, ...], dict[str, Any]]


def gpt2_xl(batch: int = 8, tokens: int = 1024, dropout: float = 0.0) -> tuple[nn.Module, Sample]:
    """GPT-2 XL: 1.56 billion parameters in float32 (Radford et al., 2019, Table 2)."""
    return gpt2(48, 1600, 25, 50257, batch, tokens, dropout)


def llama2_7b(
    batch: int = 4, tokens: int = 512, layers: int = 32, dtype: str = "float32"
) -> tuple[nn.Module, Sample]:
    """Llama 2 7B: 6.74 billion parameters (Touvron et al., *LLaMA*, 2023, Table 2, and *Llama 2*,
    2023, 2.1), called with labels, so that the model computes the loss. Batch and tokens are those
    of Z, Table 4.2."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=4096,
        intermediate_size=11008,
        num_attention_heads=32,
        vocab_size=32000,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        use_cache=False,
    )
    words = torch.randint(0, config.vocab_size, (batch, tokens))
    model: nn.Module = LlamaForCausalLM(config)
    return model.to(getattr(torch, dtype)).train(), (
        (),
        {"input_ids": words, "labels": words.clone()},
    )


def llama3_8b(batch: int = 8, tokens: int = 4096, layers: int = 32) -> tuple[nn.Module, Sample]:
    """Llama 3 8B: 8.03 billion parameters in bfloat16 (Grattafiori et al., *The Llama 3 Herd of
    Models*, 2024, Table 3), called with labels, so that the model computes the loss."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=4096,
        intermediate_size=14336,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        use_cache=False,
    )
    words = torch.randint(0, config.vocab_size, (batch, tokens))
    model: nn.Module = LlamaForCausalLM(config)
    return model.to(torch.bfloat16).train(), ((), {"input_ids": words, "labels": words.clone()})
