"""One small planned model, made once."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.conftest import LASTING
from tests.stages.generate.plans import generated, recompute, traced
from tests.stages.generate.small_model import Small
from tests.stages.runtime.cuda_graph_steps import ROWS, package_of
from tests.stages.runtime.fake_cuda_graphs import Captures, stand_in
from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.torch_utils.model_factory import BuiltModel

torch.set_num_threads(1)


@dataclass(frozen=True)
class Planned:
    """A model's factory, its graph, and a package whose plan recomputes."""

    package: ModuleType
    graph: Graph
    directory: Any

    def model(self, seed: int = 0) -> Small:
        torch.manual_seed(seed)
        return Small().train()

    def inputs(self, seed: int = 1, batch: int = 4) -> torch.Tensor:
        return torch.randn(batch, 6, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    torch.manual_seed(0)
    graph, _ = traced((Small().train(), ((torch.randn(4, 6),), {"scale": 2.0})), "small")
    directory = tmp_path_factory.mktemp("small") / "planned_small"
    package = generated(graph, directory, recompute(graph, 1, 1.0))
    LASTING.add(package.__name__)
    return Planned(package, graph, directory)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Captures:
    return stand_in(monkeypatch)


@pytest.fixture(scope="session")
def rows_traced() -> tuple[Graph, BuiltModel]:
    """Normalization that writes buffers, dropout that draws, two outputs."""
    torch.manual_seed(0)
    return traced((Small().train(), ((ROWS,), {"scale": 2.0})))


@pytest.fixture
def as_graphs(
    captures: Captures, rows_traced: tuple[Graph, BuiltModel], tmp_path: Path
) -> tuple[ModuleType, BuiltModel]:
    """A package of it, whose plan may be run as CUDA graphs, and its model."""
    graph, built = rows_traced
    return package_of(graph, tmp_path), replace(built, model=copy.deepcopy(built.model))
