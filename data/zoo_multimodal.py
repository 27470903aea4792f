"""Models of transformers that take images and text, for `zoo.yaml`: small, random weights.

Factories as those of `data.models` and `data.zoo_text`.
"""

from __future__ import annotations

from typing import Any

import torch

from data.zoo_text import Factory, FactoryWithLoss, model_output_loss


def clip(
    layers: int = 2, width: int = 64, vocabulary: int = 500, batch: int = 4, size: int = 64
) -> FactoryWithLoss:
    """CLIPModel: two towers that meet in the contrastive loss, the model's own."""
    from transformers import CLIPConfig, CLIPModel

    tower = _tower(layers, width)
    config = CLIPConfig(
        text_config={
            **tower,
            "vocab_size": vocabulary,
            "max_position_embeddings": 16,
            "eos_token_id": vocabulary - 1,
        },
        vision_config={**tower, "image_size": size, "patch_size": 8},
        projection_dim=width,
    )
    inputs = {**_pairs(vocabulary, batch, size), "return_loss": True}
    return CLIPModel(config).train(), ((), inputs), model_output_loss


def blip(
    layers: int = 2, width: int = 64, vocabulary: int = 500, batch: int = 2, size: int = 64
) -> Factory:
    """BlipForConditionalGeneration: text that attends to an image."""
    from transformers import BlipConfig, BlipForConditionalGeneration

    tower = _tower(layers, width)
    config = BlipConfig(
        text_config={
            **tower,
            "encoder_hidden_size": width,
            "vocab_size": vocabulary,
            "max_position_embeddings": 16,
            "bos_token_id": 1,
            "sep_token_id": 2,
            "use_cache": False,
        },
        vision_config={**tower, "image_size": size, "patch_size": 8},
    )
    inputs = _pairs(vocabulary, batch, size)
    return BlipForConditionalGeneration(config).train(), ((), inputs)


def vilt(
    layers: int = 2, width: int = 64, vocabulary: int = 500, batch: int = 2, size: int = 64
) -> Factory:
    """ViltModel: draws the patches that it looks at, so that shapes hang on the data."""
    from transformers import ViltConfig, ViltModel

    config = ViltConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=4,
        intermediate_size=4 * width,
        vocab_size=vocabulary,
        image_size=size,
        patch_size=8,
    )
    return ViltModel(config).train(), ((), _pairs(vocabulary, batch, size))


def _tower(layers: int, width: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": 4,
        "intermediate_size": 4 * width,
        "projection_dim": width,
    }


def _pairs(vocabulary: int, batch: int, size: int) -> dict[str, Any]:
    return {
        "input_ids": torch.randint(3, vocabulary, (batch, 16)),
        "pixel_values": torch.randn(batch, 3, size, size),
    }
