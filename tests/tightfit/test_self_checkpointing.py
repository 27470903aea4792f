"""Models that checkpoint themselves: a plan says what they take as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tightfit
from tests.tightfit.conftest import SETTINGS
from tightfit.api.stage_runner import StageRunner
from tightfit.stages.torch_utils.model_factory import check_factory_result
from tightfit.stages.trace.trace import trace
from tightfit.stages.validate.predictions import is_self_checkpointing
from tightfit.stages.validate.validate import measure_original_peak

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
    built = check_factory_result((Checkpointed().train(), sample), "")
    own = measure_original_peak(trace(built, "model", loss_room=None), built)
    assert own is not None and made.peak is not None and made.peak > own
    assert made.message.startswith("no gain, since the model, which checkpoints itself")
    assert (
        f"{own + made.baseline.bytes_before_step:,} bytes in all: give a budget below"
        in made.message
    )


@pytest.mark.long
def test_a_plan_that_takes_less_says_what_it_replaces(store: Path) -> None:
    made = planned(store, "min")
    assert made.message.startswith(made.status)
    assert "it replaces the model's own checkpointing, with which the model takes" in made.message


@pytest.mark.parametrize("reentrant", [False, True])
def test_both_kinds_of_checkpoints_are_seen(reentrant: bool) -> None:
    sample: Any = ((torch.randn(4, 8, requires_grad=True),), {})
    built = check_factory_result((Checkpointed(reentrant).train(), sample), "")
    assert is_self_checkpointing(trace(built, "model"))
    built = check_factory_result((Checkpointed(reentrant).eval(), sample), "")
    assert not is_self_checkpointing(trace(built, "model"))


class Frozen(nn.Module):
    """Checkpoints a layer whose input needs no gradient: eager gives that layer none."""

    def __init__(self, reentrant: bool = True, head: bool = True) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.head = nn.Linear(8, 8) if head else nn.Identity()
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.layer, x, use_reentrant=self.reentrant).tanh())


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [True, False])
def test_layers_that_a_reentrant_checkpoint_gives_no_gradient_get_none(
    store: Path, reentrant: bool
) -> None:
    torch.manual_seed(0)
    model, x = Frozen(reentrant).train(), torch.randn(4, 8)
    fitted, made = tightfit.plan(
        model, (x,), budget="100%", store=store, progress=False, **SETTINGS
    )
    found = []
    for module in (model, fitted):
        module.zero_grad()
        module(x * 0.5).square().sum().backward()
        found.append([weight.grad for weight in model.parameters()])
    for mine, theirs in zip(*found, strict=True):
        assert (mine is None) == (theirs is None) and (mine is None or torch.equal(mine, theirs))
    assert (model.layer.weight.grad is None) == reentrant
    said = "has use_reentrant=True and inputs that need no gradient"
    assert (said in made.message and "test_self_checkpointing.py:" in made.message) == reentrant


def test_where_a_reentrant_checkpoint_leaves_no_gradient_at_all_it_is_named(store: Path) -> None:
    with pytest.raises(tightfit.ModelError, match="for gradients give it use_reentrant=False"):
        tightfit.plan(Frozen(head=False).train(), (torch.randn(4, 8),), store=store, progress=False)


def test_random_numbers_that_are_not_kept_are_told_before_the_search(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dropping(Frozen):
        def forward(self, x: Tensor) -> Tensor:
            inner = nn.Sequential(self.layer, nn.Dropout(0.5))
            return self.head(checkpoint(inner, x, use_reentrant=False, preserve_rng_state=False))

    monkeypatch.setattr(StageRunner, "frontier", None)
    with pytest.raises(tightfit.ModelError, match="leave preserve_rng_state=False out"):
        tightfit.plan(Dropping().train(), (torch.randn(4, 8),), store=store, progress=False)
