"""The sizes of the models, and the names of the ways to train them. It needs nothing but Python."""

from __future__ import annotations

from typing import Any

SEED = 7

EAGER, FULL, SELECTIVE, SAVED = "eager", "full", "selective", "saved on the host"
COMPILE, PLAN, GRAPHS = "compile", "plan", "graphs"
WAYS = (EAGER, FULL, SELECTIVE, SAVED, COMPILE, PLAN, GRAPHS)
"""Ways to train: as PyTorch does it, with `torch.utils.checkpoint` around every block, with
torchtitan's selective checkpointing of these, with `save_on_cpu`, with `torch.compile`, by a plan,
and by a plan that is launched as CUDA graphs."""

GPT2: dict[str, dict[str, Any]] = {
    "full": {
        "layers": 36, "width": 1280, "heads": 20, "vocabulary": 50257, "tokens": 1024, "batch": 8,
    },
    "small": {
        "layers": 2, "width": 256, "heads": 4, "vocabulary": 512, "tokens": 256, "batch": 32,
    },
    "tiny": {"layers": 2, "width": 16, "heads": 2, "vocabulary": 9, "tokens": 32, "batch": 8},
}  # fmt: skip
"""GPT2-large."""
DROPOUT = 0.1
LLAMA: dict[str, dict[str, Any]] = {
    "full": {
        "layers": 22, "width": 2048, "heads": 32, "groups": 4, "hidden": 5632,
        "vocabulary": 32000, "tokens": 2048, "batch": 4,
    },
    "small": {
        "layers": 2, "width": 256, "heads": 4, "groups": 2, "hidden": 512,
        "vocabulary": 512, "tokens": 256, "batch": 32,
    },
    "tiny": {
        "layers": 2, "width": 16, "heads": 4, "groups": 2, "hidden": 24,
        "vocabulary": 9, "tokens": 32, "batch": 8,
    },
}  # fmt: skip
"""TinyLlama's 1.1 billion parameters."""
LLAMA3: dict[str, dict[str, Any]] = {
    "full": {
        "layers": 8, "width": 4096, "heads": 32, "groups": 8, "hidden": 14336,
        "vocabulary": 128256, "tokens": 8192, "batch": 1,
    },
    "small": {**LLAMA["small"], "layers": 3},
    "tiny": {**LLAMA["tiny"], "layers": 3},
}  # fmt: skip
"""Eight layers of Llama 3 8B."""
RESNET: dict[str, dict[str, Any]] = {
    "full": {"stages": (3, 4, 23, 3), "width": 64, "classes": 1000, "batch": 256, "size": 224},
    "small": {"stages": (2, 2), "width": 16, "classes": 10, "batch": 64, "size": 64},
    "tiny": {"stages": (2, 2), "width": 4, "classes": 5, "batch": 2, "size": 32},
}
"""ResNet-101."""

SIZES = {"gpt2": GPT2, "llama": LLAMA, "llama3": LLAMA3, "resnet": RESNET}
"""The sizes of each model by name."""
