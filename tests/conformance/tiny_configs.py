"""Tiny configurations of transformers' architectures, by what their fields are called."""

from __future__ import annotations

import re
from typing import Any

LARGEST = 5_000_000
"""Parameters of the largest model that is planned."""

_RULES: tuple[tuple[str, Any], ...] = (
    (r"(pad|bos|eos|sep|cls|mask|unk|decoder_start)_token_id|.*_token_(id|index)|.*_idx", None),
    (r"num_feat_extract_layers|num_.*per_layer.*", None),
    (r".*layerdrop.*|.*drop_path.*", 0.0),
    (r"use_cache|apply_spec_augment", False),
    (r"window_size", 4),
    (r"vocab_size|.*_vocab_size", 99),
    (r".*(num_key_value_heads|num_kv_heads|n_kv_heads|num_query_groups)", 2),
    (r".*(num|n|encoder|decoder)_?.*attention_heads|n_heads?|num_heads", 4),
    (r".*linear_num_(key|value)_heads|mamba_n_heads|.*num_v_heads", 4),
    (r"head_dim|.*_head_dim|qk_nope_head_dim|qk_rope_head_dim|v_head_dim|d_kv", 8),
    (r"num_local_experts|n_routed_experts|num_experts|moe_num_experts", 4),
    (r"num_experts_per_tok|moe_topk|moe_k|top_k_experts", 2),
    (r"n_group|topk_group|n_shared_experts|first_k_dense_replace", 1),
    (r".*(intermediate_size|ffn_dim|d_ff|n_inner|ffn_hidden_size|ffn_size)", 64),
    (r"(q|kv|o)_lora_rank|.*lora_rank", 16),
    (r".*num_hidden_layers|num_.*layers|n_layers?|.*coder_layers", 2),
    (r"max_position_embeddings|n_positions|max_source_positions|max_target_positions", 64),
    (r"image_size", 32),
    (r"patch_size", 8),
    (r"num_mel_bins|feature_size|input_feat_per_channel", 16),
    (r"rotary_dim", 8),
    (r"state_size|ssm_state_size|mamba_d_state", 8),
    (
        r".*(hidden_size|hidden_sizes|hidden_channels|d_model|n_embd|embed_dim|embedding_size|hidden_dim|model_dim|width)",
        32,
    ),
    (r"dim|emb_dim|embed_size|projection_dim|classifier_proj_size", 32),
)
"""Values by the name of a field, the first that fits; None leaves a field as it is."""
_EQUAL_ENTRIES = {
    "conv_dim": 32,
    "num_heads": 2,
    "num_attention_heads": 2,
    "depths": 1,
    "layers": 1,
}
"""Values of the entries of lists that have one for each stage."""
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


def tiny_config(kind: type[Any]) -> Any:
    """A configuration of a class with small sizes; its nested ones are small, too. Raises what the
    class raises if these sizes do not go together."""
    given = kind()
    values: dict[str, Any] = {}
    for name, value in given.to_dict().items():
        inner = getattr(given, name, None)
        if hasattr(inner, "to_dict"):
            values[name] = tiny_config(type(inner)).to_dict()
        elif (small := _tiny_value(name, value)) is not None:
            values[name] = small
    if "kv_lora_rank" in values:
        values["num_key_value_heads"] = values.get("num_attention_heads")
    return kind(**values)


def _tiny_value(name: str, value: Any) -> Any:
    """The small value of a field, None where it stays."""
    if name in _TOKENS and value is not None:
        return _TOKENS[name]
    if name in _EQUAL_ENTRIES and isinstance(value, list | tuple):
        return type(value)(_EQUAL_ENTRIES[name] for _ in value)
    for pattern, small in _RULES:
        if re.fullmatch(pattern, name):
            return _scaled(value, small)
    return _layer_list(name, value)


def _scaled(value: Any, small: Any) -> Any:
    if isinstance(value, bool) or small is None:
        return small if isinstance(value, bool) and isinstance(small, bool) else None
    if isinstance(value, int | float):
        return min(value, small) if value > 0 else None
    if isinstance(value, list | tuple) and value and all(isinstance(one, int) for one in value):
        return type(value)(small * (position + 1) for position in range(len(value)))
    return None


def _layer_list(name: str, value: Any) -> Any:
    """Lists with the kind of each layer."""
    if not isinstance(value, list | tuple) or not value:
        return None
    if name in ("layer_types", "layers_block_type", "mlp_layer_types"):
        kinds = list(dict.fromkeys(value))
        return (kinds * 2)[:2]
    return None
