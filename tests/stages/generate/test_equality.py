"""Any plan gives the outputs, gradients and buffers of the model, bit for bit."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data import models
from tests.stages.generate.plans import compare, generated, keep_all, recompute, traced
from tests.stages.trace import modules

torch.set_num_threads(1)

MODELS: dict[str, Any] = {
    "gpt2": lambda: models.gpt2(2, 32, 2, 50, 2, 8),
    "gpt2_dropout": lambda: models.gpt2(1, 32, 2, 50, 2, 8, dropout=0.1),
    "bert": lambda: models.bert(1, 32, 2, 50, 2, 8),
    "llama": lambda: models.llama(1, 32, 2, 50, 2, 8),
    "llama_cache": lambda: models.llama(1, 32, 2, 50, 2, 8, use_cache=True),
    "resnet": lambda: models.resnet("resnet10", 2, 32),
    "structured": modules.structured,
    "transposed": modules.transposed,
    "normalized": modules.normalized,
    "counting": modules.counting,
    "tied": modules.tied,
    "shared": modules.shared,
    "noisy": modules.noisy,
    "mixed": modules.mixed,
}


@pytest.mark.sample(only=[*MODELS][6:])
@pytest.mark.parametrize("name", MODELS)
def test_no_plan_changes_anything(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    graph, built = traced(MODELS[name](), name)
    executions = recompute(graph, 1, share=0.7)
    if sum(op.phase == "forward" for op in graph.ops) > 20:
        assert len(executions) > len(keep_all(graph))
    compare(generated(graph, tmp_path / "keep"), built)
    compare(generated(graph, tmp_path / "in_place", in_place=True), built, zero=True)
    compare(generated(graph, tmp_path / "recompute", executions, in_place=True), built)


@pytest.fixture(scope="module")
def traces() -> dict[str, Any]:
    torch.manual_seed(0)
    names = ("noisy", "counting", "normalized", "structured", "shared")
    return {name: traced(MODELS[name](), name) for name in names}


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(["noisy", "counting", "normalized", "structured", "shared"]),
    seed=st.integers(0, 10**6),
    share=st.floats(0.1, 1.0),
    in_place=st.booleans(),
)
def test_any_plan_gives_the_same_gradients(
    traces: dict[str, Any], name: str, seed: int, share: float, in_place: bool
) -> None:
    graph, built = traces[name]
    executions = recompute(graph, seed, share)
    with tempfile.TemporaryDirectory() as directory:
        compare(generated(graph, Path(directory) / "module", executions, in_place), built, 1)
