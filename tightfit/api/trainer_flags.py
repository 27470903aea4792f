"""The settings of trainers that come closest to what fits on a card."""

from __future__ import annotations

from tightfit.schemas.card_fit import CardFit, FlagAdvice

_EAGER = (
    ("Trainer", "--optim adamw_torch_fused"),
    ("torchtitan", "--activation_checkpoint.mode none"),
    ("Megatron", "no --recompute-granularity"),
    ("DeepSpeed", '"zero_optimization": {"stage": 0}'),
)
_OFFLOAD = (
    ("Trainer", "--gradient_checkpointing True --deepspeed CONFIG (that of DeepSpeed below)"),
    ("torchtitan", "--activation_checkpoint.mode full --training.enable_cpu_offload"),
    (
        "Megatron",
        "--recompute-granularity full --optimizer-cpu-offload (parameters stay on the card)",
    ),
    (
        "DeepSpeed",
        '"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, '
        '"offload_param": {"device": "cpu"}}',
    ),
)


def closest_flags(card: CardFit, layers: int) -> list[FlagAdvice]:
    """Settings of the cheapest kind that fits: none, checkpoints of as many of the `layers` as have
    to run again, or offload; an empty list where nothing fits."""
    found: tuple[tuple[str, str], ...] = ()
    if card.way("eager").fits:
        found = _EAGER
    elif card.way("checkpoint").fits and layers:
        found = _checkpoint_flags(card.recomputed_layers or layers, layers)
    elif card.way("offload").fits:
        found = _OFFLOAD
    return [FlagAdvice(tool, flags) for tool, flags in found]


def _checkpoint_flags(recomputed: int, layers: int) -> tuple[tuple[str, str], ...]:
    """Settings that checkpoint so many of the layers, or more where a tool knows no such number:
    torchtitan takes every so many-th, Megatron the first ones, the others all."""
    every = max(layers // recomputed, 1)
    block = f"--recompute-method block --recompute-num-layers {recomputed}"
    titan = (
        "full" if every == 1 else f"selective --activation_checkpoint.selective_ac_option {every}"
    )
    return (
        ("Trainer", "--gradient_checkpointing True"),
        ("torchtitan", f"--activation_checkpoint.mode {titan}"),
        ("Megatron", f"--recompute-granularity full {block}"),
        ("DeepSpeed", "deepspeed.checkpointing.checkpoint(layer, ...) for every layer"),
    )
