"""Thirty small models of distinct families, for the benchmark of checkpoint policies.

They are made from their configurations, with random weights and without dropout.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

BATCH, TOKENS, WIDTH, LAYERS, VOCABULARY = 4, 256, 384, 4, 1000
IMAGES, SIDE = 8, 64
_HEADS: dict[str, Any] = {"num_attention_heads": 6, "num_key_value_heads": 2}
_SIZES: dict[str, Any] = {
    "num_hidden_layers": LAYERS,
    "hidden_size": WIDTH,
    "num_attention_heads": 6,
}
_STAGES: dict[str, Any] = {"depths": [2, 2, 2, 2], "image_size": SIDE, "num_labels": 10}


@dataclass(frozen=True)
class BenchmarkModel:
    """A model in training mode, the keyword arguments of a call, and its loss."""

    module: nn.Module
    kwargs: dict[str, Tensor]
    loss: Callable[[Any], Tensor]


def squared_logits(output: Any) -> Tensor:
    """A loss of a model's output, which has `logits` or is a tensor."""
    values = output if isinstance(output, Tensor) else output.logits
    return (values**2).mean()


def _from_config(kind: str, head: str, sizes: dict[str, Any]) -> nn.Module:
    """The model of transformers with a head, such as "CausalLM", of sizes and without dropout."""
    import transformers

    known = transformers.AutoConfig.for_model(kind)
    rates = {
        name: 0.0
        for name, rate in known.to_dict().items()
        if isinstance(rate, float) and "drop" in name
    }
    config = transformers.AutoConfig.for_model(kind, **{**rates, **sizes})
    model: nn.Module = getattr(transformers, f"AutoModelFor{head}").from_config(config)
    return model


def _text(kind: str, head: str = "CausalLM", **sizes: Any) -> BenchmarkModel:
    """A model of tokens."""
    common: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if head != "MaskedLM":
        common["use_cache"] = False
    tokens = sizes.pop("tokens", TOKENS)
    model = _from_config(kind, head, {**common, **sizes})
    inputs = {"input_ids": torch.randint(3, VOCABULARY, (BATCH, tokens))}
    if head == "Seq2SeqLM":
        inputs["decoder_input_ids"] = torch.randint(3, VOCABULARY, (BATCH, tokens))
    return BenchmarkModel(model.train(), inputs, squared_logits)


def _image(kind: str, **sizes: Any) -> BenchmarkModel:
    """A model of square images."""
    model = _from_config(kind, "ImageClassification", sizes)
    images = {"pixel_values": torch.randn(IMAGES, 3, SIDE, SIDE)}
    return BenchmarkModel(model.train(), images, squared_logits)


def _convnet(family: str, name: str, **sizes: Any) -> BenchmarkModel:
    """A network of pytorchcv whose batch norms keep no statistics: a block that changes buffers
    cannot be checkpointed."""
    model = getattr(importlib.import_module(f"pytorchcv.models.{family}"), name)(**sizes)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
        if isinstance(getattr(module, "final_pool", None), nn.AvgPool2d):
            module.final_pool = nn.AdaptiveAvgPool2d(1)
    return BenchmarkModel(model.train(), {"x": torch.randn(IMAGES, 3, SIDE, SIDE)}, squared_logits)


def _speech(kind: str, head: str, inputs: dict[str, Tensor], **sizes: Any) -> BenchmarkModel:
    """A model of sound."""
    return BenchmarkModel(_from_config(kind, head, sizes).train(), inputs, squared_logits)


def _whisper() -> BenchmarkModel:
    heads = {"encoder_attention_heads": 6, "decoder_attention_heads": 6}
    layers = {"encoder_layers": LAYERS, "decoder_layers": LAYERS}
    widths = {"d_model": WIDTH, "encoder_ffn_dim": 4 * WIDTH, "decoder_ffn_dim": 4 * WIDTH}
    special = {
        name: 1
        for name in ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    }
    inputs = {
        "input_features": torch.randn(BATCH, 80, 2 * TOKENS),
        "decoder_input_ids": torch.randint(3, VOCABULARY, (BATCH, TOKENS // 2)),
    }
    places = {"max_source_positions": TOKENS, "vocab_size": VOCABULARY, "use_cache": False}
    return _speech(
        "whisper", "SpeechSeq2Seq", inputs, **heads, **layers, **widths, **special, **places
    )


_LLAMA: dict[str, Any] = {**_SIZES, **_HEADS, "intermediate_size": 1024}
_BERT: dict[str, Any] = {**_SIZES, "intermediate_size": 4 * WIDTH}
_BART: dict[str, Any] = {
    "d_model": WIDTH,
    **{f"{side}_layers": LAYERS for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 6 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 4 * WIDTH for side in ("encoder", "decoder")},
}

ARCHITECTURES: dict[str, Callable[[], BenchmarkModel]] = {
    "gpt2": partial(_text, "gpt2", n_layer=LAYERS, n_embd=WIDTH, n_head=6),
    "gpt-neox": partial(_text, "gpt_neox", **_BERT),
    "opt": partial(_text, "opt", **_SIZES, ffn_dim=4 * WIDTH, word_embed_proj_dim=WIDTH),
    "bloom": partial(_text, "bloom", n_layer=LAYERS, hidden_size=WIDTH, n_head=6),
    "falcon": partial(_text, "falcon", **_SIZES),
    "phi": partial(_text, "phi", **_BERT),
    "llama": partial(_text, "llama", **_LLAMA),
    "qwen3": partial(_text, "qwen3", **_LLAMA, head_dim=64),
    "gemma2": partial(_text, "gemma2", **_LLAMA, head_dim=64),
    "olmo2": partial(_text, "olmo2", **_LLAMA),
    "mixtral": partial(
        _text, "mixtral", **_LLAMA, num_local_experts=4, experts_implementation="grouped_mm"
    ),
    "mamba": partial(
        _text, "mamba", num_hidden_layers=LAYERS, hidden_size=WIDTH, state_size=8, tokens=16,
        use_associative_scan=False,
    ),
    "bert": partial(_text, "bert", "MaskedLM", **_BERT),
    "deberta-v2": partial(
        _text, "deberta-v2", "MaskedLM", **_BERT, relative_attention=True, position_buckets=32,
        pos_att_type=["p2c", "c2p"],
    ),
    "fnet": partial(
        _text, "fnet", "MaskedLM", num_hidden_layers=LAYERS, hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
    ),
    "modernbert": partial(_text, "modernbert", "MaskedLM", **_BERT),
    "roformer": partial(_text, "roformer", "MaskedLM", **_BERT),
    "convbert": partial(_text, "convbert", "MaskedLM", **_BERT),
    "t5": partial(
        _text, "t5", "Seq2SeqLM", num_layers=LAYERS, d_model=WIDTH, d_kv=64, d_ff=4 * WIDTH,
        num_heads=6, decoder_start_token_id=0,
    ),
    "bart": partial(_text, "bart", "Seq2SeqLM", **_BART, decoder_start_token_id=0),
    "vit": partial(_image, "vit", **_BERT, image_size=SIDE, patch_size=8),
    "beit": partial(_image, "beit", **_BERT, image_size=SIDE, patch_size=8),
    "dinov2": partial(_image, "dinov2", **_SIZES, image_size=SIDE, patch_size=8),
    "swin": partial(
        _image, "swin", image_size=SIDE, depths=[2, 2, 2], num_heads=[3, 6, 12], window_size=4
    ),
    "convnext": partial(_image, "convnext", hidden_sizes=[64, 128, 256, 512], **_STAGES),
    "segformer": partial(_image, "segformer", depths=[2, 2, 2, 2], num_labels=10),
    "poolformer": partial(_image, "poolformer", depths=[2, 2, 2, 2], num_labels=10),
    "resnet26": partial(_convnet, "resnet", "resnet26"),
    "mobilenetv2": partial(_convnet, "mobilenetv2", "mobilenetv2_w1"),
    "efficientnet": partial(_convnet, "efficientnet", "efficientnet_b0"),
    "whisper": _whisper,
    "wav2vec2": partial(
        _speech, "wav2vec2", "CTC", {"input_values": torch.randn(2, 16_000)}, **_BERT,
        vocab_size=32, apply_spec_augment=False, layerdrop=0.0, pad_token_id=0,
    ),
}  # fmt: skip
