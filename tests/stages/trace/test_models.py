"""Traces real architectures, small, and runs the files beside eager PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.stages.trace.eager_comparison import check_against_eager
from tightfit.stages.torch_utils.model_factory import build_from_factory
from tightfit.stages.trace.trace import trace

TINY = {"layers": 2, "width": 64, "heads": 2, "vocabulary": 100, "batch": 2, "tokens": 16}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", TINY),
    "gpt2_dropout": ("gpt2", {**TINY, "layers": 1, "dropout": 0.1}),
    "resnet": ("resnet", {"name": "resnet10", "batch": 2, "size": 64}),
    "bert": ("bert", {"layers": 1}),
    "llama": ("llama", {"layers": 1}),
    "llama_cache": ("llama", {"layers": 1, "use_cache": True}),
}


@pytest.mark.sample(only=["gpt2_dropout", "resnet"])
@pytest.mark.parametrize("name", MODELS)
def test_the_file_runs_like_the_model(name: str, tmp_path: Path) -> None:
    function, arguments = MODELS[name]
    spec = f"data.models:{function}"
    graph = trace(build_from_factory(spec, arguments, fake=True), name)
    check_against_eager(graph, build_from_factory(spec, arguments), tmp_path / "graph.arrow")
