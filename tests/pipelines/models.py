"""Models to run as pipelines, each a factory with a loss."""

from __future__ import annotations

from typing import Any

import torch

from data.models import gpt2_loss, resnet


def gpt2(dropout: float = 0.1, layers: int = 6) -> tuple[Any, ...]:
    """A small GPT-2 with tied embeddings."""
    sizes = {"width": 96, "heads": 4, "vocabulary": 500, "batch": 2, "tokens": 64}
    return gpt2_loss(layers=layers, dropout=dropout, **sizes)


def gpt2_plain() -> tuple[Any, ...]:
    """The same without dropout."""
    return gpt2(dropout=0.0)


def resnet50(batch: int = 2, size: int = 64) -> tuple[Any, ...]:
    """A ResNet-50 on small images, with the statistics of each microbatch."""
    model, sample = resnet("resnet50", batch, size)
    labels = torch.arange(batch) * 7

    def loss(output: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(output, labels)

    return model, sample, loss


def t5(dropout: float = 0.1) -> tuple[Any, ...]:
    """A T5 whose decoder reads what the encoder made, with an embedding that three places share."""
    from transformers import T5Config, T5ForConditionalGeneration

    decoding: dict[str, Any] = {"decoder_start_token_id": 0, "pad_token_id": 0, "use_cache": False}
    config = T5Config(
        vocab_size=500,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=4,
        num_decoder_layers=2,
        num_heads=4,
        dropout_rate=dropout,
        **decoding,
    )
    inputs = {"input_ids": torch.randint(1, 500, (2, 48)), "labels": torch.randint(1, 500, (2, 32))}
    return T5ForConditionalGeneration(config).train(), ((), inputs), lambda output: output.loss
