"""The steps of a comparison tell what steps of their own take, to the byte."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import built_of
from tests.stages.validate.test_validate import net
from tightfit.schemas.graph.loss_room import with_loss_room
from tightfit.stages.torch_utils.model_factory import BuiltModel, check_factory_result
from tightfit.stages.trace.trace import trace
from tightfit.stages.validate.comparison import Comparer, copy_model
from tightfit.stages.validate.measure import measure_memory
from tightfit.stages.validate.step_memory import StepMemory, fresh_memory
from tightfit.stages.validate.training_step import StepRunner, detach_sample


class Growing(nn.Module):
    """Its gradients are most of what a step takes, so that one that finds them there takes less;
    the output is transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 4096), nn.Linear(4096, 300)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu()).t()


def grown(dtype: torch.dtype) -> BuiltModel:
    return built_of((Growing().to(dtype).train(), ((torch.randn(70, 8, dtype=dtype),), {})))


def told_memory(built: BuiltModel, runner: StepRunner) -> StepMemory:
    """What a comparison of a model with itself tells of its steps."""
    told, graph = StepMemory("cpu"), trace(built, "model")
    own = (copy_model(built.model), runner, built.samples, False, torch.device("cpu"), graph)
    comparer = Comparer(*own, planned_memory=told)
    assert comparer.compare(built.model, itself=True).complaint == ""
    return told


@pytest.mark.parametrize("room", [0, 2**20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_comparison_tells_what_steps_of_their_own_take(dtype: torch.dtype, room: int) -> None:
    built = grown(dtype)
    runner = StepRunner.of(with_loss_room(trace(built, "model"), room), built)
    told = told_memory(built, runner)
    fresh, later = measure_memory(built.model, runner, detach_sample(built.samples[0]), "cpu")
    assert (fresh_memory(told).peak, fresh_memory(told).net) == (fresh.peak, fresh.net)
    assert told.accumulate_peak == later.peak
    assert fresh.peak != later.peak


def test_inputs_with_gradients_leave_the_second_step_to_one_of_its_own() -> None:
    """Each sample of a comparison has them anew."""
    built: Any = check_factory_result(net(), "net")
    told = told_memory(built, StepRunner.of(trace(built, "net"), built))
    assert told.fresh is not None and told.accumulate_peak is None
