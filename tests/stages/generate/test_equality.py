"""Any plan gives the outputs, gradients and buffers of the model, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data import models
from tests.stages.generate.plans import compare, generated, keep_all, recompute, traced
from tests.stages.trace import modules

torch.set_num_threads(1)

MODELS: dict[str, Any] = {
    "gpt2": lambda: models.gpt2(2, 32, 2, 50, 2, 8),
    "gpt2_dropout": lambda: models.gpt2(2, 32, 2, 50, 2, 8, dropout=0.1),
    "bert": lambda: models.bert(1, 32, 2, 50, 2, 8),
    "llama": lambda: models.llama(1, 32, 2, 50, 2, 8),
    "llama_cache": lambda: models.llama(1, 32, 2, 50, 2, 8, use_cache=True),
    "resnet": lambda: models.resnet("resnet10", 2, 32),
    "structured": modules.structured,
    "transposed": modules.transposed,
    "normalised": modules.normalised,
    "counting": modules.counting,
    "tied": modules.tied,
    "shared": modules.shared,
    "noisy": modules.noisy,
    "mixed": modules.mixed,
}


@pytest.mark.parametrize("name", MODELS)
def test_keeping_all_changes_nothing(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    graph, built = traced(MODELS[name](), name)
    compare(generated(graph, tmp_path / "kept"), built)
    compare(generated(graph, tmp_path / "in_place", in_place=True), built, zero=True)


@pytest.mark.parametrize("name", MODELS)
def test_recomputing_changes_nothing(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    graph, built = traced(MODELS[name](), name)
    for seed in (1, 2):
        executions = recompute(graph, seed, share=0.7)
        if any(op.repeatable and op.phase == "forward" for op in graph.ops) and len(graph.ops) > 40:
            assert len(executions) > len(keep_all(graph))
        compare(generated(graph, tmp_path / str(seed), executions, in_place=seed == 1), built)
