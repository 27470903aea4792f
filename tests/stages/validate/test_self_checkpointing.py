"""The status of a plan beside a model that checkpoints itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.stages.validate.test_validate import PLAN, written
from tightfit.schemas.measurement import Measurement
from tightfit.stages.torch_utils.model_factory import check_factory_result
from tightfit.stages.trace.trace import trace
from tightfit.stages.validate.validate import measure_original_peak, validate

torch.set_num_threads(1)

WITHOUT = "import copy\nmodel = copy.deepcopy(model)\nmodel.checkpoints = False\nreturn model"


class Checkpointed(nn.Module):
    """Layers with wide insides, each of which is computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.checkpoints = True
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpoints else layer(x)
        return x


def measured(body: str, folder: Path, **plan: Any) -> Measurement:
    torch.manual_seed(0)
    built = check_factory_result((Checkpointed().train(), ((torch.randn(64, 8),), {})), "net")
    graph = trace(built, "net")
    own = measure_original_peak(graph, built)
    assert own is not None
    module = written(folder / "module", body)
    found = validate(graph, built, {**PLAN, "peak": own, **plan}, module, pairs=0).measurement
    assert found.original_peak == own and found.bits_equal
    if found.peak_as_predicted:
        return found
    again = {**PLAN, "peak": found.measured_peak, **plan}
    return validate(graph, built, again, module, pairs=0).measurement


def test_a_plan_that_takes_more_than_the_model_fails(tmp_path: Path) -> None:
    found = measured(WITHOUT, tmp_path)
    assert found.peak_as_predicted and found.within_budget
    assert found.status == "failed"
    assert found.message.startswith("The model, which checkpoints itself, takes less as it is, ")


def test_a_plan_that_takes_no_more_says_what_it_replaces(tmp_path: Path) -> None:
    found = measured("return model", tmp_path)
    assert found.status == "feasible"
    told = f"The plan replaces the model's own checkpointing, with which it takes {own_of(found):,}"
    assert told in found.message


def test_a_baseline_that_takes_more_is_told_and_no_failure(tmp_path: Path) -> None:
    found = measured(WITHOUT, tmp_path, budget="none", budget_bytes=None)
    assert found.status == "feasible" and "takes less as it is" in found.message


def own_of(found: Measurement) -> int:
    assert found.original_peak is not None
    return found.original_peak
