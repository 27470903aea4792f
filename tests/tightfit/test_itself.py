"""Models that checkpoint themselves: a plan says what they take as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tightfit
from stages.device.factory import check_result
from stages.trace.trace import trace
from stages.validate.itself import checkpoints_itself
from stages.validate.validate import own_peak
from tests.tightfit.conftest import SETTINGS

torch.set_num_threads(1)


class Checkpointed(nn.Module):
    """Layers with wide insides, each of which is computed again."""

    def __init__(self, reentrant: bool = False) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x * 1.0
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.reentrant) if self.training else layer(x)
        return x


def planned(store: Path, budget: str, check: bool = True) -> tightfit.ChosenPlan:
    torch.manual_seed(0)
    x = torch.randn(64, 8, requires_grad=True)
    made: tightfit.ChosenPlan = tightfit.plan(
        Checkpointed().train(), (x,), budget=budget, store=store, check=check, progress=False,
        **SETTINGS,
    )[1]  # fmt: skip
    return made


def test_a_plan_that_takes_more_is_no_success(store: Path) -> None:
    made = planned(store, "100%")
    sample: Any = ((torch.randn(64, 8, requires_grad=True),), {})
    built = check_result((Checkpointed().train(), sample), "")
    own = own_peak(trace(built, "model"), built)
    assert own is not None and made.peak is not None and made.peak > own
    assert made.sentence.startswith("no gain, since the model, which checkpoints itself")
    assert f"{own + made.fixed.there_before:,} bytes in all: give a budget below" in made.sentence


@pytest.mark.long
def test_a_plan_that_takes_less_says_what_it_replaces(store: Path) -> None:
    made = planned(store, "min")
    assert made.sentence.startswith(made.verdict)
    assert "it replaces the model's own checkpointing, with which the model takes" in made.sentence


@pytest.mark.parametrize("reentrant", [False, True])
def test_both_kinds_of_checkpoints_are_seen(reentrant: bool) -> None:
    sample: Any = ((torch.randn(4, 8),), {})
    built = check_result((Checkpointed(reentrant).train(), sample), "")
    assert checkpoints_itself(trace(built, "model"))
    built = check_result((Checkpointed(reentrant).eval(), sample), "")
    assert not checkpoints_itself(trace(built, "model"))
