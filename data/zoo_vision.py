"""Image models of transformers and pytorchcv for `zoo.yaml`: small, random weights.

Factories as those of `data.models`; images are square and have three colors.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from data.models import Sample

Factory = tuple[nn.Module, Sample]


def convnet(family: str, name: str, batch: int = 4, size: int = 64) -> Factory:
    """The network `name` of pytorchcv's module `family`, its last pooling fitted to the image."""
    model = getattr(importlib.import_module(f"pytorchcv.models.{family}"), name)()
    for module in model.modules():
        if isinstance(getattr(module, "final_pool", None), nn.AvgPool2d):
            module.final_pool = nn.AdaptiveAvgPool2d(1)
    return model.train(), (_images(batch, size), {})


def vit(layers: int = 3, width: int = 96, batch: int = 4, size: int = 64) -> Factory:
    """ViTForImageClassification on patches of 8 pixels."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=4,
        intermediate_size=4 * width,
        image_size=size,
        patch_size=8,
    )
    return ViTForImageClassification(config).train(), (_images(batch, size), {})


def beit(
    layers: int = 4, width: int = 96, batch: int = 4, size: int = 64, drop_path: float = 0.1
) -> Factory:
    """BeitForImageClassification: a ViT whose layers are each left out of a share of the images, up
    to `drop_path`."""
    from transformers import BeitConfig, BeitForImageClassification

    config = BeitConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=4,
        intermediate_size=4 * width,
        image_size=size,
        patch_size=8,
        drop_path_rate=drop_path,
    )
    return BeitForImageClassification(config).train(), (_images(batch, size), {})


def swin(width: int = 32, batch: int = 4, size: int = 64) -> Factory:
    """SwinForImageClassification: attention in shifted windows, two stages."""
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=size,
        embed_dim=width,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        drop_path_rate=0.0,
    )
    return SwinForImageClassification(config).train(), (_images(batch, size), {})


def convnext(width: int = 32, batch: int = 4, size: int = 64, drop_path: float = 0.0) -> Factory:
    """ConvNextForImageClassification: layer normalization over channels, three stages; each layer
    is left out of a share of the images, up to `drop_path`."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(
        num_stages=3,
        hidden_sizes=[width, 2 * width, 4 * width],
        depths=[2, 2, 2],
        image_size=size,
        drop_path_rate=drop_path,
    )
    return ConvNextForImageClassification(config).train(), (_images(batch, size), {})


def segformer(width: int = 16, batch: int = 2, size: int = 64) -> Factory:
    """SegformerForSemanticSegmentation: four resolutions that meet in the head, with its dropout
    of layers."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    labels: dict[str, Any] = {"num_labels": 10}
    config = SegformerConfig(
        depths=[1, 1, 1, 1],
        hidden_sizes=[width, 2 * width, 4 * width, 8 * width],
        num_attention_heads=[1, 2, 4, 8],
        decoder_hidden_size=4 * width,
        **labels,
    )
    return SegformerForSemanticSegmentation(config).train(), (_images(batch, size), {})


def _images(batch: int, size: int) -> tuple[torch.Tensor]:
    return (torch.randn(batch, 3, size, size),)
