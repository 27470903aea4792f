"""diffusers' denoisers and autoencoders in tiny sizes, made from nothing: one training step."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.battery.case import Case
from tests.conformance.suite import Group, Suite, copy_inputs, seed_everything

BATCH = 2


@dataclass(frozen=True)
class Denoiser:
    """A class of diffusers: the settings of a tiny model, the shape of the image or video that it
    denoises, and what else it is called with. `named` is the argument that takes that."""

    settings: dict[str, Any]
    noisy: tuple[int, ...]
    others: Callable[[], dict[str, Any]] = dict
    named: str = "hidden_states"
    timestep: bool = True


def _text(tokens: int, width: int) -> dict[str, Any]:
    return {"encoder_hidden_states": torch.randn(BATCH, tokens, width)}


def _mask(tokens: int) -> dict[str, Any]:
    mask = torch.ones(BATCH, tokens, dtype=torch.bool)
    mask[0, -2:] = False
    return {"encoder_attention_mask": mask}


def _labels() -> dict[str, Any]:
    return {"class_labels": torch.randint(8, (BATCH,))}


def _pixart() -> dict[str, Any]:
    none = {"aspect_ratio": None, "resolution": None}
    return {**_text(8, 8), "added_cond_kwargs": none}


def _flux() -> dict[str, Any]:
    places = {"img_ids": torch.rand(16, 3), "txt_ids": torch.rand(12, 3)}
    return {**_text(12, 32), **places, "pooled_projections": torch.randn(BATCH, 32)}


def _video_sizes() -> dict[str, Any]:
    return {**_text(16, 16), **_mask(16), "num_frames": 2, "height": 4, "width": 4}


_DIT = {"attention_head_dim": 8, "num_attention_heads": 2, "num_layers": 2, "patch_size": 2}
_IN_OUT = {"in_channels": 4, "out_channels": 4}
_GELU = {"activation_fn": "gelu-approximate", "norm_elementwise_affine": False, "norm_eps": 1e-6}
_BLOCKS = {"block_out_channels": (8, 16), "norm_num_groups": 4, "layers_per_block": 1}
_UNET = {**_IN_OUT, **_BLOCKS, "sample_size": 16}
_CROSS = {**_UNET, "cross_attention_dim": 8, "attention_head_dim": 2}
_ENCODER = {
    **_BLOCKS,
    "in_channels": 3,
    "out_channels": 3,
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
}


def _unet(kind: str, attention: str) -> dict[str, Any]:
    down = (f"{attention}DownBlock{kind}", f"DownBlock{kind}")
    return {
        "down_block_types": down,
        "up_block_types": (f"UpBlock{kind}", f"{attention}UpBlock{kind}"),
    }


DENOISERS: dict[str, Denoiser] = {
    "UNet2DModel": Denoiser(
        {**_UNET, **_unet("2D", "Attn"), "attention_head_dim": 4}, (4, 16, 16), named="sample"
    ),
    "UNet2DConditionModel": Denoiser(
        {**_CROSS, **_unet("2D", "CrossAttn")}, (4, 16, 16), partial(_text, 4, 8), "sample"
    ),
    "UNet3DConditionModel": Denoiser(
        {**_CROSS, **_unet("3D", "CrossAttn")}, (4, 4, 16, 16), partial(_text, 4, 8), "sample"
    ),
    "AutoencoderKL": Denoiser(
        {**_ENCODER, "latent_channels": 4}, (3, 32, 32), named="sample", timestep=False
    ),
    "VQModel": Denoiser(
        {**_ENCODER, "latent_channels": 3}, (3, 32, 32), named="sample", timestep=False
    ),
    "DiTTransformer2DModel": Denoiser(
        {**_DIT, **_IN_OUT, **_GELU, "sample_size": 8, "num_embeds_ada_norm": 8,
         "norm_type": "ada_norm_zero"},
        (4, 8, 8), _labels,
    ),
    "PixArtTransformer2DModel": Denoiser(
        {**_DIT, **_GELU, "in_channels": 4, "out_channels": 8, "sample_size": 8,
         "cross_attention_dim": 16, "num_embeds_ada_norm": 8, "norm_type": "ada_norm_single",
         "use_additional_conditions": False, "caption_channels": 8},
        (4, 8, 8), _pixart,
    ),
    "SD3Transformer2DModel": Denoiser(
        {**_DIT, **_IN_OUT, "sample_size": 16, "caption_projection_dim": 16,
         "joint_attention_dim": 32, "pooled_projection_dim": 64},
        (4, 16, 16), lambda: {**_text(8, 32), "pooled_projections": torch.randn(BATCH, 64)},
    ),
    "FluxTransformer2DModel": Denoiser(
        {"patch_size": 1, "in_channels": 4, "num_layers": 1, "num_single_layers": 1,
         "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 32,
         "pooled_projection_dim": 32, "axes_dims_rope": (4, 4, 8)},
        (16, 4), _flux,
    ),
    "AuraFlowTransformer2DModel": Denoiser(
        {**_IN_OUT, "sample_size": 16, "patch_size": 2, "num_mmdit_layers": 1,
         "num_single_dit_layers": 1, "attention_head_dim": 8, "num_attention_heads": 4,
         "caption_projection_dim": 32, "joint_attention_dim": 32, "pos_embed_max_size": 64},
        (4, 16, 16), partial(_text, 8, 32),
    ),
    "SanaTransformer2DModel": Denoiser(
        {**_IN_OUT, "patch_size": 1, "num_layers": 2, "attention_head_dim": 4,
         "num_attention_heads": 2, "num_cross_attention_heads": 2, "cross_attention_head_dim": 4,
         "cross_attention_dim": 8, "caption_channels": 8, "sample_size": 16},
        (4, 16, 16), partial(_text, 8, 8),
    ),
    "CogVideoXTransformer3DModel": Denoiser(
        {**_DIT, **_IN_OUT, "time_embed_dim": 2, "text_embed_dim": 8, "sample_width": 8,
         "sample_height": 8, "sample_frames": 8, "max_text_seq_length": 8},
        (2, 4, 8, 8), partial(_text, 8, 8),
    ),
    "LatteTransformer3DModel": Denoiser(
        {**_DIT, **_GELU, "in_channels": 4, "out_channels": 8, "sample_size": 8,
         "cross_attention_dim": 16, "caption_channels": 8, "norm_type": "ada_norm_single",
         "num_embeds_ada_norm": 8, "video_length": 2},
        (4, 2, 8, 8), partial(_text, 4, 8),
    ),
    "LTXVideoTransformer3DModel": Denoiser(
        {**_IN_OUT, "num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2,
         "cross_attention_dim": 16, "caption_channels": 16},
        (32, 4), _video_sizes,
    ),
    "WanTransformer3DModel": Denoiser(
        {**_IN_OUT, "patch_size": (1, 2, 2), "num_attention_heads": 2, "attention_head_dim": 12,
         "text_dim": 16, "freq_dim": 32, "ffn_dim": 32, "num_layers": 2, "cross_attn_norm": True,
         "rope_max_seq_len": 32},
        (4, 2, 16, 16), partial(_text, 12, 16),
    ),
    "MochiTransformer3DModel": Denoiser(
        {**_DIT, "in_channels": 4, "pooled_projection_dim": 16, "text_embed_dim": 16,
         "time_embed_dim": 4, "max_sequence_length": 16},
        (4, 2, 16, 16), lambda: {**_text(16, 16), **_mask(16)},
    ),
}  # fmt: skip
"""The classes that are planned, by name."""


def _squared_mean(output: Any) -> Tensor:
    return output.sample.float().square().mean()


def diffusers_cases(name: str, seed: int) -> list[Case]:
    """The case of one class."""
    import diffusers

    one = DENOISERS[name]
    kind = getattr(diffusers, name)

    def model() -> nn.Module:
        return kind(**one.settings).train()

    seed_everything(seed)
    given = {one.named: torch.randn(BATCH, *one.noisy), **one.others()}
    if one.timestep:
        given["timestep"] = torch.randint(1000, (BATCH,))
    return [Case(name, model, lambda _: copy_inputs(((), given)), _squared_mean)]


def _groups() -> list[Group]:
    return [Group(name, partial(diffusers_cases, name)) for name in DENOISERS]


def _missing() -> str:
    return "" if importlib.util.find_spec("diffusers") else "diffusers is not installed"


DIFFUSERS_SUITES = (Suite("diffusers", _groups, _missing),)
