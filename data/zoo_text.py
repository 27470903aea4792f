"""Text models of transformers for `zoo.yaml`: small, random weights, nothing downloaded.

Factories as those of `data.models`; those that return three things give the model's own loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from data.models import Sample

Factory = tuple[nn.Module, Sample]
FactoryWithLoss = tuple[nn.Module, Sample, Callable[[Any], torch.Tensor]]


def model_output_loss(output: Any) -> torch.Tensor:
    """The loss that a model of transformers computes when it is given labels."""
    return output.loss


def t5(
    layers: int = 2, width: int = 64, vocabulary: int = 500, batch: int = 4, tokens: int = 64
) -> FactoryWithLoss:
    """T5ForConditionalGeneration: encoder and decoder, relative positions, dropout, its loss."""
    from transformers import T5Config, T5ForConditionalGeneration

    decoding: dict[str, Any] = {"decoder_start_token_id": 0, "use_cache": False}
    config = T5Config(
        num_layers=layers,
        d_model=width,
        d_kv=width // 4,
        d_ff=4 * width,
        num_heads=4,
        vocab_size=vocabulary,
        **decoding,
    )
    inputs = {
        "input_ids": _tokens(vocabulary, batch, tokens),
        "labels": _tokens(vocabulary, batch, tokens // 2),
    }
    return T5ForConditionalGeneration(config).train(), ((), inputs), model_output_loss


def bart(
    layers: int = 2, width: int = 64, vocabulary: int = 500, batch: int = 4, tokens: int = 64
) -> Factory:
    """BartForConditionalGeneration without dropout, the encoder's states among its outputs."""
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(
        encoder_layers=layers,
        decoder_layers=layers,
        d_model=width,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        vocab_size=vocabulary,
        max_position_embeddings=tokens,
        dropout=0.0,
        use_cache=False,
    )
    inputs = {
        "input_ids": _tokens(vocabulary, batch, tokens),
        "decoder_input_ids": _tokens(vocabulary, batch, tokens // 2),
    }
    return BartForConditionalGeneration(config).train(), ((), inputs)


def albert(
    layers: int = 3, width: int = 64, vocabulary: int = 500, batch: int = 4, tokens: int = 64
) -> Factory:
    """AlbertForMaskedLM: all layers share their weights."""
    from transformers import AlbertConfig, AlbertForMaskedLM

    config = AlbertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        embedding_size=width // 2,
        num_attention_heads=4,
        intermediate_size=4 * width,
        vocab_size=vocabulary,
        max_position_embeddings=tokens,
        classifier_dropout_prob=0.0,
    )
    return AlbertForMaskedLM(config).train(), ((_tokens(vocabulary, batch, tokens),), {})


def gpt_neox(
    layers: int = 3, width: int = 64, vocabulary: int = 500, batch: int = 4, tokens: int = 64
) -> FactoryWithLoss:
    """GPTNeoXForCausalLM: attention and feed-forward side by side, rotary positions, its loss."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=4,
        intermediate_size=4 * width,
        vocab_size=vocabulary,
        max_position_embeddings=tokens,
        use_cache=False,
    )
    text = _tokens(vocabulary, batch, tokens)
    model = GPTNeoXForCausalLM(config).train()
    return model, ((), {"input_ids": text, "labels": text}), model_output_loss


def mixtral(
    layers: int = 2,
    width: int = 64,
    experts: int = 4,
    vocabulary: int = 500,
    batch: int = 2,
    tokens: int = 32,
    multiply: str = "batched_mm",
) -> Factory:
    """MixtralForCausalLM: each token is routed to two experts.

    `multiply` is how the experts' matrices are multiplied: "batched_mm", or "grouped_mm", an
    operator of transformers' own.
    """
    from transformers import MixtralConfig, MixtralForCausalLM

    experts_are: dict[str, Any] = {"experts_implementation": multiply}
    config = MixtralConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=2 * width,
        num_local_experts=experts,
        vocab_size=vocabulary,
        max_position_embeddings=tokens,
        use_cache=False,
        **experts_are,
    )
    return MixtralForCausalLM(config).train(), ((_tokens(vocabulary, batch, tokens),), {})


def mamba(
    layers: int = 2, width: int = 64, vocabulary: int = 500, batch: int = 4, tokens: int = 12
) -> Factory:
    """MambaForCausalLM: a state that is carried from token to token, written out."""
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        state_size=8,
        vocab_size=vocabulary,
        use_cache=False,
        use_associative_scan=False,
    )
    return MambaForCausalLM(config).train(), ((_tokens(vocabulary, batch, tokens),), {})


def fnet(
    layers: int = 3, width: int = 64, vocabulary: int = 500, batch: int = 4, tokens: int = 64
) -> Factory:
    """FNetForMaskedLM: Fourier transforms in the place of attention."""
    from transformers import FNetConfig, FNetForMaskedLM

    config = FNetConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=4 * width,
        vocab_size=vocabulary,
        max_position_embeddings=tokens,
    )
    return FNetForMaskedLM(config).train(), ((_tokens(vocabulary, batch, tokens),), {})


def deberta(
    layers: int = 2, width: int = 64, vocabulary: int = 500, batch: int = 4, tokens: int = 48
) -> Factory:
    """DebertaV2ForMaskedLM: attention between contents and relative positions, dropout."""
    from transformers import DebertaV2Config, DebertaV2ForMaskedLM

    attention: dict[str, Any] = {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 16,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
    }
    config = DebertaV2Config(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=4,
        intermediate_size=4 * width,
        vocab_size=vocabulary,
        max_position_embeddings=tokens,
        **attention,
    )
    return DebertaV2ForMaskedLM(config).train(), ((_tokens(vocabulary, batch, tokens),), {})


def _tokens(vocabulary: int, batch: int, tokens: int) -> torch.Tensor:
    return torch.randint(3, vocabulary, (batch, tokens))
