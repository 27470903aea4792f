"""The same promises on a GPU: equal results, and the requested bytes that the schedule says."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from tests.stages.generate.models import Small
from tests.stages.generate.plans import PLAN, built_of, check_equal, load_package, recompute, step
from tightfit.stages.combine.schedule.opening import open_schedule
from tightfit.stages.device.factory import move
from tightfit.stages.device.identity import describe_device
from tightfit.stages.device.meter import measure
from tightfit.stages.generate.package import package, write_directory
from tightfit.stages.profile.library import open_library
from tightfit.stages.profile.profile import profile
from tightfit.stages.replay.referee import replay
from tightfit.stages.trace.trace import trace
from tightfit.stages.validate.step import Stepper

pytestmark = [
    pytest.mark.cuda,
]


def test_a_recomputing_plan_on_a_gpu(tmp_path: Path) -> None:
    torch.manual_seed(0)
    built = move(built_of((Small().train(), ((torch.randn(64, 6),), {"scale": 2.0}))), "cuda")
    graph = trace(built, "small", "cuda")
    with open_library(tmp_path / "library", describe_device("cuda")) as library:
        costs = profile(graph, None, library)
    steps = open_schedule(graph, costs, recompute(graph, 1, 1.0), True)
    played = replay(graph, costs, steps)
    write_directory(tmp_path / "module", package(graph, played.steps, PLAN))
    planned = load_package(tmp_path / "module").load(copy.deepcopy(built.model))
    for seed in range(2):
        mine, theirs = (
            step(planned, built.samples[0], seed),
            step(built.model, built.samples[0], seed),
        )
        check_equal((planned, *mine), (built.model, *theirs))
    del mine, theirs
    planned.zero_grad()
    stepper = Stepper.of(graph, built)
    usage, held = measure("cuda", lambda: stepper.run(planned, built.samples[0]))
    del held
    assert usage.peak == played.peak
