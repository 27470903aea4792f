"""One small planned model, made once."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch

from schemas.graph import Graph
from tests.stages.generate.models import Small
from tests.stages.generate.plans import generated, recompute, traced

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
    return Planned(generated(graph, directory, recompute(graph, 1, 1.0)), graph, directory)
