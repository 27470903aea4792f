"""The RSS of a step is at least the bytes that the step writes to."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.stages.generate.plans import built_of
from tightfit.schemas.graph.loss_room import with_loss_room
from tightfit.stages.report.formatting import format_with_resident
from tightfit.stages.trace.trace import trace
from tightfit.stages.validate.measure import measure_memory, time_with_resident_peak
from tightfit.stages.validate.resident_memory import ResidentMemory
from tightfit.stages.validate.step_timer import StepTimer
from tightfit.stages.validate.training_step import StepRunner

ROOM = 64 * 2**20


def test_the_pages_of_a_step_and_of_its_loss_are_counted() -> None:
    model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512)).train()
    sample: Any = ((torch.randn(4096, 512),), {})
    built = built_of((model, sample))
    graph = trace(built, "model")
    found = {}
    for room in (0, ROOM):
        stepper = StepRunner.of(with_loss_room(graph, room), built)
        exact = measure_memory(model, stepper, sample, "cpu")[0].peak
        resident = time_with_resident_peak(StepTimer(model, stepper, sample, "cpu"), 1)[1]
        assert resident is not None and resident > 0.9 * exact
        found[room] = exact
    assert found[ROOM] > found[0]


def test_no_pages_of_a_gpu_are_counted() -> None:
    assert ResidentMemory("cuda:0").peak() is None


def test_tables_show_it_beside_the_exact_bytes() -> None:
    assert format_with_resident(121_300_000, 131_000_000) == "121.3 MB, RSS 131.0 MB"
    assert format_with_resident(121_300_000, None) == "121.3 MB"
    assert format_with_resident(None, None) == ""
