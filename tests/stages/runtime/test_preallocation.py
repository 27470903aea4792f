"""Memory of a GPU that is taken ahead of the first step, on a double of its allocation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import PLAN, keep_all, load_package, step, traced
from tightfit.stages.combine.lowering.schedule import lower_to_schedule
from tightfit.stages.generate.package import build_package, write_directory, zero_time_costs
from tightfit.stages.runtime import preallocation
from tightfit.stages.runtime.preallocation import Preallocation
from tightfit.stages.simulate.simulate import simulate
from tightfit.stages.torch_utils.memory_meter import measure_call_memory
from tightfit.util.errors import ArtifactError

FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)
Taken = list[tuple[int, torch.device]]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    found: Taken = []
    monkeypatch.setattr(
        preallocation, "preallocate", lambda size, device: found.append((size, device))
    )
    return found


def test_it_is_taken_once_on_each_gpu_and_never_of_the_host(taken: Taken) -> None:
    piece = Preallocation(4 << 20)
    for device in (FIRST, torch.device("cpu"), FIRST, SECOND, FIRST):
        piece.take(device)
    assert taken == [(4 << 20, FIRST), (4 << 20, SECOND)]
    Preallocation(0).take(FIRST)
    assert len(taken) == 2


def test_where_there_is_no_such_piece_the_step_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def full(size: int, device: torch.device) -> None:
        asked.append(size)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(preallocation, "preallocate", full)
    piece = Preallocation(64)
    piece.take(FIRST)
    piece.take(FIRST)
    assert asked == [64]


def test_what_is_taken_is_given_back_at_once() -> None:
    usage, _ = measure_call_memory(
        "cpu", lambda: preallocation.preallocate(1 << 20, torch.device("cpu"))
    )
    assert (usage.peak, usage.net) == (1 << 20, 0)


def made(folder: Path, gpu: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, list[int]]:
    """A planned module whose package takes memory ahead, and what it takes in its steps."""
    torch.manual_seed(0)
    graph, built = traced((nn.Linear(4, 4).train(), ((torch.randn(2, 4),), {})))
    costs = zero_time_costs(graph)
    steps = simulate(graph, costs, lower_to_schedule(graph, costs, keep_all(graph), False)).steps
    write_directory(folder, build_package(graph, steps, PLAN | {"gpu": gpu}))
    module = load_package(folder)
    sizes: list[int] = []
    wrapping: Any = sys.modules[f"{module.__name__}.runtime.planned_module"]
    inside: Any = sys.modules[f"{module.__name__}.runtime.preallocation"]
    monkeypatch.setattr(inside.Preallocation, "take", lambda self, device: sizes.append(self.size))
    assert wrapping.Preallocation is inside.Preallocation
    return module.load(built.model), built, sizes


def test_a_planned_module_asks_ahead_of_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, built, sizes = made(tmp_path / "module", {"arena": 1 << 21}, monkeypatch)
    step(model, built.samples[0])
    assert sizes == [1 << 21]
    with torch.no_grad():
        model(*built.samples[0][0])
    assert sizes == [1 << 21]
    plain, built, sizes = made(tmp_path / "plain", None, monkeypatch)
    step(plain, built.samples[0])
    assert sizes == [0]


@pytest.mark.parametrize("arena", [-1, "much", True, 1.5])
def test_a_plan_that_takes_no_number_of_bytes_ahead_is_refused(
    arena: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ArtifactError, match=r"plan.json: 'gpu.arena' is"):
        made(tmp_path / "module", {"arena": arena}, monkeypatch)
