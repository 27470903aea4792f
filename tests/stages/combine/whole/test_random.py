"""Whole steps whose forward draws random numbers that are drawn again in the backward."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.stages.combine.whole.test_search import COSTS, GRAPH, task
from tests.stages.report.cases import run_again
from tightfit.schemas.actions import Compute, RestoreRandom
from tightfit.stages.combine.schedule.opening import Opener
from tightfit.stages.combine.whole.base import base_of
from tightfit.stages.combine.whole.moved import Moved
from tightfit.stages.combine.whole.placing import placed
from tightfit.stages.combine.whole.windows import windows_of
from tightfit.stages.replay.referee import replay

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
    steps = Opener(DRAWING, own.problem).schedule(run_again(DRAWING), False)
    base = base_of(DRAWING, COSTS, steps, own.remote, own.link)
    updates = own.played(frozenset(), False, adds=adds, away=True)
    windows = windows_of(base, own.remote, (), (), (), 0, dict.fromkeys(own.remote, 0.0), False)
    moved = Moved(updates, frozenset(), windows, 10**9, max(base.seconds), 0)
    found = placed(base, moved, own.link)
    played = replay(DRAWING, COSTS, found, link=own.link, updates=updates)
    assert placed(base, moved, own.link, played.seconds) == found
    actions = [step.action for step in found]
    restored = [action for action in actions if isinstance(action, RestoreRandom)]
    assert len(restored) == sum(DRAWS) - 1
    assert all(actions[actions.index(each) + 1] == Compute(each.op) for each in restored)
