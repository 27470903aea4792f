"""Speech models of transformers for `zoo.yaml`: small, random weights, random sound.

Factories as those of `data.models`.
"""

from __future__ import annotations

import torch
from torch import nn

from data.models import Sample

Factory = tuple[nn.Module, Sample]


def wav2vec2(layers: int = 2, width: int = 64, batch: int = 2, samples: int = 8000) -> Factory:
    """Wav2Vec2ForCTC on raw sound: convolutions over time, weight normalization, dropout."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    config = Wav2Vec2Config(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=4,
        intermediate_size=4 * width,
        conv_dim=(width,) * 7,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        layerdrop=0.0,
        apply_spec_augment=False,
    )
    return Wav2Vec2ForCTC(config).train(), ((torch.randn(batch, samples),), {})


def whisper(
    layers: int = 2, width: int = 64, vocabulary: int = 500, batch: int = 2, tokens: int = 32
) -> Factory:
    """WhisperForConditionalGeneration: a spectrogram is encoded, a text decoded."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        encoder_layers=layers,
        decoder_layers=layers,
        d_model=width,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        vocab_size=vocabulary,
        num_mel_bins=40,
        max_source_positions=100,
        max_target_positions=tokens,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        begin_suppress_tokens=None,
        use_cache=False,
    )
    inputs = {
        "input_features": torch.randn(batch, 40, 200),
        "decoder_input_ids": torch.randint(3, vocabulary, (batch, tokens)),
    }
    return WhisperForConditionalGeneration(config).train(), ((), inputs)


def spectrogram(layers: int = 3, width: int = 64, batch: int = 2, length: int = 128) -> Factory:
    """ASTForAudioClassification: a vision transformer on the overlapping patches of a
    spectrogram."""
    from transformers import ASTConfig, ASTForAudioClassification

    config = ASTConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=4,
        intermediate_size=4 * width,
        max_length=length,
        num_mel_bins=64,
    )
    return ASTForAudioClassification(config).train(), ((torch.randn(batch, length, 64),), {})
