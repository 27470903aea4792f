"""Optimizer states that stay on the device: within the bytes of the budget, and never slower."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.stages.combine.optimizer_offload.test_search import COSTS, GRAPH, task
from tests.stages.report.cases import WEIGHT
from tightfit.schemas.actions import UpdateOnDevice
from tightfit.schemas.optimizer_plan import OptimizerCosts
from tightfit.stages.combine.optimizer_offload.lower_bound import lower_bound_seconds
from tightfit.stages.combine.optimizer_offload.plan import build_offload_plan
from tightfit.stages.combine.optimizer_offload.problem import OffloadProblem
from tightfit.stages.combine.optimizer_offload.search import OffloadSearch
from tightfit.stages.combine.optimizer_offload.state_placement import (
    TIME_TOLERANCE,
    search_resident_states,
)
from tightfit.stages.simulate.simulate import simulate

STATES = 2 * WEIGHT


def measured(budget: int, bandwidth: float = 1e8) -> OffloadProblem:
    """A task whose updates are said to be measured; all are the device's."""
    own = task(budget, bandwidth, host=None)
    costs = {cost.path: cost for cost in own.updates.values()}
    return replace(own, measured=OptimizerCosts("AdamW", 1 << 20, costs))


def test_states_stay_where_there_is_room_and_no_plan_is_slower() -> None:
    slower = None
    for budget in (9_000_000, 14_000_000, 40_000_000):
        search = OffloadSearch(measured(budget))
        best = search.best()
        own, found = search_resident_states(search, best)
        assert found.seconds <= best.seconds * (1 + TIME_TOLERANCE)
        assert slower is None or found.seconds <= slower * (1 + TIME_TOLERANCE)
        slower = found.seconds
        assert own.resident == found.updates.on_device
        states = len(own.resident) * STATES
        assert own.fixed == search.task.fixed + states
        played = found.simulation
        assert (
            own.fixed + played.peak + found.updates.staging + found.updates.workspace_bytes
            <= budget
        )
        again = simulate(GRAPH, COSTS, played.steps, link=own.link, updates=found.updates)
        assert again.steps == played.steps
        here = {s.action.value for s in played.steps if isinstance(s.action, UpdateOnDevice)}
        assert own.resident <= here
        assert lower_bound_seconds(replace(own, resident=frozenset())) <= found.seconds
        said = (
            f"{states:,} of them for states that stay there"
            in build_offload_plan(own, found, "").message
        )
        assert said == bool(states)
        stays = found.updates.offloaded_state_bytes
        assert stays == 6 * STATES - states
    assert len(own.resident) == 6 and found.seconds < best.seconds


@pytest.mark.long
def test_states_stay_where_that_takes_no_time_but_moves_less() -> None:
    """Transfers that nobody waits for are transfers, too."""
    search = OffloadSearch(measured(40_000_000, float("inf")))
    best = search.best()
    own, found = search_resident_states(search, best)
    assert len(own.resident) == 6 and found.seconds <= best.seconds * (1 + TIME_TOLERANCE)
    sent, more = (each.simulation.transfers for each in (found, best))
    assert more is not None
    assert (0 if sent is None else sent.offloaded_bytes) + 6 * STATES <= more.offloaded_bytes
