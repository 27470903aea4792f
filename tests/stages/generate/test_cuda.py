"""The same promises on a GPU: equal results, and the requested bytes that the schedule says."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from tests.stages.generate.plans import PLAN, built_of, check_equal, load_package, recompute, step
from tests.stages.generate.small_model import Small
from tightfit.stages.combine.lowering.schedule import lower_to_schedule
from tightfit.stages.generate.package import build_package, write_directory
from tightfit.stages.profile.cost_library import open_cost_library
from tightfit.stages.profile.profile import profile
from tightfit.stages.simulate.simulate import simulate
from tightfit.stages.torch_utils.devices import describe_device
from tightfit.stages.torch_utils.memory_meter import measure_call_memory
from tightfit.stages.torch_utils.model_factory import move_built_model
from tightfit.stages.trace.trace import trace
from tightfit.stages.validate.training_step import StepRunner

pytestmark = [
    pytest.mark.cuda,
]


def test_a_recomputing_plan_on_a_gpu(tmp_path: Path) -> None:
    torch.manual_seed(0)
    built = move_built_model(
        built_of((Small().train(), ((torch.randn(64, 6),), {"scale": 2.0}))), "cuda"
    )
    graph = trace(built, "small", "cuda")
    with open_cost_library(tmp_path / "library", describe_device("cuda")) as library:
        costs = profile(graph, None, library)
    steps = lower_to_schedule(graph, costs, recompute(graph, 1, 1.0), True)
    played = simulate(graph, costs, steps)
    write_directory(tmp_path / "module", build_package(graph, played.steps, PLAN))
    planned = load_package(tmp_path / "module").load(copy.deepcopy(built.model))
    for seed in range(2):
        mine, theirs = (
            step(planned, built.samples[0], seed),
            step(built.model, built.samples[0], seed),
        )
        check_equal((planned, *mine), (built.model, *theirs))
    del mine, theirs
    planned.zero_grad()
    stepper = StepRunner.of(graph, built)
    usage, held = measure_call_memory("cuda", lambda: stepper.run(planned, built.samples[0]))
    del held
    assert usage.peak == played.peak
