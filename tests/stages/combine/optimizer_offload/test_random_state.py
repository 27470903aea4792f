"""Whole steps whose forward draws random numbers that are drawn again in the backward."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.stages.combine.optimizer_offload.test_search import COSTS, GRAPH, task
from tests.stages.report.cases import run_again
from tightfit.schemas.actions import Compute, RestoreRandomState
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.combine.optimizer_offload.activation_schedule import (
    simulate_activation_schedule,
)
from tightfit.stages.combine.optimizer_offload.residency import PlacementRequest, residency_windows
from tightfit.stages.combine.optimizer_offload.transfer_placement import place_transfers
from tightfit.stages.simulate.simulate import simulate

DRAWS = [op.phase == "forward" and op.target.startswith("aten.mm.") for op in GRAPH.ops]
DRAWING = replace(
    GRAPH, ops=[replace(op, random=own) for op, own in zip(GRAPH.ops, DRAWS, strict=True)]
)
"""Layers of which the op that runs again draws, as a dropout does."""


@pytest.mark.sample("adds")
@pytest.mark.parametrize("bandwidth", [2e8, 1e9, 5e9])
@pytest.mark.parametrize("adds", [False, True])
def test_what_moves_does_not_come_between_a_random_state_and_its_draw(
    bandwidth: float, adds: bool
) -> None:
    own = task(10**9, bandwidth)
    steps = ScheduleLowering(DRAWING, own.problem).schedule(run_again(DRAWING), False)
    base = simulate_activation_schedule(DRAWING, COSTS, steps, own.remote, own.link)
    updates = own.played(frozenset(), False, adds=adds, away=True)
    windows = residency_windows(
        base, own.remote, (), (), (), 0, dict.fromkeys(own.remote, 0.0), False
    )
    moved = PlacementRequest(updates, frozenset(), windows, 10**9, max(base.seconds), 0)
    found = place_transfers(base, moved, own.link)
    played = simulate(DRAWING, COSTS, found, link=own.link, updates=updates)
    assert place_transfers(base, moved, own.link, played.seconds) == found
    actions = [step.action for step in found]
    restored = [action for action in actions if isinstance(action, RestoreRandomState)]
    assert len(restored) == sum(DRAWS) - 1
    assert all(actions[actions.index(each) + 1] == Compute(each.op) for each in restored)
