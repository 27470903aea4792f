"""What the benchmark plans: the shipped models, the budgets that the peers set."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """A model; `limits` are peaks in MB (1e6 bytes, without parameters) to plan for, beside the
    peers' own peaks; `compiler_budgets` are values of activation_memory_budget."""

    name: str
    title: str
    factory: str
    arguments: dict[str, Any]
    limits: list[float]
    compiler_budgets: list[float] = field(default_factory=lambda: [0.5, 0.2])


CASES = [
    Case(
        "gpt2",
        "GPT-2, 6 layers, width 384, batch 4 x 256",
        "data.models:gpt2",
        {"layers": 6, "width": 384, "heads": 6, "vocabulary": 5000, "batch": 4, "tokens": 256},
        [144.7, 115.0],
    ),
    Case(
        "gpt2-dropout",
        "the same with dropout 0.1",
        "data.models:gpt2",
        {
            "layers": 6, "width": 384, "heads": 6, "vocabulary": 5000, "batch": 4, "tokens": 256,
            "dropout": 0.1,
        },
        [200.0, 150.0],
    ),
    Case(
        "resnet50",
        "ResNet-50, batch 4 at 224 x 224",
        "data.models:resnet50",
        {"batch": 4, "size": 224},
        [232.0, 185.0],
    ),
]  # fmt: skip
