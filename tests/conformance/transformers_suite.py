"""transformers' architectures in tiny sizes, made from nothing: one training step with labels."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.battery.case import Case
from tests.conformance.suite import Group, Suite, copy_inputs, seed_everything
from tests.conformance.tiny_configs import LARGEST, tiny_config

Inputs = dict[str, torch.Tensor]
BATCH, TOKENS, SAMPLES = 2, 12, 6400


def _tokens(config: Any) -> torch.Tensor:
    size = getattr(config.get_text_config(), "vocab_size", 99)
    return torch.randint(3, size, (BATCH, TOKENS))


def _causal(config: Any) -> Inputs:
    tokens = _tokens(config)
    return {"input_ids": tokens, "labels": tokens.clone()}


def _masked(config: Any) -> Inputs:
    tokens = _tokens(config)
    mask = torch.ones_like(tokens)
    mask[0, -3:] = 0
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.clone()}


def _sequence_to_sequence(config: Any) -> Inputs:
    return {"input_ids": _tokens(config), "labels": _tokens(config)}


def _image(config: Any) -> torch.Tensor:
    size = getattr(config, "image_size", 32)
    size = tuple(size) if isinstance(size, list | tuple) else (size, size)
    return torch.randn(BATCH, getattr(config, "num_channels", 3), *size)


def _images(config: Any) -> Inputs:
    return {"pixel_values": _image(config), "labels": torch.randint(2, (BATCH,))}


def _speech(config: Any) -> Inputs:
    encoder = getattr(config, "encoder_config", config)
    bins: Any = getattr(encoder, "num_mel_bins", None)
    if config.model_type == "whisper":
        return {"input_features": torch.randn(BATCH, bins, 2 * config.max_source_positions)}
    if config.model_type == "audio-spectrogram-transformer":
        return {"input_values": torch.randn(BATCH, config.max_length, bins)}
    if bins or config.model_type == "wav2vec2-bert":
        bins = bins or config.feature_projection_input_dim
        return {"input_features": torch.randn(BATCH, 64, bins)}
    return {"input_values": torch.randn(BATCH, SAMPLES)}


def _ctc(config: Any) -> Inputs:
    return {**_speech(config), "labels": torch.randint(1, config.vocab_size, (BATCH, 3))}


def _audio(config: Any) -> Inputs:
    return {**_speech(config), "labels": torch.randint(2, (BATCH,))}


def _speech_to_text(config: Any) -> Inputs:
    frames = 2 * getattr(config, "max_source_positions", 64)
    features = torch.randn(BATCH, getattr(config, "num_mel_bins", 16), frames)
    if config.model_type == "speech_to_text":
        features = features.transpose(1, 2).contiguous()
    return {"input_features": features, "labels": _tokens(config)}


MAPPINGS: dict[str, tuple[str, Callable[[Any], Inputs]]] = {
    "causal": ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", _causal),
    "masked": ("MODEL_FOR_MASKED_LM_MAPPING_NAMES", _masked),
    "sequence to sequence": ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", _sequence_to_sequence),
    "image": ("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", _images),
    "ctc": ("MODEL_FOR_CTC_MAPPING_NAMES", _ctc),
    "audio": ("MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES", _audio),
    "speech to text": ("MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", _speech_to_text),
}
"""The lists of architectures by task, and what makes their inputs."""


def _output_loss(output: Any) -> torch.Tensor:
    return output.loss


def architecture_cases(
    architecture: str, class_name: str, inputs: Callable[[Any], Inputs], seed: int
) -> list[Case]:
    """The case of one architecture and task; raises what its tiny configuration raises."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    transformers.logging.set_verbosity_error()
    kind = getattr(transformers, class_name)
    config = tiny_config(getattr(kind, "config_class", None) or CONFIG_MAPPING[architecture])
    if getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in kind(config).parameters())
    if count > LARGEST:
        raise ValueError(f"its tiny configuration has {count:,} parameters")

    def model() -> nn.Module:
        return kind(config).train()

    seed_everything(seed)
    given = inputs(config)
    return [Case(class_name, model, lambda _: ((), copy_inputs(given)), _output_loss)]


def _groups() -> list[Group]:
    from transformers.models.auto import modeling_auto

    return [
        Group(
            f"{task} {architecture}",
            partial(architecture_cases, architecture, each, inputs),
            ("transformers",),
        )
        for task, (mapping, inputs) in MAPPINGS.items()
        for architecture, names in getattr(modeling_auto, mapping).items()
        for each in ([names] if isinstance(names, str) else names[:1])
    ]


def _missing() -> str:
    return "" if importlib.util.find_spec("transformers") else "transformers is not installed"


TRANSFORMERS_SUITES = (Suite("transformers", _groups, _missing),)
