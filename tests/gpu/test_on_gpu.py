"""Whole steps on a GPU: planned, checked against eager, and measured as foretold; the same on the
CPU, so that these tests are known to work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from stages.combine.schedule.opening import open_schedule
from stages.device.factory import check_result, move
from stages.generate.package import package, write_directory
from stages.profile.device import describe_device
from stages.profile.library import open_library
from stages.profile.profile import profile
from stages.replay.referee import replay
from stages.trace.trace import trace
from stages.validate.validate import validate
from tests.gpu.models import gpt2, llama, resnet
from tests.stages.generate.plans import PLAN, recompute

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
LAST = ["cpu", pytest.param("last", marks=pytest.mark.cuda)]


class Attention(nn.Module):
    """Attention with dropout: the seeds of its random numbers are values."""

    def __init__(self, dtype: torch.dtype, masked: bool) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(32, 96, dtype=dtype), nn.Linear(32, 8, dtype=dtype)
        self.masked = masked

    def forward(self, x: Tensor) -> Tensor:
        parts = self.inward(x).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in parts)
        mask = None
        if self.masked:
            mask = torch.ones(16, 16, device=x.device, dtype=torch.bool).tril()
        mixed = functional.scaled_dot_product_attention(query, key, value, mask, 0.2)
        return self.outward(mixed.transpose(1, 2).flatten(2))


def attention(dtype: torch.dtype, masked: bool) -> tuple[nn.Module, Any]:
    return Attention(dtype, masked).train(), ((torch.randn(2, 16, 32, dtype=dtype),), {})


MODELS = {
    "gpt2": gpt2,
    "llama": llama,
    "resnet": resnet,
    "attention in half": lambda: attention(torch.bfloat16, False),
    "attention with a mask": lambda: attention(torch.bfloat16, True),
    "attention in single": lambda: attention(torch.float32, True),
}


def judged(made: Any, device: str, folder: Path) -> None:
    """A recomputing plan of a model on a device does what eager does, in the bytes foretold."""
    torch.manual_seed(0)
    built = move(check_result(made, "model"), device)
    graph = trace(built, "model", device)
    with open_library(folder / "library", describe_device(device)) as library:
        costs = profile(graph, None, library, device=device)
    played = replay(graph, costs, open_schedule(graph, costs, recompute(graph, 1, 0.7), True))
    write_directory(folder / "module", package(graph, played.steps, PLAN))
    plan = PLAN | {"peak": played.peak, "budget_bytes": played.peak, "gap": None}
    found = validate(graph, built, plan, folder / "module", 3, device=device).measurement
    assert found.verdict == "feasible", found.sentence
    assert found.peak_as_predicted
    assert (found.reserved_peak is None) == (device == "cpu")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", MODELS)
def test_a_recomputing_plan(model: str, device: str, tmp_path: Path) -> None:
    judged(MODELS[model](), device, tmp_path)


@pytest.mark.parametrize("device", LAST)
def test_a_plan_on_a_device_that_is_not_the_current_one(device: str, tmp_path: Path) -> None:
    """The last one of several; with one GPU that is the first."""
    if device == "last":
        device = f"cuda:{torch.cuda.device_count() - 1}"
    judged(gpt2(), device, tmp_path)
