"""A loop with a loss outside of the plan keeps to what the plan promises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import tightfit
from data import models
from tests.tightfit.conftest import SETTINGS
from tightfit.stages.torch_utils.memory_meter import memory_session
from tightfit.util.errors import ConfigError

pytestmark = pytest.mark.usefixtures("traced_once", "loose_bounds")

VOCABULARY, TOKENS = 200, 16


def language_model() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model, ((tokens,), _) = models.gpt2(2, 32, 2, VOCABULARY, 2, TOKENS)
    return model, tokens


def plan_of(store: Path, room: int | str | None, budget: str = "min") -> tightfit.ChosenPlan:
    model, tokens = language_model()
    return tightfit.plan(
        model, (tokens,), budget=budget, loss_room=room, store=store, check=False,
        progress=False, **SETTINGS,
    )[1]  # fmt: skip


def shifted(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def float32(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())


def loop_peak(
    model: torch.nn.Module,
    tokens: torch.Tensor,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> int:
    """The most bytes of the second of two steps above what is there before it."""

    def step() -> None:
        value = loss(model(tokens).logits, tokens)
        value.backward()

    step()
    model.zero_grad()
    with memory_session("cpu") as running, running.section("step"):
        step()
    return running.section_usage("step").peak


@pytest.mark.parametrize("budget", ["min", "100%"])
def test_a_loop_takes_no_more_than_the_plan_promises(budget: str, store: Path) -> None:
    model, tokens = language_model()
    fitted, plan = tightfit.plan(
        model, (tokens,), budget=budget, store=store, check=False, progress=False, **SETTINGS
    )
    assert plan.peak is not None and plan.loss_room is not None
    for loss in (shifted, float32):
        assert loop_peak(fitted, tokens, loss) <= plan.peak


def test_without_room_a_loss_takes_more_than_the_plan_promises(store: Path) -> None:
    """The logits are most of what this model keeps, so any plan is fullest at its loss."""
    torch.manual_seed(0)
    model, ((tokens,), _) = models.gpt2(2, 32, 2, 2_000, 2, 64)
    fitted, without = tightfit.plan(
        model, (tokens,), budget="min", loss_room=0, store=store, check=False, progress=False,
        **SETTINGS,
    )  # fmt: skip
    assert without.loss_room is None and without.peak is not None
    assert loop_peak(fitted, tokens, shifted) > 1.2 * without.peak


def test_the_summary_tells_the_room(store: Path) -> None:
    plan = plan_of(store, None)
    size = 2 * TOKENS * VOCABULARY * 4
    assert plan.loss_room is not None and 2 * size < plan.loss_room < 2.1 * size
    assert f"with room for a loss of {plan.loss_room / 1e3:.1f} kB" in plan.summary()
    assert "room" not in plan_of(store, 0).summary()
    assert plan_of(store, "64kB").loss_room == 64_000


def test_a_share_counts_the_room_among_what_stays(store: Path) -> None:
    """The smallest budget is 0% and above, however large the loss is."""
    plan = plan_of(store, "1MB", "50%")
    assert plan.budget_total is not None and plan.smallest_budget is not None
    assert plan.budget_total >= plan.baseline.floor > 1_000_000


@pytest.mark.parametrize(
    ("room", "said"),
    [("50%", "is a share"), (-1, "no size"), (True, "no size"), ("much", "no size")],
)
def test_what_is_no_room_is_refused(room: int | str, said: str, store: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        plan_of(store, room)


def test_a_planned_loss_has_no_room_beside_it(store: Path) -> None:
    model, tokens = language_model()
    with pytest.raises(ConfigError, match="leave one out"):
        tightfit.plan(
            model, (tokens,), loss=lambda output: output.logits.mean(), loss_room=0, store=store
        )
